/* page_groups.h: which layers of a model share a page of the key/value cache.
 *
 * A page (serve/pages.h) holds the keys and values of some tokens in the layers of one group. Where
 * some layers see all tokens and others only those of a window, the two kinds have groups of their
 * own, so that a sequence can give back what lies behind the window and keep the rest. All groups
 * have room for the same number of layers, `n_places`: so a page is equally large in each, one pool
 * has the pages of all, and memory that short texts use for the windows serves long texts for the
 * other layers. Gemma 3's 48 layers, every sixth of which sees all, are six groups of eight:
 *
 *     group      0               1             2             ...   5
 *     layers     5 11 17 .. 47   0 1 2 .. 8    9 10 12 ..          .. 45 46
 *     of L tokens it holds
 *                all             those of the window and of a step
 *
 * Where a kind's layers do not divide by n_places, its last group has places that no layer uses;
 * they cost memory. So n_places is chosen such that the longest sequence takes the least, padding
 * counted, and if no division saves anything, all layers are one group that keeps all. vLLM's
 * hybrid cache (docs.vllm.ai, design/hybrid_kv_cache_manager) divides layers in the same way; pools
 * of fixed sizes for each kind, as in TensorRT-LLM, would bind memory to a guess of how long texts
 * are. */
#ifndef LT_MODEL_PAGE_GROUPS_H
#define LT_MODEL_PAGE_GROUPS_H

#include "lateen/model.h"

/* Each group costs a table a sequence and step. */
#define LT_MAX_PAGE_GROUPS 8

typedef struct {
    int64_t n_full, n_windowed; /* Groups whose layers see all tokens, then the others. */
    int64_t n_places;           /* Layers of a group, at most. */
    uint8_t group[LT_MAX_LAYERS], place[LT_MAX_LAYERS];
} lt_page_groups;

static inline int64_t lt_page_groups_count(const lt_page_groups *g) {
    return g->n_full + g->n_windowed;
}

/* All layers in one group; windowed: all of them have a window, and their pages may be given
 * back. */
void lt_page_groups_one(lt_page_groups *out, const lt_model_spec *spec, bool windowed);
/* Of the longest sequence a group that keeps all holds `all` pages, a windowed one `near`. */
void lt_page_groups_choose(lt_page_groups *out, const lt_model_spec *spec, int64_t all,
                           int64_t near);

#endif

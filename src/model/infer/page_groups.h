/* page_groups.h: determines which layers of a model share a page of the key/value cache.
 *
 * A page (serve/pages.h) holds the keys and values of some tokens for the layers of one group. Full
 * layers attend to all tokens, and windowed layers to the last tokens only. The two kinds are in
 * different groups, so that a sequence can free the pages that windowed layers no longer see, and
 * keep those of full layers. Each group has room for the same number of layers, `n_places`.
 * Therefore all pages have the same size and come from one pool, and memory that short texts use
 * for windowed layers can hold full layers of long texts. Gemma 3 12B has 48 layers, and every
 * sixth is full. They form six groups of eight:
 *
 *     group      0               1             2             ...   5
 *     layers     5 11 17 .. 47   0 1 2 .. 8    9 10 12 ..          .. 45 46
 *     of L tokens it holds
 *                all             those of the window and of a step
 *
 * If the number of layers of a kind is not a multiple of n_places, the last group of that kind has
 * unused places, which take memory, too. n_places is chosen so that the longest sequence takes
 * the least memory, unused places included. If no division saves memory, all layers form one
 * group that keeps all pages. vLLM's hybrid cache (docs.vllm.ai, design/hybrid_kv_cache_manager)
 * divides layers in the same way. TensorRT-LLM has a pool of fixed size for each kind, which must
 * be chosen for an expected length of texts. */
#ifndef LT_MODEL_PAGE_GROUPS_H
#define LT_MODEL_PAGE_GROUPS_H

#include "lateen/model.h"

/* n / d, rounded up. */
static inline int64_t lt_div_up(int64_t n, int64_t d) {
    return (n + d - 1) / d;
}

/* Each group needs a table for each sequence in every step. */
#define LT_MAX_PAGE_GROUPS 8

typedef struct {
    int64_t n_full, n_windowed; /* Groups whose layers see all tokens, then the others. */
    int64_t n_places;           /* Most layers of a group. */
    uint8_t group[LT_MAX_LAYERS], place[LT_MAX_LAYERS];
} lt_page_groups;

static inline int64_t lt_page_groups_count(const lt_page_groups *g) {
    return g->n_full + g->n_windowed;
}

/* Put all layers into one group; windowed: all of them have a window, and pages that it has
 * passed may be freed. */
void lt_page_groups_one(lt_page_groups *out, const lt_model_spec *spec, bool windowed);
/* Choose the groups. For the longest sequence, a group that keeps everything has `all` pages, a
 * windowed one `near`. */
void lt_page_groups_choose(lt_page_groups *out, const lt_model_spec *spec, int64_t all,
                           int64_t near);

#endif

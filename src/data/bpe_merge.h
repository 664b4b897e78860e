/* bpe_merge.h: the two merge loops of bpe.c, for the encoder in bpe_cache.c. */
#ifndef LT_DATA_BPE_MERGE_H
#define LT_DATA_BPE_MERGE_H

#include "data/bpe.h"

#define LT_BPE_SMALL 64 /* Symbols; above, the heap is faster. */

/* Merge ids[0..n) in place; merge[i] is the merge of (i, i + 1) on entry, n - 1 of them. Returns how many are left. */
size_t lt_bpe_merge_small(const lt_bpe *b, uint32_t *ids, uint32_t *merge, size_t n);

typedef struct {
    uint32_t *ids, *merge, *next, *prev; /* (room) each, one block. */
    uint64_t *heap;                      /* (2 * room + 4) */
    size_t room;
} lt_bpe_list;

LT_MUST_USE lt_err lt_bpe_list_reserve(lt_bpe_list *l, size_t n);
void lt_bpe_list_free(lt_bpe_list *l);

/* Merge l->ids[0..n); the result stands in l->ids[0..returned). */
size_t lt_bpe_merge_list(const lt_bpe *b, lt_bpe_list *l, size_t n);

#endif

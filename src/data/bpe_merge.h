/* bpe_merge.h: the two merge loops of bpe.c, for the encoder in bpe_cache.c. */
#ifndef LT_DATA_BPE_MERGE_H
#define LT_DATA_BPE_MERGE_H

#include "data/bpe.h"

#define LT_BPE_SMALL 64 /* Symbols; above, a list is faster. */

/* Merge ids[0..n) in place; merge[i] is the merge of (i, i + 1) on entry, n - 1 of them. Returns how many are left. */
size_t lt_bpe_merge_small(const lt_bpe *b, uint32_t *ids, uint32_t *merge, size_t n);

static inline uint32_t lt_bpe_rank_of(const lt_bpe *b, uint32_t merge) {
    return b->merge_rank == NULL || merge == LT_NO_ID ? merge : b->merge_rank[merge];
}

static inline uint32_t lt_bpe_piece_of(const lt_bpe *b, uint32_t merge) {
    return b->merge_to == NULL ? merge : b->merge_to[merge];
}

/* Positions that wait in a rank's bucket: a chain of entries, first to last; head 0 is none. */
typedef struct {
    uint32_t head, tail;
} lt_bpe_bucket;

typedef struct {
    uint32_t *ids, *merge, *next, *prev; /* (room) each, one block. */
    uint64_t *heap;                      /* (2 * room + 4) */
    size_t room;

    lt_bpe_bucket *buckets; /* (n_buckets) by rank; all empty between words. */
    size_t n_buckets;
    uint32_t *at, *link;      /* (3 * bucket_room + 1) entries: position, next entry */
    uint32_t *taken, *sorted; /* (3 * bucket_room + 1) the bucket in hand */
    uint32_t *ranks;          /* (n_buckets + 1) a heap of the ranks whose buckets hold something */
    size_t n_ranks, bucket_room;
    uint32_t n_entries, free_entry;
} lt_bpe_list;

LT_MUST_USE lt_err lt_bpe_list_reserve(lt_bpe_list *l, size_t n);
void lt_bpe_list_free(lt_bpe_list *l);

/* Merge l->ids[0..n); the result stands in l->ids[0..*left). */
LT_MUST_USE lt_err lt_bpe_merge_list(const lt_bpe *b, lt_bpe_list *l, size_t n, size_t *left);

#endif

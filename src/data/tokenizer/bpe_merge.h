/* bpe_merge.h: encodes one word as ids, between the cache of words (bpe_cache.c) and the pair
 * table (bpe.c): first symbols (bpe_word.c) and the merge loops for a short word (bpe.c), a long
 * one (bpe_long.c) and many short ones side by side (bpe_lanes.c). */
#ifndef LT_DATA_BPE_MERGE_H
#define LT_DATA_BPE_MERGE_H

#include "data/tokenizer/bpe.h"

#define LT_BPE_SMALL 64 /* Most symbols of a short word; with more, a list is faster. */
#define LT_BPE_LANE  30 /* Most symbols of a word in a lane. */
#define LT_BPE_LANES 64 /* Most words merged side by side. */

/* Merge ids[0..n) in place; merge[i], i < n - 1, is the merge of (i, i + 1) on entry. Returns the
 * number of ids left. */
size_t lt_bpe_merge_small(const lt_bpe *b, uint32_t *ids, uint32_t *merge, size_t n);

static inline uint32_t lt_bpe_rank_of(const lt_bpe *b, uint32_t merge) {
    return b->merge_rank == NULL || merge == LT_NO_ID ? merge : b->merge_rank[merge];
}

static inline uint32_t lt_bpe_piece_of(const lt_bpe *b, uint32_t merge) {
    return b->merge_to == NULL ? merge : b->merge_to[merge];
}

/* The positions in a rank's bucket: a chain of entries, first to last; head 0: none. */
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
    uint32_t *taken, *sorted; /* (3 * bucket_room + 1) the bucket being swept */
    uint32_t *ranks;          /* (n_buckets + 1) a heap of the ranks whose buckets are not empty */
    size_t n_ranks, bucket_room;
    uint32_t n_entries, free_entry;
} lt_bpe_list;

/* A word that is merged side by side with others. Symbols are chained; 0 and n + 1 are ends, which
 * form no pairs. */
typedef struct {
    uint32_t ids[LT_BPE_LANE + 2];
    int32_t keys[LT_BPE_LANE + 2]; /* Key of the pair whose left symbol is at this place. */
    uint8_t next[LT_BPE_LANE + 2], prev[LT_BPE_LANE + 2];
    /* Requested: the pairs of the last merged symbol with the one before it and the one after
     * it, */
    uint64_t pair[2];
    const uint64_t *home[2];
    uint8_t at[2]; /* and the positions of their keys. */
    uint8_t n;     /* Number of symbols. */
} lt_bpe_lane;

LT_MUST_USE lt_err lt_bpe_list_reserve(lt_bpe_list *l, size_t n);
void lt_bpe_list_free(lt_bpe_list *l);

/* Merge l->ids[0..n); the result is l->ids[0..*left). */
LT_MUST_USE lt_err lt_bpe_merge_list(const lt_bpe *b, lt_bpe_list *l, size_t n, size_t *left);

/* Scratch for encoding one word. */
typedef struct {
    lt_bpe_list list;
    lt_text word;  /* A character with prefix and suffix. */
    lt_ids result; /* Ids of the current word. */
} lt_bpe_word;

void lt_bpe_word_free(lt_bpe_word *w);

/* Encode a word into w->result. */
LT_MUST_USE lt_err lt_bpe_encode_word(const lt_bpe *b, lt_bpe_word *w, const uint8_t *p, size_t n);

/* The most ids that n bytes in n_words words can become: one per byte, plus the byte pieces of
 * affixes where these are spelled out. */
size_t lt_bpe_most_symbols(const lt_bpe *b, size_t n, size_t n_words);

/* Whether words can be merged in lanes: the mode is BYTES, and a merge's number is its rank. */
static inline bool lt_bpe_has_lanes(const lt_bpe *b) {
    return b->mode == LT_BPE_BYTES && b->merge_rank == NULL;
}

/* Put the first symbols of a word into the lane. False: there are too many, or some byte has no
 * piece. */
bool lt_bpe_lane_start(const lt_bpe *b, lt_bpe_lane *l, const uint8_t *p, size_t n);

/* Merge all lanes; the result of each is in its ids[0..n). */
void lt_bpe_merge_lanes(const lt_bpe *b, lt_bpe_lane *const *lanes, size_t n_lanes);

#endif

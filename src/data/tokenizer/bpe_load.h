/* bpe_load.h: adds merges to the pair table, many at a time; see bpe_load.c. */
#ifndef LT_DATA_BPE_LOAD_H
#define LT_DATA_BPE_LOAD_H

#include "data/tokenizer/bpe.h"

#define LT_MERGE_BATCH 128

/* One pending merge: its two halves follow each other in the batch's text. */
typedef struct {
    size_t start;                    /* in the batch's text */
    uint32_t left_n, right_n, merge; /* bytes of the halves; number of the merge */
    uint64_t left_hash, right_hash, both_hash;
    uint32_t left, right, both; /* ids, or LT_NO_ID */
} lt_merge_job;

typedef struct {
    lt_bpe *bpe;
    const char *name; /* For messages. */
    size_t skip;      /* Bytes of the continuing prefix, which the right half loses. */
    lt_merge_job jobs[LT_MERGE_BATCH];
    size_t n;
    lt_text text, both;
    size_t merge_room;
} lt_merge_batch;

lt_merge_batch lt_merge_batch_open(lt_bpe *b, const char *name);
void lt_merge_batch_close(lt_merge_batch *m);

/* Add the next merge. Its halves are the last left_n + right_n bytes of m->text, which the caller
 * has put there. Its number is bpe->n_merges, which grows by one. FORMAT: a half or the product is
 * not a piece. */
LT_MUST_USE lt_err lt_merge_batch_put(lt_merge_batch *m, size_t left_n, size_t right_n);

/* Add a merge that can never apply: it only uses up a number. */
LT_MUST_USE lt_err lt_merge_batch_skip(lt_merge_batch *m);

LT_MUST_USE lt_err lt_merge_batch_flush(lt_merge_batch *m);

/* Fill b->chars; every piece's rank must be above those of the two pieces it is made of. See
 * bpe_chars.c. */
LT_MUST_USE lt_err lt_bpe_find_chars(lt_bpe *b);

#endif

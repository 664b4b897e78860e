/* dialogues.h: conversations as rows of tokens, one conversation a row, from its first token on.
 * Distillation learns from them, and a teacher's log-probabilities are computed for them. They are
 * the documents of shards with a label mask (data/conversations.h), in the order of the shards. */
#ifndef LT_ALIGN_DIALOGUES_H
#define LT_ALIGN_DIALOGUES_H

#include "lateen/data.h"

typedef struct {
    lt_shard *shards[LT_LOADER_SOURCES_MAX];
    int64_t first[LT_LOADER_SOURCES_MAX + 1]; /* First conversation of each shard, then n. */
    int n_shards;
    int64_t n; /* Conversations. */
    /* Hash of the shards' names, which contain hashes of the input the shards were made from. */
    uint64_t hash;
} lt_dialogues;

/* Append the conversations of a shard. Close *d also after a failure. */
LT_MUST_USE lt_err lt_dialogues_add(lt_dialogues *d, const char *prefix);
void lt_dialogues_close(lt_dialogues *d);

/* Read the first `most` tokens of conversation i: *n of them into ids (most), and into learnt
 * (most) whether the model is to write each. id_end: size of the vocabulary. */
LT_MUST_USE lt_err lt_dialogues_read(const lt_dialogues *d, int64_t i, int64_t most, int64_t id_end,
                                     int32_t *ids, bool *learnt, int64_t *n);

/* Write row `row` of *to: these tokens, and as labels the next tokens if they are learnt, else
 * -1. */
void lt_dialogues_row(const int32_t *ids, const bool *learnt, int64_t n, const lt_batch *to,
                      int64_t row);

/* Where the last answer begins: the first token of the last run of learnt tokens. 0: no token is
 * learnt, or that run begins the text. */
int64_t lt_dialogues_last_answer(const bool *learnt, int64_t n);

#endif

/* word_count.h: counts how often each pre-token occurs in text files, for BPE training. */
#ifndef LT_DATA_WORD_COUNT_H
#define LT_DATA_WORD_COUNT_H

#include "data/tokenizer/bpe_train.h"
#include "data/tokenizer/pretokenize.h"

typedef struct {
    uint64_t start; /* Offset into the pool. */
    uint32_t bytes;
    uint32_t hash; /* 0: an empty slot. No word has the hash 0. */
    uint64_t count;
} lt_word;

/* A hash table of words, with open addressing. */
typedef struct {
    lt_word *slots;
    size_t mask, n;
    lt_text pool;
} lt_word_map;

void lt_word_map_free(lt_word_map *m);

/* Count the words of all inputs with this pre-tokenizer. */
LT_MUST_USE lt_err lt_word_count(const lt_bpe_train_options *o, const lt_pretok *pretok,
                                 lt_word_map *out, lt_bpe_train_stats *stats);

#endif

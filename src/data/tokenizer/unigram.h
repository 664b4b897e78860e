/* unigram.h: the Unigram model: finds, among all ways to cut a word into pieces, the one with the
 * highest sum of log-probabilities. */
#ifndef LT_DATA_UNIGRAM_H
#define LT_DATA_UNIGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/trie.h"

typedef struct {
    lt_trie trie;  /* Value: id. */
    double *score; /* (n_ids) log-probability */
    uint8_t *user; /* (n_ids) 1: user-defined, always preferred */
    double min_score, max_score;
    uint32_t unk;
    uint32_t n_scores; /* Pieces of the model; greater ids are added tokens. */
    /* If not NULL, a run of unknowns that is a piece becomes that piece, as in Hugging Face. */
    const lt_vocab *vocab;
    /* Sums are in single precision, as in SentencePiece; false: in double, as in Hugging Face. */
    bool single;
    bool byte_fallback;
    uint32_t fallback_id[256];
} lt_unigram;

typedef struct {
    double *best;        /* (n + 1) score of the best path to this byte */
    uint32_t *from, *id; /* (n + 1) where its last piece begins; its id */
    size_t room;
} lt_unigram_scratch;

void lt_unigram_free(lt_unigram *u);
void lt_unigram_scratch_free(lt_unigram_scratch *s);

/* Append the ids of one word; neighbouring unknown characters become one <unk>, or their byte
 * pieces. */
LT_MUST_USE lt_err lt_unigram_encode(const lt_unigram *u, lt_unigram_scratch *s, const uint8_t *p,
                                     size_t n, lt_ids *out);

#endif

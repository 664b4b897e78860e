/* wordpiece.h: WordPiece (BERT): greedy longest match from the left; inner pieces carry a
 * prefix. */
#ifndef LT_DATA_WORDPIECE_H
#define LT_DATA_WORDPIECE_H

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/vocab.h"

typedef struct {
    const lt_vocab *vocab;
    char prefix[32]; /* "##" */
    uint32_t unk;
    char unk_name[64];  /* For the message if the vocabulary lacks it. */
    uint32_t max_chars; /* Longer words are <unk>. */
} lt_wordpiece;

LT_MUST_USE lt_err lt_wordpiece_encode(const lt_wordpiece *w, lt_text *scratch, const uint8_t *p,
                                       size_t n, lt_ids *out);

/* WordLevel: the whole word is a piece or <unk>. Uses vocab, unk and unk_name. */
LT_MUST_USE lt_err lt_wordlevel_encode(const lt_wordpiece *w, const uint8_t *p, size_t n,
                                       lt_ids *out);

#endif

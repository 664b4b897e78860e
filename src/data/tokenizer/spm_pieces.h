/* spm_pieces.h: SentencePiece's two models without scores: every character is a piece (CHAR), or
 * every word is one (WORD). */
#ifndef LT_DATA_SPM_PIECES_H
#define LT_DATA_SPM_PIECES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer/trie.h"
#include "data/tokenizer/vocab.h"
#include "lateen/tokenizer.h"

typedef struct {
    const lt_vocab *vocab;
    const lt_trie *user;         /* CHAR: user-defined symbols, which are taken whole. */
    const uint32_t *fallback_id; /* (256) byte pieces; LT_NO_ID: there is none */
    bool words, byte_fallback;
    uint32_t unk;
} lt_spm_pieces;

/* Append the ids of normalised text p[0..n). */
LT_MUST_USE lt_err lt_spm_pieces_encode(const lt_spm_pieces *m, const uint8_t *p, size_t n,
                                        lt_ids *out);

#endif

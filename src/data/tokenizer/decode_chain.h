/* decode_chain.h: Hugging Face's decoders in any sequence, applied to tokens as they arrive. */
#ifndef LT_DATA_DECODE_CHAIN_H
#define LT_DATA_DECODE_CHAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer/unicode.h"
#include "lateen/base.h"

typedef enum {
    LT_DECODE_REPLACE,       /* from (or regex) -> to within each token */
    LT_DECODE_METASPACE,     /* from is the replacement; `prepend`: the first token loses it */
    LT_DECODE_BYTE_FALLBACK, /* <0xHH> pieces become bytes */
    LT_DECODE_FUSE,          /* Later steps work on the whole text. */
    LT_DECODE_STRIP,         /* from (one character), up to start / stop times */
    LT_DECODE_WORDPIECE,     /* from is the prefix; cleanup */
    LT_DECODE_SUFFIX,        /* from is the end-of-word suffix */
    LT_DECODE_JOIN,          /* Tokens are separated by spaces (a file without a decoder). */
    /* Repeated tokens and from (the pad) are dropped; cleanup; to becomes a space */
    LT_DECODE_CTC,
    LT_DECODE_BYTE_LEVEL /* GPT-2's printable characters become bytes. */
} lt_decode_kind;

typedef struct {
    lt_decode_kind kind;
    lt_text from, to;
    struct lt_regex *regex;
    bool prepend, cleanup;
    uint32_t start, stop;
} lt_decode_op;

#define LT_MAX_DECODE_OPS 64

/* Texts one after another: token i is [ends[i - 1], ends[i]). */
typedef struct {
    lt_text text;
    size_t *ends;
    size_t n, room;
} lt_decode_tokens;

/* The state of one step between two tokens. */
typedef struct {
    const lt_decode_op *op;
    /* An earlier step joined all tokens into one: the input arrives as pieces of it. */
    bool fused;
    bool whole;     /* fused: the step needs the whole text at once, and gets it at the end. */
    bool first;     /* No token has arrived yet. */
    bool holds;     /* SUFFIX, CTC: `held` is a token. */
    size_t n_run;   /* BYTE_FALLBACK: bytes in `held`. */
    uint32_t strip; /* STRIP, fused: how many characters may still be stripped. */
    lt_text held;
} lt_decode_stage;

typedef struct {
    lt_decode_stage stages[LT_MAX_DECODE_OPS];
    int n;
    lt_decode_tokens in, out;
    lt_text work, other; /* The current token. */
    bool gone;           /* At the end: a CTC has dropped the one token of a fused text. */
    struct lt_regex_scratch *regex;
} lt_decode_chain;

/* c is zeroed; ops must outlive it. */
void lt_decode_chain_open(lt_decode_chain *c, const lt_decode_op *ops, int n);
void lt_decode_chain_close(lt_decode_chain *c);

/* The tokens continue a text: the first one is not treated as first. */
void lt_decode_chain_continue(lt_decode_chain *c);

/* Feed a token (NULL: none), and append the text that can no longer change. final: no token
 * follows. */
LT_MUST_USE lt_err lt_decode_chain_apply(lt_decode_chain *c, const char *token, size_t n,
                                         bool final, lt_text *text);

/* Append the bytes of a token that stands between others, after lt_decode_chain_continue. Steps
 * that look at several tokens at once do not see the others: a byte piece stays as it is. */
LT_MUST_USE lt_err lt_decode_chain_alone(lt_decode_chain *c, const char *token, size_t n,
                                         lt_text *text);

/* The byte that ByteFallback decodes a token to, or -1. */
int lt_decode_byte(const char *s, size_t n);

#endif

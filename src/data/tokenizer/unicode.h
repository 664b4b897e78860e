/* unicode.h: UTF-8, character properties and normal forms, as defined by the common tokenizers.
 *
 * Properties are those of Unicode 16 as Oniguruma and Rust's regex crate report them (they agree on
 * every code point); normal forms those of the Unicode 10 tables inside Hugging Face tokenizers.
 * tools/make_unicode_tables.py asks the packages and writes unicode_tables.c. */
#ifndef LT_DATA_UNICODE_H
#define LT_DATA_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/encoding.h" /* lt_utf8_encode */
#include "data/text_utf8.h"
#include "data/tokenizer/unicode_tables.h"
#include "lateen/base.h"

/* Bits in the order of the script's list. */
enum {
    LT_UNICODE_LETTER = 1 << 0,       /* \p{L} */
    LT_UNICODE_NUMBER = 1 << 1,       /* \p{N} */
    LT_UNICODE_MARK = 1 << 2,         /* \p{M} */
    LT_UNICODE_PUNCT = 1 << 3,        /* \p{P} */
    LT_UNICODE_SYMBOL = 1 << 4,       /* \p{S} */
    LT_UNICODE_SPACE = 1 << 5,        /* \s: White_Space */
    LT_UNICODE_UPPERISH = 1 << 6,     /* [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}] */
    LT_UNICODE_LOWERISH = 1 << 7,     /* [\p{Ll}\p{Lm}\p{Lo}\p{M}] */
    LT_UNICODE_NEWLINE = 1 << 8,      /* [\r\n] */
    LT_UNICODE_NUMERIC = 1 << 9,      /* What the Digits pre-tokenizer cuts. */
    LT_UNICODE_PUNCT_SPLIT = 1 << 10, /* What the Punctuation pre-tokenizer cuts. */
    LT_UNICODE_WORD = 1 << 11,        /* \w */
    LT_UNICODE_ACCENT = 1 << 12,      /* What StripAccents removes. */
    LT_UNICODE_BERT_GONE = 1 << 13,   /* What BertNormalizer's clean_text removes, */
    LT_UNICODE_BERT_BLANK = 1 << 14,  /* turns into a space, */
    LT_UNICODE_BERT_HAN = 1 << 15,    /* puts between spaces, */
    LT_UNICODE_BERT_MARK = 1 << 16,   /* and strips as an accent. */
    LT_UNICODE_NFC_INERT = 1 << 18,   /* Text of such characters only is its own NFC. */
    LT_UNICODE_HAN = 1 << 17,         /* \p{Han} */
    LT_UNICODE_EXTEND = 1 << 19       /* Joins the grapheme cluster before it. */
};

static inline uint32_t lt_unicode_flags(uint32_t cp) {
    const uint32_t block = lt_unicode_kind_index[cp / LT_UNICODE_BLOCK];
    return lt_unicode_kind_flags[lt_unicode_kind_blocks[block * LT_UNICODE_BLOCK +
                                                        cp % LT_UNICODE_BLOCK]];
}

#define LT_UNICODE_REPLACEMENT 0xFFFDu

/* Decode the character at p < end: its length (1 to 4) is returned, the code point left in *cp. A
 * byte that begins no valid character counts as one character U+FFFD of length 1. */
size_t lt_utf8_decode(const uint8_t *p, const uint8_t *end, uint32_t *cp);

/* Bytes of the maximal ill-formed subsequence at p (one U+FFFD by the Unicode standard's practice),
 * 0 if a valid character begins at p. *incomplete: the bytes up to end could still become a
 * character. */
size_t lt_utf8_bad(const uint8_t *p, const uint8_t *end, bool *incomplete);

/* A growing string; zeroed is empty. data may contain 0 bytes and is not terminated. */
typedef struct {
    char *data;
    size_t n, room;
} lt_text;

LT_MUST_USE lt_err lt_text_reserve(lt_text *t, size_t extra);
LT_MUST_USE lt_err lt_text_put(lt_text *t, const char *s, size_t n);
LT_MUST_USE lt_err lt_text_put_cp(lt_text *t, uint32_t cp);
void lt_text_free(lt_text *t);

/* Append s with each ill-formed subsequence replaced by U+FFFD. */
LT_MUST_USE lt_err lt_text_put_valid(lt_text *t, const char *s, size_t n);

/* Move the whole characters of *held to the end of *out. Bytes that may still become a character
 * stay, unless `final` says that nothing follows. Ill-formed bytes become U+FFFD: one for each
 * maximal run, or one per byte. */
LT_MUST_USE lt_err lt_text_assemble(lt_text *out, lt_text *held, bool per_byte, bool final);

typedef enum { LT_UNICODE_NFC, LT_UNICODE_NFD, LT_UNICODE_NFKC, LT_UNICODE_NFKD } lt_unicode_form;

/* Append the normal form of s[0..n) (valid UTF-8) to out. */
LT_MUST_USE lt_err lt_unicode_normalize(lt_unicode_form form, const char *s, size_t n,
                                        lt_text *out);

/* The basis of normal forms: the canonical combining class; the composite of two characters, or
 * 0; the full decomposition, canonical or by compatibility, and its number of characters. */
unsigned lt_unicode_class(uint32_t cp);
uint32_t lt_unicode_compose(uint32_t a, uint32_t b);
#define LT_UNICODE_PARTS 18 /* The longest: U+FDFA. */
size_t lt_unicode_decompose(uint32_t cp, bool compat, uint32_t parts[LT_UNICODE_PARTS]);

/* The script that the UnicodeScripts pre-tokenizer assigns to cp, as a number of our own; 0: it
 * belongs to every script. */
uint32_t lt_unicode_script(uint32_t cp);

/* Lower case of one code point: *n code points (the code point itself if nothing changes). */
const uint32_t *lt_unicode_lower(const uint32_t *cp, size_t *n);
/* Upper case of one code point, if it is one code point; else the code point itself. */
uint32_t lt_unicode_upper(uint32_t cp);

#endif

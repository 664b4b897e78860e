/* normalize.h: the string-to-string step before pre-tokenisation: normal forms, case, replacements,
 * SentencePiece's charsmap. */
#ifndef LT_DATA_NORMALIZE_H
#define LT_DATA_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer/regex.h"
#include "data/tokenizer/unicode.h"
#include "lateen/base.h"

typedef enum {
    LT_NORM_FORM, /* form */
    LT_NORM_LOWERCASE,
    LT_NORM_STRIP, /* left, right */
    LT_NORM_STRIP_ACCENTS,
    LT_NORM_REPLACE, /* from (or regex) -> to */
    LT_NORM_PREPEND, /* to, unless the text is empty */
    LT_NORM_BERT,    /* clean, han, accents, lower */
    LT_NORM_NMT,
    LT_NORM_CHARSMAP, /* charsmap, by grapheme as Hugging Face does */
    LT_NORM_BYTE_MAP
} lt_norm_kind;

/* SentencePiece's precompiled map: a double-array trie over UTF-8, followed by the replacement
 * strings. */
typedef struct {
    lt_text blob;          /* Owned copy. */
    const uint32_t *units; /* (n_units) inside blob */
    size_t n_units;
    const char *strings;
    size_t strings_bytes;
} lt_charsmap;

LT_MUST_USE lt_err lt_charsmap_open(lt_charsmap *out, const void *data, size_t bytes,
                                    const char *name);
void lt_charsmap_free(lt_charsmap *m);

/* Find the longest (or shortest) mapped prefix of s: returns its length, 0 if there is none; *to
 * is the replacement. */
size_t lt_charsmap_find(const lt_charsmap *m, const char *s, size_t n, bool longest,
                        const char **to, size_t *to_bytes);

typedef struct {
    lt_norm_kind kind;
    lt_unicode_form form;
    bool left, right;
    bool clean, han, accents, lower;
    lt_text from, to;
    struct lt_regex *regex;
    lt_charsmap charsmap;
} lt_norm;

#define LT_MAX_NORMS 32

typedef struct {
    lt_norm norms[LT_MAX_NORMS];
    int n_norms;
} lt_normalizer;

/* See normalize_align.c. */
typedef struct {
    uint32_t cp;
    uint64_t order; /* Canonical order: combining class, then position. */
    int64_t change;
} lt_norm_change;

typedef struct {
    lt_norm_change *items;
    size_t n, room;
} lt_norm_changes;

typedef struct {
    lt_text text, first; /* `first` has a byte for each byte of the text. */
    lt_text other, other_first;
    lt_norm_changes changes;
} lt_norm_aligned;

typedef struct {
    lt_text texts[2];
    struct lt_regex_scratch *regex;
    lt_norm_aligned aligned;
    size_t from_bytes; /* Bytes of the current text. */
} lt_norm_scratch;

LT_MUST_USE lt_err lt_normalizer_add(lt_normalizer *n,
                                     /* Takes ownership of its texts, also on failure. */
                                     lt_norm norm);
void lt_normalizer_free(lt_normalizer *n);
void lt_norm_scratch_free(lt_norm_scratch *s);

/* Normalise valid UTF-8. *out is the input itself if nothing changed, otherwise scratch that is
 * valid until the next call. */
LT_MUST_USE lt_err lt_normalizer_apply(const lt_normalizer *n, lt_norm_scratch *s, const char *text,
                                       size_t bytes, const char **out, size_t *out_bytes);

/* The same for the beginning of a text, always into scratch, with (*first)[i] 1 if byte i of *out
 * stands for input that begins at byte 0. */
LT_MUST_USE lt_err lt_normalizer_apply_aligned(const lt_normalizer *n, lt_norm_scratch *s,
                                               const char *text, size_t bytes, const char **out,
                                               size_t *out_bytes, const char **first);

/* The replacements of a step may make a text longer. A text beyond both bounds fails with
 * LIMIT. */
#ifndef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
#define LT_NORM_BYTES_MAX ((size_t)64 << 20)
#else
#define LT_NORM_BYTES_MAX ((size_t)1 << 16)
#endif
#define LT_NORM_GROWTH_MAX 64
LT_MUST_USE lt_err lt_norm_check_size(size_t from, size_t to);

/* ---- Steps that both implementations share ---- */

/* Nmt: *to replaces the character; false: it is dropped. */
bool lt_norm_nmt(uint32_t cp, uint32_t *to);
/* The first occurrence of a needle of n bytes; NULL: none, or n is 0. Uses memmem in windows,
 * because a memory checker reads the whole range before each search: a text with many occurrences
 * would be read once for each. */
const char *lt_norm_find_bytes(const char *s, size_t bytes, const char *needle, size_t n);
/* Replace: find the next match at or after `at`. */
LT_MUST_USE lt_err lt_norm_find(const lt_norm *n, lt_norm_scratch *scratch, const char *s,
                                size_t bytes, size_t at, lt_regex_cursor *cursor, bool *found,
                                size_t *begin, size_t *end);
/* Strip: find the part of s[0..bytes) that is kept. */
void lt_norm_strip(const lt_norm *n, const char *s, size_t bytes, const char **begin, size_t *left);
/* Precompiled: the end of the grapheme cluster at p; whether the map has the whole cluster. */
const uint8_t *lt_norm_cluster_end(const uint8_t *p, const uint8_t *end);
bool lt_norm_map_cluster(const lt_norm *n, const uint8_t *p, const uint8_t *q, const char **to,
                         size_t *to_bytes);

#endif

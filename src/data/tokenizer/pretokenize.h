/* pretokenize.h: cuts a segment of text into the words that the model encodes one by one.
 *
 * A pre-tokenizer is a chain of stages, each of which cuts (and a few rewrite) the pieces of the
 * previous stage. A chain for which there is a hand-written scanner has that scanner and no
 * stages. This is the fast path, which callers run themselves with lt_scan_fn. */
#ifndef LT_DATA_PRETOKENIZE_H
#define LT_DATA_PRETOKENIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/tokenizer/regex.h"
#include "data/tokenizer/scan.h"
#include "data/tokenizer/unicode.h"
#include "lateen/base.h"

typedef enum {
    LT_CUT_SCAN,         /* scan: every word isolated */
    LT_CUT_REGEX,        /* regex, behaviour, invert */
    LT_CUT_LITERAL,      /* literal, behaviour, invert */
    LT_CUT_CHARS,        /* flags (each character with one of them), behaviour */
    LT_CUT_WORDS,        /* \w+|[^\w\s]+, the rest removed */
    LT_CUT_BERT,         /* White space removed, punctuation isolated. */
    LT_CUT_METASPACE,    /* ' ' becomes literal; prepend; then cut before each literal */
    LT_CUT_PREFIX_SPACE, /* ByteLevel's add_prefix_space */
    LT_CUT_BYTE_MAP,     /* Rewrite bytes as GPT-2's printable characters. */
    LT_CUT_SCRIPTS,      /* Cut before each change of script. */
    LT_CUT_LENGTH        /* Cut after every `length` characters. */
} lt_cut_kind;

typedef enum {
    LT_CUT_ISOLATED,
    LT_CUT_REMOVED,
    LT_CUT_WITH_PREVIOUS,
    LT_CUT_WITH_NEXT,
    LT_CUT_CONTIGUOUS
} lt_cut_behaviour;

typedef enum { LT_PREPEND_NEVER, LT_PREPEND_FIRST, LT_PREPEND_ALWAYS } lt_prepend;

typedef struct {
    lt_cut_kind kind;
    lt_cut_behaviour behaviour;
    bool invert;
    lt_scan_fn scan;
    uint32_t flags;     /* LT_UNICODE_* of CHARS */
    lt_text literal;    /* LITERAL's text, METASPACE's replacement */
    lt_prepend prepend; /* METASPACE */
    bool split;         /* METASPACE */
    size_t length;      /* LENGTH */
    struct lt_regex *regex;
    /* REGEX: 1 to 3 for DeepSeek-V3's three patterns, which scan.c knows as one scanner. */
    int deepseek;
} lt_cut;

#define LT_MAX_CUTS 16

typedef struct {
    lt_cut cuts[LT_MAX_CUTS];
    int n_cuts;
    /* If n_cuts is 0: the scanner that finds the words; NULL: the segment is one word. */
    lt_scan_fn scan;
} lt_pretok;

typedef struct {
    size_t begin, end;
} lt_range;

/* Pieces of one segment, and the text they are ranges of (the input, or a rewritten copy). */
typedef struct {
    const uint8_t *text;
    size_t text_bytes;
    lt_range *pieces;
    size_t n, room;
    lt_range *next; /* The stage's output. */
    size_t n_next, next_room;
    const char *first; /* NULL, or a byte for each byte of the text: see lt_pretok_run */
    lt_text texts[2], firsts[2];
    int n_rewrites;
    struct lt_regex_scratch *regex;
} lt_pieces;

void lt_pieces_free(lt_pieces *w);

/* Takes ownership of cut's text and regex, also on failure. */
LT_MUST_USE lt_err lt_pretok_add(lt_pretok *p, lt_cut cut);
LT_MUST_USE lt_err lt_pretok_add_regex(lt_pretok *p, const char *regex, size_t n,
                                       lt_regex_dialect dialect, lt_cut_behaviour behaviour,
                                       bool invert, const char *name);

/* Replace well-known chains by one scanner. */
void lt_pretok_optimise(lt_pretok *p);
void lt_pretok_free(lt_pretok *p);

/* Run the stages; w->pieces are then ranges of w->text. origin: the segment begins the whole text.
 * If first is not NULL, it says for each byte whether a piece that begins there is a first word
 * (normalize_align.c). */
LT_MUST_USE lt_err lt_pretok_run(const lt_pretok *p, lt_pieces *w, const uint8_t *text, size_t n,
                                 bool origin, const char *first);

/* Whether a stage prepends to first words, after stages whose pieces can be first words without
 * being at the beginning of the text. */
bool lt_pretok_needs_first(const lt_pretok *p, bool normalised);

/* GPT-2's mapping of bytes to printable characters (U+0021.. , U+0100..) and back; -1 if cp maps to
 * no byte. */
uint32_t lt_byte_char(uint8_t byte);
int lt_char_byte(uint32_t cp);

#endif

/* regex.h: PCRE2 with JIT, for the patterns that have no hand-written scanner.
 *
 * regex_rewrite.h translates the dialects. */
#ifndef LT_DATA_REGEX_H
#define LT_DATA_REGEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

typedef enum {
    LT_REGEX_ONIGURUMA, /* The Ruby syntax of Hugging Face's patterns. */
    LT_REGEX_RUST       /* The crates fancy-regex and regex, which tiktoken uses. */
} lt_regex_dialect;

typedef struct lt_regex lt_regex;
typedef struct lt_regex_scratch lt_regex_scratch; /* One per thread. */

LT_MUST_USE lt_err lt_regex_open(lt_regex **out, const char *pattern, size_t n,
                                 lt_regex_dialect dialect, const char *name);
void lt_regex_close(lt_regex *r);

/* Whether it may match an empty string. */
bool lt_regex_may_be_empty(const lt_regex *r);

LT_MUST_USE lt_err lt_regex_scratch_open(lt_regex_scratch **out);
void lt_regex_scratch_close(lt_regex_scratch *s);

/* First match at or after `from`. *found false: none. */
LT_MUST_USE lt_err lt_regex_find(const lt_regex *r, lt_regex_scratch *s, const char *text, size_t n,
                                 size_t from, bool *found, size_t *begin, size_t *end);

/* The position of lt_regex_next; zeroed: the beginning. */
typedef struct {
    size_t from, last_end;
    bool any;
} lt_regex_cursor;

/* The matches in turn, as in Hugging Face's find_iter: an empty match directly after the
 * previous match does not count, and an empty text has no match at all. */
LT_MUST_USE lt_err lt_regex_next(const lt_regex *r, lt_regex_scratch *s, const char *text, size_t n,
                                 lt_regex_cursor *at, bool *found, size_t *begin, size_t *end);

#endif

/* text_utf8.h: validates UTF-8 and replaces invalid parts. Overlong forms, surrogates and code
 * points above U+10FFFF are invalid (Unicode 15, table 3-7). */
#ifndef LT_DATA_TEXT_UTF8_H
#define LT_DATA_TEXT_UTF8_H

#include <stddef.h>

#define LT_UTF8_REPLACEMENT       "\xEF\xBF\xBD" /* U+FFFD */
#define LT_UTF8_REPLACEMENT_BYTES 3

/* Escapes of lone surrogates (\ud800) in JSON. UTF-8 text cannot hold one, so each is counted,
 * replaced or refused like an invalid part. */
typedef struct {
    size_t n, first; /* Their number, and the position of the first one. */
} lt_lone_escapes;
#define LT_LONE_ESCAPES_SAID " (lone surrogate escapes: %llu)" /* After a number of parts. */

/* Bytes of the longest valid prefix; equal to bytes if the whole text is valid. */
size_t lt_utf8_valid_prefix(const char *text, size_t bytes);

/* Copy text into `to`, each maximal invalid part replaced by one U+FFFD, as Unicode recommends and
 * as Python's errors="replace" does. `to` must have room for 3 * bytes; NULL: only count. Returns
 * the bytes of the result. */
size_t lt_utf8_replace_invalid(char *to, const char *text, size_t bytes);

/* Number of maximal invalid parts of the text; if there are any, *first is the position of the
 * first. */
size_t lt_utf8_count_invalid(const char *text, size_t bytes, size_t *first);

#endif

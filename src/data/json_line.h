/* json_line.h: reads one string member of a line of JSON in one pass, without building a document
 * tree.
 *
 * Corpora are terabytes of {"text": "..."}; a document tree for each line would cost more than the
 * rest of the reader. The whole line is checked against RFC 8259 (depth at most
 * LT_JSON_LINE_DEPTH); tests/fuzz/fuzz_jsonl.c checks that it agrees with jansson. Of repeated keys
 * the last one counts, as in other readers. */
#ifndef LT_DATA_JSON_LINE_H
#define LT_DATA_JSON_LINE_H

#include <stdbool.h>
#include <stddef.h>

#include "data/text_utf8.h"
#include "lateen/base.h"

#define LT_JSON_LINE_DEPTH 512

/* Memory that grows as needed and is reused; free with lt_text_buffer_free. */
typedef struct {
    char *data;
    size_t room;
} lt_text_buffer;

LT_MUST_USE lt_err lt_text_buffer_reserve(lt_text_buffer *b, size_t bytes);
void lt_text_buffer_free(lt_text_buffer *b);

/* Unescape the string member `field` of the object line[0..bytes) into out->data; *out_bytes is its
 * length. A lone surrogate escape fails if lone is NULL; otherwise it becomes U+FFFD, and *lone is
 * set to their number in this string and the position of the first in the line. FORMAT: not JSON,
 * or not a string; NOT_FOUND: no such member, or null. Error texts begin with the column; the
 * caller adds file and line. */
LT_MUST_USE lt_err lt_json_line_string(lt_text_buffer *out, size_t *out_bytes, const char *line,
                                       size_t bytes, const char *field, lt_lone_escapes *lone);

/* Find the lone surrogate escapes of a whole line, which need not be JSON. */
lt_lone_escapes lt_json_line_lone(const char *line, size_t bytes);

/* Replace each of them by \ufffd, in place. */
void lt_json_line_replace_lone(char *line, size_t bytes);

#endif

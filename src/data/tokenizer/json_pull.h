/* json_pull.h: a JSON reader that reads a text once, left to right, without building a tree.
 *
 * It is for the two places where a tree is too slow: tokenizer.json (28 MB, 650,000 strings) and
 * lines of JSON with long texts. Strings without escapes are slices of the input; others are
 * unescaped into a buffer of the reader.
 *
 *     lt_json_pull j = lt_json_pull_over(text, bytes, "tokenizer.json");
 *     LT_TRY(lt_json_pull_begin(&j, '{'));
 *     for (;;) {
 *         LT_TRY(lt_json_pull_key(&j, &key, &more));      key == NULL data: the object has ended
 *         if (!more) { break; }
 *         ... one of string / i64 / f64 / boolean / begin / slice / skip ...
 *     }
 *     lt_json_pull_close(&j);
 *
 * Escaped lone surrogates (\ud800) become U+FFFD and are counted; raw bytes are passed through
 * unchecked (callers that need valid UTF-8 check it). Nesting is limited to 128. Messages carry the
 * name and the byte offset. */
#ifndef LT_DATA_JSON_PULL_H
#define LT_DATA_JSON_PULL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/text_utf8.h"
#include "data/tokenizer/unicode.h"
#include "lateen/base.h"

typedef struct {
    const char *data;
    size_t n;
} lt_slice;

typedef struct {
    const char *start, *at, *end;
    const char *name;
    int depth;
    bool fresh;   /* The position is right after an opening bracket, so no comma is expected. */
    lt_text text; /* The last unescaped string. */
    /* Lone escapes of the last string; their positions are those of the text. */
    lt_lone_escapes lone;
} lt_json_pull;

lt_json_pull lt_json_pull_over(const char *text, size_t bytes, const char *name);
void lt_json_pull_close(lt_json_pull *j);

/* Kind of the next value by its first character: one of { [ " t f n - (number), or 0 at the end
 * or for any other character. */
char lt_json_pull_peek(lt_json_pull *j);

LT_MUST_USE lt_err lt_json_pull_begin(lt_json_pull *j, char bracket); /* '{' or '[' */

/* Read the next key of the object, or set *more to false past its closing brace. The key is valid
 * until the next call. */
LT_MUST_USE lt_err lt_json_pull_key(lt_json_pull *j, lt_slice *key, bool *more);

/* Step to the next element of the array, or set *more to false past its closing bracket. */
LT_MUST_USE lt_err lt_json_pull_next(lt_json_pull *j, bool *more);

/* Read a string, which is valid until the next call. */
LT_MUST_USE lt_err lt_json_pull_string(lt_json_pull *j, lt_slice *out);
LT_MUST_USE lt_err lt_json_pull_i64(lt_json_pull *j, int64_t *out);
LT_MUST_USE lt_err lt_json_pull_f64(lt_json_pull *j, double *out);
LT_MUST_USE lt_err lt_json_pull_bool(lt_json_pull *j, bool *out);

/* Skip any value; *out (may be NULL) is its text. */
LT_MUST_USE lt_err lt_json_pull_skip(lt_json_pull *j, lt_slice *out);

/* Check that only white space follows. */
LT_MUST_USE lt_err lt_json_pull_end(lt_json_pull *j);

bool lt_slice_is(lt_slice s, const char *text);

#endif

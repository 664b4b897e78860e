/* json.h: thin helpers over jansson whose failures name the file and the key. */
#ifndef LT_BASE_JSON_H
#define LT_BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lateen/base.h"

/* Parse a file of at most max_bytes. *out must be released with json_decref. */
LT_MUST_USE lt_err lt_json_load(json_t **out, const char *path, size_t max_bytes);
LT_MUST_USE lt_err lt_json_parse(json_t **out, const char *text, size_t bytes, const char *name);

/* json_loadb, except that integers beyond 64 bits, which jansson refuses, become reals:
 * 18446744073709551615 is a bound in many schemas. */
json_t *lt_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *why);

/* The same, but integers beyond 64 bits become strings of LT_JSON_LONG (U+FDD0, which no text has)
 * and their digits, so that none is lost. lt_json_dumps_exact, which is json_dumps otherwise,
 * writes them as integers again. lt_json_long gives the digits, and NULL for other values. */
#define LT_JSON_LONG "\xEF\xB7\x90"
json_t *lt_json_loadb_exact(const char *text, size_t bytes, size_t flags, json_error_t *why);
char *lt_json_dumps_exact(const json_t *value, size_t flags);
const char *lt_json_long(const json_t *value);
bool lt_json_is_text(const json_t *value); /* A string that does not represent such an integer. */

/* Flags of jansson for a line of data. A repeated member is an error, because either value may be
 * meant. */
#define LT_JSON_LINE (JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES)

/* Typed members of an object. Messages begin with `what`, the file's name. When the key is missing
 * or null, an optional member leaves *out unchanged, and a required one fails with NOT_FOUND; a
 * wrong type fails with FORMAT. */
LT_MUST_USE lt_err lt_json_i64(const json_t *obj, const char *key, int64_t *out, bool optional,
                               const char *what);
LT_MUST_USE lt_err lt_json_f64(const json_t *obj, const char *key, double *out, bool optional,
                               const char *what);
LT_MUST_USE lt_err lt_json_bool(const json_t *obj, const char *key, bool *out, bool optional,
                                const char *what);
LT_MUST_USE lt_err lt_json_str(const json_t *obj, const char *key, const char **out, bool optional,
                               const char *what); /* Lives as long as obj. */

/* Whether the value is missing (NULL), null, false, 0, {} or []. An option with such a value is
 * off. */
bool lt_json_is_off(const json_t *value);

#endif

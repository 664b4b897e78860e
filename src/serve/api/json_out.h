/* json_out.h: writes JSON directly into a growing text, without a tree, as streaming does thousands
 * of times a second.
 *
 *     lt_json_out o = {0};
 *     lt_out_open(&o, '{');
 *     lt_out_key_str(&o, "object", "list");
 *     lt_out_key(&o, "data"), lt_out_open(&o, '['), lt_out_int(&o, 1), lt_out_shut(&o, ']');
 *     lt_out_shut(&o, '}');                     o.data[0 .. o.n) is {"object":"list","data":[1]}
 *
 * The writer places commas. When memory runs out, `failed` is set and everything after it is
 * dropped, so a caller checks once, at the end. Strings must be valid UTF-8, as the tokenizer's
 * streams and jansson give them. */
#ifndef LT_SERVE_JSON_OUT_H
#define LT_SERVE_JSON_OUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "lateen/base.h"

typedef struct {
    char *data; /* 0-terminated after the first write. */
    size_t n, room;
    bool comma;  /* A comma is due before the next value or key. */
    bool failed; /* Out of memory. */
} lt_json_out;

void lt_out_free(lt_json_out *o);
void lt_out_clear(lt_json_out *o); /* Clear the text, and keep the memory. */

void lt_out_raw(lt_json_out *o, const char *text, size_t n); /* Unchanged, without a comma. */
void lt_out_rawf(lt_json_out *o, const char *fmt, ...) LT_PRINTF(2, 3);

void lt_out_open(lt_json_out *o, char bracket); /* '{' or '[' */
void lt_out_shut(lt_json_out *o, char bracket); /* '}' or ']' */
void lt_out_key(lt_json_out *o, const char *key);
void lt_out_str(lt_json_out *o, const char *text, size_t n);
void lt_out_text(lt_json_out *o, const char *text); /* 0-terminated; NULL: null. */
void lt_out_int(lt_json_out *o, int64_t value);
void lt_out_real(lt_json_out *o, double value); /* A value that is not finite becomes null. */
void lt_out_bool(lt_json_out *o, bool value);
void lt_out_null(lt_json_out *o);
void lt_out_value(lt_json_out *o, const json_t *value); /* A jansson tree; NULL: null. */

/* Key and value at once. */
void lt_out_key_str(lt_json_out *o, const char *key, const char *text);
void lt_out_key_int(lt_json_out *o, const char *key, int64_t value);
void lt_out_key_real(lt_json_out *o, const char *key, double value);
void lt_out_key_bool(lt_json_out *o, const char *key, bool value);
void lt_out_key_null(lt_json_out *o, const char *key);
void lt_out_key_open(lt_json_out *o, const char *key, char bracket);
void lt_out_key_value(lt_json_out *o, const char *key, const json_t *value);

#endif

/* json.c: see json.h. */
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

/* The end of the long integer that begins at p. Returns p for a number with a point or an exponent,
 * and for one with so few digits that it fits in 64 bits. */
static const char *long_integer(const char *p, const char *end) {
    const char *at = p;
    while (at < end && *at >= '0' && *at <= '9') {
        at++;
    }
    return at - p >= 19 && (at == end || (*at != '.' && *at != 'e' && *at != 'E')) ? at : p;
}

/* A copy with ".0" after each long integer outside of strings; NULL: no memory. */
static char *widen_integers(const char *text, size_t bytes, size_t *out_bytes) {
    const char *const end = text + bytes;
    char *copy = malloc(bytes + bytes / 19 * 2 + 3), *to = copy;
    bool quoted = false, in_number = false;
    for (const char *p = text; copy != NULL && p < end;) {
        const bool digit = *p >= '0' && *p <= '9';
        const char *stop = !quoted && !in_number && digit ? long_integer(p, end) : p;
        in_number = digit ||
                    (in_number && (*p == '.' || *p == 'e' || *p == 'E' || *p == '+' || *p == '-'));
        if (stop > p) {
            memcpy(to, p, (size_t)(stop - p));
            to += stop - p;
            *to++ = '.';
            *to++ = '0';
            p = stop;
            in_number = false;
            continue;
        }
        if (quoted && *p == '\\' && p + 1 < end) {
            *to++ = *p++;
        } else if (*p == '"') {
            quoted = !quoted;
        }
        *to++ = *p++;
    }
    *out_bytes = copy != NULL ? (size_t)(to - copy) : 0;
    return copy;
}

json_t *lt_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *why) {
    json_error_t own;
    json_t *root = json_loadb(text, bytes, flags, &own);
    if (root == NULL && json_error_code(&own) == json_error_numeric_overflow) {
        size_t n = 0;
        char *wide = widen_integers(text, bytes, &n);
        if (wide != NULL) {
            root = json_loadb(wide, n, flags, &own);
            free(wide);
        }
    }
    if (why != NULL) {
        *why = own;
    }
    return root;
}

lt_err lt_json_parse(json_t **out, const char *text, size_t bytes, const char *name) {
    json_error_t why;
    json_t *root = lt_json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (root == NULL) {
        LT_FAIL(LT_ERR_FORMAT, "%s:%d:%d: %s", name, why.line, why.column, why.text);
    }
    *out = root;
    return LT_OK;
}

lt_err lt_json_load(json_t **out, const char *path, size_t max_bytes) {
    lt_err err;
    char *text = NULL;
    size_t bytes = 0;
    LT_TRY(lt_file_read(&text, &bytes, path, max_bytes));
    err = lt_json_parse(out, text, bytes, path);
    free(text);
    return err;
}

/* The member, or NULL; *err says whether that is a failure. */
static const json_t *member(const json_t *obj, const char *key, bool optional, const char *what,
                            lt_err *err) {
    const json_t *value = json_object_get(obj, key);
    *err = LT_OK;
    if (value == NULL || json_is_null(value)) {
        if (!optional) {
            *err = lt_error_set(LT_ERR_NOT_FOUND, "%s: key '%s' is missing", what, key);
        }
        return NULL;
    }
    return value;
}

static lt_err wrong_type(const char *key, const char *wanted, const char *what) {
    LT_FAIL(LT_ERR_FORMAT, "%s: '%s' is not %s", what, key, wanted);
}

lt_err lt_json_i64(const json_t *obj, const char *key, int64_t *out, bool optional,
                   const char *what) {
    lt_err err;
    const json_t *value = member(obj, key, optional, what, &err);
    if (value == NULL) {
        return err;
    }
    if (json_is_integer(value)) {
        *out = (int64_t)json_integer_value(value);
        return LT_OK;
    }
    if (json_is_real(value) && json_real_value(value) >= -0x1p62 &&
        json_real_value(value) <= 0x1p62 &&
        (double)(int64_t)json_real_value(value) == json_real_value(value)) {
        *out = (int64_t)json_real_value(value); /* "1e4" and "8192.0" are integers, too. */
        return LT_OK;
    }
    return wrong_type(key, "a whole number", what);
}

lt_err lt_json_f64(const json_t *obj, const char *key, double *out, bool optional,
                   const char *what) {
    lt_err err;
    const json_t *value = member(obj, key, optional, what, &err);
    if (value == NULL) {
        return err;
    }
    if (!json_is_number(value)) {
        return wrong_type(key, "a number", what);
    }
    *out = json_number_value(value);
    return LT_OK;
}

lt_err lt_json_bool(const json_t *obj, const char *key, bool *out, bool optional,
                    const char *what) {
    lt_err err;
    const json_t *value = member(obj, key, optional, what, &err);
    if (value == NULL) {
        return err;
    }
    if (!json_is_boolean(value)) {
        return wrong_type(key, "true or false", what);
    }
    *out = json_is_true(value);
    return LT_OK;
}

lt_err lt_json_str(const json_t *obj, const char *key, const char **out, bool optional,
                   const char *what) {
    lt_err err;
    const json_t *value = member(obj, key, optional, what, &err);
    if (value == NULL) {
        return err;
    }
    if (!json_is_string(value)) {
        return wrong_type(key, "a string", what);
    }
    *out = json_string_value(value);
    return LT_OK;
}

bool lt_json_is_off(const json_t *value) {
    return value == NULL || json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && fpclassify(json_number_value(value)) == FP_ZERO) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0);
}

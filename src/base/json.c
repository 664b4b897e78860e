/* json.c: see json.h. */
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/* The end of the integer beyond 64 bits that begins at p, with its sign. Returns p for every other
 * number. */
static const char *long_integer(const char *p, const char *end) {
    const bool minus = *p == '-';
    const char *const first = p + minus, *at = first;
    size_t digits;
    while (at < end && is_digit(*at)) {
        at++;
    }
    digits = (size_t)(at - first);
    if (digits < 19 || (at < end && (*at == '.' || *at == 'e' || *at == 'E'))) {
        return p;
    }
    return digits > 19 ||
                   memcmp(first, minus ? "9223372036854775808" : "9223372036854775807", 19) > 0
               ? at
               : p;
}

/* A copy with `before` and `behind` around each integer beyond 64 bits outside strings; NULL: out
 * of memory. */
static char *mark_integers(const char *text, size_t bytes, const char *before, const char *behind,
                           size_t *out_bytes) {
    const char *const end = text + bytes;
    const size_t n_before = strlen(before), n_behind = strlen(behind);
    char *copy = malloc(bytes + (bytes / 19 + 1) * (n_before + n_behind)), *to = copy;
    bool quoted = false, in_number = false;
    for (const char *p = text; copy != NULL && p < end;) {
        const bool starts = is_digit(*p) || *p == '-';
        const char *stop = !quoted && !in_number && starts ? long_integer(p, end) : p;
        in_number = starts || (in_number && (*p == '.' || *p == 'e' || *p == 'E' || *p == '+'));
        if (stop > p) {
            memcpy(to, before, n_before);
            memcpy(to + n_before, p, (size_t)(stop - p));
            to += n_before + (size_t)(stop - p);
            memcpy(to, behind, n_behind);
            to += n_behind;
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

static json_t *load_marked(const char *text, size_t bytes, size_t flags, json_error_t *why,
                           const char *before, const char *behind) {
    json_error_t own;
    json_t *root = json_loadb(text, bytes, flags, &own);
    if (root == NULL && json_error_code(&own) == json_error_numeric_overflow) {
        size_t n = 0;
        char *marked = mark_integers(text, bytes, before, behind, &n);
        if (marked != NULL) {
            root = json_loadb(marked, n, flags, &own);
            free(marked);
        }
    }
    if (why != NULL) {
        *why = own;
    }
    return root;
}

json_t *lt_json_loadb(const char *text, size_t bytes, size_t flags, json_error_t *why) {
    return load_marked(text, bytes, flags, why, "", ".0");
}

json_t *lt_json_loadb_exact(const char *text, size_t bytes, size_t flags, json_error_t *why) {
    return load_marked(text, bytes, flags, why, "\"" LT_JSON_LONG, "\"");
}

/* Bytes of the digits and sign of a long integer at s, after LT_JSON_LONG; 0: there is none. */
static size_t long_bytes(const char *s, size_t n) {
    return n >= 19 && (is_digit(*s) || *s == '-') && long_integer(s, s + n) != s
               ? (size_t)(long_integer(s, s + n) - s)
               : 0;
}

const char *lt_json_long(const json_t *value) {
    const size_t n_mark = sizeof LT_JSON_LONG - 1, n = json_string_length(value);
    const char *s = json_string_value(value);
    return s != NULL && n > n_mark && memcmp(s, LT_JSON_LONG, n_mark) == 0 &&
                   long_bytes(s + n_mark, n - n_mark) == n - n_mark
               ? s + n_mark
               : NULL;
}

bool lt_json_is_text(const json_t *value) {
    return json_is_string(value) && lt_json_long(value) == NULL;
}

char *lt_json_dumps_exact(const json_t *value, size_t flags) {
    static const char mark[] = "\"" LT_JSON_LONG;
    const size_t n_mark = sizeof mark - 1;
    char *text = json_dumps(value, flags), *to, *from;
    for (to = from = text != NULL ? strstr(text, mark) : NULL; from != NULL && *from != '\0';) {
        const bool marked = strncmp(from, mark, n_mark) == 0;
        const size_t n = marked ? long_bytes(from + n_mark, strlen(from + n_mark)) : 0;
        if (n > 0 && from[n_mark + n] == '"' && from[n_mark + n + 1] != ':') {
            memmove(to, from + n_mark, n);
            to += n;
            from += n_mark + n + 1;
        } else {
            *to++ = *from++;
        }
    }
    if (to != NULL) {
        *to = '\0';
    }
    return text;
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

/* api_params.c: see api_params.h. */
#include "serve/api/api_params.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "data/text_utf8.h"
#include "base/option.h"
#include "serve/api/worker_pool.h"

#define MAX_ROWS 160

bool lt_api_refuse(lt_api_error *e, const char *param, const char *fmt, ...) {
    va_list args;
    *e = (lt_api_error){.status = 400, .type = "invalid_request_error"};
    snprintf(e->param, sizeof e->param, "%s", param != NULL ? param : "");
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    return false;
}

/* A path goes on over spaces, which are possible in names, up to a mark that ends it. */
void lt_api_hide_paths(char *text) {
    char *to = text;
    bool begins = true; /* A word. */
    for (const char *from = text; *from != '\0';) {
        size_t n = strcspn(from, ":,;'\"()\n"), last = 0, slashes = 0;
        for (size_t i = 0; begins && *from == '/' && i < n; i++) {
            last = from[i] == '/' && i + 1 < n ? i + 1 : last;
            slashes += from[i] == '/';
        }
        from += slashes > 1 ? last : 0;
        begins = strchr(" :,;'\"()\n=", *from) != NULL;
        *to++ = *from++;
    }
    *to = '\0';
}

bool lt_api_refuse_error(lt_api_error *e, const char *param, lt_err err) {
    char message[400];
    snprintf(message, sizeof message, "%s", lt_error_message());
    lt_api_hide_paths(message);
    lt_api_refuse(e, param, "%s", message);
    if (strcmp(message, lt_error_message()) != 0) {
        lt_log_warn("serve: %s", lt_error_message());
    }
    if (err == LT_ERR_LIMIT) {
        e->status = 429;
        e->type = "rate_limit_error";
        e->code = "queue_full";
        e->retry_after_s = 1;
    } else if (err != LT_ERR_ARG && err != LT_ERR_FORMAT && err != LT_ERR_UNSUPPORTED &&
               err != LT_ERR_NOT_FOUND) {
        e->status = 500;
        e->type = "server_error";
    }
    return false;
}

bool lt_api_refuse_oom(lt_api_error *e) {
    lt_api_refuse(e, NULL, "out of memory");
    e->status = 503;
    e->type = "server_error";
    e->retry_after_s = 1;
    return false;
}

void lt_api_params_defaults(lt_api_params *a) {
    *a = (lt_api_params){.n = 1,
                         .best_of = -1,
                         .temperature = 1,
                         .top_p = 1,
                         .typical_p = 1,
                         .repetition = 1,
                         .top_k = 0,
                         .seed = -1,
                         .max_tokens = -1,
                         .max_completion_tokens = -1,
                         .top_logprobs = -1,
                         .prompt_logprobs = -1,
                         .n_probs = -1,
                         .skip_special = true,
                         .parallel_tools = true,
                         .thinking_budget = -1,
                         .add_generation_prompt = true,
                         .include_reasoning = true,
                         .dimensions = -1,
                         .truncate_prompt = -2,
                         .parse_special = true,
                         .repeat_last_n = -2,
                         .dry_base = 1.75,
                         .dry_allowed = 2,
                         .dry_last_n = -1,
                         .xtc_threshold = 0.1,
                         .length_penalty = 1,
                         .speculate = true,
                         .most_drafts = LT_DRAFT_MOST,
                         /* The last ones are Lateen's own: docs/alignment.md. */
                         .group = {.n = 1,
                                   .tail = 0.25,
                                   .half_tail = 1,
                                   .keep = 0.5,
                                   .every = 64,
                                   .window = 2048,
                                   .warmup = 16,
                                   .eta = 0.1,
                                   .tau = 0.95,
                                   .round = INT64_MAX,
                                   .seed = -1},
                         .scale = 1,
                         .judge = {.activate = true, .with_documents = true},
                         .mark = {.gamma = -1, .delta = -1},
                         .control = {.threshold = 0.95,
                                     .budget = -1,
                                     .every = 64,
                                     .agree = 3,
                                     .probe_tokens = 20,
                                     .alpha = 0.2,
                                     .delta = 1e-3,
                                     .repetition = 0.5,
                                     .window = 256,
                                     .folds = 1}};
}

void lt_api_params_free(lt_api_params *a) {
    if (a->body != NULL) {
        lt_body_free(a->body);
    } else {
        json_decref(a->root);
    }
    a->body = NULL;
    a->root = NULL;
}

/* ---- One field ---- */

/* Set OpenAI's error code: clients that know it retry without the field. */
static bool with_code(lt_api_error *e, const char *code) {
    e->code = code;
    return false;
}

static const char *kind_of(const json_t *value) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return lt_json_long(value) != NULL ? "a number" : names[json_typeof(value)];
}

/* Write integers as integers: 1000000000, not 1e+09. */
static const char *number_text(double v, char out[32]) {
    snprintf(out, 32, v == floor(v) && fabs(v) < 1e21 ? "%.0f" : "%g", v);
    return out;
}

static bool read_number(void *to, const lt_field *f, const json_t *value, const char *param,
                        lt_api_error *e) {
    const char *digits = lt_json_long(value);
    const double v = digits != NULL ? strtod(digits, NULL) : json_number_value(value);
    char texts[3][32];
    if (!json_is_number(value) && digits == NULL) {
        lt_api_refuse(e, param, "'%s' must be a number, not %s", param, kind_of(value));
        return with_code(e, "invalid_type");
    }
    if (f->type == LT_FIELD_I64 && v != floor(v)) {
        lt_api_refuse(e, param, "'%s' must be a whole number, not %g", param, v);
        return with_code(e, "invalid_type");
    }
    if (!(v >= f->min && v <= f->max) ||
        (f->type == LT_FIELD_I64 && !json_is_integer(value) && !(fabs(v) < 0x1p63))) {
        lt_api_refuse(e, param, "'%s' is %.40s; it must be between %s and %s", param,
                      digits != NULL ? digits : number_text(v, texts[0]),
                      number_text(f->min, texts[1]), number_text(f->max, texts[2]));
        return with_code(e, "invalid_value");
    }
    if (f->type == LT_FIELD_I64) {
        *(int64_t *)to = json_is_integer(value) ? json_integer_value(value) : (int64_t)v;
    } else {
        *(double *)to = v;
    }
    return true;
}

static bool read_only(const lt_field *f, const json_t *value, const char *param, lt_api_error *e) {
    char *text = lt_json_dumps_exact(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    const size_t n = text != NULL ? strlen(text) : 0;
    bool found = false;

    for (const char *p = f->note; text != NULL && p != NULL && !found;) {
        const char *bar = strchr(p, '|');
        const size_t width = bar != NULL ? (size_t)(bar - p) : strlen(p);
        found = width == n && memcmp(p, text, n) == 0;
        p = bar != NULL ? bar + 1 : NULL;
    }
    if (!found) {
        lt_api_refuse(e, param, "'%s' = %.80s is not supported here; it may be %s", param,
                      text != NULL ? text : "?", f->note);
        e->code = "unsupported_value";
    }
    free(text);
    return found;
}

static bool read_field(lt_api_params *a, const lt_field *f, const json_t *value, const char *param,
                       lt_api_error *e) {
    char *at = (char *)a + f->offset;

    switch (f->type) {
    case LT_FIELD_BOOL:
        if (!json_is_boolean(value)) {
            lt_api_refuse(e, param, "'%s' must be true or false, not %s", param, kind_of(value));
            return with_code(e, "invalid_type");
        }
        *(bool *)at = json_is_true(value);
        return true;
    case LT_FIELD_I64:
    case LT_FIELD_F64:
        return read_number(at, f, value, param, e);
    case LT_FIELD_STR:
        if (!lt_json_is_text(value)) {
            lt_api_refuse(e, param, "'%s' must be a string, not %s", param, kind_of(value));
            return with_code(e, "invalid_type");
        }
        if (strlen(json_string_value(value)) != json_string_length(value)) {
            return lt_api_refuse(e, param, "'%s' holds a zero character (\\u0000)", param);
        }
        *(const char **)at = json_string_value(value);
        return true;
    case LT_FIELD_JSON:
        *(const json_t **)at = value;
        return true;
    case LT_FIELD_NOTHING:
        return true;
    case LT_FIELD_ONLY:
        return read_only(f, value, param, e);
    case LT_FIELD_REFUSED:
        break;
    }
    lt_api_refuse(e, param, "'%s' is not supported here: %s", param, f->note);
    return with_code(e, "unsupported_parameter");
}

/* Warn of an unknown field. Its name comes from a request, so newlines and terminal codes are
 * removed. */
static void warn_unknown(const char *where, const char *key) {
    char name[64];
    size_t n = 0;
    for (; key[n] != '\0' && n + 1 < sizeof name; n++) {
        name[n] = key[n] >= 0x20 && key[n] < 0x7F ? key[n] : '?';
    }
    name[n] = '\0';
    lt_log_warn("serve: ignoring the unknown field '%s%s' of a request", where, name);
}

static bool refuse_unknown(const lt_field *rows, size_t n_rows, const char *where, const char *key,
                           lt_api_error *e) {
    char hint[LT_NAME_HINT_BYTES];
    lt_api_refuse(e, NULL, "unknown field '%s%.60s'%s", where, key,
                  lt_name_hint(hint, key, rows, sizeof *rows, n_rows));
    snprintf(e->param, sizeof e->param, "%s%s", where, key);
    return with_code(e, "unknown_parameter");
}

bool lt_api_params_object(lt_api_params *a, const json_t *object, const lt_field *rows,
                          size_t n_rows, const char *where, lt_api_error *e) {
    const char *key;
    const json_t *value;

    LT_ASSERT(n_rows <= MAX_ROWS);
    for (void *it = json_object_iter((json_t *)object); it != NULL;
         it = json_object_iter_next((json_t *)object, it)) {
        const lt_field *f = NULL;
        char param[64];
        key = json_object_iter_key(it);
        value = json_object_iter_value(it);
        for (size_t i = 0; i < n_rows && f == NULL; i++) {
            f = strcmp(rows[i].name, key) == 0 ? &rows[i] : NULL;
        }
        if (f == NULL && (json_is_null(value) || a->unknown == LT_UNKNOWN_IGNORE)) {
            continue;
        }
        if (f == NULL && a->unknown == LT_UNKNOWN_WARN) {
            warn_unknown(where, key);
            continue;
        }
        if (f == NULL) {
            return refuse_unknown(rows, n_rows, where, key, e);
        }
        snprintf(param, sizeof param, "%s%s", where, f->name);
        if (!json_is_null(value) && !read_field(a, f, value, param, e)) {
            return false;
        }
    }
    if (a->truncate_prompt == 0) {
        lt_api_refuse(e, "truncate_prompt_tokens",
                      "'truncate_prompt_tokens' is 0, which would leave no token of the prompt; -1 "
                      "leaves as many as fit");
        return with_code(e, "invalid_value");
    }
    return true;
}

/* An upper bound on the number of values: commas and brackets outside strings. */
static size_t count_values(const char *text, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"') {
            for (i++; i < bytes && text[i] != '"'; i++) {
                i += text[i] == '\\';
            }
        } else {
            n += text[i] == ',' || text[i] == '[' || text[i] == '{';
        }
    }
    return n;
}

json_t *lt_body_parse(const char *body, size_t bytes, lt_api_error *e) {
    json_error_t why;
    json_t *root;
    size_t first = 0;
    if (bytes > LT_BODY_VALUES && count_values(body, bytes) > LT_BODY_VALUES) {
        lt_api_refuse(e, NULL, "the body holds more than %zu values", LT_BODY_VALUES);
        e->status = 413;
        return NULL;
    }
    root = lt_json_loadb_exact(body, bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    if (root == NULL && lt_utf8_count_invalid(body, bytes, &first) > 0) {
        lt_api_refuse(e, NULL, "the body is not UTF-8: %zu parts, the first at byte %zu",
                      lt_utf8_count_invalid(body, bytes, &first), first);
        return NULL;
    }
    if (root == NULL) {
        lt_api_refuse(e, NULL, "the body is not JSON: %s (line %d, column %d)", why.text, why.line,
                      why.column);
        return NULL;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        lt_api_refuse(e, NULL, "the body must be a JSON object");
        return NULL;
    }
    return root;
}

bool lt_api_params_preset(lt_api_params *a, const json_t *preset, lt_api_error *e) {
    static const lt_field rows[] = {LT_I64("max_tokens", max_tokens, -1, 1e12),
                                    LT_I64("thinking_budget", thinking_budget, -1, 1e9),
                                    LT_JSON("chat_template_kwargs", template_kwargs),
                                    LT_BOOL("verbose", verbose), LT_FIELDS_SAMPLING};
    return preset == NULL ||
           lt_api_params_object(a, preset, rows, sizeof rows / sizeof *rows, "", e);
}

bool lt_api_params_read(lt_api_params *a, const lt_field *rows, size_t n_rows, const char *body,
                        size_t bytes, lt_api_error *e) {
    a->root = lt_body_parse(body, bytes, e);
    return a->root != NULL && lt_api_params_object(a, a->root, rows, n_rows, "", e);
}

bool lt_api_params_read_body(lt_api_params *a, const lt_field *rows, size_t n_rows, lt_body *body,
                             lt_api_error *e) {
    a->body = body;
    a->root = body->root;
    if (a->root == NULL) {
        *e = body->error;
        return false;
    }
    return lt_api_params_object(a, a->root, rows, n_rows, "", e);
}

const char *lt_api_params_said(const lt_api_params *a, const char *const *names) {
    for (const char *const *p = names; *p != NULL; p++) {
        const json_t *value = json_object_get(a->root, *p);
        if (value != NULL && !json_is_null(value)) {
            return *p;
        }
    }
    return names[0];
}

const void *lt_api_params_row(const char *text, const char *param, const void *rows,
                              size_t row_bytes, size_t n, lt_api_error *e) {
    const void *row = lt_name_find(text, rows, row_bytes, n);
    char hint[LT_NAME_HINT_BYTES];
    if (row == NULL) {
        lt_api_refuse(e, param, "'%s' = %.40s is unknown%s", param, text,
                      lt_name_hint(hint, text, rows, row_bytes, n));
    }
    return row;
}

bool lt_api_params_strings(const json_t *value, const char *param, const char **texts,
                           size_t *lengths, int most, int *n, lt_api_error *e) {
    const size_t count = json_is_array(value) ? json_array_size(value) : 1;
    *n = 0;
    if (value == NULL) {
        return true;
    }
    if (count > (size_t)most) {
        return lt_api_refuse(e, param, "'%s' holds %zu strings; %d are allowed", param, count,
                             most);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *one = json_is_array(value) ? json_array_get(value, i) : value;
        if (!lt_json_is_text(one)) {
            return lt_api_refuse(e, param, "'%s' must be a string or a list of strings", param);
        }
        texts[*n] = json_string_value(one);
        lengths[(*n)++] = json_string_length(one);
    }
    return true;
}

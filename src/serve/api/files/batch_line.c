/* batch_line.c: see batch_line.h. */
#include "serve/api/files/batch_line.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/option.h"
#include "data/text_utf8.h"

#define MAX_CUSTOM_ID 512 /* Bytes. */

const char *lt_batch_endpoint_find(const char *path) {
    static const char *const endpoints[] = {"/v1/chat/completions", "/v1/completions",
                                            "/v1/embeddings"};
    const char *const *found = lt_name_find(path, endpoints, sizeof *endpoints,
                                            sizeof endpoints / sizeof *endpoints);
    return found != NULL ? *found : NULL;
}

static bool refuse(lt_batch_line *l, const char *code, const char *fmt, ...) LT_PRINTF(3, 4);
static bool refuse(lt_batch_line *l, const char *code, const char *fmt, ...) {
    char message[sizeof l->message / 3];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    l->message[lt_utf8_replace_invalid(l->message, message, strlen(message))] = '\0';
    l->code = code;
    return false;
}

/* Members that OpenAI defines; others are refused, so that a misspelt one is noticed. */
static bool check_members(lt_batch_line *l) {
    static const char *const known[] = {"custom_id", "method", "url", "body", NULL};
    const char *key;
    json_t *value;
    json_object_foreach(l->root, key, value) {
        if (!lt_name_is_one_of(key, known)) {
            return refuse(l, "unknown_member", "'%.60s' is not a member of a request of a batch",
                          key);
        }
    }
    return true;
}

bool lt_batch_line_read(lt_batch_line *out, const char *text, size_t n, const char *endpoint) {
    const char *method, *url;
    const json_t *id;
    lt_api_error e = {0};

    *out = (lt_batch_line){.root = lt_body_parse(text, n, &e)};
    if (out->root == NULL) {
        return refuse(out, "invalid_json_line", "%s", e.message);
    }
    id = json_object_get(out->root, "custom_id");
    method = json_string_value(json_object_get(out->root, "method"));
    url = json_string_value(json_object_get(out->root, "url"));
    out->body = json_object_get(out->root, "body");
    if (json_string_length(id) == 0 || json_string_length(id) > MAX_CUSTOM_ID ||
        strlen(json_string_value(id)) != json_string_length(id)) {
        return refuse(out, "missing_custom_id",
                      "'custom_id' must be a string of 1 to %d bytes without a 0", MAX_CUSTOM_ID);
    }
    out->custom_id = json_string_value(id);
    if (method == NULL || strcmp(method, "POST") != 0) {
        return refuse(out, "invalid_method", "'method' must be \"POST\"");
    }
    if (url == NULL || strcmp(url, endpoint) != 0) {
        return refuse(out, "mismatched_url", "'url' is %.80s; the batch is for %s",
                      url != NULL ? url : "missing", endpoint);
    }
    if (!json_is_object(out->body)) {
        return refuse(out, "missing_body", "'body' must be an object");
    }
    if (json_is_true(json_object_get(out->body, "stream"))) {
        return refuse(out, "invalid_body", "'stream' is true; a batch has whole answers");
    }
    return check_members(out);
}

void lt_batch_line_free(lt_batch_line *l) {
    json_decref(l->root);
    l->root = NULL;
}

bool lt_batch_line_is_blank(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') {
            return false;
        }
    }
    return true;
}

/* The part of "batch_ID" that occurs in the ids of its results. */
static const char *bare(const char *batch_id) {
    return batch_id + strlen("batch_");
}

int64_t lt_batch_result_line(const char *text, size_t n, const char *batch_id) {
    char begin[96];
    const int begin_n = snprintf(begin, sizeof begin, "{\"id\":\"batch_req_%s_", bare(batch_id));
    int64_t line = 0;

    if (n <= (size_t)begin_n || memcmp(text, begin, (size_t)begin_n) != 0) {
        return 0;
    }
    for (size_t i = (size_t)begin_n; i < n && text[i] >= '0' && text[i] <= '9' && line < 1000000000;
         i++) {
        line = line * 10 + (text[i] - '0');
    }
    return line;
}

static void begin_result(lt_json_out *o, const char *batch_id, int64_t line,
                         const char *custom_id) {
    char id[96];
    snprintf(id, sizeof id, "batch_req_%s_%lld", bare(batch_id), (long long)line);
    lt_out_open(o, '{');
    lt_out_key_str(o, "id", id);
    lt_out_key_str(o, "custom_id", custom_id);
}

static void end_result(lt_json_out *o) {
    lt_out_shut(o, '}');
    lt_out_raw(o, "\n", 1);
    o->comma = false;
}

void lt_batch_put_answer(lt_json_out *o, const char *batch_id, int64_t line, const char *custom_id,
                         int status, const char *extra, const char *body, size_t n) {
    const char *request_id = extra != NULL ? strchr(extra, ' ') : NULL;
    begin_result(o, batch_id, line, custom_id);
    lt_out_key_open(o, "response", '{');
    lt_out_key_int(o, "status_code", status);
    lt_out_key(o, "request_id");
    lt_out_str(o, request_id != NULL ? request_id + 1 : "",
               request_id != NULL ? strcspn(request_id + 1, "\r") : 0);
    lt_out_key(o, "body");
    lt_out_raw(o, body, n);
    o->comma = true;
    lt_out_shut(o, '}');
    lt_out_key_null(o, "error");
    end_result(o);
}

void lt_batch_put_error(lt_json_out *o, const char *batch_id, int64_t line, const char *custom_id,
                        const char *code, const char *message) {
    begin_result(o, batch_id, line, custom_id);
    lt_out_key_null(o, "response");
    lt_out_key_open(o, "error", '{');
    lt_out_key_str(o, "code", code);
    lt_out_key_str(o, "message", message);
    lt_out_key_int(o, "line", line);
    lt_out_shut(o, '}');
    end_result(o);
}

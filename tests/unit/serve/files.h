/* files.h: for tests of files and batches, a server (served.h) with a folder of state and two API
 * keys, `one` and `two`, and clients with a key. Include it after cmocka.h. */
#ifndef TESTS_FILES_H
#define TESTS_FILES_H

#include "unit/scratch_folder.h"
#include "unit/serve/served.h"

static served s;
static char answer[SERVED_REPLY_BYTES];

static inline void with_keys(lt_server_options *o) {
    o->keys[0] = "one";
    o->keys[1] = "two";
    o->key_models[0] = o->key_models[1] = NULL;
    o->n_keys = 2;
    o->state = folder;
    o->max_files = 6;
    o->max_files_bytes = 100000;
    o->max_batches = 2;
    o->batch_lines = 40;
}

/* The status; the body is in `answer`. */
static inline int call(const char *key, const char *method, const char *path, const char *body) {
    char lines[200];
    snprintf(lines, sizeof lines, "Authorization: Bearer %s\r\nContent-Type: application/json\r\n",
             key);
    const int status = served_send(&s, method, path, lines, body, strlen(body), answer);
    served_behead(answer);
    return status;
}

/* The body of an answer of 200. The caller owns it. */
static inline json_t *get(const char *key, const char *method, const char *path, const char *body) {
    json_t *const asked = body[0] != '\0' ? served_parse(body) : NULL;
    char *const text = asked != NULL ? json_dumps(asked, JSON_COMPACT) : strdup("");
    const int status = call(key, method, path, text);
    json_t *const tree = json_loads(answer, 0, NULL);
    if (status != 200 || tree == NULL) {
        fail_msg("%s %s %s: %d %s", method, path, text, status, answer);
    }
    json_decref(asked);
    free(text);
    return tree;
}

/* The answer must be this one; ' stands for ". */
static inline void says(const char *key, const char *method, const char *path, const char *body,
                        int status, const char *want) {
    json_t *const asked = body[0] != '\0' ? served_parse(body) : NULL;
    char *const text = asked != NULL ? json_dumps(asked, JSON_COMPACT) : strdup("");
    const int is = call(key, method, path, text);
    json_t *const got = json_loads(answer, 0, NULL), *const expected = served_parse(want);
    if (is != status || !served_like(expected, got)) {
        fail_msg("%s %s %s\n  wants %d %s\n  got %d %s", method, path, text, status, want, is,
                 answer);
    }
    json_decref(asked);
    json_decref(got);
    json_decref(expected);
    free(text);
}

static inline const char *text_of(const json_t *o, const char *key) {
    const char *const text = json_string_value(json_object_get(o, key));
    assert_non_null(text);
    return text;
}

static inline int64_t number_of(const json_t *o, const char *key) {
    const json_t *const n = json_object_get(o, key);
    assert_true(json_is_integer(n));
    return json_integer_value(n);
}

/* One part of a form: a name, with a file's name behind it if there is one, and a text. */
typedef struct {
    const char *name, *filename, *text;
    size_t n; /* 0: that of the text. */
} form_part;

/* Send a form (RFC 7578); the status. */
static inline int post_form(const char *key, const char *path, const form_part *parts,
                            int n_parts) {
    static char body[SERVED_REPLY_BYTES];
    size_t n = 0;
    char lines[200];
    for (int i = 0; i < n_parts; i++) {
        const size_t size = parts[i].n > 0 ? parts[i].n : strlen(parts[i].text);
        n += (size_t)snprintf(body + n, sizeof body - n,
                              "--edge\r\nContent-Disposition: form-data; name=\"%s\"",
                              parts[i].name);
        if (parts[i].filename != NULL) {
            n += (size_t)snprintf(body + n, sizeof body - n, "; filename=\"%s\"",
                                  parts[i].filename);
        }
        n += (size_t)snprintf(body + n, sizeof body - n, "\r\n\r\n");
        assert_true(n + size + 64 < sizeof body);
        memcpy(body + n, parts[i].text, size);
        n += size;
        n += (size_t)snprintf(body + n, sizeof body - n, "\r\n");
    }
    n += (size_t)snprintf(body + n, sizeof body - n, "--edge--\r\n");
    snprintf(lines, sizeof lines,
             "Authorization: Bearer %s\r\nContent-Type: multipart/form-data; boundary=edge\r\n",
             key);
    const int status = served_send(&s, "POST", path, lines, body, n, answer);
    served_behead(answer);
    return status;
}

/* Upload an input of batches; its id. */
static inline void upload(const char *key, const char *text, char id[64]) {
    const int status = post_form(
        key, "/v1/files",
        (form_part[]){{"purpose", NULL, "batch", 0}, {"file", "in.jsonl", text, 0}}, 2);
    json_t *const f = json_loads(answer, 0, NULL);
    if (status != 200 || f == NULL) {
        fail_msg("an upload: %d %s", status, answer);
    }
    snprintf(id, 64, "%s", text_of(f, "id"));
    json_decref(f);
}

static inline void path_of(char out[LT_PATH_BYTES], const char *sub, const char *name) {
    char within[LT_PATH_BYTES];
    assert_int_equal(lt_path_join(within, folder, sub), LT_OK);
    assert_int_equal(lt_path_join(out, within, name), LT_OK);
}

static inline bool is_on_disk(const char *sub, const char *name) {
    char path[LT_PATH_BYTES];
    path_of(path, sub, name);
    return access(path, F_OK) == 0;
}

static inline void put_on_disk(const char *sub, const char *name, const char *text) {
    char path[LT_PATH_BYTES];
    path_of(path, sub, name);
    assert_int_equal(lt_file_write_atomic(path, text, strlen(text)), LT_OK);
}

#endif

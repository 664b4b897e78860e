/* served.h: for tests, a server in this process, with a small random model whose ids are
 * printable characters; requests go through HTTP. JSON is written with ' for ". Include it after
 * cmocka.h. */
#ifndef TESTS_SERVED_H
#define TESTS_SERVED_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "serve/api/server.h"
#include "unit/letters.h"

enum { SERVED_ENDS = 95, SERVED_IDS, SERVED_REPLY_BYTES = 1 << 17 };

/* Id i is character 32 + i; the newline ends an answer. */
static const char served_letters[] =
    " !\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz"
    "{|}~\n";

typedef struct {
    lt_server *server;
    pthread_t thread;
    lt_err err;
    int port;
    const char *const *specials; /* Special tokens (letters.h), NULL at the end. */
} served;

static inline lt_err served_load(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    const served *s = ctx;
    int64_t n_specials = 0;
    while (s->specials[n_specials] != NULL) {
        n_specials++;
    }
    const lt_model_spec spec = {.family = LT_FAMILY_LLAMA,
                                .n_layers = 1,
                                .width = 32,
                                .n_heads = 2,
                                .n_kv_heads = 2,
                                .head_dim = 16,
                                .ffn_width = 32,
                                .vocab_size = SERVED_IDS + n_specials,
                                .max_seq = 512,
                                .norm_eps = 1e-5f,
                                .act = 2, /* SiLU. */
                                .gated = true,
                                .embed_scale = 1.0f,
                                .pos = LT_POS_ROPE,
                                .rope_theta = 10000,
                                .bos_id = -1,
                                .eos = {.ids = {SERVED_ENDS}, .n = 1},
                                .pad_id = -1,
                                .init_std = 0.15f};
    *tokenizer = letter_tokenizer_with(served_letters, s->specials);
    return lt_model_create(model, &spec, NULL, 7);
}

static inline void *served_run(void *ctx) {
    served *s = ctx;
    s->err = lt_server_run(s->server);
    return NULL;
}

/* Send a request with further lines of its head, each with its "\r\n"; returns the status and, in
 * answer, the whole answer. */
static inline int served_send(const served *s, const char *method, const char *path,
                              const char *lines, const char *body, size_t body_n,
                              char answer[SERVED_REPLY_BYTES]) {
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)s->port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    char head[2048];
    size_t n = 0;
    ssize_t got;
    int status = 0;
    const int head_n = snprintf(head, sizeof head,
                                "%s %s HTTP/1.0\r\nHost: 127.0.0.1\r\n%sContent-Length: "
                                "%zu\r\n\r\n",
                                method, path, lines, body_n);
    const struct timeval most = {.tv_sec = 60}; /* A call without an answer fails its test. */
    assert_true(fd >= 0 && head_n < (int)sizeof head);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    assert_int_equal(send(fd, head, (size_t)head_n, MSG_NOSIGNAL), head_n);
    assert_int_equal(send(fd, body, body_n, MSG_NOSIGNAL), body_n);
    while ((got = recv(fd, answer + n, SERVED_REPLY_BYTES - 1 - n, 0)) > 0) {
        n += (size_t)got;
    }
    answer[n] = '\0';
    close(fd);
    if (sscanf(answer, "HTTP/1.%*d %d", &status) != 1) {
        fail_msg("%s %s: no answer: %.200s", method, path, answer);
    }
    return status;
}

/* Remove the answer's head. The body may hold zero bytes. */
static inline void served_behead(char answer[SERVED_REPLY_BYTES]) {
    const char *const after = strstr(answer, "\r\n\r\n");
    assert_non_null(after);
    memmove(answer, after + 4, (size_t)(answer + SERVED_REPLY_BYTES - (after + 4)));
}

/* Returns the status and, in answer, the body. */
static inline int served_ask(const served *s, const char *method, const char *path,
                             const char *body, char answer[SERVED_REPLY_BYTES]) {
    const int status = served_send(s, method, path, "Content-Type: application/json\r\n", body,
                                   strlen(body), answer);
    served_behead(answer);
    return status;
}

/* template: a file or the name of a format. set: sets further options; NULL: none. */
static inline void served_start_of(served *s, const char *template, const char *const *specials,
                                   void (*set)(lt_server_options *o)) {
    static char answer[SERVED_REPLY_BYTES];
    lt_server_options o = lt_server_defaults();
    *s = (served){.specials = specials};
    o.port = 0;
    o.model = o.name = "letters";
    o.template = template;
    o.load = served_load;
    o.ctx = s;
    o.quiet = true;
    o.engine.max_running = 8;
    if (set != NULL) {
        set(&o);
    }
    if (lt_server_open(&s->server, &o) != LT_OK) {
        fail_msg("server: %s", lt_error_message());
    }
    s->port = lt_server_port(s->server);
    assert_int_equal(pthread_create(&s->thread, NULL, served_run, s), 0);
    while (served_ask(s, "GET", "/health", "", answer) != 200) {}
}

static inline void served_start_with(served *s, const char *template, bool begins,
                                     void (*set)(lt_server_options *o)) {
    served_start_of(s, template, begins ? letters_begin : letters_alone, set);
}

static inline void served_start(served *s, const char *template, bool begins) {
    served_start_with(s, template, begins, NULL);
}

static inline void served_end(served *s) {
    lt_server_stop(s->server);
    pthread_join(s->thread, NULL);
    assert_int_equal(s->err, LT_OK);
    lt_server_close(s->server);
}

/* ---- Comparing answers with expectations ---- */

static inline json_t *served_parse(const char *text) {
    char *copy = strdup(text);
    json_error_t e;
    for (char *p = copy; (p = strchr(p, '\'')) != NULL;) {
        *p = '"';
    }
    json_t *tree = json_loads(copy, JSON_DECODE_ANY, &e);
    if (tree == NULL) {
        fail_msg("%s: %s", e.text, copy);
    }
    free(copy);
    return tree;
}

/* The objects of a stream as a list; "[DONE]" is a string. NULL: the answer is not a stream. */
static inline json_t *served_events(const char *answer) {
    json_t *all = json_array();
    for (const char *p = answer; p != NULL && *p != '\0';) {
        const char *const end = strchr(p, '\n');
        const size_t n = end != NULL ? (size_t)(end - p) : strlen(p);
        const size_t skip = strncmp(p, "data: ", 6) == 0 ? 6 : 0;
        if (skip > 0 || *p == '{') {
            json_t *one = json_loadb(p + skip, n - skip, 0, NULL);
            json_array_append_new(all, one != NULL ? one : json_stringn(p + skip, n - skip));
        }
        p = end != NULL ? end + 1 : NULL;
    }
    return all;
}

/* Is `got` as expected? In an object the named members count, "#" is their number, and "-" means
 * that there is none; "*" is any value, ">0" a positive number; a string that begins with "~" is
 * a part of the text. "..." in a list is any number of elements. */
static inline bool served_like(const json_t *want, const json_t *got) {
    const char *const word = json_string_value(want);
    if (word != NULL && word[0] == '~') {
        return json_is_string(got) && strstr(json_string_value(got), word + 1) != NULL;
    }
    if (word != NULL && strcmp(word, "*") == 0) {
        return got != NULL;
    }
    if (word != NULL && strcmp(word, "-") == 0) {
        return got == NULL;
    }
    if (word != NULL && strcmp(word, ">0") == 0) {
        return json_number_value(got) > 0;
    }
    if (json_is_array(want)) {
        const size_t n = json_array_size(want), m = json_array_size(got);
        size_t gap = 0, skip = 0;
        while (gap < n && (!json_is_string(json_array_get(want, gap)) ||
                           strcmp(json_string_value(json_array_get(want, gap)), "...") != 0)) {
            gap++;
        }
        bool same = json_is_array(got) && (gap < n ? m + 1 >= n : m == n);
        for (size_t i = 0; same && i < n; i++) {
            if (i == gap) {
                skip = m + 1 - n;
            } else {
                same = served_like(json_array_get(want, i),
                                   json_array_get(got, i < gap ? i : i - 1 + skip));
            }
        }
        return same;
    }
    if (json_is_object(want)) {
        bool same = json_is_object(got);
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)want, key, value) {
            if (strcmp(key, "#") == 0) {
                same = same && json_object_size(got) == (size_t)json_integer_value(value);
                continue;
            }
            same = same && served_like(value, json_object_get(got, key));
        }
        return same;
    }
    return json_is_number(want)
               ? json_is_number(got) && json_number_value(want) == json_number_value(got)
               : json_equal(want, got);
}

/* Send a request and compare: an object with an answer, a list with the events of a stream. */
static inline void served_check(const served *s, const char *method, const char *path,
                                const char *body, int status, const char *want) {
    static char answer[SERVED_REPLY_BYTES];
    json_t *const expected = served_parse(want);
    json_t *const asked = body[0] != '\0' ? served_parse(body) : NULL;
    char *const text = asked != NULL ? json_dumps(asked, JSON_COMPACT) : strdup("");
    const int got_status = served_ask(s, method, path, text, answer);
    json_t *const whole = json_loads(answer, JSON_DECODE_ANY, NULL);
    json_t *const got = json_is_array(expected) && !json_is_array(whole) ? served_events(answer)
                                                                         : json_incref(whole);
    if (got_status != status || !served_like(expected, got)) {
        fail_msg("%s %s\n  %s\n  wants %d %s\n  got %d %s", method, path, text, status, want,
                 got_status, answer);
    }
    json_decref(whole);
    json_decref(got);
    json_decref(asked);
    json_decref(expected);
    free(text);
}

#endif

/* What all calls have in common: the handler of a path, the methods that it allows, keys, the
 * request's id, pages of other sites (CORS), errors in each API's own form, and the server while
 * its model loads and while it ends. Forms and statuses are those of OpenAI's, Anthropic's,
 * llama-server's and Ollama's descriptions, of RFC 9110 and of the Fetch standard. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/error.h"
#include "serve/api/route.h"
#include "unit/scratch_folder.h"
#include "unit/serve/served.h"

static served s, open_one;
static char answer[SERVED_REPLY_BYTES], line[1024];

static void with_key(lt_server_options *o) {
    o->keys[0] = "one";
    o->key_models[0] = NULL;
    o->n_keys = 1;
    o->cors = "https://a.example, https://b.example";
    o->aliases = "second,third name";
}

static void for_any_page(lt_server_options *o) {
    o->cors = "*";
    o->any_model = true;
    o->unknown_fields = LT_UNKNOWN_IGNORE;
    o->defaults = "{\"max_tokens\": 3}";
}

static int start(void **state) {
    if (make_folder(state) != 0) {
        return 1;
    }
    served_start_with(&s, "chatml", false, with_key);
    served_start_with(&open_one, "chatml", false, for_any_page);
    return 0;
}

static int end(void **state) {
    served_end(&s);
    served_end(&open_one);
    return remove_folder(state);
}

#define KEY  "Authorization: Bearer one\r\n"
#define JSON "Content-Type: application/json\r\n"

/* The value of a line of the answer's head; NULL: it has none. */
static const char *head(const char *name) {
    const char *const end_of_head = strstr(answer, "\r\n\r\n");
    const size_t n = strlen(name);
    for (const char *p = strstr(answer, "\r\n"); p != NULL && p < end_of_head;
         p = strstr(p + 2, "\r\n")) {
        if (strncasecmp(p + 2, name, n) == 0 && p[2 + n] == ':') {
            snprintf(line, sizeof line, "%.*s", (int)strcspn(p + 4 + n, "\r"), p + 4 + n);
            return line;
        }
    }
    return NULL;
}

static void has(const char *name, const char *value) {
    const char *is = head(name);
    if (value == NULL ? is != NULL : is == NULL || strcmp(is, value) != 0) {
        fail_msg("%s: %s, not %s, in\n%.800s", name, is != NULL ? is : "-",
                 value != NULL ? value : "-", answer);
    }
}

static void is_like(const char *want) {
    json_t *const expected = served_parse(want);
    const char *const body = strstr(answer, "\r\n\r\n");
    json_t *const got = json_loads(body + 4, 0, NULL);
    if (!served_like(expected, got)) {
        fail_msg("wants %s\n  got %s", want, answer);
    }
    json_decref(expected);
    json_decref(got);
}

static int send_to(const served *to, const char *method, const char *path, const char *lines,
                   const char *body) {
    return served_send(to, method, path, lines, body, strlen(body), answer);
}

/* ---- Paths and methods ---- */

static void paths_and_methods(void **state) {
    static const struct {
        const char *method, *path;
        int status;
        const char *allow;
    } rows[] = {
        {"GET", "/health", 200, NULL},
        {"HEAD", "/health", 200, NULL},
        {"POST", "/health", 405, "GET"},
        {"POST", "/ping", 200, NULL},
        {"DELETE", "/ping", 405, "GET, POST"},
        {"GET", "/v1/models", 200, NULL},
        {"GET", "/v1/models/letters", 200, NULL},
        {"GET", "/v1/models/second", 200, NULL},
        {"GET", "/v1/models/third%20name", 200, NULL},
        {"GET", "/v1/models/third", 404, NULL},
        {"PUT", "/v1/models/letters", 405, "GET, DELETE"},
        {"GET", "/v1/completions", 405, "POST"},
        {"GET", "/v1/completions/", 404, NULL},
        {"GET", "/v1", 404, NULL},
        {"PUT", "/v1/chat/completions/input_tokens", 405, "GET, POST, DELETE"},
        {"PUT", "/v1/responses/input_tokens", 405, "GET, DELETE, POST"},
        {"PUT", "/lora-adapters", 405, "GET, POST"},
        {"GET", "/version", 200, NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int status = send_to(&s, rows[i].method, rows[i].path, KEY JSON, "");
        if (status != rows[i].status) {
            fail_msg("%s %s: %d %.300s", rows[i].method, rows[i].path, status, answer);
        }
        has("Allow", rows[i].allow);
        if (strcmp(rows[i].method, "HEAD") == 0) {
            assert_string_equal(strstr(answer, "\r\n\r\n"), "\r\n\r\n");
        }
    }
    assert_int_equal(send_to(&s, "GET", "/nothing", KEY, ""), 404);
    is_like("{'error': {'message': 'there is no /nothing here', 'type': 'not_found_error', 'code': "
            "'not_found', 'param': null}}");
    assert_int_equal(send_to(&s, "PATCH", "/v1/files", KEY, ""), 405);
    is_like("{'error': {'message': '/v1/files is for POST, GET, not PATCH', 'type': "
            "'invalid_request_error', 'code': 'method_not_allowed'}}");
}

/* Every row has a handler, is found by its own path, and only the open ones need no key. */
static void every_route(void **state) {
    static const char *const without_key[] = {"/api/version",  "/health",  "/ping", "/v1/health",
                                              "/openapi.json", "/version", "/",     "/index.html",
                                              "/status"};
    lt_route_info r;
    int n = 0, n_open = 0;
    (void)state;
    for (; lt_route_at(n, &r); n++) {
        bool open = false;
        assert_non_null(r.handler);
        assert_int_equal(r.prefix, strlen(r.path) > 1 && r.path[strlen(r.path) - 1] == '/');
        for (size_t i = 0; i < sizeof without_key / sizeof *without_key; i++) {
            open = open || strcmp(r.path, without_key[i]) == 0;
        }
        assert_int_equal(r.open, open);
        n_open += r.open;
        const int status = send_to(&s, r.method, r.path, JSON, "");
        if (open ? status != 200 : status != 401) {
            fail_msg("%s %s without a key: %d %.300s", r.method, r.path, status, answer);
        }
    }
    assert_int_equal(n_open, 10); /* Two methods of /ping. */
    assert_false(lt_route_at(n, &r));
    assert_true(n > 80);
}

static void keys(void **state) {
    static const struct {
        const char *lines;
        int status;
    } rows[] = {{KEY, 200},
                {"x-api-key: one\r\n", 200},
                {"", 401},
                {"Authorization: Bearer two\r\n", 401},
                {"Authorization: one\r\n", 401}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(send_to(&s, "GET", "/v1/models", rows[i].lines, ""), rows[i].status);
        has("WWW-Authenticate", rows[i].status == 401 ? "Bearer" : NULL);
    }
    assert_int_equal(send_to(&s, "GET", "/v1/models", "", ""), 401);
    is_like("{'error': {'type': 'authentication_error', 'code': 'invalid_api_key', 'message': "
            "'~no valid API key'}}");
    assert_int_equal(send_to(&s, "GET", "/nothing", "", ""), 401); /* Nobody learns what exists. */
    assert_int_equal(send_to(&s, "GET", "/health", "", ""), 200);
}

static void codings(void **state) {
    (void)state;
    assert_int_equal(send_to(&s, "GET", "/v1/models", KEY "Content-Encoding: identity\r\n", ""),
                     200);
    assert_int_equal(send_to(&s, "POST", "/tokenize", KEY JSON "Content-Encoding: gzip\r\n", "{}"),
                     415);
    is_like("{'error': {'code': 415, 'message': '~Content-Encoding: gzip is not supported'}}");
}

/* ---- The request's id ---- */

static void ids(void **state) {
    char id[200], lines[400], last[64];
    (void)state;
    assert_int_equal(send_to(&s, "GET", "/v1/models", KEY, ""), 200);
    snprintf(last, sizeof last, "%s", head("x-request-id"));
    assert_int_equal(strlen(last), 24);
    assert_int_equal(strspn(last, "0123456789abcdef"), 24);
    assert_int_equal(send_to(&s, "GET", "/v1/models", KEY, ""), 200);
    assert_string_not_equal(head("x-request-id"), last);
    has("request-id", NULL);
    for (int n = 127; n <= 129; n++) { /* A client's own, of at most 128 printable characters. */
        memset(id, '~', sizeof id);
        id[n] = '\0';
        snprintf(lines, sizeof lines, KEY "X-Request-Id: %s\r\n", id);
        assert_int_equal(send_to(&s, "GET", "/v1/models", lines, ""), 200);
        assert_int_equal(strcmp(head("x-request-id"), id) == 0, n <= 128);
    }
    assert_int_equal(send_to(&s, "GET", "/v1/models", KEY "x-request-id: a b\r\n", ""), 200);
    has("x-request-id", "a b");
    assert_int_equal(send_to(&s, "GET", "/v1/models", KEY "x-request-id: \xc3\xa4\r\n", ""), 200);
    assert_int_equal(strlen(head("x-request-id")), 24);
    /* Anthropic's clients read another header, and may send either. */
    assert_int_equal(send_to(&s, "POST", "/v1/messages", KEY JSON "request-id: mine\r\n", "{}"),
                     400);
    has("request-id", "mine");
    has("x-request-id", NULL);
    is_like("{'type': 'error', 'request_id': 'mine', 'error': {'type': 'invalid_request_error'}}");
    assert_int_equal(send_to(&s, "POST", "/v1/messages",
                             KEY JSON "request-id: mine\r\nx-request-id: first\r\n", "{}"),
                     400);
    has("request-id", "first");
    assert_int_equal(send_to(&s, "GET", "/v1/models", KEY "request-id: mine\r\n", ""), 200);
    assert_int_equal(strlen(head("x-request-id")), 24);
}

/* ---- Pages of other sites ---- */

static void pages_of_other_sites(void **state) {
    (void)state;
    assert_int_equal(send_to(&s, "GET", "/v1/models", KEY "Origin: https://b.example\r\n", ""),
                     200);
    has("Access-Control-Allow-Origin", "https://b.example");
    has("Vary", "Origin");
    has("Access-Control-Expose-Headers", "Retry-After, x-request-id");
    assert_int_equal(send_to(&s, "GET", "/v1/models", KEY "Origin: https://c.example\r\n", ""),
                     200);
    has("Access-Control-Allow-Origin", NULL);
    assert_int_equal(send_to(&s, "GET", "/v1/models", KEY, ""), 200);
    has("Access-Control-Allow-Origin", NULL);
    assert_int_equal(send_to(&open_one, "GET", "/v1/models", "Origin: https://c.example\r\n", ""),
                     200);
    has("Access-Control-Allow-Origin", "*");
    has("Vary", NULL);
    assert_int_equal(
        send_to(&s, "POST", "/v1/messages", KEY JSON "Origin: https://a.example\r\n", "{}"), 400);
    has("Access-Control-Allow-Origin", "https://a.example");
    has("Access-Control-Expose-Headers", "Retry-After, request-id");
    /* Preflights need no key. */
    assert_int_equal(send_to(&s, "OPTIONS", "/v1/completions",
                             "Origin: https://a.example\r\nAccess-Control-Request-Headers: x-one, "
                             "x-two\r\n",
                             ""),
                     204);
    has("Access-Control-Allow-Origin", "https://a.example");
    has("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    has("Access-Control-Allow-Headers", "x-one, x-two");
    has("Access-Control-Max-Age", "600");
    assert_int_equal(send_to(&s, "OPTIONS", "/v1/completions", "Origin: https://a.example\r\n", ""),
                     204);
    has("Access-Control-Allow-Headers", "authorization, content-type, x-api-key");
    assert_int_equal(send_to(&s, "OPTIONS", "/v1/completions", "Origin: https://c.example\r\n", ""),
                     204);
    has("Access-Control-Allow-Methods", NULL);
    has("Access-Control-Allow-Origin", NULL);
    char lines[1300], asked[1100];
    for (int n = 1024; n <= 1025; n++) { /* A list of headers that is too long is not repeated. */
        memset(asked, 'h', sizeof asked);
        asked[n] = '\0';
        snprintf(lines, sizeof lines,
                 "Origin: https://a.example\r\nAccess-Control-Request-Headers: %s\r\n", asked);
        assert_int_equal(send_to(&s, "OPTIONS", "/v1/completions", lines, ""), 204);
        const char *is = head("Access-Control-Allow-Headers");
        assert_int_equal(is[0], n == 1024 ? 'h' : 'a');
    }
}

/* ---- Errors ---- */

static void errors_of_each_api(void **state) {
    static const struct {
        int status;
        const char *code, *type; /* type: Anthropic's. */
        int anthropic;
    } rows[] = {
        {400, NULL, "invalid_request_error", 400},    {401, NULL, "authentication_error", 401},
        {403, NULL, "permission_error", 403},         {404, NULL, "not_found_error", 404},
        {413, NULL, "request_too_large", 413},        {429, NULL, "rate_limit_error", 429},
        {429, "queue_full", "overloaded_error", 529}, {429, "quota", "rate_limit_error", 429},
        {499, NULL, "invalid_request_error", 499},    {500, NULL, "api_error", 500},
        {503, NULL, "overloaded_error", 529},         {529, NULL, "overloaded_error", 529}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_api_error e = {.status = rows[i].status, .code = rows[i].code, .type = "some_type"};
        lt_json_out o = {0};
        char want[300];
        snprintf(e.message, sizeof e.message, "a \xff b");
        for (int f = LT_FLAVOUR_OPENAI; f <= LT_FLAVOUR_OLLAMA; f++) {
            assert_int_equal(lt_error_status((lt_flavour)f, &e),
                             f == LT_FLAVOUR_ANTHROPIC ? rows[i].anthropic : rows[i].status);
        }
        lt_error_write(&o, LT_FLAVOUR_ANTHROPIC, "request-id: r 7\r\nVary: x\r\n", &e);
        snprintf(want, sizeof want,
                 "{'type': 'error', 'error': {'type': '%s', 'message': 'a \xef\xbf\xbd b', '#': 2},"
                 " 'request_id': 'r 7', '#': 3}",
                 rows[i].type);
        json_t *got = json_loadb(o.data, o.n, 0, NULL), *expected = served_parse(want);
        if (!served_like(expected, got)) {
            fail_msg("%d: %.*s", rows[i].status, (int)o.n, o.data);
        }
        json_decref(got);
        json_decref(expected);
        lt_out_free(&o);
    }
}

static void error_is(lt_flavour flavour, const char *extra, const lt_api_error *e,
                     const char *want) {
    lt_json_out o = {0};
    lt_error_write(&o, flavour, extra, e);
    json_t *got = json_loadb(o.data, o.n, 0, NULL), *expected = served_parse(want);
    if (!served_like(expected, got)) {
        fail_msg("%.*s, not %s", (int)o.n, o.data, want);
    }
    json_decref(got);
    json_decref(expected);
    lt_out_free(&o);
}

static void parts_of_errors(void **state) {
    lt_api_error e = {.status = 400, .type = "t", .message = "m"};
    (void)state;
    error_is(
        LT_FLAVOUR_OPENAI, NULL, &e,
        "{'error': {'message': 'm', 'type': 't', 'param': null, 'code': null, '#': 4}, '#': 1}");
    error_is(LT_FLAVOUR_LLAMA, NULL, &e,
             "{'error': {'message': 'm', 'type': 't', 'param': null, 'code': 400, '#': 4}}");
    error_is(LT_FLAVOUR_OLLAMA, NULL, &e, "{'error': 'm', '#': 1}");
    error_is(LT_FLAVOUR_ANTHROPIC, NULL, &e, "{'request_id': null}");
    e.n_prompt = 70;
    e.n_context = 64;
    e.code = "c";
    e.detail = "d";
    snprintf(e.param, sizeof e.param, "p");
    error_is(LT_FLAVOUR_OPENAI, NULL, &e,
             "{'error': {'param': 'p', 'code': 'c', 'n_prompt_tokens': 70, 'n_ctx': 64, '#': 6}}");
    error_is(LT_FLAVOUR_LLAMA, NULL, &e,
             "{'error': {'param': 'p', 'code': 400, 'n_prompt_tokens': 70, 'n_ctx': 64, '#': 6}}");
    error_is(LT_FLAVOUR_ANTHROPIC, "request-id: 7\r\n", &e,
             "{'error': {'details': {'error_code': 'd', '#': 1}, '#': 3}, 'request_id': '7'}");
}

/* A path that does not exist, and a request that cannot be read, have the form of their API. */
static void errors_without_a_route(void **state) {
    (void)state;
    assert_int_equal(send_to(&s, "POST", "/v1/messages/nothing", KEY JSON, ""), 404);
    is_like("{'type': 'error', 'error': {'type': 'not_found_error'}}");
    assert_int_equal(send_to(&s, "POST", "/api/nothing", KEY JSON, ""), 404);
    is_like("{'error': '~there is no /api/nothing here'}");
    assert_int_equal(send_to(&s, "POST", "/apis", KEY JSON, ""), 404);
    is_like("{'error': {'code': 'not_found'}}");
    assert_int_equal(
        send_to(&s, "GET", "/v1/messages", "Content-Length: 1\r\nrequest-id: q\r\n", ""),
        400); /* Two lengths. */
    is_like("{'type': 'error', 'error': {'type': 'invalid_request_error'}, 'request_id': 'q'}");
    has("request-id", "q");
    assert_int_equal(
        send_to(&s, "GET", "/v1/models", "Content-Length: 1\r\nOrigin: https://a.example\r\n", ""),
        400);
    is_like("{'error': {'type': 'invalid_request_error', 'code': null}}");
    has("Access-Control-Allow-Origin", "https://a.example");
    has("Retry-After", NULL);
}

static double metric(const served *of, const char *name) {
    assert_int_equal(send_to(of, "GET", "/metrics", KEY, ""), 200);
    const char *at = strstr(answer, name);
    assert_non_null(at);
    return strtod(strchr(at, ' '), NULL);
}

static void requests_are_counted(void **state) {
    (void)state;
    const double requests = metric(&s, "\nlateen_http_requests_total"),
                 errors = metric(&s, "\nlateen_http_errors_total");
    (void)send_to(&s, "GET", "/health", "", "");
    (void)send_to(&s, "GET", "/nothing", KEY, "");
    (void)send_to(&s, "GET", "/v1/models", "", "");
    (void)send_to(&s, "GET", "/v1/models", "Content-Length: 1\r\n", "");
    assert_int_equal((int)(metric(&s, "\nlateen_http_requests_total") - requests), 6);
    assert_int_equal((int)(metric(&s, "\nlateen_http_errors_total") - errors), 3);
}

/* ---- Names and defaults ---- */

static void names(void **state) {
    static const struct {
        const char *list, *names[4];
    } rows[] = {{"", {NULL}},
                {" , ,", {NULL}},
                {"a", {"a"}},
                {"a,b", {"a", "b"}},
                {" a b , c,", {"a b", "c"}},
                {",,a", {"a"}}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *rest = rows[i].list;
        char name[16];
        for (int k = 0; rows[i].names[k] != NULL; k++) {
            assert_true(lt_server_next_alias(&rest, name, sizeof name));
            assert_string_equal(name, rows[i].names[k]);
        }
        assert_false(lt_server_next_alias(&rest, name, sizeof name));
    }
    const char *rest = "abcdefgh";
    char cut[4];
    assert_true(lt_server_next_alias(&rest, cut, sizeof cut));
    assert_string_equal(cut, "abc");
    static const struct {
        const char *model;
        int status, any;
    } models[] = {{"letters", 200, 200},
                  {"second", 200, 200},
                  {"third name", 200, 200},
                  {"third", 404, 200},
                  {"", 200, 200}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char body[100];
        snprintf(body, sizeof body, "{\"model\":\"%s\",\"prompt\":\"a\",\"max_tokens\":1}",
                 models[i].model);
        assert_int_equal(send_to(&s, "POST", "/v1/completions", KEY JSON, body), models[i].status);
        if (models[i].status == 404) {
            is_like("{'error': {'param': 'model', 'type': 'not_found_error', 'code': "
                    "'model_not_found'}}");
            assert_non_null(strstr(answer, "the model 'third' is not served here; 'letters' is"));
        }
        assert_int_equal(send_to(&open_one, "POST", "/v1/completions", JSON, body), models[i].any);
    }
}

static void defaults(void **state) {
    (void)state;
    assert_int_equal(send_to(&open_one, "POST", "/v1/completions", JSON,
                             "{\"prompt\":\"a\",\"logit_bias\":{\"33\":100}}"),
                     200);
    is_like("{'choices': [{'text': 'AAA'}]}"); /* --defaults */
    assert_int_equal(send_to(&open_one, "POST", "/v1/completions", JSON,
                             "{\"prompt\":\"a\",\"logit_bias\":{\"33\":100},\"max_tokens\":5}"),
                     200);
    is_like("{'choices': [{'text': 'AAAAA'}]}");
}

static void unknown_fields(void **state) {
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":1,\"colour\":\"red\"}";
    (void)state;
    assert_int_equal(send_to(&s, "POST", "/v1/completions", KEY JSON, body), 400);
    is_like("{'error': {'param': 'colour'}}");
    assert_int_equal(send_to(&open_one, "POST", "/v1/completions", JSON, body), 200);
}

/* ---- Pages, and large bodies ---- */

static void own_pages(void **state) {
    static const char *const paths[] = {"/", "/index.html", "/status"};
    (void)state;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        assert_int_equal(send_to(&s, "GET", paths[i], "", ""), 200);
        has("Content-Type", "text/html; charset=utf-8");
        has("X-Content-Type-Options", "nosniff");
        has("Referrer-Policy", "no-referrer");
        has("Cache-Control", "no-cache");
        assert_int_equal(strlen(head("x-request-id")), 24);
        const char *const policy = head("Content-Security-Policy");
        assert_non_null(policy);
        assert_int_equal(strncmp(policy, "default-src 'none'; ", 20), 0);
        assert_non_null(strstr(policy, "frame-ancestors 'none'"));
        const char *const body = strstr(answer, "\r\n\r\n") + 4;
        assert_int_equal(strncasecmp(body, "<!doctype html>", 15), 0);
    }
    assert_string_equal(answer + strlen(answer) - 8, "</html>\n"); /* The page of the status. */
}

/* 256 KiB and more are read by another thread; the answers are the same. */
static void large_bodies(void **state) {
    enum { LARGE = 300000 };
    static char body[LARGE + 200];
    (void)state;
    const double errors = metric(&s, "\nlateen_http_errors_total");
    int n = snprintf(body, sizeof body,
                     "{\"prompt\":\"a\",\"max_tokens\":2,\"logit_bias\":"
                     "{\"33\":100}");
    memset(body + n, ' ', LARGE);
    strcpy(body + n + LARGE, "}");
    assert_int_equal(send_to(&s, "POST", "/v1/completions", KEY JSON, body), 200);
    is_like("{'choices': [{'text': 'AA'}]}");
    strcpy(body + n + LARGE, ",\"model\":\"third\"}");
    assert_int_equal(send_to(&s, "POST", "/v1/completions", KEY JSON, body), 404);
    is_like("{'error': {'code': 'model_not_found'}}");
    strcpy(body + n + LARGE, ",");
    assert_int_equal(send_to(&s, "POST", "/v1/completions", KEY JSON, body), 400);
    is_like("{'error': {'type': 'invalid_request_error'}}");
    n = snprintf(body, sizeof body, "{\"prompt\":\"");
    memset(body + n, 'x', LARGE);
    strcpy(body + n + LARGE, "\"}");
    assert_int_equal(send_to(&s, "POST", "/v1/completions", KEY JSON, body), 400);
    is_like("{'error': {'code': 'context_length_exceeded', 'param': 'prompt'}}");
    assert_int_equal((int)(metric(&s, "\nlateen_http_errors_total") - errors), 3);
}

static void salts(void **state) {
    lt_server a = {.salt_seed = 7}, b = {.salt_seed = 8}, by_key = {.salt_seed = 7};
    (void)state;
    by_key.o.prefix_cache_by_key = true;
    assert_true(lt_server_cache_salt(&a, "k", NULL) == 0); /* It shares pages with all others. */
    assert_true(lt_server_cache_salt(&by_key, "", NULL) == 0);
    assert_true(lt_server_cache_salt(&by_key, NULL, NULL) == 0);
    const uint64_t x = lt_server_cache_salt(&a, "k", "x");
    assert_true(x != 0 && x == lt_server_cache_salt(&a, "k2", "x"));
    assert_true(x != lt_server_cache_salt(&a, "k", "y"));
    assert_true(x != lt_server_cache_salt(&a, "k", ""));
    assert_true(x != lt_server_cache_salt(&b, "k", "x")); /* Nobody can search for another's. */
    const uint64_t k = lt_server_cache_salt(&by_key, "k", NULL);
    assert_true(k != 0 && k != lt_server_cache_salt(&by_key, "k2", NULL));
    assert_true(lt_server_cache_salt(&by_key, "k", "x") !=
                lt_server_cache_salt(&by_key, "k2", "x"));
    assert_true(lt_server_cache_salt(&by_key, "k", "x") != k);
    assert_true(lt_server_cache_salt(&by_key, "k", "x") == lt_server_cache_salt(&by_key, "k", "x"));
}

/* ---- Its beginning and its end ---- */

static lt_err fails(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    (void)ctx;
    (void)model;
    (void)tokenizer;
    LT_FAIL(LT_ERR_FORMAT, "the model is broken");
}

static lt_server_options options(void) {
    lt_server_options o = lt_server_defaults();
    o.port = 0;
    o.model = o.name = "letters";
    o.load = fails;
    o.quiet = true;
    return o;
}

static void refused(const lt_server_options *o, lt_err err, const char *why) {
    lt_server *server = NULL;
    assert_int_equal(lt_server_open(&server, o), err);
    assert_null(server);
    if (strstr(lt_error_message(), why) == NULL) {
        fail_msg("%s, not %s", lt_error_message(), why);
    }
}

static void what_a_start_refuses(void **state) {
    lt_server_options o = options();
    lt_server *server = NULL;
    char url[100];
    (void)state;
    o.defaults = "{\"temprature\": 1}";
    refused(&o, LT_ERR_ARG, "--defaults: ");
    o.defaults = "{\"temperature\":";
    refused(&o, LT_ERR_ARG, "--defaults: ");
    o = options();
    o.keys[0] = o.keys[1] = "k";
    o.key_models[0] = "letters";
    o.key_models[1] = "letters, violet";
    o.n_keys = 2;
    refused(&o, LT_ERR_ARG, "API key 2 is for the model 'violet', which is not served");
    o = options();
    o.state = folder;
    assert_int_equal(lt_server_open(&server, &o), LT_OK);
    lt_server_url(server, url, sizeof url);
    assert_int_equal(strncmp(url, "http://127.0.0.1:", 17), 0);
    assert_int_equal(atoi(url + 17), lt_server_port(server));
    refused(&o, LT_ERR_STATE, "another server uses it");
    lt_server_close(server);
    assert_int_equal(lt_server_open(&server, &o), LT_OK); /* The lock is gone. */
    assert_int_equal(lt_server_run(server), LT_ERR_STATE);
    assert_non_null(strstr(lt_error_message(), "the model is broken"));
    lt_server_close(server);
}

/* A server whose model is loaded when told. */
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static served slow;

static lt_err load_later(void *ctx, lt_model **model, lt_tokenizer **tokenizer) {
    pthread_mutex_lock(&loading);
    pthread_mutex_unlock(&loading);
    return served_load(ctx, model, tokenizer);
}

typedef struct {
    char answer[SERVED_REPLY_BYTES];
    int status;
} own_call;

static void *long_call(void *arg) {
    own_call *c = arg;
    static const char body[] = "{\"prompt\":\"a\",\"max_tokens\":480,\"n\":8,\"logit_bias\":"
                               "{\"33\":100}}";
    c->status = served_send(&slow, "POST", "/v1/completions", JSON, body, strlen(body), c->answer);
    return NULL;
}

static void while_it_loads_and_ends(void **state) {
    static own_call long_one;
    lt_server_options o = options();
    pthread_t thread;
    (void)state;
    slow = (served){.specials = letters_alone};
    o.load = load_later;
    o.ctx = &slow;
    o.template = "chatml";
    o.drain_s = 20;
    pthread_mutex_lock(&loading);
    signal(SIGHUP, SIG_IGN); /* As nohup does: then it does not end the server. */
    assert_int_equal(lt_server_open(&slow.server, &o), LT_OK);
    slow.port = lt_server_port(slow.server);
    assert_int_equal(pthread_create(&slow.thread, NULL, served_run, &slow), 0);
    assert_int_equal(send_to(&slow, "GET", "/health", "", ""), 503);
    assert_int_equal(send_to(&slow, "GET", "/version", "", ""), 200);
    assert_int_equal(send_to(&slow, "POST", "/v1/completions", JSON, "{\"prompt\":\"a\"}"), 503);
    has("Retry-After", "1");
    is_like("{'error': {'code': 'loading', 'type': 'unavailable_error', 'message': 'the model is "
            "being loaded'}}");
    assert_int_equal(send_to(&slow, "POST", "/v1/messages", JSON, "{}"), 529);
    raise(SIGHUP);
    pthread_mutex_unlock(&loading);
    while (send_to(&slow, "GET", "/health", "", "") != 200) {
        usleep(1000);
    }
    raise(SIGHUP);
    assert_int_equal(
        send_to(&slow, "POST", "/v1/completions", JSON, "{\"prompt\":\"a\",\"max_tokens\":1}"),
        200);
    assert_int_equal(pthread_create(&thread, NULL, long_call, &long_one), 0);
    while (metric(&slow, "\nvllm:num_requests_running") < 1) {}
    lt_server_stop(slow.server);
    int status;
    while ((status = send_to(&slow, "POST", "/v1/completions", JSON, "{\"max_tokens\":1}")) ==
           400) {} /* The prompt is missing. */
    assert_int_equal(status, 503);
    is_like("{'error': {'code': 'ending', 'message': 'the server is ending'}}");
    assert_true(lt_server_is_ending(slow.server));
    pthread_join(thread, NULL); /* What had begun goes on to its end. */
    assert_int_equal(long_one.status, 200);
    assert_non_null(strstr(long_one.answer, "\"completion_tokens\":3840"));
    pthread_join(slow.thread, NULL);
    assert_int_equal(slow.err, LT_OK);
    lt_server_close(slow.server);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_and_methods),
        cmocka_unit_test(every_route),
        cmocka_unit_test(keys),
        cmocka_unit_test(codings),
        cmocka_unit_test(ids),
        cmocka_unit_test(pages_of_other_sites),
        cmocka_unit_test(errors_of_each_api),
        cmocka_unit_test(parts_of_errors),
        cmocka_unit_test(errors_without_a_route),
        cmocka_unit_test(requests_are_counted),
        cmocka_unit_test(names),
        cmocka_unit_test(defaults),
        cmocka_unit_test(salts),
        cmocka_unit_test(unknown_fields),
        cmocka_unit_test(own_pages),
        cmocka_unit_test(large_bodies),
        cmocka_unit_test(what_a_start_refuses),
        cmocka_unit_test(while_it_loads_and_ends),
    };
    return cmocka_run_group_tests(tests, start, end);
}

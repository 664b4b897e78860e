/* Who may call a server: checks of keys, models, hosts, origins and content types, as access.h
 * describes them. A request is parsed from its bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "serve/api/access.h"
#include "serve/api/files/files.h"

static const lt_http_parse_options limits = {.max_head_bytes = 2000, .max_body_bytes = 100};

typedef struct {
    lt_http_parser head;
    lt_http_request request;
    lt_call call;
} asked;

/* Parse a request to the server with these header lines. Close it. */
static void ask(asked *a, lt_server *s, const char *method, const char *lines) {
    char text[2000];
    const int n = snprintf(text, sizeof text, "%s /v1/models HTTP/1.1\r\n%s\r\n", method, lines);
    *a = (asked){.request = {.method = method, .path = "/v1/models", .query = ""}};
    lt_http_parser_init(&a->head, &limits);
    assert_int_equal(lt_http_parser_feed(&a->head, text, (size_t)n), n);
    a->request.head = &a->head;
    a->call.server = s;
    a->call.request = &a->request;
}

static lt_server *server_of(lt_server_options o) {
    lt_server *s = calloc(1, sizeof *s);
    assert_non_null(s);
    o.aliases = o.aliases != NULL ? o.aliases : "";
    o.host = o.host != NULL ? o.host : "127.0.0.1";
    o.allowed_hosts = o.allowed_hosts != NULL ? o.allowed_hosts : "";
    o.cors = o.cors != NULL ? o.cors : "";
    s->o = o;
    (void)snprintf(s->name, sizeof s->name, "big");
    return s;
}

static void keys(void **state) {
    static const struct {
        const char *lines, *owner; /* NULL: the request has no key. */
    } rows[] = {
        {"", NULL},
        {"Authorization: Bearer first\r\n", "first"},
        {"authorization: BEARER   first\r\n", "first"},
        {"Authorization: first\r\n", NULL},
        {"Authorization: Basic first\r\n", NULL},
        {"Authorization: Bearer firs\r\n", NULL},
        {"Authorization: Bearer first1\r\n", NULL},
        {"Authorization: Bearer firsT\r\n", NULL},
        {"Authorization: Bearer \r\n", NULL},
        {"x-api-key: second\r\n", "second"},
        {"X-API-Key: third\r\n", NULL},
        {"Authorization: Bearer no\r\nx-api-key: second\r\n", "second"},
    };
    lt_server *s = server_of((lt_server_options){.keys = {"first", "second"}, .n_keys = 2});
    lt_server *open = server_of((lt_server_options){.n_keys = 0});
    char name[LT_OWNER_NAME_BYTES];
    asked a;
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ask(&a, s, "POST", rows[i].lines);
        if (lt_access_has_key(&a.call) != (rows[i].owner != NULL)) {
            fail_msg("row %zu: %s", i, rows[i].lines);
        }
        assert_string_equal(a.call.owner, rows[i].owner != NULL ? rows[i].owner : "");
        lt_http_parser_free(&a.head);
        ask(&a, open, "POST", rows[i].lines); /* It needs no key. */
        assert_true(lt_access_has_key(&a.call));
        assert_string_equal(a.call.owner, "");
        lt_http_parser_free(&a.head);
    }
    /* A key under the name that files have for it. */
    assert_true(lt_owner_name("second", name));
    assert_string_equal(lt_access_key_of(s, name), "second");
    assert_null(lt_access_key_of(open, name));
    assert_null(lt_access_key_of(s, ""));
    assert_string_equal(lt_access_key_of(open, ""), "");
    name[0] = name[0] == '0' ? '1' : '0';
    assert_null(lt_access_key_of(s, name));
    free(s);
    free(open);
}

static void models(void **state) {
    lt_server *s = server_of(
        (lt_server_options){.aliases = "large, huge",
                            .keys = {"all", "some", "x", "alias"},
                            .key_models = {NULL, "small, big", "small", "huge"},
                            .n_keys = 4});
    lt_api_error e = {0};
    (void)state;
    assert_true(lt_access_may_use(s, ""));
    assert_true(lt_access_may_use(s, "all"));
    assert_true(lt_access_may_use(s, "some"));
    assert_true(lt_access_may_use(s, "alias"));
    assert_false(lt_access_may_use(s, "x"));
    assert_true(lt_access_check_model(s, "some", &e));
    assert_int_equal(e.status, 0);
    assert_false(lt_access_check_model(s, "x", &e));
    assert_int_equal(e.status, 403);
    assert_string_equal(e.code, "model_not_allowed");
    free(s);
}

/* Requests to a server at 127.0.0.1. code: why it is refused; NULL: it is accepted. */
static void hosts_and_pages(void **state) {
    enum { KEYS = 1, NAMED = 2, OPEN = 4 };
    static const char site[] = "origin_not_allowed", host[] = "host_not_allowed";
    static const struct {
        int how; /* KEYS: there is a key; NAMED: --allowed-hosts and --cors; OPEN: no secret. */
        const char *method, *lines, *code;
    } rows[] = {
        {0, "GET", "", NULL},
        {0, "GET", "Host: 127.0.0.1:8000\r\n", NULL},
        {0, "GET", "Host: 10.1.2.3\r\n", NULL},
        {0, "GET", "Host: [::1]:8000\r\n", NULL},
        {0, "GET", "Host: [fe80::1%eth0]\r\n", NULL},
        {0, "GET", "Host: localhost:8000\r\n", NULL},
        {0, "GET", "Host: LOCALHOST.\r\n", NULL},
        {0, "GET", "Host: a.localhost\r\n", NULL},
        {0, "GET", "Host: node7\r\n", NULL},
        {0, "GET", "Host: evil.com\r\n", host},
        {0, "GET", "Host: 127.0.0.1.evil.com\r\n", host},
        {0, "GET", "Host: localhost.evil.com:8000\r\n", host},
        {0, "GET", "Host: evillocalhost.com\r\n", host},
        {0, "GET", "Host: [evil.com]\r\n", host},
        {OPEN, "GET", "Host: evil.com\r\n", host},
        {KEYS, "GET", "Host: evil.com\r\n", NULL},
        {NAMED, "GET", "Host: lm.example.org\r\n", NULL},
        {NAMED, "GET", "Host: LM.example.org:443\r\n", NULL},
        {NAMED, "GET", "Host: b.example.org\r\n", NULL},
        {NAMED, "GET", "Host: m.example.org\r\n", host},
        {NAMED | KEYS, "GET", "Host: evil.com\r\n", host},
        {NAMED | KEYS, "GET", "Host: lm.example.org\r\n", NULL},
        /* Requests that pages in a browser send. */
        {0, "POST", "Host: localhost:1\r\nOrigin: http://localhost:1\r\n", NULL},
        {0, "POST", "Host: localhost:1\r\nOrigin: http://localhost:2\r\n", site},
        {0, "POST", "Host: localhost:1\r\nOrigin: null\r\n", site},
        {0, "GET", "Host: localhost:1\r\nOrigin: https://evil.com\r\n", site},
        {0, "POST", "Origin: http://localhost:1\r\n", site},
        {OPEN, "GET", "Host: localhost:1\r\nOrigin: https://evil.com\r\n", NULL},
        {KEYS, "POST", "Host: localhost:1\r\nOrigin: https://evil.com\r\n", NULL},
        {NAMED, "POST", "Origin: https://app.example.org\r\n", NULL},
        {NAMED, "POST", "Origin: https://evil.com\r\n", site},
        {0, "POST", "Sec-Fetch-Site: cross-site\r\n", site},
        {0, "POST", "Sec-Fetch-Site: same-site\r\n", site},
        {0, "POST", "Sec-Fetch-Site: same-origin\r\n", NULL},
        {0, "POST", "Sec-Fetch-Site: none\r\n", NULL},
        {0, "GET", "Sec-Fetch-Site: cross-site\r\n", NULL},
        {0, "HEAD", "Sec-Fetch-Site: cross-site\r\n", NULL},
        {0, "DELETE", "Sec-Fetch-Site: cross-site\r\n", site},
        /* Content types that a page may send without a preflight request. */
        {0, "POST", "Content-Type: text/plain\r\n", "unsupported_media_type"},
        {0, "POST", "Content-Type: TEXT/plain; charset=utf-8\r\n", "unsupported_media_type"},
        {0, "POST", "Content-Type: text/plainer\r\n", NULL},
        {0, "GET", "Content-Type: text/plain\r\n", NULL},
        {0, "POST", "Content-Type: application/json\r\n", NULL},
        {0, "POST", "Content-Type: multipart/form-data; boundary=x\r\n", "unsupported_media_type"},
        {0, "POST", "Content-Type: multipart/form-data; boundary=x\r\nAuthorization: Bearer x\r\n",
         NULL},
        {0, "POST", "Content-Type: text/plain\r\nAuthorization: Bearer x\r\n",
         "unsupported_media_type"},
        {KEYS, "POST", "Content-Type: text/plain\r\n", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_access_refusal r;
        asked a;
        lt_server *s = server_of((lt_server_options){
            .keys = {"k"},
            .n_keys = rows[i].how & KEYS,
            .allowed_hosts = rows[i].how & NAMED ? "lm.example.org, b.example.org" : "",
            .cors = rows[i].how & NAMED ? "https://app.example.org" : ""});
        ask(&a, s, rows[i].method, rows[i].lines);
        lt_access_check(&a.call, (rows[i].how & OPEN) != 0, &r);
        if ((r.status != 0) != (rows[i].code != NULL) ||
            (r.status != 0 && strcmp(r.code, rows[i].code) != 0)) {
            fail_msg("row %zu, %s %s: %d %s", i, rows[i].method, rows[i].lines, r.status,
                     r.status != 0 ? r.message : "");
        }
        if (r.status != 0) {
            const bool type = strcmp(r.code, "unsupported_media_type") == 0;
            assert_int_equal(r.status, type ? 415 : 403);
            assert_string_equal(r.type, type ? "invalid_request_error" : "permission_error");
        }
        lt_http_parser_free(&a.head);
        free(s);
    }
}

/* A host longer than any name is compared by its beginning, and no byte beyond it is written. */
static void a_long_host_is_refused(void **state) {
    char lines[1200] = "Host: ";
    lt_server *s = server_of((lt_server_options){.n_keys = 0});
    lt_access_refusal r;
    asked a;
    (void)state;
    for (int i = 0; i < 100; i++) {
        strcat(lines, "evil.com.");
    }
    strcat(lines, "\r\n");
    ask(&a, s, "GET", lines);
    lt_access_check(&a.call, false, &r);
    assert_int_equal(r.status, 403);
    assert_string_equal(r.code, "host_not_allowed");
    assert_non_null(strstr(r.message, "not known as 'evil.com.evil.com."));
    assert_non_null(strstr(r.message, "start it with --allowed-hosts evil.com."));
    lt_http_parser_free(&a.head);
    free(s);
}

static void the_own_name_is_allowed(void **state) {
    lt_server *s = server_of((lt_server_options){.host = "gpu.example.org", .cors = "*"});
    lt_access_refusal r;
    asked a;
    (void)state;
    ask(&a, s, "POST", "Host: GPU.example.org.:80\r\nOrigin: https://any.site\r\n");
    lt_access_check(&a.call, false, &r);
    assert_int_equal(r.status, 0);
    lt_http_parser_free(&a.head);
    assert_true(lt_access_cors(s, "https://any.site"));
    s->o.cors = "https://a.site,https://b.site";
    assert_true(lt_access_cors(s, "https://b.site"));
    assert_false(lt_access_cors(s, "https://b.sit"));
    assert_false(lt_access_cors(s, "https://a.site,https://b.site"));
    free(s);
}

static void options_of_an_operator(void **state) {
    static const char *const bad[] = {"a b", "a\tb", "a\x7f", "\n"};
    (void)state;
    assert_int_equal(
        lt_access_check_options(&(lt_server_options){.keys = {"k"}, .n_keys = 1, .no_auth = true}),
        LT_ERR_ARG);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(
            lt_access_check_options(&(lt_server_options){.keys = {"good", bad[i]}, .n_keys = 2}),
            LT_ERR_ARG);
        assert_non_null(strstr(lt_error_message(), "API key 2 holds a space"));
    }
    assert_int_equal(
        lt_access_check_options(&(lt_server_options){.keys = {"!~\xc3\xa4"}, .n_keys = 1}), LT_OK);
    assert_int_equal(lt_access_check_options(&(lt_server_options){.no_auth = true}), LT_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys),
        cmocka_unit_test(models),
        cmocka_unit_test(hosts_and_pages),
        cmocka_unit_test(a_long_host_is_refused),
        cmocka_unit_test(the_own_name_is_allowed),
        cmocka_unit_test(options_of_an_operator),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

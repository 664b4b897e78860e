/* Messages parsed whole, in two parts cut at every byte, and byte by byte give the same result;
 * bad messages are refused with the right status. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "serve/http/parse.h"

typedef struct {
    const char *text;
    lt_http_stage stage;
    int status; /* For BAD. */
    const char *body;
    size_t rest; /* Bytes after the message. */
} message;

#define HEAD "POST /x?y=1 HTTP/1.1\r\nHost: h\r\n"

static const message messages[] = {
    {"GET / HTTP/1.1\r\nHost: h\r\n\r\n", LT_HTTP_READY, 0, "", 0},
    {"\r\n\nGET / HTTP/1.1\nHost: h\n\nrest", LT_HTTP_READY, 0, "", 4},
    {"GET / HTTP/1.0\r\n\r\n", LT_HTTP_READY, 0, "", 0},
    {HEAD "Content-Length: 5\r\n\r\nhelloGET", LT_HTTP_READY, 0, "hello", 3},
    {HEAD "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", LT_HTTP_READY, 0, "hello", 0},
    {HEAD "Content-Length: 9\r\n\r\nhello", LT_HTTP_BODY, 0, NULL, 0},
    {HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=\"y\"\r\nde\r\n0\r\n\r\n!",
     LT_HTTP_READY, 0, "abcde", 1},
    {HEAD "Transfer-Encoding: Chunked\r\n\r\nA\r\n0123456789\r\n0\r\nT: v\r\nU: w\r\n\r\n",
     LT_HTTP_READY, 0, "0123456789", 0},
    {HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Transfer-Encoding: chunked\r\n\r\n11111111111111111111\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD
     "Transfer-Encoding: chunked\r\n\r\nFFFFFFFF\r\n0123456789012345678901234567890123456789012"
     "3456789012345678901234567890123456789012345678901234567890123456789",
     LT_HTTP_BAD, 413, NULL, 0},
    {HEAD "Transfer-Encoding: gzip, chunked\r\n\r\n", LT_HTTP_BAD, 501, NULL, 0},
    {HEAD "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", LT_HTTP_BAD,
     400, NULL, 0},
    {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Content-Length: 3\r\nContent-Length: 4\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Content-Length: +3\r\n\r\nabc", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Content-Length: 3, 3\r\n\r\nabc", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Content-Length: \r\n\r\nabc", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Content-Length: 101\r\n\r\n", LT_HTTP_BAD, 413, NULL, 0},
    {HEAD "Content-Length: 99999999999999999999999\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "A : b\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "A: b\r\n c\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "nothing\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "A: \x01\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Expect: 200-ok\r\n\r\n", LT_HTTP_BAD, 417, NULL, 0},
    {"GET / HTTP/1.1\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {"GET / HTTP/2.0\r\n\r\n", LT_HTTP_BAD, 505, NULL, 0},
    {"GET / HTTX/1.1\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {"GET /a b HTTP/1.1\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {"GET http://h/ HTTP/1.1\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {"GET http://h:80/x HTTP/1.1\r\nHost: h\r\n\r\n", LT_HTTP_READY, 0, "", 0},
    {"GET http:///x HTTP/1.1\r\nHost: h\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {"GET https://h/x HTTP/1.1\r\nHost: h\r\n\r\n", LT_HTTP_READY, 0, "", 0}, /* Over TLS. */
    {"GET https:///x HTTP/1.1\r\nHost: h\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {"GET ftp://h/x HTTP/1.1\r\nHost: h\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {HEAD "Host: other\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {"\x16\x03\x01", LT_HTTP_BAD, 400, NULL, 0}, /* TLS: recognised at its first byte. */
    {"G(", LT_HTTP_BAD, 400, NULL, 0},
    {"GET", LT_HTTP_HEAD, 0, NULL, 0},
    {"GET\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
    {"G(T / HTTP/1.1\r\n\r\n", LT_HTTP_BAD, 400, NULL, 0},
};

static const lt_http_parse_options limits = {.max_head_bytes = 400, .max_body_bytes = 100};

static void expect(const lt_http_parser *p, const message *m, size_t used, const char *how) {
    if (p->stage != m->stage || (m->stage == LT_HTTP_BAD && p->status != m->status)) {
        fail_msg("%s: stage %d status %d (%s) of: %s", how, (int)p->stage, p->status,
                 p->why != NULL ? p->why : "", m->text);
    }
    if (m->stage == LT_HTTP_READY) {
        assert_int_equal(used, strlen(m->text) - m->rest);
        assert_string_equal(p->body != NULL ? p->body : "", m->body);
    }
}

static void whole_and_cut(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        const message *m = &messages[i];
        const size_t n = strlen(m->text);
        for (size_t cut = 0; cut <= n; cut++) {
            lt_http_parser p;
            size_t used;
            lt_http_parser_init(&p, &limits);
            used = lt_http_parser_feed(&p, m->text, cut);
            if (used == cut) {
                used += lt_http_parser_feed(&p, m->text + cut, n - cut);
            }
            expect(&p, m, used, "cut");
            lt_http_parser_free(&p);
        }
    }
}

static void byte_by_byte_and_again(void **state) {
    lt_http_parser p;
    (void)state;
    lt_http_parser_init(&p, &limits);
    for (size_t i = 0; i < sizeof messages / sizeof *messages; i++) {
        const message *m = &messages[i];
        size_t used = 0;
        while (m->text[used] != '\0' && lt_http_parser_feed(&p, m->text + used, 1) == 1) {
            used++;
        }
        expect(&p, m, used, "bytes");
        /* One parser for all: nothing is left from the previous message. */
        lt_http_parser_reset(&p);
    }
    lt_http_parser_free(&p);
}

static void headers_and_limits(void **state) {
    char big[1000];
    lt_http_parser p;
    (void)state;
    lt_http_parser_init(&p, &limits);
    {
        const char head[] = HEAD "X-Key:  a b \t\r\nConnection: close\r\n\r\n";
        lt_http_parser_feed(&p, head, sizeof head - 1);
    }
    assert_int_equal(p.stage, LT_HTTP_READY);
    assert_string_equal(lt_http_header_get(&p, "x-key"), "a b");
    assert_string_equal(p.method, "POST");
    assert_string_equal(p.target, "/x?y=1");
    assert_false(p.keep_alive);
    assert_null(lt_http_header_get(&p, "none"));
    lt_http_parser_reset(&p);
    memset(big, 'a', sizeof big);
    lt_http_parser_feed(&p, big, sizeof big);
    assert_int_equal(p.stage, LT_HTTP_BAD);
    assert_int_equal(p.status, 431);
    lt_http_parser_free(&p);
}

static bool count_bytes(void *ctx, size_t more) {
    *(size_t *)ctx += more;
    return true;
}

/* Memory doubles with what has arrived, whatever length was announced, and ends at that length; a
 * chunked body ends at the limit. All of it is allocated. */
static void memory_follows_the_body(void **state) {
    static const size_t rooms[] = {8192, 16384, 16384, 32768, 32768, 32768, 50001, 50001, 50001};
    static char piece[5000];
    size_t granted = 0;
    const lt_http_parse_options o = {
        .max_head_bytes = 500, .max_body_bytes = 60000, .may_grow = count_bytes, .ctx = &granted};
    lt_http_parser p;
    (void)state;
    memset(piece, 'x', sizeof piece);
    for (int chunked = 0; chunked < 2; chunked++) {
        const char *head = chunked ? HEAD "Transfer-Encoding: chunked\r\n\r\nC350\r\n"
                                   : HEAD "Content-Length: 50000\r\n\r\n";
        lt_http_parser_init(&p, &o);
        granted = 0;
        assert_int_equal(lt_http_parser_feed(&p, head, strlen(head)), strlen(head));
        assert_int_equal(p.head_room, 502); /* A kilobyte would exceed the limit. */
        for (size_t i = 0; i < 9; i++) {
            const size_t want = chunked && i >= 6 ? 60001 : rooms[i];
            assert_int_equal(lt_http_parser_feed(&p, piece, sizeof piece), sizeof piece);
            assert_int_equal(p.body_room, want);
            assert_int_equal(granted, 502 + want);
        }
        assert_int_equal(lt_http_parser_feed(&p, piece, sizeof piece), sizeof piece);
        assert_int_equal(p.stage, chunked ? LT_HTTP_BODY : LT_HTTP_READY);
        assert_int_equal(p.body_n, 50000);
        lt_http_parser_free(&p);
    }
    /* A body that arrives at once has memory of exactly its size. */
    lt_http_parser_init(&p, &o);
    granted = 0;
    (void)lt_http_parser_feed(&p, HEAD "Content-Length: 5000\r\n\r\n",
                              strlen(HEAD "Content-Length: 5000\r\n\r\n"));
    assert_int_equal(lt_http_parser_feed(&p, piece, sizeof piece), sizeof piece);
    assert_int_equal(p.stage, LT_HTTP_READY);
    assert_int_equal(p.body_room, 5001);
    assert_int_equal(granted, 502 + 5001);
    lt_http_parser_free(&p);
}

/* A target in the form for proxies is the same request. */
static void targets_in_absolute_form(void **state) {
    static const char *const targets[][2] = {
        {"http://h/x?y=1", "/x?y=1"}, {"HTTP://h:8080/", "/"}, {"http://h", "/"}, {"*", "*"}};
    (void)state;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        char head[100];
        lt_http_parser p;
        lt_http_parser_init(&p, &limits);
        snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", targets[i][0]);
        lt_http_parser_feed(&p, head, strlen(head));
        assert_int_equal(p.stage, LT_HTTP_READY);
        assert_string_equal(p.target, targets[i][1]);
        lt_http_parser_free(&p);
    }
}

static void on_body(void *ctx, const char *data, size_t n) {
    strncat(ctx, data, n);
}

static void responses(void **state) {
    char got[64] = "";
    lt_http_parser p;
    const char text[] =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    const char to_end[] = "HTTP/1.0 429 Too Many\r\n\r\nslow";
    (void)state;
    lt_http_parser_init(&p, &(lt_http_parse_options){.response = true,
                                                     .max_head_bytes = 400,
                                                     .max_body_bytes = 100,
                                                     .on_body = on_body,
                                                     .ctx = got});
    assert_int_equal(lt_http_parser_feed(&p, text, sizeof text - 1), sizeof text - 1);
    assert_int_equal(p.stage, LT_HTTP_READY);
    assert_int_equal(p.status, 200);
    assert_string_equal(got, "hello");
    lt_http_parser_reset(&p);
    got[0] = '\0';
    lt_http_parser_feed(&p, to_end, sizeof to_end - 1);
    assert_int_equal(p.stage, LT_HTTP_BODY);
    lt_http_parser_end(&p);
    assert_int_equal(p.stage, LT_HTTP_READY);
    assert_int_equal(p.status, 429);
    assert_string_equal(got, "slow");
    lt_http_parser_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(whole_and_cut),
                                       cmocka_unit_test(byte_by_byte_and_again),
                                       cmocka_unit_test(headers_and_limits),
                                       cmocka_unit_test(memory_follows_the_body),
                                       cmocka_unit_test(targets_in_absolute_form),
                                       cmocka_unit_test(responses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

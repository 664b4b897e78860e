/* Signatures (AWS Signature Version 4): AWS's published test suite, requests to S3 that botocore
 * signed, and digests against published values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/encoding.h"
#include "base/file.h"
#include "base/json.h"
#include "platform/copy/digest.h"
#include "platform/copy/sigv4.h"

static const lt_sigv4_key key = {"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};

/* Call fn with each line of a file of golden rows. Returns their number. */
static int each_row(const char *path, void (*fn)(const json_t *row)) {
    char *text = NULL, *rest = NULL;
    int n = 0;
    assert_int_equal(lt_file_read(&text, NULL, path, 1 << 20), LT_OK);
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        json_t *row = NULL;
        assert_int_equal(lt_json_parse(&row, line, strlen(line), path), LT_OK);
        fn(row);
        json_decref(row);
        n++;
    }
    free(text);
    return n;
}

static const char *text_of(const json_t *row, const char *name) {
    const char *text = json_string_value(json_object_get(row, name));
    assert_non_null(text);
    return text;
}

static int digit(char c) {
    return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
}

static char *decode(char *text) {
    char *to = text;
    for (const char *p = text; *p != '\0'; p++) {
        if (*p == '%') {
            *to++ = (char)(digit(p[1]) * 16 + digit(p[2]));
            p += 2;
        } else {
            *to++ = *p;
        }
    }
    *to = '\0';
    return text;
}

typedef struct {
    char text[4096], folded[4096];
    lt_pair query[16], headers[16];
    lt_sigv4_request r;
} request;

static void read_query(request *q, char *text) {
    char *rest = NULL;
    for (char *p = strtok_r(text, "&", &rest); p != NULL; p = strtok_r(NULL, "&", &rest)) {
        char *value = strchr(p, '=');
        if (value != NULL) {
            *value++ = '\0';
        }
        q->query[q->r.n_query++] = (lt_pair){decode(p), value != NULL ? decode(value) : ""};
    }
}

/* Read an HTTP request as the suite writes it: the path may contain blanks, and a header several
 * lines. */
static const char *read_request(request *q, const char *text) {
    char *line = q->text, *end, *rest = NULL;
    const char *body = strstr(text, "\n\n");
    (void)snprintf(q->text, sizeof q->text, "%.*s",
                   body != NULL ? (int)(body - text) : (int)strlen(text), text);
    end = strstr(q->text, " HTTP/1.1");
    assert_non_null(end);
    *end = '\0';
    q->r.method = strtok_r(line, " ", &rest);
    q->r.path = rest;
    rest = strchr(rest, '?');
    if (rest != NULL) {
        *rest++ = '\0';
        read_query(q, rest);
    }
    line = end + strlen(" HTTP/1.1");
    /* A line that begins with a blank continues the previous one. */
    for (char *p = line; *p != '\0'; p++) {
        *p = (char)(*p == '\n' && p[1] == ' ' ? ' ' : *p);
    }
    for (line = strtok_r(line, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, ':');
        *value++ = '\0';
        q->headers[q->r.n_headers++] = (lt_pair){line, value};
    }
    return body != NULL ? body + 2 : "";
}

static void suite_row(const json_t *row) {
    request q = {.r = {.date = "20150830T123600Z", .region = "us-east-1", .service = "service"}};
    char hex[LT_DIGEST_TEXT_BYTES], token[128] = "";
    const char *body = read_request(&q, text_of(row, "req")),
               *header = strstr(text_of(row, "creq"), "\nx-amz-security-token:");
    lt_sigv4 s = {0};
    assert_int_equal(lt_digest_hex(hex, LT_DIGEST_SHA256, body, strlen(body)), LT_OK);
    if (header != NULL && strcasestr(text_of(row, "req"), "x-amz-security-token") == NULL) {
        assert_int_equal(sscanf(header, "\nx-amz-security-token:%127s", token), 1);
        q.headers[q.r.n_headers++] = (lt_pair){"X-Amz-Security-Token", token};
    }
    q.r.query = q.query;
    q.r.headers = q.headers;
    q.r.payload = hex;
    q.r.normal_path = true;
    assert_int_equal(lt_sigv4_sign(&s, &q.r, &key), LT_OK);
    assert_string_equal(s.canonical, text_of(row, "creq"));
    assert_string_equal(s.to_sign, text_of(row, "sts"));
    assert_string_equal(s.authorization, text_of(row, "authz"));
    lt_sigv4_free(&s);
}

static void published_suite(void **state) {
    (void)state;
    assert_true(each_row("tests/golden/platform/sigv4_suite.jsonl", suite_row) >= 30);
}

static size_t pairs(lt_pair *out, const json_t *list) {
    size_t i;
    const json_t *row;
    json_array_foreach(list, i, row) {
        assert_true(i < 16);
        out[i] = (lt_pair){json_string_value(json_array_get(row, 0)),
                           json_string_value(json_array_get(row, 1))};
    }
    return i;
}

static void botocore_row(const json_t *row) {
    request q = {.r = {.method = text_of(row, "method"),
                       .path = text_of(row, "path"),
                       .payload = text_of(row, "payload"),
                       .date = text_of(row, "date"),
                       .region = text_of(row, "region"),
                       .service = "s3"}};
    lt_sigv4 s = {0};
    q.r.query = q.query;
    q.r.headers = q.headers;
    q.r.n_query = pairs(q.query, json_object_get(row, "query"));
    q.r.n_headers = pairs(q.headers, json_object_get(row, "headers"));
    assert_int_equal(lt_sigv4_sign(&s, &q.r, &key), LT_OK);
    assert_string_equal(s.canonical, text_of(row, "canonical"));
    assert_string_equal(s.authorization, text_of(row, "authorization"));
    lt_sigv4_free(&s);
}

static void requests_as_signed_by_botocore(void **state) {
    (void)state;
    assert_true(each_row("tests/golden/platform/sigv4_botocore.jsonl", botocore_row) >= 20);
}

static void too_many_headers(void **state) {
    lt_pair many[LT_SIGV4_MAX_PAIRS + 1];
    lt_sigv4_request r = {"GET", "/", many, 0, many, 0, "", "20150830T123600Z", "r", "s3", false};
    lt_sigv4 s = {0};
    (void)state;
    for (int i = 0; i <= LT_SIGV4_MAX_PAIRS; i++) {
        many[i] = (lt_pair){"a", "b"};
    }
    r.n_query = r.n_headers = LT_SIGV4_MAX_PAIRS;
    assert_int_equal(lt_sigv4_sign(&s, &r, &key), LT_OK);
    lt_sigv4_free(&s);
    r.n_query++;
    assert_int_equal(lt_sigv4_sign(&s, &r, &key), LT_ERR_LIMIT);
    r.n_query--;
    r.n_headers++;
    assert_int_equal(lt_sigv4_sign(&s, &r, &key), LT_ERR_LIMIT);
}

/* CRCs: the check values of the CRC catalogue (reveng.sourceforge.io) for "123456789"; SHA-256
 * and SHA-1: FIPS 180's "abc"; MD5: RFC 1321; git: `printf 'what is up, doc?' | git hash-object`,
 * as in the book Pro Git, chapter 10.2. */
static void digests(void **state) {
    static const struct {
        lt_digest_kind kind;
        const char *text, *hex, *base64;
    } rows[] = {
        {LT_DIGEST_CRC32, "123456789", "cbf43926", "y/Q5Jg=="},
        {LT_DIGEST_CRC32C, "123456789", "e3069283", "4waSgw=="},
        {LT_DIGEST_CRC64NVME, "123456789", "ae8b14860a799888", "rosUhgp5mIg="},
        {LT_DIGEST_MD5, "abc", "900150983cd24fb0d6963f7d28e17f72", "kAFQmDzST7DWlj99KOF/cg=="},
        {LT_DIGEST_SHA1, "abc", "a9993e364706816aba3e25717850c26c9cd0d89d",
         "qZk+NkcGgWq6PiVxeFDCbJzQ2J0="},
        {LT_DIGEST_SHA256, "abc",
         "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
         "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0="},
        {LT_DIGEST_GIT, "what is up, doc?", "bd9dbf5aae1a3862dd1526723246b20206e5fc37",
         "vZ2/Wq4aOGLdFSZyMkayAgbl/Dc="},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        unsigned char out[LT_DIGEST_BYTES];
        char text[LT_DIGEST_TEXT_BYTES];
        const size_t n = strlen(rows[i].text);
        lt_digest *d = NULL;
        assert_int_equal(lt_digest_open(&d, rows[i].kind, (int64_t)n), LT_OK);
        for (int round = 0; round < 2; round++) { /* In pieces of each length, twice. */
            for (size_t cut = 0; cut <= n; cut++) {
                lt_digest_add(d, rows[i].text, cut);
                lt_digest_add(d, rows[i].text + cut, n - cut);
                assert_int_equal(lt_digest_end(d, out), lt_digest_bytes(rows[i].kind));
                lt_hex_write(text, out, lt_digest_bytes(rows[i].kind));
                assert_string_equal(text, rows[i].hex);
            }
        }
        lt_base64(text, out, lt_digest_bytes(rows[i].kind));
        assert_string_equal(text, rows[i].base64);
        lt_digest_close(d);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_suite),
        cmocka_unit_test(requests_as_signed_by_botocore),
        cmocka_unit_test(too_many_headers),
        cmocka_unit_test(digests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* s3.c: sends one signed request to an S3 service: determines its address and signature, and
 * which refused requests may succeed when they are sent again. See s3.h; the verbs are in
 * s3_verbs.c. */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <openssl/crypto.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "platform/copy/s3_call.h"

#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

lt_err lt_s3_open(lt_s3 **out, const lt_aws_config *config, lt_s3_style style) {
    lt_err err = LT_OK;
    const char *e = config->endpoint, *rest = strstr(e, "://");
    lt_s3 *s = calloc(1, sizeof *s);
    size_t n;

    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "a client of S3");
    }
    s->config = *config;
    s->style = style;
    LT_ASSERT(pthread_mutex_init(&s->lock, NULL) == 0);
    if (e[0] != '\0') {
        if ((strncmp(e, "http://", 7) != 0 && strncmp(e, "https://", 8) != 0) ||
            strpbrk(rest + 3, "?#@ \t") != NULL) {
            LT_FAIL_DONE(LT_ERR_ARG, "the endpoint of S3 is not http(s)://HOST[:PORT][/PATH]");
        }
        n = strcspn(rest + 3, "/");
        (void)snprintf(s->host, sizeof s->host, "%.*s", (int)n, rest + 3);
        (void)snprintf(s->prefix, sizeof s->prefix, "%s", rest + 3 + n);
        n = strlen(s->prefix);
        while (n > 0 && s->prefix[n - 1] == '/') {
            s->prefix[--n] = '\0';
        }
        s->plain = e[4] == ':';
        n = strlen(s->host); /* The header Host has no port if it is the scheme's default. */
        if (n > 4 && ((s->plain && strcmp(s->host + n - 3, ":80") == 0) ||
                      (!s->plain && strcmp(s->host + n - 4, ":443") == 0))) {
            s->host[n - (s->plain ? 3 : 4)] = '\0';
        }
        if (s->host[0] == '\0') {
            LT_FAIL_DONE(LT_ERR_ARG, "the endpoint of S3 has no host");
        }
    }
    *out = s;
    s = NULL;
done:
    lt_s3_close(s);
    return err;
}

void lt_s3_close(lt_s3 *s) {
    if (s != NULL) {
        (void)pthread_mutex_destroy(&s->lock);
        OPENSSL_cleanse(s, sizeof *s);
        free(s);
    }
}

typedef struct {
    char host[600], path[2400], region[64];
    double skew_s;
} address;

static void address_of(lt_s3 *s, const lt_s3_call *c, address *a) {
    const bool amazon = s->host[0] == '\0';
    const bool virtual_host = s->style == LT_S3_VIRTUAL ||
                              (s->style == LT_S3_AUTO && amazon && strchr(c->bucket, '.') == NULL);
    char host[300];
    pthread_mutex_lock(&s->lock);
    (void)snprintf(a->region, sizeof a->region, "%s", s->config.region);
    a->skew_s = s->skew_s;
    pthread_mutex_unlock(&s->lock);
    if (amazon) {
        (void)snprintf(host, sizeof host, "s3.%s.amazonaws.com%s", a->region,
                       strncmp(a->region, "cn-", 3) == 0 ? ".cn" : "");
    } else {
        (void)snprintf(host, sizeof host, "%s", s->host);
    }
    (void)snprintf(a->host, sizeof a->host, "%s%s%s", virtual_host ? c->bucket : "",
                   virtual_host ? "." : "", host);
    (void)snprintf(a->path, sizeof a->path, "%s%s%s%s%s", s->prefix, virtual_host ? "" : "/",
                   virtual_host ? "" : c->bucket, c->key != NULL || virtual_host ? "/" : "",
                   c->key != NULL ? c->key : "");
}

static lt_err make_url(char **out, const lt_s3 *s, const address *a, const lt_s3_call *c) {
    char *query = NULL;
    size_t bytes = 0;
    FILE *f;
    LT_TRY(lt_uri_query(&query, c->query, c->n_query));
    f = open_memstream(out, &bytes);
    if (f == NULL) {
        free(query);
        LT_FAIL(LT_ERR_OOM, "an address");
    }
    fprintf(f, "%s://%s", s->plain ? "http" : "https", a->host);
    lt_uri_encode(f, a->path, true);
    fprintf(f, "%s%s", c->n_query > 0 ? "?" : "", query);
    free(query);
    if (fclose(f) != 0) {
        free(*out);
        LT_FAIL(LT_ERR_OOM, "an address");
    }
    return LT_OK;
}

/* lt_caller's send: adds the headers that sign the request to its own. */
static lt_err send(void *ctx, lt_web *h, const lt_web_request *r, lt_web_reply *reply) {
    lt_s3_call *c = ctx;
    lt_s3 *s = c->s3;
    lt_err err = LT_OK;
    lt_pair headers[LT_S3_MOST_HEADERS + 5];
    size_t n = r->n_headers;
    char date[LT_SIGV4_DATE_BYTES], hex[LT_DIGEST_TEXT_BYTES];
    const char *payload = EMPTY_SHA256;
    lt_web_request full = *r;
    lt_sigv4 signature = {0};
    char *url = NULL;
    address a;
    time_t now;
    struct tm tm;

    LT_ASSERT(n <= LT_S3_MOST_HEADERS);
    address_of(s, c, &a);
    (void)snprintf(c->region, sizeof c->region, "%s", a.region);
    c->skew_s = a.skew_s;
    LT_TRY_DONE(make_url(&url, s, &a, c));
    full.url = url;
    if (n > 0) {
        memcpy(headers, r->headers, n * sizeof *headers);
    }
    if (!s->config.anonymous) {
        if (r->body_bytes > 0 && (s->plain || strcmp(r->method, "POST") == 0)) {
            LT_TRY_DONE(lt_digest_hex(hex, LT_DIGEST_SHA256, r->body, r->body_bytes));
            payload = hex;
            /* TLS protects the body, and the service checks Content-MD5. */
        } else if (r->body_bytes > 0) {
            payload = LT_SIGV4_UNSIGNED;
        }
        now = (time_t)floor(lt_clock_unix_s() + a.skew_s);
        (void)gmtime_r(&now, &tm);
        (void)strftime(date, sizeof date, "%Y%m%dT%H%M%SZ", &tm);
        headers[n++] = (lt_pair){"Host", a.host};
        headers[n++] = (lt_pair){"x-amz-date", date};
        headers[n++] = (lt_pair){"x-amz-content-sha256", payload};
        if (s->config.token[0] != '\0') {
            headers[n++] = (lt_pair){"x-amz-security-token", s->config.token};
        }
        LT_TRY_DONE(lt_sigv4_sign(&signature,
                                  &(lt_sigv4_request){.method = r->method,
                                                      .path = a.path,
                                                      .query = c->query,
                                                      .n_query = c->n_query,
                                                      .headers = headers,
                                                      .n_headers = n,
                                                      .payload = payload,
                                                      .date = date,
                                                      .region = a.region,
                                                      .service = "s3"},
                                  &(lt_sigv4_key){s->config.access, s->config.secret}));
        headers[n++] = (lt_pair){"Authorization", signature.authorization};
    }
    full.headers = headers;
    full.n_headers = n;
    err = lt_web_send(h, &full, reply);
done:
    lt_sigv4_free(&signature);
    free(url);
    return err;
}

/* Use the region that the service names in its refusal. */
static bool other_region(lt_s3_call *c, const lt_web_reply *reply) {
    lt_s3 *s = c->s3;
    char region[64];
    if (!lt_web_header(reply, "x-amz-bucket-region", region, sizeof region) || region[0] == '\0' ||
        strspn(region, "abcdefghijklmnopqrstuvwxyz0123456789-") != strlen(region)) {
        return false;
    }
    pthread_mutex_lock(&s->lock);
    memcpy(s->config.region, region, sizeof region);
    pthread_mutex_unlock(&s->lock);
    return strcmp(region, c->region) != 0;
}

/* A process warns only once that its clock is wrong. */
static atomic_flag told_clock = ATOMIC_FLAG_INIT;

/* If the clock is wrong by more than the permitted age of a signature, use the service's time. */
static bool other_time(lt_s3_call *c, const lt_web_reply *reply) {
    lt_s3 *s = c->s3;
    char date[64];
    double skew_s = 0.0;
    if (lt_web_header(reply, "date", date, sizeof date) && lt_s3_time(date) > 0.0) {
        skew_s = lt_s3_time(date) - lt_clock_unix_s();
    }
    pthread_mutex_lock(&s->lock);
    s->skew_s = skew_s;
    pthread_mutex_unlock(&s->lock);
    if (fabs(skew_s - c->skew_s) < 5.0) {
        return false;
    }
    if (!atomic_flag_test_and_set(&told_clock)) {
        lt_log_warn("this machine's clock is %.0f s %s that of the object store; requests are "
                    "signed with the store's time",
                    fabs(skew_s), skew_s > 0.0 ? "behind" : "ahead of");
    }
    return true;
}

static bool passes(void *ctx, const lt_web_reply *reply) {
    static const char *const codes[] = {"RequestTimeout", "SlowDown",
                                        "InternalError",  "BadDigest",
                                        "InvalidDigest",  "XAmzContentSHA256Mismatch",
                                        "IncompleteBody", "OperationAborted"};
    lt_s3_call *c = ctx;
    char code[64], message[256];

    if (reply->status / 100 == 2 && !c->may_fail_late) {
        return false;
    }
    if (reply->status == 301 || reply->status == 307 || reply->status == 400 ||
        reply->status == 403) {
        if (other_region(c, reply)) {
            return true;
        }
    }
    lt_s3_error(reply->body, reply->body_bytes, code, message);
    if (strcmp(code, "RequestTimeTooSkewed") == 0 ||
        (reply->status == 403 && code[0] == '\0' && !c->asked_time)) { /* HEAD has no body. */
        c->asked_time = true;
        return other_time(c, reply);
    }
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (strcmp(code, codes[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void explain(const lt_web_reply *reply, char out[LT_CALL_TEXT_BYTES]) {
    char code[64], message[256];
    lt_s3_error(reply->body, reply->body_bytes, code, message);
    (void)snprintf(out, LT_CALL_TEXT_BYTES, "%s%s%s", code, message[0] != '\0' ? ": " : "",
                   message);
}

lt_caller lt_s3_caller(lt_s3_call *c) {
    (void)snprintf(c->shown, sizeof c->shown, "s3://%s/%s", c->bucket, c->key ? c->key : "");
    return (lt_caller){
        .shown = c->shown, .ctx = c, .send = send, .passes = passes, .explain = explain};
}

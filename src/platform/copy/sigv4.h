/* sigv4.h: AWS Signature Version 4, with which S3, and every service with its protocol, verifies
 * who sent a request and that it was not changed.
 *
 *     canonical  = METHOD \n path \n query \n headers \n names of headers \n hash of the payload
 *     to sign    = AWS4-HMAC-SHA256 \n date \n day/region/service/aws4_request \n SHA256(canonical)
 *     key        = HMAC(HMAC(HMAC(HMAC("AWS4" + secret, day), region), service), "aws4_request")
 *     signature  = HMAC(key, to sign)
 *
 * The query of `canonical` is also the query to send: names and values are percent-encoded, and
 * sorted by name, then value. libcurl 7.88 signs the query as it is, without sorting or encoding
 * it, so it cannot sign "?uploads" or a key that contains '+' or '=' (docs/adr/0009).
 *
 * Reference: docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html. Checked against
 * AWS's test suite and botocore (tests/unit/platform/test_sigv4.c). */
#ifndef LT_PLATFORM_COPY_SIGV4_H
#define LT_PLATFORM_COPY_SIGV4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "lateen/base.h"

#define LT_SIGV4_UNSIGNED   "UNSIGNED-PAYLOAD"
#define LT_SIGV4_DATE_BYTES 17 /* "20150830T123600Z" */
#define LT_SIGV4_MAX_PAIRS  64 /* Most pairs of a query, or headers of a request. */

typedef struct {
    const char *name, *value;
} lt_pair;

typedef struct {
    const char *access, *secret;
} lt_sigv4_key;

typedef struct {
    const char *method;
    const char *path;     /* Not encoded; begins with '/'. */
    const lt_pair *query; /* Neither encoded nor sorted. */
    size_t n_query;
    const lt_pair *headers; /* Those to sign, in any order; the host must be among them. */
    size_t n_headers;
    const char *payload; /* Its SHA-256 in hex, or LT_SIGV4_UNSIGNED. */
    const char *date;    /* UTC: "20150830T123600Z" */
    const char *region, *service;
    bool normal_path; /* Remove "." and ".." and empty parts from the path: all services but S3. */
} lt_sigv4_request;

typedef struct {
    char *canonical, *to_sign;
    char *authorization; /* The header's value. It contains the access key, not the secret. */
} lt_sigv4;

/* Free with lt_sigv4_free. LIMIT: more pairs than LT_SIGV4_MAX_PAIRS. */
LT_MUST_USE lt_err lt_sigv4_sign(lt_sigv4 *out, const lt_sigv4_request *r, const lt_sigv4_key *key);
void lt_sigv4_free(lt_sigv4 *s);

/* Percent-encode all but letters, digits, '-', '.', '_' and '~' (RFC 3986); with `slash`, slashes
 * are kept. */
void lt_uri_encode(FILE *to, const char *text, bool slash);
/* The encoded query, sorted: "a=1&b=2". Free with free(). */
LT_MUST_USE lt_err lt_uri_query(char **out, const lt_pair *query, size_t n);

#endif

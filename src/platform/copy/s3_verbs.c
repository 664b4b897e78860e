/* s3_verbs.c: the requests of s3.h. The service's answer is compared with what was sent: the ETag
 * of an object that is written in one piece, and of a part, is the MD5 of its bytes; that of an
 * object written in parts is the MD5 of its parts' MD5s. If the service encrypts with its own keys
 * (KMS), ETags are not MD5s, and the only check left is the service's own of the header
 * Content-MD5. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "base/encoding.h"
#include "base/error.h"
#include "platform/copy/location.h"
#include "platform/copy/s3_call.h"
#include "platform/copy/xml.h"

/* Read the hexadecimal digits of an ETag of 32 digits, which "-PARTS" may follow. */
static bool etag_md5(const char *etag, char hex[33], int64_t *n_parts) {
    const char *p = etag + (etag[0] == '"');
    const size_t n = strspn(p, "0123456789abcdef");
    char *end = NULL;
    if (n != 32) {
        return false;
    }
    memcpy(hex, p, 32);
    hex[32] = '\0';
    *n_parts = 0;
    if (p[32] == '-') {
        *n_parts = strtoll(p + 33, &end, 10);
        return *n_parts > 0 && *n_parts <= LT_S3_MOST_PARTS && (*end == '"' || *end == '\0');
    }
    return p[32] == '"' || p[32] == '\0';
}

static bool etag_is_md5(const lt_web_reply *reply) {
    char kind[64];
    return !(lt_web_header(reply, "x-amz-server-side-encryption", kind, sizeof kind) &&
             strncmp(kind, "aws:kms", 7) == 0) &&
           !lt_web_header(reply, "x-amz-server-side-encryption-customer-algorithm", kind,
                          sizeof kind);
}

/* Read the header x-amz-checksum-NAME: a digest in base64, which "-PARTS" may follow. */
static bool header_digest(const lt_web_reply *reply, lt_digest_kind kind, char *hex,
                          int64_t *n_parts) {
    char name[64], value[128], type[32];
    unsigned char bytes[96 + 3];
    char *dash;
    size_t n;
    (void)snprintf(name, sizeof name, "x-amz-checksum-%s", lt_digest_name(kind));
    if (!lt_web_header(reply, name, value, sizeof value)) {
        return false;
    }
    dash = strchr(value, '-');
    *n_parts = dash != NULL ? strtoll(dash + 1, NULL, 10) : 0;
    if (dash != NULL) {
        *dash = '\0';
    } else if (lt_web_header(reply, "x-amz-checksum-type", type, sizeof type) &&
               strcmp(type, "COMPOSITE") == 0) {
        return false;
    }
    n = lt_digest_bytes(kind);
    if (strlen(value) != 4 * ((n + 2) / 3) ||
        EVP_DecodeBlock(bytes, (const unsigned char *)value, (int)strlen(value)) < (int)n) {
        return false;
    }
    lt_hex_write(hex, bytes, n);
    return *n_parts >= 0 && *n_parts <= LT_S3_MOST_PARTS;
}

/* Find the best checksum in a reply to HEAD. *n_parts > 0: it is a digest of the digests of that
 * many parts, whose size is not yet known. */
static void find_check(const lt_web_reply *reply, lt_checksum *check, int64_t *n_parts) {
    static const lt_digest_kind kinds[] = {LT_DIGEST_SHA256, LT_DIGEST_CRC64NVME, LT_DIGEST_CRC32C,
                                           LT_DIGEST_CRC32, LT_DIGEST_SHA1};
    char etag[160], hex[33];
    *check = (lt_checksum){.kind = LT_DIGEST_NONE};
    *n_parts = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (header_digest(reply, kinds[i], check->hex, n_parts)) {
            check->kind = kinds[i];
            return;
        }
    }
    if (lt_web_header(reply, "etag", etag, sizeof etag) && etag_is_md5(reply) &&
        etag_md5(etag, hex, n_parts)) {
        check->kind = LT_DIGEST_MD5;
        memcpy(check->hex, hex, sizeof hex);
    }
}

static bool header_number(const lt_web_reply *reply, const char *name, int64_t *out) {
    char text[32], *end = NULL;
    if (!lt_web_header(reply, name, text, sizeof text) || text[0] < '0' || text[0] > '9') {
        return false;
    }
    *out = strtoll(text, &end, 10);
    return *end == '\0';
}

/* Find the size of the parts, if the service reports that of the first part and it fits the object;
 * otherwise there is no check. */
static lt_err part_size(lt_s3 *s, lt_web *h, const char *bucket, const char *key, lt_s3_object *o,
                        int64_t n_parts) {
    const lt_pair query = {"partNumber", "1"};
    lt_s3_call call = {.s3 = s, .bucket = bucket, .key = key, .query = &query, .n_query = 1};
    const lt_caller c = lt_s3_caller(&call);
    const lt_pair match = {"If-Match", o->etag};
    int64_t n = 0, size_bytes = 0;
    lt_web_reply reply;

    LT_TRY(lt_call(&c, h,
                   &(lt_web_request){.method = "HEAD",
                                     .headers = &match,
                                     .n_headers = o->etag[0] != '\0' ? 1 : 0},
                   &reply));
    if (reply.status / 100 == 2 && header_number(&reply, "x-amz-mp-parts-count", &n) &&
        header_number(&reply, "content-length", &size_bytes) && n == n_parts && size_bytes > 0 &&
        (o->size_bytes + size_bytes - 1) / size_bytes == n_parts) {
        o->check.part_bytes = size_bytes;
    } else {
        o->check.kind = LT_DIGEST_NONE;
    }
    lt_web_reply_free(&reply);
    return LT_OK;
}

/* HEAD was refused. Its answer has no body, so send the same request as GET, whose answer says
 * why. */
static lt_err head_refused(const lt_caller *c, lt_web *h, const lt_web_reply *refusal) {
    const lt_pair range = {"Range", "bytes=0-0"};
    char code[64], message[256];
    unsigned char byte[1];
    lt_web_reply said;
    lt_err err;

    if (refusal->status == 404) {
        return lt_call_refused(c, "HEAD", refusal);
    }
    LT_TRY(c->send(
        c->ctx, h,
        &(lt_web_request){
            .method = "GET", .headers = &range, .n_headers = 1, .into = byte, .into_bytes = 1},
        &said));
    err = lt_call_refused(c, "HEAD", said.status == refusal->status ? &said : refusal);
    lt_s3_error(said.body, said.body_bytes, code, message);
    lt_web_reply_free(&said);
    if (refusal->status == 403 && (code[0] == '\0' || strcmp(code, "AccessDenied") == 0)) {
        return lt_error_prefix(err, "the keys may not read it, or it does not exist and they may "
                                    "not list its bucket");
    }
    return err;
}

lt_err lt_s3_head(lt_s3 *s, lt_web *h, const char *bucket, const char *key, bool check,
                  lt_s3_object *out) {
    lt_s3_call call = {.s3 = s, .bucket = bucket, .key = key};
    const lt_caller c = lt_s3_caller(&call);
    const lt_pair mode = {"x-amz-checksum-mode", "ENABLED"};
    lt_s3_object o = {.mtime_s = -1.0, .check.kind = LT_DIGEST_NONE};
    lt_web_reply reply;
    int64_t n_parts = 0;
    char text[64];
    lt_err err = LT_OK;

    LT_TRY(lt_call(
        &c, h, &(lt_web_request){.method = "HEAD", .headers = &mode, .n_headers = check ? 1 : 0},
        &reply));
    o.denied = !check && reply.status == 403;
    if (o.denied) {
        *out = o;
        goto done;
    }
    if (reply.status / 100 != 2) {
        LT_TRY_DONE(head_refused(&c, h, &reply));
    }
    if (!header_number(&reply, "content-length", &o.size_bytes)) {
        LT_FAIL_DONE(LT_ERR_REMOTE, "%s: the service does not say how long it is", c.shown);
    }
    (void)lt_web_header(&reply, "etag", o.etag, sizeof o.etag);
    o.modified_s = lt_web_header(&reply, "last-modified", text, sizeof text) ? lt_s3_time(text)
                                                                             : 0.0;
    if (lt_web_header(&reply, "x-amz-meta-mtime", text, sizeof text)) {
        char *end = NULL;
        const double mtime_s = strtod(text, &end);
        o.mtime_s = end != text && *end == '\0' && isfinite(mtime_s) ? mtime_s : -1.0;
    }
    if (check) {
        find_check(&reply, &o.check, &n_parts);
    }
    if (n_parts > 0) {
        LT_TRY_DONE(part_size(s, h, bucket, key, &o, n_parts));
    }
    *out = o;
done:
    lt_web_reply_free(&reply);
    return err;
}

lt_err lt_s3_even(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                  const lt_s3_object *object, bool *even) {
    const int64_t part = object->check.part_bytes, all = object->size_bytes;
    LT_ASSERT(part > 0);
    *even = true;
    for (int64_t i = 1; *even && (i - 1) * part < all; i++) {
        char number[24];
        const lt_pair query = {"partNumber", number};
        lt_s3_call call = {.s3 = s, .bucket = bucket, .key = key, .query = &query, .n_query = 1};
        const lt_caller c = lt_s3_caller(&call);
        const int64_t left = all - (i - 1) * part, want = left < part ? left : part;
        int64_t size_bytes = 0;
        lt_web_reply reply;
        (void)snprintf(number, sizeof number, "%lld", (long long)i);
        LT_TRY(lt_call(&c, h, &(lt_web_request){.method = "HEAD"}, &reply));
        *even = reply.status / 100 != 2 ||
                (header_number(&reply, "content-length", &size_bytes) && size_bytes == want);
        lt_web_reply_free(&reply);
    }
    return LT_OK;
}

lt_err lt_s3_read(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                  const lt_s3_object *object, int64_t at, int64_t n, unsigned char *into) {
    lt_s3_call call = {.s3 = s, .bucket = bucket, .key = key};
    const lt_caller c = lt_s3_caller(&call);
    return lt_call_range(&c, h, object->etag, object->size_bytes, at, n, into);
}

lt_err lt_s3_list(lt_s3 *s, lt_web *h, const char *bucket, const char *prefix, lt_s3_found found,
                  void *ctx) {
    char next[LT_S3_UPLOAD_BYTES] = "", shown[LT_PATH_BYTES];
    (void)snprintf(shown, sizeof shown, "s3://%s/%s", bucket, prefix);
    do {
        const lt_pair query[] = {{"list-type", "2"},
                                 {"prefix", prefix},
                                 {"encoding-type", "url"},
                                 {"continuation-token", next}};
        lt_s3_call call = {
            .s3 = s, .bucket = bucket, .query = query, .n_query = next[0] != '\0' ? 4 : 3};
        lt_caller c = lt_s3_caller(&call);
        lt_web_reply reply;
        lt_err err;
        c.shown = shown;
        LT_TRY(lt_call(&c, h, &(lt_web_request){.method = "GET"}, &reply));
        err = reply.status != 200 ? lt_call_refused(&c, "list", &reply)
                                  : lt_s3_list_page(reply.body != NULL ? reply.body : "",
                                                    reply.body_bytes, found, ctx, next);
        lt_web_reply_free(&reply);
        if (err == LT_ERR_FORMAT || err == LT_ERR_LIMIT) {
            return lt_error_prefix(err, "%s", shown);
        }
        LT_TRY(err);
    } while (next[0] != '\0');
    return LT_OK;
}

lt_err lt_s3_delete(lt_s3 *s, lt_web *h, const char *bucket, const char *key) {
    lt_s3_call call = {.s3 = s, .bucket = bucket, .key = key};
    const lt_caller c = lt_s3_caller(&call);
    lt_web_reply reply;
    lt_err err = LT_OK;
    LT_TRY(lt_call(&c, h, &(lt_web_request){.method = "DELETE"}, &reply));
    if (reply.status / 100 != 2 && reply.status != 404) {
        err = lt_call_refused(&c, "DELETE", &reply);
    }
    lt_web_reply_free(&reply);
    return err;
}

/* Read the leaf `name` directly below the root of an answer in XML. */
static bool leaf(const lt_web_reply *reply, const char *name, char *out, size_t room) {
    lt_xml *x = malloc(sizeof *x);
    lt_xml_kind kind = LT_XML_OPEN;
    bool found = false;
    out[0] = '\0';
    if (x == NULL || reply->body == NULL) {
        free(x);
        return false;
    }
    lt_xml_begin(x, reply->body, reply->body_bytes);
    while (!found && lt_xml_next(x, &kind) == LT_OK && kind != LT_XML_END) {
        found = kind == LT_XML_CLOSE && x->depth == 1 && strcmp(x->name, name) == 0 &&
                snprintf(out, room, "%s", x->value) < (int)room;
    }
    free(x);
    return found;
}

static void mtime_text(char out[32], double mtime_s) {
    (void)snprintf(out, 32, "%.9f", mtime_s);
}

/* PUT bytes, and compare the returned ETag with their MD5. */
static lt_err put(lt_s3_call *call, lt_web *h, const unsigned char *data, size_t bytes,
                  const char md5[33], const lt_pair *more, char etag[LT_S3_ETAG_BYTES]) {
    const lt_caller c = lt_s3_caller(call);
    unsigned char digest[16];
    char base64[32], hex[33];
    lt_pair headers[2] = {{"Content-MD5", base64}};
    int64_t n_parts = 0;
    lt_web_reply reply;
    lt_err err = LT_OK;

    lt_hex_read(digest, md5, 16);
    lt_base64(base64, digest, 16);
    if (more != NULL) {
        headers[1] = *more;
    }
    LT_TRY(lt_call(&c, h,
                   &(lt_web_request){.method = "PUT",
                                     .headers = headers,
                                     .n_headers = more != NULL ? 2 : 1,
                                     .body = data,
                                     .body_bytes = bytes,
                                     .counted = true},
                   &reply));
    if (reply.status / 100 != 2) {
        LT_TRY_DONE(lt_call_refused(&c, "PUT", &reply));
    }
    if (!lt_web_header(&reply, "etag", etag, LT_S3_ETAG_BYTES)) {
        LT_FAIL_DONE(LT_ERR_REMOTE, "%s: the service does not say what it has written", c.shown);
    }
    if (etag_is_md5(&reply) && etag_md5(etag, hex, &n_parts) && n_parts == 0 &&
        strcmp(hex, md5) != 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: %zu bytes with MD5 %s were sent, the service has %s",
                     c.shown, bytes, md5, hex);
    }
done:
    lt_web_reply_free(&reply);
    return err;
}

lt_err lt_s3_put(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                 const unsigned char *data, size_t bytes, double mtime_s) {
    lt_s3_call call = {.s3 = s, .bucket = bucket, .key = key};
    char text[32];
    const lt_pair mtime = {"x-amz-meta-mtime", text};
    char md5[33], etag[LT_S3_ETAG_BYTES];
    LT_TRY(lt_digest_hex(md5, LT_DIGEST_MD5, data, bytes));
    mtime_text(text, mtime_s);
    return put(&call, h, data, bytes, md5, mtime_s > 0.0 ? &mtime : NULL, etag);
}

lt_err lt_s3_upload_begin(lt_s3 *s, lt_web *h, const char *bucket, const char *key, double mtime_s,
                          char id[LT_S3_UPLOAD_BYTES]) {
    const lt_pair query = {"uploads", ""};
    char text[32];
    const lt_pair mtime = {"x-amz-meta-mtime", text};
    lt_s3_call call = {.s3 = s, .bucket = bucket, .key = key, .query = &query, .n_query = 1};
    const lt_caller c = lt_s3_caller(&call);
    lt_web_reply reply;
    lt_err err = LT_OK;

    mtime_text(text, mtime_s);
    LT_TRY(lt_call(
        &c, h,
        &(lt_web_request){.method = "POST", .headers = &mtime, .n_headers = mtime_s > 0.0 ? 1 : 0},
        &reply));
    if (reply.status / 100 != 2) {
        LT_TRY_DONE(lt_call_refused(&c, "begin of an upload", &reply));
    }
    if (!leaf(&reply, "UploadId", id, LT_S3_UPLOAD_BYTES) || id[0] == '\0' ||
        strpbrk(id, "\r\n") != NULL) {
        LT_FAIL_DONE(LT_ERR_REMOTE, "%s: the service began an upload without an id", c.shown);
    }
done:
    lt_web_reply_free(&reply);
    return err;
}

lt_err lt_s3_upload_part(lt_s3 *s, lt_web *h, const char *bucket, const char *key, const char *id,
                         int64_t number, const unsigned char *data, size_t bytes,
                         lt_s3_part *part) {
    char text[24];
    const lt_pair query[] = {{"partNumber", text}, {"uploadId", id}};
    lt_s3_call call = {.s3 = s, .bucket = bucket, .key = key, .query = query, .n_query = 2};
    (void)snprintf(text, sizeof text, "%lld", (long long)number);
    return put(&call, h, data, bytes, part->md5, NULL, part->etag);
}

/* Read one page of a list of parts. *marker: where the next page begins; "": there is none. */
static lt_err parts_page(const lt_web_reply *reply, lt_s3_part *parts, int64_t n_parts,
                         char marker[24]) {
    lt_err err = LT_OK;
    lt_xml *x = malloc(sizeof *x);
    lt_xml_kind kind;
    int64_t number = 0, n = 0;
    bool more = false;
    lt_s3_part part = {0};
    char next[24] = "";

    marker[0] = '\0';
    if (x == NULL) {
        LT_FAIL(LT_ERR_OOM, "a list of parts");
    }
    lt_xml_begin(x, reply->body != NULL ? reply->body : "", reply->body_bytes);
    for (;;) {
        LT_TRY_DONE(lt_xml_next(x, &kind));
        if (kind == LT_XML_END) {
            break;
        }
        if (kind == LT_XML_OPEN && x->depth == 2) {
            number = 0;
            part = (lt_s3_part){0};
        } else if (kind == LT_XML_CLOSE && x->depth == 2) {
            if (strcmp(x->name, "PartNumber") == 0) {
                number = strtoll(x->value, NULL, 10);
            } else if (strcmp(x->name, "ETag") == 0) {
                (void)snprintf(part.etag, sizeof part.etag, "%.*s", (int)sizeof part.etag - 1,
                               x->value);
                part.md5[0] = etag_md5(x->value, part.md5, &n) ? part.md5[0] : '\0';
            }
        } else if (kind == LT_XML_CLOSE && x->depth == 1) {
            if (strcmp(x->name, "Part") == 0 && number >= 1 && number <= n_parts) {
                parts[number - 1] = part;
            } else if (strcmp(x->name, "IsTruncated") == 0) {
                more = strcmp(x->value, "true") == 0;
            } else if (strcmp(x->name, "NextPartNumberMarker") == 0) {
                (void)snprintf(next, sizeof next, "%.23s", x->value);
            }
        }
    }
    if (more) {
        memcpy(marker, next, sizeof next);
    }
done:
    free(x);
    return err;
}

lt_err lt_s3_upload_parts(lt_s3 *s, lt_web *h, const char *bucket, const char *key, const char *id,
                          lt_s3_part *parts, int64_t n_parts) {
    char marker[24] = "", before[24] = "";
    memset(parts, 0, (size_t)n_parts * sizeof *parts);
    do {
        const lt_pair query[] = {{"uploadId", id}, {"part-number-marker", marker}};
        lt_s3_call call = {.s3 = s,
                           .bucket = bucket,
                           .key = key,
                           .query = query,
                           .n_query = marker[0] != '\0' ? 2 : 1};
        const lt_caller c = lt_s3_caller(&call);
        lt_web_reply reply;
        lt_err err;
        LT_TRY(lt_call(&c, h, &(lt_web_request){.method = "GET"}, &reply));
        memcpy(before, marker, sizeof before);
        err = reply.status != 200 ? lt_call_refused(&c, "list of parts", &reply)
                                  : parts_page(&reply, parts, n_parts, marker);
        lt_web_reply_free(&reply);
        LT_TRY(err);
        if (marker[0] != '\0' && strtoll(marker, NULL, 10) <= strtoll(before, NULL, 10)) {
            LT_FAIL(LT_ERR_REMOTE, "%s: the list of parts does not end", c.shown);
        }
    } while (marker[0] != '\0');
    return LT_OK;
}

/* The MD5 of the parts' MD5s. */
static lt_err md5_of_parts(char hex[33], const lt_s3_part *parts, int64_t n_parts) {
    lt_digest *d = NULL;
    unsigned char digest[LT_DIGEST_BYTES];
    LT_TRY(lt_digest_open(&d, LT_DIGEST_MD5, 0));
    for (int64_t i = 0; i < n_parts; i++) {
        lt_hex_read(digest, parts[i].md5, 16);
        lt_digest_add(d, digest, 16);
    }
    (void)lt_digest_end(d, digest);
    lt_digest_close(d);
    lt_hex_write(hex, digest, 16);
    return LT_OK;
}

static lt_err completion(char **body, size_t *bytes, const lt_s3_part *parts, int64_t n_parts) {
    FILE *f = open_memstream(body, bytes);
    if (f == NULL) {
        LT_FAIL(LT_ERR_OOM, "a list of %lld parts", (long long)n_parts);
    }
    fputs("<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">", f);
    for (int64_t i = 0; i < n_parts; i++) {
        fprintf(f, "<Part><PartNumber>%lld</PartNumber><ETag>%s</ETag></Part>", (long long)i + 1,
                parts[i].etag);
    }
    fputs("</CompleteMultipartUpload>", f);
    if (fclose(f) != 0) {
        free(*body);
        *body = NULL;
        LT_FAIL(LT_ERR_OOM, "a list of %lld parts", (long long)n_parts);
    }
    return LT_OK;
}

/* If the answer was lost, the next try finds no upload, because the first one has completed the
 * object. */
static lt_err is_complete(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                          const char *want, int64_t n_parts) {
    lt_s3_object o;
    char hex[33];
    int64_t n = 0;
    LT_TRY(lt_s3_head(s, h, bucket, key, false, &o));
    if (!etag_md5(o.etag, hex, &n) || n != n_parts || strcmp(hex, want) != 0) {
        LT_FAIL(LT_ERR_REMOTE, "s3://%s/%s: the service has lost the upload", bucket, key);
    }
    return LT_OK;
}

lt_err lt_s3_upload_end(lt_s3 *s, lt_web *h, const char *bucket, const char *key, const char *id,
                        const lt_s3_part *parts, int64_t n_parts) {
    const lt_pair query = {"uploadId", id};
    lt_s3_call call = {.s3 = s,
                       .bucket = bucket,
                       .key = key,
                       .query = &query,
                       .n_query = 1,
                       .may_fail_late = true};
    const lt_caller c = lt_s3_caller(&call);
    char *body = NULL, etag[160], want[33], hex[33], code[64], message[256];
    size_t bytes = 0;
    int64_t n = 0;
    lt_web_reply reply = {0};
    lt_err err = LT_OK;

    LT_TRY(md5_of_parts(want, parts, n_parts));
    LT_TRY(completion(&body, &bytes, parts, n_parts));
    LT_TRY_DONE(lt_call(
        &c, h, &(lt_web_request){.method = "POST", .body = body, .body_bytes = bytes}, &reply));
    lt_s3_error(reply.body, reply.body_bytes, code, message);
    if (reply.status == 404 && strcmp(code, "NoSuchUpload") == 0) {
        LT_TRY_DONE(is_complete(s, h, bucket, key, want, n_parts));
    } else if (reply.status / 100 != 2 || code[0] != '\0') {
        LT_TRY_DONE(lt_call_refused(&c, "end of an upload", &reply));
    } else if (!leaf(&reply, "ETag", etag, sizeof etag)) {
        LT_FAIL_DONE(LT_ERR_REMOTE, "%s: the service ended an upload without an ETag", c.shown);
    } else if (etag_is_md5(&reply) && etag_md5(etag, hex, &n) &&
               (n != n_parts || strcmp(hex, want) != 0)) {
        LT_FAIL_DONE(LT_ERR_FORMAT,
                     "%s: the MD5 of its %lld parts is %s, the service has %s of %lld", c.shown,
                     (long long)n_parts, want, hex, (long long)n);
    }
done:
    lt_web_reply_free(&reply);
    free(body);
    return err;
}

lt_err lt_s3_upload_abort(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                          const char *id) {
    const lt_pair query = {"uploadId", id};
    lt_s3_call call = {.s3 = s, .bucket = bucket, .key = key, .query = &query, .n_query = 1};
    const lt_caller c = lt_s3_caller(&call);
    lt_web_reply reply;
    lt_err err = LT_OK;
    LT_TRY(lt_call(&c, h, &(lt_web_request){.method = "DELETE"}, &reply));
    if (reply.status / 100 != 2 && reply.status != 404) {
        LT_TRY_DONE(lt_call_refused(&c, "abort of an upload", &reply));
    }
done:
    lt_web_reply_free(&reply);
    return err;
}

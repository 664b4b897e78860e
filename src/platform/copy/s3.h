/* s3.h: the requests of the S3 protocol that a copy needs, over call.h: each is signed anew for
 * every try; a wrong clock is corrected with the service's time; requests for a bucket in another
 * region are sent there. Threads share an lt_s3, each with its own connection. */
#ifndef LT_PLATFORM_COPY_S3_H
#define LT_PLATFORM_COPY_S3_H

#include "platform/copy/aws_config.h"
#include "platform/copy/call.h"
#include "platform/copy/checksum.h"

typedef enum { LT_S3_AUTO, LT_S3_PATH, LT_S3_VIRTUAL } lt_s3_style;

#define LT_S3_MOST_PARTS 10000

typedef struct lt_s3 lt_s3;

typedef struct {
    int64_t size_bytes;
    double modified_s; /* Unix time. */
    /* Time of the file that was uploaded, if its metadata has it; otherwise below 0. */
    double mtime_s;
    char etag[160]; /* With its quotes. */
    lt_checksum check;
    bool denied; /* It may exist, but these keys may not read it; the other fields are unknown. */
} lt_s3_object;

/* Called for each key of a list; an error stops the listing. */
typedef lt_err (*lt_s3_found)(void *ctx, const char *key, int64_t size_bytes, double modified_s);

/* style AUTO: BUCKET.HOST for Amazon, HOST/BUCKET for any other endpoint and for buckets with dots.
 * ARG: the endpoint is not http(s)://HOST[:PORT][/PATH]. */
LT_MUST_USE lt_err lt_s3_open(lt_s3 **out, const lt_aws_config *config, lt_s3_style style);
void lt_s3_close(lt_s3 *s);

/* check: also find the checksum of its content, which takes a second request for an object that was
 * uploaded in parts. NOT_FOUND: no such object. It is an error if the object may not be read; but
 * without `check` only out->denied is set, because keys that allow writing but not reading are
 * legitimate. */
LT_MUST_USE lt_err lt_s3_head(lt_s3 *s, lt_web *h, const char *bucket, const char *key, bool check,
                              lt_s3_object *out);
/* Find out whether all parts of an object have the size that its checksum assumes (the last one
 * may be smaller). The protocol allows any sizes, and lt_s3_head reads only that of the first.
 * Sends a request for each part. */
LT_MUST_USE lt_err lt_s3_even(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                              const lt_s3_object *object, bool *even);
LT_MUST_USE lt_err lt_s3_read(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                              const lt_s3_object *object, int64_t at, int64_t n,
                              unsigned char *into);
LT_MUST_USE lt_err lt_s3_list(lt_s3 *s, lt_web *h, const char *bucket, const char *prefix,
                              lt_s3_found found, void *ctx);

/* Delete an object. One that does not exist counts as deleted, as in S3. */
LT_MUST_USE lt_err lt_s3_delete(lt_s3 *s, lt_web *h, const char *bucket, const char *key);

/* Write a whole object. mtime_s above 0: kept as its metadata `mtime`, as rclone does. FORMAT:
 * the service reports another checksum. */
LT_MUST_USE lt_err lt_s3_put(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                             const unsigned char *data, size_t bytes, double mtime_s);

/* An upload in parts, numbered from 1. */
#define LT_S3_UPLOAD_BYTES 1024
#define LT_S3_ETAG_BYTES   160
typedef struct {
    char md5[33];                /* MD5 of the part's bytes, in hex. */
    char etag[LT_S3_ETAG_BYTES]; /* As the service sent it, with its quotes. */
} lt_s3_part;
LT_MUST_USE lt_err lt_s3_upload_begin(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                                      double mtime_s, char id[LT_S3_UPLOAD_BYTES]);
/* Upload a part: part->md5 is an input, part->etag an output. FORMAT: the service has other
 * bytes. */
LT_MUST_USE lt_err lt_s3_upload_part(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                                     const char *id, int64_t number, const unsigned char *data,
                                     size_t bytes, lt_s3_part *part);
/* The parts that the service holds; an entry without a part is zeroed; md5 is "" if the ETag cannot
 * be an MD5. NOT_FOUND: no such upload. */
LT_MUST_USE lt_err lt_s3_upload_parts(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                                      const char *id, lt_s3_part *parts, int64_t n_parts);
/* Join the parts. FORMAT: the service has made an object with other bytes. */
LT_MUST_USE lt_err lt_s3_upload_end(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                                    const char *id, const lt_s3_part *parts, int64_t n_parts);
/* Let the service delete the parts. It is no error if there is no such upload. */
LT_MUST_USE lt_err lt_s3_upload_abort(lt_s3 *s, lt_web *h, const char *bucket, const char *key,
                                      const char *id);

/* Read a page of a list, which is XML: call `found` for each entry, and write the token of the next
 * page, "" if there is none. */
LT_MUST_USE lt_err lt_s3_list_page(const char *xml, size_t bytes, lt_s3_found found, void *ctx,
                                   char next[LT_S3_UPLOAD_BYTES]);
/* The code and message of an error, or "" for each. */
void lt_s3_error(const char *xml, size_t bytes, char code[64], char message[256]);

/* "Fri, 28 Feb 2026 23:59:58 GMT" and "2026-02-28T23:59:58.000Z" as Unix time; 0: neither. */
double lt_s3_time(const char *text);

#endif

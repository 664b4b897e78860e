/* s3_call.h: the interface between s3.c, which signs and sends, and s3_verbs.c, which has the
 * requests. */
#ifndef LT_PLATFORM_COPY_S3_CALL_H
#define LT_PLATFORM_COPY_S3_CALL_H

#include <pthread.h>

#include "base/file.h"
#include "platform/copy/s3.h"

#define LT_S3_MOST_HEADERS 8

struct lt_s3 {
    lt_aws_config config;
    lt_s3_style style;
    /* Host and prefix of the endpoint; host "": Amazon's, by the region. */
    char host[256], prefix[256];
    bool plain;           /* http */
    pthread_mutex_t lock; /* Protects config.region and skew_s. */
    double skew_s;        /* Added to this machine's clock. */
};

typedef struct {
    lt_s3 *s3;
    const char *bucket, *key; /* key NULL: the bucket itself. */
    const lt_pair *query;
    size_t n_query;
    bool may_fail_late; /* A reply of status 200 may have an error as its body. */
    bool asked_time;
    /* Region and time with which the last try was signed; another thread may have corrected s3
     * since. */
    char region[64];
    double skew_s;
    char shown[LT_PATH_BYTES];
} lt_s3_call;

/* The caller of lt_call; it lives as long as c. */
lt_caller lt_s3_caller(lt_s3_call *c);

#endif

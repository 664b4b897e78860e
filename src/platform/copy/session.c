/* session.c: see session.h. */
#include "platform/copy/session.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/encoding.h"
#include "base/error.h"

#define LEAST_PART   ((int64_t)1 << 12)
#define MOST_PART    ((int64_t)1 << 31)
#define MOST_THREADS 256

lt_err lt_copy_check_options(const lt_copy_options *o) {
    if (o->n_connections < 1 || o->n_connections > MOST_THREADS || o->part_bytes < LEAST_PART ||
        o->part_bytes > MOST_PART || o->rate_bytes < 0 || o->n_tries < 1 || o->addressing < 0 ||
        o->addressing > 2) {
        LT_FAIL(LT_ERR_ARG,
                "a copy with %lld connections (1 to %d), parts of %lld bytes (%lld to %lld), %lld "
                "tries",
                (long long)o->n_connections, MOST_THREADS, (long long)o->part_bytes,
                (long long)LEAST_PART, (long long)MOST_PART, (long long)o->n_tries);
    }
    if (o->sha256[0] != '\0' && !lt_hex_is(o->sha256, 64)) {
        LT_FAIL(LT_ERR_ARG, "'%s' is not a SHA-256, which has 64 hexadecimal digits", o->sha256);
    }
    return LT_OK;
}

/* Whether the name matches one of the comma-separated patterns. A '*' also matches slashes. */
static bool matches(const char *patterns, const char *name) {
    for (const char *p = patterns; *p != '\0';) {
        char one[256];
        const size_t n = strcspn(p, ",");
        if (n > 0 && n < sizeof one) {
            memcpy(one, p, n);
            one[n] = '\0';
            if (fnmatch(one, name, 0) == 0) {
                return true;
            }
        }
        p += n + (p[n] == ',');
    }
    return false;
}

void lt_copy_choose(lt_items *items, const lt_copy_options *o) {
    size_t n = 0;
    for (size_t i = 0; i < items->n; i++) {
        lt_item *item = &items->rows[i];
        if ((o->include[0] == '\0' || matches(o->include, item->name)) &&
            !matches(o->exclude, item->name)) {
            const lt_item kept = *item;
            *item = items->rows[n];
            items->rows[n++] = kept;
        }
    }
    lt_items_cut(items, n);
}

lt_err lt_copying_open(lt_copying *c, const lt_copy_options *o) {
    lt_aws_config config;
    lt_err err;
    lt_web_shared_open(&c->shared);
    c->shared.asked = o->stop;
    c->shared.ctx = o->ctx;
    c->shared.tries = o->n_tries;
    c->shared.delay_s = o->delay_s;
    c->shared.stall_s = o->stall_s;
    c->shared.rate_bytes = o->rate_bytes;
    c->shared.reads_count = c->target.at.at == LT_AT_FILE;
    c->shared.writes_count = !c->shared.reads_count;
    LT_TRY(lt_web_open(&c->http, &c->shared));
    if (c->source.at.at == LT_AT_S3 || c->target.at.at == LT_AT_S3) {
        LT_TRY(lt_aws_config_read(&config, &(lt_aws_wanted){.profile = o->profile,
                                                            .region = o->region,
                                                            .endpoint = o->endpoint,
                                                            .anonymous = o->anonymous}));
        err = lt_s3_open(&c->s3, &config,
                         o->addressing != LT_S3_AUTO                 ? (lt_s3_style)o->addressing
                         : strcmp(config.addressing, "path") == 0    ? LT_S3_PATH
                         : strcmp(config.addressing, "virtual") == 0 ? LT_S3_VIRTUAL
                                                                     : LT_S3_AUTO);
        lt_aws_config_wipe(&config);
        LT_TRY(err);
    }
    if (c->source.at.at == LT_AT_HUB) {
        LT_TRY(lt_hub_open(&c->hub));
    }
    c->source.s3 = c->target.s3 = c->s3;
    c->source.hub = c->hub;
    return LT_OK;
}

void lt_copying_close(lt_copying *c) {
    lt_web_close(c->http);
    lt_web_shared_close(&c->shared);
    lt_s3_close(c->s3);
    lt_hub_close(c->hub);
}

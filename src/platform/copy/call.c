/* call.c: see call.h. */
#include "platform/copy/call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

/* Describe an error in one line: "503 SlowDown: Please reduce your request rate". */
static void describe(const lt_caller *c, const lt_web_reply *reply, const char *problem,
                     char out[LT_CALL_TEXT_BYTES]) {
    char words[LT_CALL_TEXT_BYTES] = "";
    if (problem != NULL) {
        (void)snprintf(out, LT_CALL_TEXT_BYTES, "%s", problem);
    } else if (reply->status == 0 || reply->incomplete) {
        (void)snprintf(out, LT_CALL_TEXT_BYTES, "%s", reply->failure);
    } else {
        if (c->explain != NULL) {
            c->explain(reply, words);
        }
        (void)snprintf(out, LT_CALL_TEXT_BYTES, "status %d%s%.300s", reply->status,
                       words[0] != '\0' ? " " : "", words);
    }
    lt_log_tame(out, false);
}

static lt_err gave_up(const lt_caller *c, const char *doing, const lt_web_reply *reply,
                      const char *problem, int64_t tries, double begin_s) {
    char text[LT_CALL_TEXT_BYTES];
    describe(c, reply, problem, text);
    if (reply->retry_after_s > 0.0 && problem == NULL && tries == 1) {
        LT_FAIL(LT_ERR_REMOTE, "%s: %s: %s; the server asks to wait %.0f s", c->shown, doing, text,
                reply->retry_after_s);
    }
    LT_FAIL(LT_ERR_REMOTE, "%s: %s: %s; gave up after %lld %s in %.1f s", c->shown, doing, text,
            (long long)tries, tries == 1 ? "try" : "tries", lt_clock_s() - begin_s);
}

static void report(const lt_caller *c, const char *doing, const lt_web_reply *reply,
                   const char *problem, int64_t tries) {
    char text[LT_CALL_TEXT_BYTES];
    if (lt_log_shows(LT_LOG_DEBUG)) {
        describe(c, reply, problem, text);
        lt_log_debug("%s: %s: %s; try %lld", c->shown, doing, text, (long long)tries);
    }
}

lt_err lt_call(const lt_caller *c, lt_web *h, const lt_web_request *r, lt_web_reply *reply) {
    const double begin_s = lt_clock_s();
    lt_retry retry;
    bool again = true;

    lt_retry_begin(&retry);
    for (;;) {
        lt_err err = c->send(c->ctx, h, r, reply);
        if (err == LT_OK && !lt_retry_may_help(reply) &&
            (c->passes == NULL || !c->passes(c->ctx, reply))) {
            return LT_OK;
        }
        if (err == LT_OK) {
            report(c, r->method, reply, NULL, retry.n + 1);
            err = lt_retry_wait(&retry, h, reply, &again);
        }
        if (err == LT_OK && !again) {
            err = gave_up(c, r->method, reply, NULL, retry.n, begin_s);
        }
        lt_web_reply_free(reply);
        LT_TRY(err);
    }
}

lt_err lt_call_refused(const lt_caller *c, const char *doing, const lt_web_reply *reply) {
    char text[LT_CALL_TEXT_BYTES];
    describe(c, reply, NULL, text);
    if (reply->status == 412) {
        LT_FAIL(LT_ERR_STATE, "%s changed while it was copied", c->shown);
    }
    LT_FAIL(reply->status == 404 ? LT_ERR_NOT_FOUND : LT_ERR_REMOTE, "%s: %s: %s", c->shown, doing,
            text);
}

typedef struct {
    int64_t at, n, got, size_bytes;
} range;

typedef enum {
    IS_RANGE, /* The requested bytes, or the first of them. */
    IS_WRONG, /* Other bytes, which do not count. */
    /* The whole content instead of the rest: reading starts again from its beginning. */
    IS_WHOLE,
    IS_UNRANGED,   /* The whole content instead of a range of it. */
    IS_NO_CONTENT, /* Another status than 200 and 206. */
    IS_CHANGED,    /* Bytes of another version. */
} answer;

/* Whether a version is an ETag, which may be weak. Otherwise it is a date, or "". */
static bool is_etag(const char *version) {
    return version[0] == '"' || strncmp(version, "W/", 2) == 0;
}

/* Whether the answer shows that its bytes are of another version. Not every server obeys If-Match
 * and If-Unmodified-Since, and If-Match does not work with weak ETags. */
static bool changed(const char *version, const lt_web_reply *reply) {
    const bool etag = is_etag(version);
    char text[LT_CALL_VERSION_BYTES];
    if (version[0] == '\0' ||
        !lt_web_header(reply, etag ? "etag" : "last-modified", text, sizeof text)) {
        return false;
    }
    return strcmp(version + (etag && version[0] == 'W' ? 2 : 0),
                  text + (etag && text[0] == 'W' ? 2 : 0)) != 0;
}

static const char *condition_of(const char *version) {
    return version[0] == '"'                        ? "If-Match"
           : version[0] == '\0' || is_etag(version) ? NULL
                                                    : "If-Unmodified-Since";
}

/* Classify an answer. problem: what is wrong with it, if its status does not say so. */
static answer judge(const range *g, const lt_web_reply *reply, const char *version, bool whole,
                    char problem[200]) {
    char text[128];
    long long first = -1, last = -1, total = -1;
    const int64_t want = g->at + g->got, end = g->at + g->n - 1;

    problem[0] = '\0';
    if (reply->status != 200 && reply->status != 206) {
        return IS_NO_CONTENT;
    }
    if (changed(version, reply)) {
        return IS_CHANGED;
    }
    if (reply->status == 200 && !whole) {
        if (g->at != 0 || g->n != g->size_bytes) {
            return IS_UNRANGED;
        }
        (void)snprintf(problem, 200, "the server ignores ranges: the whole file is read again");
        return IS_WHOLE;
    }
    if (reply->too_long) {
        (void)snprintf(problem, 200, "more than the %lld bytes that were asked for",
                       (long long)(g->n - g->got));
        return IS_WRONG;
    }
    if (reply->status == 206 &&
        (!lt_web_header(reply, "content-range", text, sizeof text) ||
         sscanf(text, "bytes %lld-%lld/%lld", &first, &last, &total) < 2 || first != want ||
         last != end || (total >= 0 && total != g->size_bytes))) {
        (void)snprintf(problem, 200, "asked for bytes %lld-%lld of %lld, the answer has '%.60s'",
                       (long long)want, (long long)end, (long long)g->size_bytes, text);
        return IS_WRONG;
    }
    if (!reply->incomplete && (int64_t)reply->got < g->n - g->got) {
        (void)snprintf(problem, 200, "the answer is %lld bytes too short",
                       (long long)(g->n - g->got - (int64_t)reply->got));
    }
    return IS_RANGE;
}

lt_err lt_call_range(const lt_caller *c, lt_web *h, const char *version, int64_t size_bytes,
                     int64_t at, int64_t n, unsigned char *into) {
    const double begin_s = lt_clock_s();
    const char *condition = condition_of(version);
    range g = {.at = at, .n = n, .size_bytes = size_bytes};
    lt_retry retry;

    lt_retry_begin(&retry);
    while (g.got < n) {
        char bytes[64], problem[200];
        const bool whole = at + g.got == 0 && n == size_bytes;
        const lt_pair headers[] = {{condition, version}, {"Range", bytes}};
        const size_t first = condition != NULL ? 0 : 1;
        const lt_web_request r = {.method = "GET",
                                  .headers = headers + first,
                                  .n_headers = (whole ? 1 : 2) - first,
                                  .into = into + g.got,
                                  .into_bytes = (size_t)(n - g.got),
                                  .counted = true};
        lt_web_reply reply;
        bool again = true;
        answer a;
        lt_err err = LT_OK;

        (void)snprintf(bytes, sizeof bytes, "bytes=%lld-%lld", (long long)(at + g.got),
                       (long long)(at + n - 1));
        LT_TRY(c->send(c->ctx, h, &r, &reply));
        a = judge(&g, &reply, version, whole, problem);
        if (a == IS_RANGE && c->in_one && (int64_t)reply.got < n) {
            (void)snprintf(problem, sizeof problem,
                           "cut after %zu of %lld bytes: the whole file is read again, because "
                           "the server names no version (--sha256 helps)",
                           reply.got, (long long)n);
            a = IS_WRONG;
        }
        if (a == IS_RANGE) {
            g.got += (int64_t)reply.got;
            retry.n = reply.got > 0 ? 0 : retry.n;
        } else {
            const int64_t before = a == IS_WHOLE ? g.got : 0;
            g.got -= before;
            lt_web_count(h, true, -(int64_t)reply.got - before);
        }
        if (a == IS_UNRANGED) {
            err = lt_error_set(LT_ERR_UNSUPPORTED, "%s: the server ignores ranges of bytes",
                               c->shown);
        } else if (a == IS_CHANGED) {
            err = lt_error_set(LT_ERR_STATE, "%s changed while it was copied", c->shown);
        } else if (a == IS_NO_CONTENT && reply.status == 416) {
            err = lt_error_set(LT_ERR_STATE,
                               "%s: there are no bytes %s: it is shorter than the %lld bytes that "
                               "were announced",
                               c->shown, bytes + strlen("bytes="), (long long)size_bytes);
        } else if (a == IS_NO_CONTENT && !lt_retry_may_help(&reply) &&
                   (c->passes == NULL || !c->passes(c->ctx, &reply))) {
            err = lt_call_refused(c, "GET", &reply);
        } else if (g.got < n) {
            const char *why = problem[0] != '\0' ? problem : NULL;
            report(c, "GET", &reply, why, retry.n + 1);
            err = lt_retry_wait(&retry, h, &reply, &again);
            if (err == LT_OK && !again) {
                err = gave_up(c, "GET", &reply, why, retry.n, begin_s);
            }
        }
        lt_web_reply_free(&reply);
        LT_TRY(err);
    }
    return LT_OK;
}

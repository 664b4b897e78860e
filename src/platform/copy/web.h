/* web.h: one request and its reply, over libcurl, and the decision whether to try again.
 *
 * A connection (lt_web) belongs to one thread at a time, and keeps its socket open between
 * requests. All connections of a copy share an lt_web_shared: the flag that stops them, the limit
 * on their total rate, and the count of transferred bytes.
 *
 * No message has an address or a header, because they may contain secrets. */
#ifndef LT_PLATFORM_COPY_WEB_H
#define LT_PLATFORM_COPY_WEB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rng.h"
#include "platform/copy/sigv4.h"

/* Most bytes of a reply that is kept whole, e.g. a list. */
#define LT_WEB_BODY_MOST    ((size_t)64 << 20)
#define LT_WEB_HEADERS_MOST 32768

typedef struct {
    atomic_bool stop;         /* Requests end at once, with LT_ERR_INTERRUPTED. */
    bool (*asked)(void *ctx); /* Asked by each request; true sets `stop`. NULL: none. */
    void *ctx;
    double connect_s;    /* Longest time to connect. */
    double stall_s;      /* Longest time without a byte. */
    int64_t rate_bytes;  /* Most bytes per second of all connections together; 0: no limit. */
    int64_t tries;       /* Most tries of a request without progress. */
    double delay_s;      /* Mean wait before the second try; it doubles with each. */
    atomic_bool reached; /* A server has answered: names are resolved here. */
    /* Progress: whether bytes of received bodies (reads_count) and of sent ones (writes_count)
     * count, of requests that are `counted`. */
    bool reads_count, writes_count;
    atomic_llong moved;
    atomic_llong n_retries; /* Requests that were repeated. */
    pthread_mutex_t lock;   /* Protects free_at_s. */
    double free_at_s;       /* When the rate limit permits the next byte. */
} lt_web_shared;

typedef struct lt_web lt_web;

typedef struct {
    const char *method; /* GET, HEAD, PUT, POST, DELETE */
    const char *url;
    const lt_pair *headers;
    size_t n_headers;
    const void *body; /* PUT, POST */
    size_t body_bytes;
    /* The body of a reply with status 200 or 206 goes here; all others are kept in reply->body. */
    unsigned char *into;
    size_t into_bytes;
    bool follow;  /* Redirections; a header Authorization is sent to its own host only. */
    bool counted; /* The bodies count as the copy's progress. */
} lt_web_request;

typedef struct {
    int status;      /* 0: no reply came; `failure` says why. */
    size_t got;      /* Bytes in request->into. */
    bool incomplete; /* The body ended before its length, or the connection broke. */
    double lookup_s; /* Above 0: no address was found for the host's name within this time. */
    bool too_long;   /* The body is longer than request->into. */
    char *body;      /* Followed by a 0; NULL: none. */
    size_t body_bytes;
    char headers[LT_WEB_HEADERS_MOST]; /* Headers of the last reply, as lines of "name: value". */
    double retry_after_s;              /* 0: the server did not send it. */
    /* After redirections; "": too long. It may contain secrets. */
    char final_url[4096];
    bool redirected; /* final_url differs from the address of the request. */
    char failure[256];
} lt_web_reply;

/* Initialise: all fields but connect_s are 0, and the caller sets the limits. */
void lt_web_shared_open(lt_web_shared *s);
void lt_web_shared_close(lt_web_shared *s);

LT_MUST_USE lt_err lt_web_open(lt_web **out, lt_web_shared *shared);
void lt_web_close(lt_web *h);
const atomic_bool *lt_web_stop(const lt_web *h); /* shared->stop */
/* Count bytes as progress; negative: subtract them. */
void lt_web_count(lt_web *h, bool read, int64_t bytes);
/* Count bytes that were read from a local file. If they also go to one, no connection waits for
 * them, so this call waits as long as rate_bytes demands. */
void lt_web_read_locally(lt_web *h, int64_t bytes);

/* Send a request, once. OK: there was an exchange, or it failed in a way that `reply` describes.
 * INTERRUPTED: shared->stop. After OK, free the reply with lt_web_reply_free, which accepts a
 * zeroed one. */
LT_MUST_USE lt_err lt_web_send(lt_web *h, const lt_web_request *r, lt_web_reply *reply);
void lt_web_reply_free(lt_web_reply *reply);

/* A header's value without blanks around it, cut to `room`; false and "" if there is none. */
bool lt_web_header(const lt_web_reply *reply, const char *name, char *out, size_t room);

/* Tries of one request; only those without progress count. Waits double, up to 20 s, with full
 * jitter: a uniformly drawn share of each wait is used (Brooker, "Exponential Backoff And Jitter",
 * AWS 2015). */
typedef struct {
    int64_t n; /* Tries since the last progress. */
    lt_rng rng;
} lt_retry;

void lt_retry_begin(lt_retry *t);
/* Whether another try may succeed: if there was no reply, after a body that was cut, and after
 * status 408, 429, 500, 502, 503 or 504. */
bool lt_retry_may_help(const lt_web_reply *reply);
/* Wait before the next try, at least as long as the server asked. *again: a try is left. A name
 * that cannot be resolved, before any server has answered, is tried three times at most, and once
 * if that took long: usually it is misspelt, or the machine has no network.
 * INTERRUPTED: shared->stop. */
LT_MUST_USE lt_err lt_retry_wait(lt_retry *t, lt_web *h, const lt_web_reply *reply, bool *again);

#endif

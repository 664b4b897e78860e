/* load.h: sends many requests to any OpenAI server and times them, for `lateen bench serve`.
 *
 * Requests are sent at their times (open loop), with at most `concurrency` in flight; each has its
 * own connection, which is kept alive for the next request. A request is a streamed completion;
 * times are taken when the bytes arrive on libevent's loop. */
#ifndef LT_SERVE_LOAD_H
#define LT_SERVE_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/base.h"

typedef struct {
    double at_s; /* When to send it, from the start. */
    int64_t prompt_tokens, max_tokens;
    uint64_t prompt_seed;  /* The prompt's ids are drawn with this seed ... */
    const int64_t *blocks; /* ... or from these, 512 tokens each; equal ids give equal tokens. */
    int64_t n_blocks;
} lt_load_request;

typedef struct {
    double sent_s, first_s, last_s, end_s; /* Since the start; first_s 0: no token arrived. */
    int64_t prompt_tokens, cached_tokens, new_tokens;
    double gap_max_s; /* The longest pause between two tokens. */
    int status;       /* HTTP status; 0: no answer. */
    bool done;        /* The stream has ended properly. */
    bool dropped;     /* The client dropped it, as `drop` demands. */
} lt_load_result;

typedef struct {
    const char *host; /* Host of the URL. */
    int port;
    const char *path_prefix; /* "" or "/base" */
    /* "": none; models separated by commas are used in turn. */
    const char *model, *key;
    bool chat;        /* v1/chat/completions with words instead of /v1/completions with ids. */
    bool text_prompt; /* Use words for completions, too. */
    int64_t vocab;    /* Ids are drawn below it. */
    double temperature;
    int64_t concurrency;
    double timeout_s; /* Most seconds of one request. */
    double drop;      /* Fraction of the requests that the client drops in the middle. */
    uint64_t seed;
    /* Called with each gap between tokens; may be NULL. */
    void (*on_gap)(void *ctx, double seconds);
    /* Called about every second. May be NULL. */
    void (*on_progress)(void *ctx, int64_t finished, int64_t running, double elapsed_s);
    void *ctx;
    /* A buffer of why_n bytes for what was wrong with the first failed request; "": nothing. May be
     * NULL. */
    char *why;
    size_t why_n;
} lt_load_options;

/* "http://host:port/base" into host (n bytes), port and prefix. */
LT_MUST_USE lt_err lt_load_url(const char *url, char *host, size_t host_n, int *port, char *prefix,
                               size_t prefix_n);

/* Send all requests and wait for all. results: one per request. REMOTE: the server cannot be
 * reached at all. */
LT_MUST_USE lt_err lt_load_run(const lt_load_options *o, const lt_load_request *requests, int64_t n,
                               lt_load_result *results, double *took_s);

#endif

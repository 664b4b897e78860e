/* local_requests.h: many requests at once to a server in this process, without a socket: for
 * experiments and for evaluations that generate.
 *
 * Everything is called on the thread of the caller, which waits in lt_local_requests_run. */
#ifndef LT_ALIGN_LOCAL_REQUESTS_H
#define LT_ALIGN_LOCAL_REQUESTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "lateen/serve.h"
#include "lateen/tokenizer.h"

typedef struct {
    const char *model;   /* Its path, which may contain a chat template. */
    const char *path;    /* The endpoint: "/v1/completions", "/v1/chat/completions". */
    int64_t max_running; /* Sequences that the engine runs, and requests in flight. */
    bool deterministic;  /* Answers do not depend on the other requests, bit for bit. */
    /* Open the model and, in the same way, the reward model at the path `reward`, on a separate
     * thread. NULL: there is none. */
    lt_err (*load)(void *ctx, lt_model **model, lt_tokenizer **tokenizer);
    lt_err (*load_reward)(void *ctx, lt_model **model, lt_tokenizer **tokenizer);
    const char *reward;
    /* (n_beside) further models, which `load` opens, and their names. Requests may blend their
     * logits with the model's. */
    const lt_model *const *beside;
    const char *const *second;
    int n_beside;
    lt_speculate speculate; /* Drafts, and where `load` puts the draft model (lateen/serve.h). */
    const lt_model *const *draft;
    int64_t (*next)(void *ctx); /* The number of the next question; -1: there is none. */
    /* Its request, JSON, malloc'ed; NULL: out of memory. */
    char *(*body)(void *ctx, int64_t question);
    lt_err (*take)(void *ctx, int64_t question, const json_t *answer);
    /* Its name in messages. */
    void (*name)(void *ctx, int64_t question, char *out, size_t room);
    void *ctx;
} lt_local_requests;

/* Returns when all are answered. ARG: a request was refused; INTERRUPTED: SIGINT, SIGTERM or
 * SIGHUP. */
LT_MUST_USE lt_err lt_local_requests_run(const lt_local_requests *a);

#endif

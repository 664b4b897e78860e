/* serve.h: many requests on one model: the engine that batches them.
 *
 *   front (HTTP, command line)                        engine thread
 *   ── lt_engine_submit ──▶ queue ──▶ admit ─▶ schedule ─▶ one batched forward ─▶ choice ─┐
 *   ◀── lt_engine_poll ──── events ◀────────────────────────────────────────────── emit ◀──┘
 *
 * The front owns text: templates, tokenizing, stop strings, JSON. The engine owns tokens: it never
 * sees text and never waits for the front. submit, cancel and poll may be called from any thread;
 * poll by one thread at a time.
 *
 *     lt_engine_open(&e, model, NULL);
 *     lt_engine_submit(e, &request, &id);
 *     while (...) { wait for lt_engine_fd(e) to become readable; n = lt_engine_poll(e, events, 64);
 *     ... }
 */
#ifndef LATEEN_SERVE_H
#define LATEEN_SERVE_H

#include <stdbool.h>

#include "lateen/model.h"
#include "lateen/sampling.h"

typedef struct lt_engine lt_engine;
/* serve/grammar/grammar.h: what may come next, compiled for a vocabulary. */
typedef struct lt_grammar lt_grammar;

/* On a GPU kernels are compiled or loaded, and graphs recorded, at the first step of a kind. Which
 * kinds are run with nothing in them before open returns: none; the first that a request needs, the
 * others while there is nothing to do (all before open returns where kernels were not compiled
 * yet); all. */
typedef enum { LT_WARM_NONE, LT_WARM_FIRST, LT_WARM_ALL } lt_warm;

#define LT_ENGINE_TOP 20 /* Most alternatives reported with a token. */

typedef struct {
    int64_t max_running; /* Sequences in one step at most. */
    int64_t max_waiting; /* Requests in the queue at most; one more is LIMIT. */
    int64_t max_seq;     /* Tokens of one sequence at most; 0: the model's. */
    /* Tokens of one step at most: every decoding sequence first, chunks of prompts with the rest.
     * 0: 512, on a GPU 2048. */
    int64_t step_tokens;
    int64_t page_tokens; /* Tokens of one page of the cache. */
    /* Keys and values; 0: max_running * max_seq tokens, at most half of free memory. */
    int64_t cache_bytes;
    /* Of them at most so many keep pages that no sequence holds, for prompts to come; 0: all. */
    int64_t unused_bytes;
    /* Finished pages stay and are shared by prompts that begin with the same tokens. */
    bool prefix_cache;
    lt_warm warm;
    /* A request's tokens do not depend on who else is in the batch, bit for bit. */
    bool deterministic;
    bool ahead;   /* On a GPU: queue the next step before the tokens of this one are known. */
    lt_ends ends; /* Tokens that end a text; none: the model's own. */
    /* F32, BF16, F16; LT_DTYPE_COUNT: the model's compute type, or F16 on a CPU where weights are
     * as stored. */
    lt_dtype cache_dtype;
} lt_engine_options;

lt_engine_options lt_engine_defaults(void);

typedef struct {
    const int32_t *prompt; /* Copied by submit. */
    int64_t n_prompt;
    int64_t n_choices; /* Continuations of the prompt, which share its pages. */
    int64_t max_tokens,
        /* Of each continuation. Before min_tokens the ending tokens cannot be chosen. */
        min_tokens;
    const int32_t *stop_ids; /* Ending tokens beside the model's, also where ignore_eos is. */
    int64_t n_stop_ids;
    bool ignore_eos;
    int logprobs,
        /* Alternatives to report with each token, 0 to LT_ENGINE_TOP; -1: no log-probabilities at
         * all. */
        prompt_logprobs;
    uint64_t cache_salt; /* Only requests with the same one share pages of the prefix cache. */
    /* Higher first; equal: first come. A level weighs as much as 4096 steps of waiting, so none
     * waits for ever. */
    int priority;
    lt_sampling sampling;
    const int32_t *allowed; /* Only these may be chosen; none: all. Not beside a grammar. */
    int64_t n_allowed;
    /* n_bad lists of ids, one behind the other, list i up to bad_ends[i]: its last one is not
     * chosen behind the others. Where nothing else is left, it is. */
    const int32_t *bad;
    const int64_t *bad_ends;
    int64_t n_bad;
    const lt_grammar *grammar; /* NULL: free. Must live until the request is done. */
    /* Reasoning: n_think_end > 0 says that the continuation begins with thinking (n_think_begin >
     * 0: if it begins with those tokens), which ends at think_end. After think_budget tokens of it
     * the engine forces those. -1: no budget. A grammar rules all of it: its language has the
     * thinking, too. */
    int64_t think_budget;
    const int32_t *think_begin, *think_end;
    int64_t n_think_begin, n_think_end;
    /* No continuation (max_tokens 0): report the mean of the last hidden states, normed to length
     * 1; its CHOICE ends with LENGTH. */
    bool embed;
} lt_request;

lt_request lt_request_defaults(void);

typedef enum {
    LT_FINISH_NONE,
    LT_FINISH_EOS,
    LT_FINISH_STOP_ID,
    LT_FINISH_LENGTH,
    LT_FINISH_GRAMMAR,
    LT_FINISH_CANCELLED,
    LT_FINISH_FAILED
} lt_finish;

typedef enum {
    /* One token of the prompt with its log-probability; prompt_logprobs >= 0 only. */
    LT_EVENT_PROMPT,
    LT_EVENT_TOKEN,  /* One token of a choice. */
    LT_EVENT_EMBED,  /* embedding (C) F32, valid until the next poll. */
    LT_EVENT_CHOICE, /* A choice is finished. */
    LT_EVENT_DONE    /* All choices are: the request's id is free, nothing follows. */
} lt_event_kind;

typedef struct {
    uint64_t request; /* lt_engine_submit's id. */
    void *user;       /* lt_engine_submit's. */
    lt_event_kind kind;
    int32_t choice, id;
    /* CHOICE: why. TOKEN: EOS or STOP_ID on the ending token, which has no place in the text. */
    lt_finish finish;
    lt_err failure;   /* FAILED: of which kind; the message is in the log. */
    uint64_t version; /* TOKEN: lt_model_version of the weights that chose it. */
    float logprob;
    /* Alternatives in top, likeliest first; -1: not even logprob (the prompt's first token). */
    int n_top;
    struct {
        int32_t id;
        float logprob;
    } top[LT_ENGINE_TOP];
    int64_t prompt_tokens, cached_tokens; /* All */
    int64_t new_tokens;                   /* CHOICE, DONE */
    double prefill_s;                     /* TOKEN, CHOICE, DONE: to the first token. */
    double queue_s, decode_s;             /* DONE */
    const float *embedding;
} lt_event;

/* The model must outlive the engine. options NULL: the defaults. Starts the engine's thread. */
LT_MUST_USE lt_err lt_engine_open(lt_engine **out, const lt_model *m,
                                  const lt_engine_options *options);
void lt_engine_close(lt_engine *e); /* Requests that still run are cancelled. */

/* ARG: impossible parameters, ids outside [0, V), a prompt with max_tokens over max_seq (the
 * message has the numbers). LIMIT: the queue is full. */
LT_MUST_USE lt_err lt_engine_submit(lt_engine *e, const lt_request *r, void *user, uint64_t *id);
void lt_engine_cancel(
    lt_engine *e,
    /* Within one step; ends with DONE like every request. An id that is done: nothing. */
    uint64_t id);
void lt_engine_cancel_choice(lt_engine *e, uint64_t id,
                             int32_t choice); /* E.g. a stop string was seen. */

int lt_engine_fd(const lt_engine *e); /* Readable while events wait. */
int64_t lt_engine_poll(lt_engine *e, lt_event *events,
                       int64_t room); /* How many were written; never waits. */

/* ---- Weights that change ----
 *
 * A trainer may own the model. Between hold and refresh the engine reads no weights:
 *
 *     lt_engine_hold(e, LT_HOLD_FINISH);    waits until no step runs
 *     ... train: the weights change in place, lt_model_version grows; then wait for the device ...
 *     lt_engine_refresh(e, &version);       packed weights are made anew, older pages are forgotten
 *
 * Requests that were submitted before hold either end first (FINISH), each on one version of the
 * weights; or they stop where they are (PREEMPT) and go on after refresh: they keep their tokens,
 * whose keys and values are computed again with the new weights, so each further token is what the
 * new weights say behind the text so far. An embedding starts over; log-probabilities of a prompt
 * that were not told yet are those of the new weights. Requests that are submitted while the engine
 * is held queue up and begin after refresh. Cancelling and polling go on as ever. One thread at a
 * time calls hold and refresh; it need not be the one that polls. */
typedef enum { LT_HOLD_FINISH, LT_HOLD_PREEMPT } lt_hold;
/* ARG: it is held already. */
LT_MUST_USE lt_err lt_engine_hold(lt_engine *e, lt_hold how);
/* *version (may be NULL): of the weights that the engine now runs on. Where it did not change,
 * pages stay as well. ARG: it is not held. After another failure it is still held. */
LT_MUST_USE lt_err lt_engine_refresh(lt_engine *e, uint64_t *version);

/* Where keys and values are kept; fixed when the engine opens. */
typedef struct {
    int64_t pages, page_tokens, page_bytes;
    int64_t most_unused; /* Pages that no sequence holds: so many are kept. */
    lt_dtype dtype;
    char why[320]; /* What set the number of pages. */
} lt_engine_cache;
void lt_engine_get_cache(const lt_engine *e, lt_engine_cache *out);

#define LT_STEP_SIZES 22 /* Steps have at most 2^20 tokens, and one a sequence. */

typedef struct {
    int64_t running, waiting, pages, pages_used, pages_cached;
    int64_t steps, prompt_tokens, cached_tokens, new_tokens, preemptions, finished, cancelled,
        failed;
    double step_s; /* Of the last step. */
    int64_t step_tokens, step_sequences;
    int64_t steps_ahead; /* Of steps: queued before the tokens of the one before were known. */
    int64_t steps_of[LT_STEP_SIZES]; /* Of steps: of at most 2^k tokens, and more than 2^(k-1). */
    int64_t steps_tokens;            /* Of all steps together. */
    uint64_t version;                /* lt_model_version of the weights it runs on. */
} lt_engine_stats;
void lt_engine_get_stats(const lt_engine *e,
                         lt_engine_stats *out); /* Any thread; a snapshot of one step's edge. */

#endif

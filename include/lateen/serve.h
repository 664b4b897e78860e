/* serve.h: many requests on one model: the engine that batches them.
 *
 *   front (HTTP, command line)                        engine thread
 *   ── lt_engine_submit ──▶ queue ──▶ admit ─▶ schedule ─▶ one batched forward ─▶ choice ─┐
 *   ◀── lt_engine_poll ──── events ◀────────────────────────────────────────────── emit ◀──┘
 *
 * The front handles text: templates, tokenization, stop strings, JSON. The engine handles tokens:
 * it never sees text and never waits for the front. submit, cancel and poll may be called from any
 * thread, poll from one thread at a time.
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
/* serve/grammar/grammar.h: which token may come next, compiled for a vocabulary. */
typedef struct lt_grammar lt_grammar;

/* On a GPU, the first step of each kind compiles or loads kernels and records graphs. Warm-up runs
 * empty steps for this before open returns. NONE: it does not. FIRST: the kinds that a request
 * needs first, and the others when the engine is idle (all before open returns if kernels must be
 * compiled). ALL: all kinds. */
typedef enum { LT_WARM_NONE, LT_WARM_FIRST, LT_WARM_ALL } lt_warm;

/* The source of draft tokens, which one step verifies: see serve/draft.h. */
typedef enum {
    LT_SPECULATE_NONE,
    LT_SPECULATE_NGRAM,
    LT_SPECULATE_MODEL,
    LT_SPECULATE_HEAD
} lt_speculate;

#define LT_DRAFT_MOST 8 /* Most draft tokens of one text in one step. */
/* Most drafts of one text in one step, including the first one. */
#define LT_DRAFT_BRANCHES 4

#define LT_ENGINE_BESIDE 4

#define LT_ENGINE_KEEP_S     86400.0
#define LT_ENGINE_KEPT_SHARE 2

#define LT_ENGINE_TOP 20 /* Most alternatives reported with a token. */
/* Background requests that should wait for the next free places, so that none stays unused. */
#define LT_ENGINE_SPARE(max_running) ((max_running) / 8 + 1)

typedef struct {
    int64_t max_running; /* Most sequences in one step. */
    int64_t max_waiting; /* Most requests in the queue; another one fails with LIMIT. */
    int64_t max_seq;     /* Most tokens of one sequence; 0: the model's limit. */
    /* Most tokens of one step: every decoding sequence first, then chunks of prompts. 0: 512, on a
     * GPU 2048. */
    int64_t step_tokens;
    /* Tokens of background requests at most in a step that also has tokens of others; -1: none on a
     * CPU, where each row makes a step longer, and 32 on a GPU, whose step reads all weights for
     * one row as for many. */
    int64_t background_tokens;
    int64_t page_tokens; /* Tokens of one page of the cache. */
    /* Size of the KV cache; 0: max_running * max_seq tokens, at most half of the free memory. */
    int64_t cache_bytes;
    int64_t cache_most; /* With cache_bytes 0: an upper bound instead of that half; 0: none. */
    /* Bytes of the cache that may hold pages without a sequence, for later prompts; 0: all. */
    int64_t unused_bytes;
    /* Keep all pages of a sequence even if some of the model's layers have a sliding window: this
     * needs more memory, but texts longer than the window can be saved ("Pages in files"). */
    bool whole_pages;
    /* On a GPU: host memory for evicted pages, which are copied back when a prompt begins with
     * them. 0: none. */
    int64_t host_bytes;
    /* A folder for evicted pages, of at most disk_bytes, which are read when a prompt begins with
     * them, also by a later engine: see serve/page_disk.h. NULL: none. On CPUs. */
    const char *disk;
    int64_t disk_bytes;
    /* Full pages are kept, and shared by prompts that begin with the same tokens. */
    bool prefix_cache;
    lt_warm warm;
    /* A request's tokens do not depend, bit for bit, on the other requests in the batch. */
    bool deterministic;
    /* Over 1, with deterministic: sums are computed as by this many ranks of tp, so that a trainer
     * on such a mesh computes the same bits. Without DoRA. */
    int tp;
    bool ahead; /* On a GPU: queue the next step before the tokens of this one are known. */
    /* Speculative decoding. NGRAM: if a text repeats an earlier passage of itself or its prompt,
     * what followed that passage is a draft, which one step verifies; it changes no text. MODEL:
     * `draft` proposes what may follow; texts keep their distribution, and are the same where
     * nothing is drawn, and on a GPU everywhere. HEAD: as MODEL, by a head that reads what the
     * served model computed. Drafts are as long as pays. A text is exactly the same if rows do not
     * depend on each other (deterministic, or in F32 nearly always); otherwise a product of more
     * rows may round differently. */
    lt_speculate speculate;
    /* Pointer to the draft model, read at open; NULL: there is none. It reads the same ids, works
     * on the same device, and must outlive the engine. Its keys and values count in cache_bytes. */
    const lt_model *const *draft;
    /* The same for a head of the served model (model/infer/draft_head.h). */
    const struct lt_draft_head *const *head;
    int64_t draft_tokens; /* Tokens of each draft, at most 8; 0: as many as are worthwhile. */
    /* Drafts of a text in a step that begin with different tokens, at most LT_DRAFT_BRANCHES; 0: as
     * many as are worthwhile; 1: one. On a GPU only copied drafts (serve/draft.h) may be
     * several. */
    int64_t draft_branches;
    lt_ends ends; /* Tokens that end a text; none: the model's own. */
    /* Type of keys: F32, BF16, F16, on CPUs also F8_E4M3, Q8_0, Q4_0; LT_DTYPE_COUNT: the model's
     * compute type, or F16 on a CPU where weights are as stored. */
    lt_dtype cache_dtype;
    lt_dtype value_dtype; /* Type of values, with the same choices; LT_DTYPE_COUNT: that of keys. */
    /* Models whose logits requests may mix into the served one's (lt_blend). They read the same
     * ids, and must outlive the engine. Their keys and values count in cache_bytes. */
    const lt_model *const *beside;
    int n_beside; /* At most LT_ENGINE_BESIDE. */
} lt_engine_options;

lt_engine_options lt_engine_defaults(void);

/* When a beam search is done: see serve/beam.h. These are false, true and "never" of transformers'
 * early_stopping. */
typedef enum { LT_BEAM_USUAL, LT_BEAM_FIRST, LT_BEAM_NEVER } lt_beam_stop;

typedef struct {
    bool on;
    double length_penalty; /* A text's score is its log-probability / its tokens ^ this. */
    lt_beam_stop stop;
} lt_beam_search;

/* Context shift: see serve/step_shift.c. */
typedef struct {
    bool on;
    int64_t keep;    /* Tokens to keep at the beginning; < 0: those of the prompt. */
    int64_t discard; /* Tokens after these to drop at a time; 0: half of the others. */
} lt_shift;

#define LT_SHIFT_TOKENS ((int64_t)1 << 20) /* Most new tokens of a choice with a context shift. */
#define LT_SHIFT_LEFT   4 /* Least tokens that remain after the kept ones, as in llama-server. */

#define LT_BEAM_PENALTY 100.0 /* The largest absolute length_penalty. */

/* Guidance by a negative prompt: see serve/step_guide.c. */
typedef struct {
    bool on;
    const int32_t *prompt; /* Copied. n_prompt 0: the prompt's last token. */
    int64_t n_prompt;
    float scale;        /* 1: no guidance; at most 1000. */
    float plausibility; /* 0 to 1; 0: all tokens may be chosen. */
} lt_guidance;

#define LT_GUIDANCE_SCALE 1000.0 /* The largest absolute scale. */

/* A token is chosen from own log p + sum of weight[k] log p_k, with p of the served model and p_k
 * of other models: see serve/step_beside.c. */
#define LT_BLEND_MOST 2
typedef struct {
    int n;                            /* 0: only the served model. */
    int model[LT_BLEND_MOST];         /* Indices in lt_engine_options.beside. */
    float own, weight[LT_BLEND_MOST]; /* At most LT_GUIDANCE_SCALE + 1 each. */
    float plausibility; /* 0 to 1: fraction of the likeliest token's p that a token needs. */
} lt_blend;

typedef struct {
    const int32_t *prompt; /* Copied by lt_engine_submit. */
    int64_t n_prompt;
    int64_t n_choices; /* Continuations of the prompt, which share its pages. */
    /* The last n_given tokens of the prompt are output of an earlier request that this one
     * continues. They count as output for max_tokens, min_tokens, the draw, penalties, bad
     * sequences, thinking and the grammar, and are not reported again. Choice i draws as choice
     * first_choice + i of the earlier request. So a text that was stopped and continued has the
     * tokens of one that was not; in a deterministic engine also the bits. */
    int64_t n_given;
    int32_t first_choice;
    /* Bounds for each continuation. Ending tokens cannot be chosen before min_tokens. */
    int64_t max_tokens, min_tokens;
    const int32_t *stop_ids; /* Further ending tokens; ignore_eos does not disable them. */
    int64_t n_stop_ids;
    bool ignore_eos;
    /* Alternatives to report with each token, 0 to LT_ENGINE_TOP; -1: no log-probabilities. */
    int logprobs, prompt_logprobs;
    /* Report the entropy of the model's distribution with each token; with log-probabilities. On a
     * GPU the logits are copied to the host. */
    bool entropy;
    /* > 0: for this many seconds after a request last used them, the prompt's pages leave the
     * prefix cache only after all others; at most LT_ENGINE_KEEP_S. At most one in
     * LT_ENGINE_KEPT_SHARE pages of the cache is kept so, and none if a sequence needs a page and
     * no other is left. */
    double keep_s;
    uint64_t cache_salt; /* Only requests with the same salt share pages of the prefix cache. */
    /* Higher first, then first come, first served. A level counts as much as 4096 steps of waiting,
     * so no request starves. */
    int priority;
    /* The request runs only if it delays no other: it gives up its place to any that comes, and
     * waits while there are others, except for background_tokens of a step. It does not count in
     * the queue of the others. */
    bool background;
    lt_sampling sampling;
    /* Only these ids may be chosen; n_allowed 0: all. Not together with a grammar. */
    const int32_t *allowed;
    int64_t n_allowed;
    /* n_bad forbidden sequences of ids, concatenated; sequence i ends before bad_ends[i]. Its last
     * id is not chosen after the others, unless no other token is left. */
    const int32_t *bad;
    const int64_t *bad_ends;
    int64_t n_bad;
    /* The number of a steering vector of the model, from 1 (model/infer/steering.h), and its
     * factor, at most 1000. steer 0: none. */
    int32_t steer;
    float steer_scale;
    /* The place of an adapter in the model's pool, from 1 (model/lora/lora_pool.h), and its factor,
     * at most 1000. The place is held until the request is done. adapter 0: none. */
    int32_t adapter;
    float adapter_scale;
    const lt_grammar *grammar; /* NULL: none. Must live until the request is done. */
    /* Reasoning: n_think_end > 0 says that the continuation begins with thinking (if n_think_begin
     * > 0, only when it begins with those tokens), which ends at think_end. After think_budget
     * tokens of thinking the engine forces think_end. -1: no budget. A grammar must describe the
     * whole continuation, thinking included. */
    int64_t think_budget;
    const int32_t *think_begin, *think_end;
    int64_t n_think_begin, n_think_end;
    /* The tokens of the single choice follow the prompt and avoid what a negative prompt predicts.
     * The negative prompt takes a second place and its own pages. */
    lt_guidance guidance;
    /* Not together with guidance and beams. Drafts are not made for it. */
    lt_blend blend;
    /* The choices are the n_choices texts with the best scores that a beam search of this width
     * finds, the best first; their tokens are reported at its end. Nothing is drawn, so
     * temperature, top-k and their like are not read; not together with biases, penalties, bad
     * sequences, a grammar, min_tokens, a thinking budget, given tokens. Width and number of ending
     * tokens are at most LT_ENGINE_TOP together. */
    lt_beam_search beam;
    /* A text that reaches max_seq drops its oldest tokens and goes on; max_tokens may exceed
     * max_seq. Not together with embed, a beam search, guidance, given tokens. */
    lt_shift shift;
    /* Speculative decoding, if the engine has it: draft tokens at a time at most, 0: none; and
     * whether the text must be that of its seed, not another one of the same distribution (as in a
     * deterministic engine). */
    int64_t most_drafts;
    bool fixed_text;
    /* A prediction of the answer, whose matching parts become drafts, on a CPU. Copied. */
    const int32_t *predicted;
    int64_t n_predicted;
    /* No continuation (max_tokens 0): report the mean of the last hidden states, scaled to length
     * 1; its CHOICE ends with LENGTH. */
    bool embed;
    bool last; /* With embed: the last token's hidden state instead of the mean. */
    /* With embed, for a model with a score head, which only takes such requests: report the head's
     * n_scores values at the last token instead. */
    bool score;
    /* With score: the tokens of the prompt at which the head is read, rising, up to its last one;
     * n_score_at 0: the last one alone. Several are read without pages of the prefix cache, which
     * hold no values. Copied. */
    const int32_t *score_at;
    int64_t n_score_at;
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
    LT_EVENT_EMBED,  /* embedding (n_embedding) F32, valid until the next poll. */
    LT_EVENT_CHOICE, /* A choice is finished. */
    LT_EVENT_DONE    /* All choices are finished: nothing follows, and the id is free again. */
} lt_event_kind;

typedef struct {
    uint64_t request; /* The id from lt_engine_submit. */
    void *user;       /* As passed to lt_engine_submit. */
    lt_event_kind kind;
    int32_t choice, id;
    /* CHOICE: why it ended. TOKEN: EOS or STOP_ID on the ending token, which is not part of the
     * text. */
    lt_finish finish;
    lt_err failure;         /* FAILED: the kind of error; the message is in the log. */
    uint64_t version;       /* TOKEN: lt_model_version of the weights that chose it. */
    float logprob, entropy; /* entropy: nats, if requested */
    /* Alternatives in top, most likely first; -1: logprob is not set either (the prompt's first
     * token). */
    int n_top;
    int32_t rank; /* With logprob, except in a beam search: the number of more likely ids. */
    struct {
        int32_t id;
        float logprob;
    } top[LT_ENGINE_TOP];
    int64_t prompt_tokens, cached_tokens; /* All kinds. prompt_tokens: without the given ones. */
    int64_t new_tokens;                   /* CHOICE, DONE: without the given ones. */
    /* CHOICE: number of verified draft tokens, and of accepted ones. */
    int64_t drafted, accepted;
    int64_t dropped;          /* CHOICE: number of tokens that shifts have dropped. */
    double prefill_s;         /* TOKEN, CHOICE, DONE: time to the first token. */
    double queue_s, decode_s; /* DONE */
    const float *embedding;
    int64_t n_embedding; /* The model's width, or n_scores for each token that is read. */
} lt_event;

/* Open an engine and start its thread. The model must outlive it. options NULL: the defaults. */
LT_MUST_USE lt_err lt_engine_open(lt_engine **out, const lt_model *m,
                                  const lt_engine_options *options);
void lt_engine_close(lt_engine *e); /* Requests that still run are cancelled. */

/* ARG: parameters out of range, ids outside [0, V), or a prompt and max_tokens that exceed max_seq
 * together (the message has the numbers). LIMIT: the queue is full. */
LT_MUST_USE lt_err lt_engine_submit(lt_engine *e, const lt_request *r, void *user, uint64_t *id);
/* Takes effect within one step; the request ends with DONE like every other. No-op for an id that
 * is done. */
void lt_engine_cancel(lt_engine *e, uint64_t id);
/* End one choice, e.g. at a stop string. */
void lt_engine_cancel_choice(lt_engine *e, uint64_t id, int32_t choice);

int lt_engine_fd(const lt_engine *e); /* Readable while events wait. */
/* Write up to `room` events and return their number. Never waits. */
int64_t lt_engine_poll(lt_engine *e, lt_event *events, int64_t room);

/* ---- Weights that change ----
 *
 * A trainer may own the model. Between hold and refresh the engine reads no weights:
 *
 *     lt_engine_hold(e, LT_HOLD_FINISH);    waits until no step runs
 *     ... train: the weights change in place, lt_model_version grows; then wait for the device ...
 *     lt_engine_refresh(e, &version);       packed weights are made anew, older pages are forgotten
 *
 * Requests that were submitted before hold either finish first (FINISH), each on one version of the
 * weights, or stop where they are (PREEMPT) and continue after refresh. These keep their tokens,
 * whose keys and values are computed again, so each further token is what the new weights predict
 * after the text so far. An embedding starts over; log-probabilities of a prompt that were not yet
 * reported are those of the new weights. Requests submitted while the engine is held wait in the
 * queue until refresh. Cancelling and polling work as usual. One thread at a time may call hold and
 * refresh; it need not be the one that polls. */
typedef enum { LT_HOLD_FINISH, LT_HOLD_PREEMPT } lt_hold;
/* ARG if it is already held. */
LT_MUST_USE lt_err lt_engine_hold(lt_engine *e, lt_hold how);
/* *version (may be NULL) gets the version of the weights that the engine now uses. If it did not
 * change, cached pages stay valid. ARG when the engine is not held. After any other failure it is
 * still held. */
LT_MUST_USE lt_err lt_engine_refresh(lt_engine *e, uint64_t *version);

/* ---- Pages in files ----
 *
 * The prefix cache has whole pages of a text; a file can keep them beyond the engine's life
 * (serve/page_file.h). Call these from any thread but the engine's own, while requests run, but not
 * while the engine is closed. salt: that of the requests to which the pages belong, or will belong.
 * UNSUPPORTED: on a GPU, without a prefix cache, with a draft model, if keys depend on a text's
 * length, and for a text whose beginning a sliding window has left and whose pages were given back
 * (whole_pages). */
typedef struct {
    int64_t tokens; /* Tokens of the text, in whole pages. */
    int64_t bytes;  /* Written or read. */
} lt_engine_kept;
/* NOT_FOUND: the cache holds no page of the text. */
LT_MUST_USE lt_err lt_engine_save(lt_engine *e, const char *path, uint64_t salt,
                                  const int32_t *tokens, int64_t n, lt_engine_kept *out);
/* Put a file's pages into the prefix cache: all, or the first for which there is room. A prompt
 * that begins with their tokens then has the bits that it had when they were saved. FORMAT: the
 * file is damaged. STATE: it is of another model, or of pages of other types. In both cases nothing
 * of it is used. */
LT_MUST_USE lt_err lt_engine_restore(lt_engine *e, const char *path, uint64_t salt,
                                     lt_engine_kept *out);
/* Drop the pages of the text that no request and no longer text holds. */
LT_MUST_USE lt_err lt_engine_erase(lt_engine *e, uint64_t salt, const int32_t *tokens, int64_t n,
                                   lt_engine_kept *out);

/* The memory of keys and values, fixed when the engine opens. */
typedef struct {
    int64_t pages, page_tokens, page_bytes;
    int64_t max_seq;     /* Most tokens of a sequence. */
    int64_t most_unused; /* Most pages that are kept without a sequence. */
    /* A page has the keys and values of page_tokens tokens in one group of page_layers layers
     * (model/infer/page_groups.h); each token has one page per group. */
    int64_t groups, page_layers;
    /* > 0: in windowed_groups of the groups no layer looks back further than this many tokens, and
     * a sequence returns older pages while it runs. 0: sequences keep all pages. */
    int64_t window, windowed_groups;
    int64_t most_pages;          /* Most pages that the longest sequence holds at once. */
    lt_dtype dtype, value_dtype; /* Types of keys and of values. */
    char why[320];               /* What determined the number of pages. */
} lt_engine_cache;
void lt_engine_get_cache(const lt_engine *e, lt_engine_cache *out);

#define LT_STEP_SIZES 22 /* Steps have 1 to 2^20 tokens, and one more for each sequence. */

typedef struct {
    int64_t background_running, background_waiting; /* They count in the next two as well. */
    int64_t running, waiting, pages, pages_used, pages_cached;
    int64_t steps, prompt_tokens, cached_tokens, new_tokens, preemptions, finished, cancelled,
        failed;
    double step_s; /* Seconds of the last step. */
    int64_t step_tokens, step_sequences;
    /* Numbers of drafts, of their tokens, and of accepted ones, */
    int64_t drafts, drafted, accepted;
    int64_t accepted_at[LT_DRAFT_MOST]; /* the last also by position in the draft. */
    /* The part of these in branches (serve/draft.h): their number, their tokens, and accepted
     * ones. */
    int64_t branches, branch_drafted, branch_accepted;
    int64_t steps_ahead; /* Steps queued before the tokens of the previous step were known. */
    int64_t steps_of[LT_STEP_SIZES]; /* [k]: steps with at most 2^k tokens and more than 2^(k-1). */
    int64_t steps_tokens;            /* Tokens of all steps. */
    /* The cache on disk: pages in it now, and their bytes; since the start, pages written and read,
     * those that failed, those that were evicted too quickly to be written, and tokens of prompts
     * that came from it. */
    int64_t host_pages, host_written, host_read, host_tokens; /* The same in host memory. */
    int64_t disk_pages, disk_bytes, disk_written, disk_read, disk_failed, disk_unkept, disk_tokens;
    uint64_t version; /* lt_model_version of the weights it runs on. */
} lt_engine_stats;
/* From any thread: a snapshot taken between two steps. */
void lt_engine_get_stats(const lt_engine *e, lt_engine_stats *out);

#endif

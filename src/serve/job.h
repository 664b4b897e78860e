/* job.h: one request inside the engine: a copy of what was asked, its choices, and all they will
 * ever say.
 *
 * A job is one block of memory, sized and filled by submit on the caller's thread: prompt, page
 * tables, room for max_tokens tokens of each choice with their log-probabilities. The engine only
 * appends, so its step allocates nothing; and the job is its own outbox: `n_out` counts what the
 * engine wrote, `n_public` what the front may see (set at the step's end, under the engine's lock),
 * `n_told` what poll has told. No queue of events can overflow, and a front that is slow holds up
 * nobody.
 *
 *     submit ─▶ SUBMITTED ─▶ (engine) its first choice in the scheduler
 *            ─▶ prompt done: the others fork ─▶ all finished
 *            ─▶ poll tells DONE ─▶ freed at the next poll */
#ifndef LT_SERVE_JOB_H
#define LT_SERVE_JOB_H

#include "lateen/serve.h"
#include "serve/grammar/grammar.h"
#include "model/sampler.h"
#include "serve/scheduler.h"

#define LT_STEPS_QUEUED 2 /* Steps on their way at once: see engine_impl.h. */

typedef struct lt_job lt_job;

/* Log-probabilities of a row of tokens: (n), (n, n_top). NULL where not asked for. */
typedef struct {
    float *logprob;
    lt_candidate *top;
    int32_t *n_top;
} lt_logprobs;

/* One continuation. */
typedef struct {
    lt_seq seq;
    lt_job *job;
    int32_t index;
    bool started;                    /* Has been in the scheduler. */
    int32_t place[LT_STEPS_QUEUED];  /* Its item in each step that is on its way; -1: none. */
    int32_t late;                    /* While seq.n_ahead: the number of the pick that it is. */
    int32_t slot;                    /* Of its penalty state on the device; -1: none. */
    int64_t n_counted;               /* Tokens that the state counts. */
    int32_t *tokens;                 /* (n_prompt + max_tokens) */
    lt_logprobs logprobs;            /* (max_tokens) */
    uint64_t *versions;              /* (max_tokens) of the weights that chose each */
    int64_t n_out, n_public, n_told; /* Output tokens: written, visible, told. */
    lt_finish finish;                /* NONE while it runs. */
    lt_err failure;
    lt_finish public_finish;   /* What the front may see. */
    bool told;                 /* The CHOICE event went out. */
    bool cancel;               /* Asked for by the front, under the lock. */
    bool thinking;             /* It has begun, and its end has not been seen. */
    int64_t think_from;        /* Output tokens before it. */
    int64_t n_forced;          /* Tokens of think_end forced so far; -1: none is due. */
    lt_grammar_state *grammar; /* NULL: free. */
} lt_job_choice;

struct lt_job {
    lt_arena arena; /* Holds the job itself's arrays. */
    uint64_t id;
    void *user;
    lt_request r;           /* Its pointers lead into the job. */
    lt_job_choice *choices; /* (n_choices) */
    int32_t *endings;       /* (n_stop_ids + model's) stop_ids, then those of the model. */
    int64_t n_endings;
    uint32_t *allowed; /* Bits of the ids that may be chosen; NULL: all. */
    int64_t n_bad_ids;
    lt_logprobs prompt_logprobs; /* (n_prompt) of tokens 1 and on; 0 has none. */
    int64_t n_prompt_out, n_prompt_public, n_prompt_told;
    float *embedding;   /* (C) */
    double *hidden_sum; /* (C) */
    bool embed_told;
    bool forked;                              /* The other choices have begun, too. */
    bool done;                                /* All choices are finished; visible to the front. */
    bool told;                                /* The DONE event went out. */
    bool cancel;                              /* Asked for by the front, under the lock. */
    bool ready, touched, in_cancelled;        /* In the engine's list of that name. */
    int64_t n_embedded;                       /* Tokens in hidden_sum. */
    int64_t n_finished;                       /* Choices. */
    int64_t n_cached;                         /* Tokens of the prompt that were not run. */
    double submit_s, start_s, first_s, end_s; /* lt_clock_s; 0: not yet. */
    lt_job *next, *next_ready, *next_touched, *next_cancel; /* In the engine's lists. */
};

/* What the model allows. */
typedef struct {
    const lt_model_spec *spec;
    int64_t max_seq, page_tokens;
    lt_ends ends;        /* Of the model. */
    int64_t rope_switch; /* lt_rope_switch, where a sequence may be longer; else 0. */
} lt_job_limits;

/* Check the request and copy it. ARG: impossible parameters. */
LT_MUST_USE lt_err lt_job_open(lt_job **out, const lt_request *r, const lt_job_limits *limits);
void lt_job_close(lt_job *j); /* Accepts NULL. */

/* Whether how the next token is chosen can only be said when the one before it is known; or, with a
 * grammar, at some cost, so as late as can be. */
bool lt_job_choice_is_late(const lt_job_choice *s);
/* How a choice's next token is chosen; behind the one that is coming if there is one. mask: filled
 * when a grammar rules, or the request rules ids out; ceil(V / 32) words. */
LT_MUST_USE lt_err lt_job_choice_sampler_args(lt_job_choice *s, int64_t vocab_size, uint32_t *mask,
                                              lt_sampler_args *out);
/* Append a token, which weights of that version chose: its log-probabilities, and whether it ends
 * the choice (finish). A failure is the
 * grammar's; nothing was appended. */
LT_MUST_USE lt_err lt_job_choice_append(lt_job_choice *s, const lt_pick *pick, uint64_t version);
/* Its choices are preempted, and the weights may change: what was summed up over its prompt so far
 * starts over. */
void lt_job_begin_again(lt_job *j, int64_t width);
void lt_job_choice_finish(lt_job_choice *s, lt_finish finish, lt_err failure);

/* What was written becomes visible (under the engine's lock). True: there is news. */
bool lt_job_publish(lt_job *j);
/* The next events, at most room (under the engine's lock). After DONE the job has nothing more to
 * say. */
int64_t lt_job_tell(lt_job *j, lt_event *events, int64_t room);

#endif

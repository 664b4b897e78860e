/* job.h: one request inside the engine: a copy of its parameters, its choices, and all their
 * output.
 *
 * A job is one block of memory, sized and filled by submit on the caller's thread: prompt, page
 * tables, space for max_tokens tokens of each choice with their log-probabilities. The engine only
 * appends, so its step allocates nothing, and the job serves as its own queue of events: `n_out`
 * counts the tokens that the engine has written, `n_public` those that the front may see (set at
 * the end of a step, under the engine's lock), `front.n_told` those that poll has reported. So no
 * queue of events can overflow, and a slow front delays nobody.
 *
 *     submit ─▶ SUBMITTED ─▶ (engine) its first choice is in the scheduler
 *            ─▶ the prompt is done: the others fork ─▶ all are finished
 *            ─▶ poll reports DONE ─▶ it is freed at the next poll */
#ifndef LT_SERVE_JOB_H
#define LT_SERVE_JOB_H

#include "lateen/serve.h"
#include "serve/grammar/grammar.h"
#include "model/infer/sampler.h"
#include "serve/beam.h"
#include "serve/draft.h"
#include "serve/scheduler.h"

#define LT_STEPS_QUEUED 2 /* Steps in flight at once: see engine_impl.h. */

typedef struct lt_job lt_job;

/* One continuation. */
typedef struct {
    lt_seq seq;
    lt_job *job;
    int32_t index;
    bool started;                   /* The scheduler has had it. */
    int32_t place[LT_STEPS_QUEUED]; /* Its item in each step in flight; -1: none. */
    /* While seq.n_ahead: the number of the pick of the next token; while a device makes its draft:
     * of the draft's last token so far. */
    int32_t late;
    int32_t slot;      /* Slot of its penalty state on the device; -1: none. */
    int64_t n_counted; /* Number of tokens that the state counts. */
    int32_t *tokens;   /* (n_prompt + max_tokens) */
    /* (max_seq): the tokens that the sequence has, if contexts are shifted; otherwise NULL. */
    int32_t *window;
    /* Number of tokens at which it is shifted, 0: never; number dropped so far. */
    int64_t shift_at, n_dropped;
    lt_logprobs logprobs; /* (max_tokens) */
    /* (max_tokens): version of the weights that chose each token */
    uint64_t *versions;
    int64_t n_out, n_public; /* Number of output tokens: written, visible to the front. */
    lt_draft_acceptance acceptance;
    int64_t run; /* Tokens since its last wrong draft token. */
    double pace; /* Tokens per step, recently. */
    /* The draft of the step: its source, or NULL: the draft model makes it, and catches up with the
     * text if there is no draft yet. */
    const int32_t *draft_from;
    bool catches_up;
    /* Other likely first tokens than the draft's, the best first. For a copied draft also where
     * they are copied from, and how many tokens. For a draft that is drawn, n_tried of them are
     * drawn, too. */
    int n_others, n_tried;
    int32_t other[LT_DRAFT_OTHERS];
    const int32_t *other_from[LT_DRAFT_OTHERS];
    int64_t other_left[LT_DRAFT_OTHERS];
    lt_draft_others others; /* What they have shown. */
    /* Its rows in calls of the draft model or head: positions [run_first, run_first + run_n) in the
     * first call. For a head: the number of its first row in the first call, and in the last one,
     * where that row is position last_first. */
    int64_t run_first, run_n, last_first;
    int32_t first_row, last_row;
    /* Distributions (n_drawn, V) from which its first tokens were drawn, if acceptance depends on
     * them. */
    float *proposed;
    int64_t n_drawn;
    /* Number of draft tokens of the step, and of those not yet accepted; whether one was
     * rejected. */
    int64_t n_draft, n_unchecked;
    bool rejected;
    /* The branch that was accepted instead of the draft of n_first tokens, -1: none; draft tokens
     * of all branches. */
    int branch;
    int64_t n_first, n_in_branches;
    int64_t n_verified, n_accepted; /* Numbers of draft tokens in all steps. */
    lt_finish finish;               /* NONE while it runs. */
    lt_err failure;
    lt_finish public_finish; /* The finish that the front may see. */
    bool cancel;             /* The front has requested it, and a step has taken the request in. */
    /* (blend.n + 1, V): log-probabilities of the models beside, and the mixture */
    float *beside;
    bool thinking;      /* Thinking has begun and not ended. */
    int64_t think_from; /* Output tokens before it. */
    int64_t n_forced;   /* Number of tokens of think_end forced so far; -1: none is due. */
    /* NULL: unconstrained. draft_grammar: for draft tokens, if a draft model makes them or a device
     * verifies them. */
    lt_grammar_state *grammar, *draft_grammar;
    /* What the front writes, under the engine's lock. It is the last field, since a branch of a
     * draft is a copy of what precedes it (step_branch.c), made without the lock. */
    struct {
        int64_t n_told; /* Output tokens that poll has reported. */
        bool told;      /* The CHOICE event was reported. */
        bool cancel;    /* Cancellation was asked for. */
    } front;
} lt_job_choice;

/* The second sequence of a guided choice: the negative prompt and the same output. */
typedef struct {
    lt_job_choice shadow;
    float *rows[2]; /* (V) each: logits after the prompt, and after the negative prompt */
    bool ready[2];
} lt_job_guide;

struct lt_job {
    lt_arena arena; /* Holds the job itself's arrays. */
    /* The pool in which it holds a place for its adapters; NULL: none. */
    struct lt_lora_pool *adapters;
    uint64_t id;
    void *user;
    lt_request r;           /* Its pointers point into the job. */
    lt_job_choice *choices; /* (n_choices) */
    int32_t *endings;       /* (n_stop_ids + model's) stop_ids, then those of the model. */
    int64_t n_endings;
    uint32_t *allowed; /* Bits of the allowed ids; NULL: all. */
    int64_t n_bad_ids;
    lt_job_guide *guide; /* NULL: the choices are not guided. */
    lt_beam *beam;       /* The choices are the beams of a search; NULL: they are independent. */
    lt_logprobs prompt_logprobs; /* (n_prompt): of tokens 1 and later; token 0 has none. */
    int64_t n_prompt_out, n_prompt_public, n_prompt_told;
    int64_t n_embedding;
    float *embedding;   /* (n_embedding) */
    double *hidden_sum; /* (C): for an embedding */
    bool embed_told;
    bool forked;                       /* The other choices have begun, too. */
    bool done;                         /* All choices are finished; visible to the front. */
    bool told;                         /* The DONE event was reported. */
    bool cancel_asked, cancel;         /* By the front, under the lock; a step has taken it in. */
    bool ready, touched, in_cancelled; /* Whether it is in the engine's list of that name. */
    /* It waits for pages from the disk (engine_disk.c). The table of its first sequence has n_found
     * pages of the pool, then n_coming for those from the disk, of which n_read were read. */
    bool parked;
    int64_t n_found, n_coming, n_read;
    int64_t n_embedded; /* Number of tokens in hidden_sum. */
    int64_t n_finished; /* Choices. */
    /* Number of the prompt's tokens that came from the prefix cache. */
    int64_t n_cached;
    double submit_s, start_s, first_s, end_s;               /* lt_clock_s; 0: not yet. */
    lt_job *next, *next_ready, *next_touched, *next_cancel; /* In the engine's lists. */
    lt_job *next_taken; /* Of the cancelled ones, in those that the step has taken in. */
};

/* Limits of the model. */
typedef struct {
    const lt_model_spec *spec;
    int64_t max_seq, page_tokens, n_groups; /* Groups of pages: pages.h. */
    lt_ends ends;                           /* Ends of the model. */
    int64_t rope_switch;           /* lt_rope_switch, if a sequence may be longer; else 0. */
    int n_beside;                  /* Models beside the served one. */
    int32_t n_steering;            /* Number of steering vectors. */
    struct lt_lora_pool *adapters; /* NULL: there are none. */
    int64_t max_running, n_pages;
    bool drafts; /* A draft model makes drafts, or a device verifies them. */
} lt_job_limits;

/* Number of pages, in all groups, of n tokens and of `more` sets. */
static inline int64_t lt_job_pages(const lt_job_limits *limits, int64_t n, int64_t more) {
    return (n / limits->page_tokens + more) * limits->n_groups;
}

/* Index of a prompt's token among those at which the head is read; -1: it is not one of them. */
static inline int64_t lt_job_score_place(const lt_request *r, int64_t token) {
    int64_t low = 0, high = r->n_score_at;
    if (r->n_score_at == 0) {
        return token == r->n_prompt - 1 ? 0 : -1;
    }
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        low = r->score_at[middle] < token ? middle + 1 : low;
        high = r->score_at[middle] < token ? high : middle;
    }
    return low < r->n_score_at && r->score_at[low] == token ? low : -1;
}

/* Check the request and copy it. ARG: parameters are out of range. */
LT_MUST_USE lt_err lt_job_open(lt_job **out, const lt_request *r, const lt_job_limits *limits);
void lt_job_close(lt_job *j); /* Accepts NULL. */
/* Release the place of its adapters, because it computes nothing more. A second call is a no-op. */
void lt_job_release_adapter(lt_job *j);

/* Number of alternatives that the engine needs with a token of the answer; -1: no
 * log-probabilities. */
static inline int lt_job_n_top(const lt_job *j) {
    return j->beam != NULL ? j->beam->n_top : j->r.logprobs;
}

/* Set the RoPE scaling of the sequence, by its number of tokens so far. */
void lt_job_choice_rope(lt_job_choice *s, const lt_job_limits *limits);
/* EOS or STOP_ID, if this token ends a text of the job; else NONE. */
lt_finish lt_job_ending(const lt_job *j, int32_t id);
/* Whether the choice of the next token depends on the token before it. With a grammar it always
 * counts as late, because its mask is costly. */
bool lt_job_choice_is_late(const lt_job_choice *s);
/* How the token after n_output others is chosen, apart from the mask. */
lt_sampler_args lt_job_choice_plain_args(const lt_job_choice *s, int64_t n_output);
/* Fill in how the next token of a choice is chosen; if a token is in flight, the one after it. mask
 * (ceil(V / 32) words) is filled if there is a grammar or the request excludes ids. */
LT_MUST_USE lt_err lt_job_choice_sampler_args(lt_job_choice *s, int64_t vocab_size, uint32_t *mask,
                                              lt_sampler_args *out);
/* The same for the draft token at this position, from 0 on: the draft tokens before it follow the
 * choice's tokens. Call it for the positions of a draft in order. */
LT_MUST_USE lt_err lt_job_choice_draft_args(lt_job_choice *s, int64_t place, int64_t vocab_size,
                                            uint32_t *mask, lt_sampler_args *out);
/* Append a token that weights of this version chose, with its log-probabilities, and set finish if
 * it ends the choice. A failure comes from the grammar, and then nothing was appended. */
LT_MUST_USE lt_err lt_job_choice_append(lt_job_choice *s, const lt_pick *pick, uint64_t version);
/* Called when its choices are preempted and the weights may change: sums over the prompt start
 * over. */
void lt_job_begin_again(lt_job *j, int64_t width);
void lt_job_choice_finish(lt_job_choice *s, lt_finish finish, lt_err failure);

/* Make what was written visible, under the engine's lock. True: there are new events. */
bool lt_job_publish(lt_job *j);
/* The next events, at most room, under the engine's lock. DONE is the last event of a job. */
int64_t lt_job_tell(lt_job *j, lt_event *events, int64_t room);

#endif

/* engine_impl.h: the engine from inside: the door (engine.c, any thread) and the step (step.c, the engine's thread).
 *
 * WHO TOUCHES WHAT
 *     front, under lock      slots, submitted, cancelled, ready, told; a job's public and told fields, its cancel flags
 *     engine's thread alone  sched, forward, plan arrays, pickers; a job's other fields once it was submitted
 * The engine takes the lock twice a step, for as long as it takes to move a few pointers and counts. */
#ifndef LT_SERVE_ENGINE_IMPL_H
#define LT_SERVE_ENGINE_IMPL_H

#include <pthread.h>

#include "model/forward.h"
#include "model/params.h"
#include "tensor/backend.h"
#include "serve/job.h"

/* A token to choose this step: from row `row` of the logits at hand, where they lie (on_device) or of their copy. */
typedef struct {
    lt_sample *sample;
    int64_t row;
    bool on_device,
        leads; /* leads: the row is its own; else it forks from the sample whose it is. */
    lt_pick_args args;
    lt_pick pick;
    lt_err err;
} lt_choosing;

/* A row whose logits or hidden state a step needs. */
typedef struct {
    lt_sample *sample;
    int64_t position; /* Of the row's token. */
    bool
        next; /* The sample's next token comes from it; else the prompt's token at position + 1 is judged. */
} lt_wanted;

/* What a step hands to the forward, and its places. All sizes are fixed at open. */
typedef struct {
    int32_t *ids, *positions, *slots, *out_rows; /* (step_tokens) */
    int32_t *q_start, *kv_len;                   /* (max_running + 1) */
    int32_t *table;                              /* (max_running, max_pages) */
    lt_wanted *wanted;                           /* (step_tokens) logits */
    bool *on_device, *on_host;                   /* (step_tokens) by wanted row; (out_rows) */
    double *how,
        *more_how;      /* (step_tokens), (out_rows) times LT_CHOOSE_HOW_COUNT: options of choose */
    int32_t *more_rows; /* (out_rows) */
    lt_choosing *choices;       /* (max_running) */
    uint32_t *masks;            /* (max_running, mask_words) */
    float *hidden;              /* (step_tokens, C) of embeddings */
    int64_t n_logits, n_hidden; /* Of out_rows: first those, then these. */
} lt_step;

struct lt_engine {
    const lt_model *model;
    const lt_model_spec *spec;
    lt_engine_options o;
    lt_job_limits limits;
    lt_arena arena; /* Everything below that has a length. */
    /* The engine's thread. */
    lt_sched sched;
    lt_forward *forward;
    lt_step step;
    lt_picker *pickers; /* (n_pickers) one a thread of a parallel loop */
    int64_t n_pickers, max_pages, out_rows, mask_words;
    lt_job *touched; /* Jobs that changed in this step: published at its end. */
    int64_t n_new_tokens, n_prompt_tokens, n_cached_tokens;
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    lt_job **slots; /* (n_slots) live jobs by id % n_slots */
    int64_t n_slots, n_live;
    uint64_t n_ids;
    lt_job *submitted, *submitted_last, *cancelled;
    lt_job *ready, *ready_last; /* Jobs with news for poll. */
    lt_job *told;               /* Jobs that said all: freed at the next poll. */
    int64_t n_submitted;
    lt_engine_stats stats;
    bool closing;
    /* Both. */
    int event_fd;
    pthread_t thread;
    bool running;
};

/* Take in what was submitted and cancelled, run one step. False: there is nothing to do, or the engine is closing. */
bool lt_engine_step(lt_engine *e);
void lt_engine_signal(lt_engine *e); /* The front has news to poll. */

void lt_step_carve(lt_engine *e, lt_arena *a);

/* Of step.c, for step_pick.c: a job has news; a sample ends; a sample can not go on, and none of its request can that would have started from it. */
void lt_step_touch(lt_engine *e, lt_job *j);
void lt_step_finish(lt_engine *e, lt_sample *s, lt_finish why, lt_err failure);
void lt_step_fail(lt_engine *e, lt_sample *s, lt_err failure);
/* Of step_pick.c: whether the device can choose the sample's next token, and how; use the logits of wanted rows [first, first + n). */
bool lt_step_on_device(const lt_engine *e, lt_sample *s, double how[LT_CHOOSE_HOW_COUNT]);
LT_MUST_USE lt_err lt_step_pick(lt_engine *e, int64_t first, int64_t n);

#endif

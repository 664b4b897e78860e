/* together_impl.h: what the runs of one model share (together.h); run.h names it. */
#ifndef LT_TRAIN_TOGETHER_IMPL_H
#define LT_TRAIN_TOGETHER_IMPL_H

#include "base/error.h"
#include "train/run.h"
#include "train/together.h"

typedef enum { LT_TOGETHER_RUNS, LT_TOGETHER_DONE, LT_TOGETHER_FAILED } lt_together_state;

typedef struct lt_together {
    const lt_named_recipe *named; /* (n) */
    int n, n_opened;
    /* Belongs to the caller; without ranks: this process is alone. */
    lt_world *world;
    int64_t micros[LT_TOGETHER_MAX]; /* Most rows of each run in one pass, */
    int64_t pass_rows;               /* and of all runs together. */
    lt_training *runs;               /* (n) */
    /* The rows of a pass or, with a pipeline, of the n_places passes of a step; and how many of
     * them each run has, (n_places, n). */
    lt_step_rows rows;
    int64_t n_places;
    int64_t *rows_of;
    lt_step_outcome outcomes[LT_TOGETHER_MAX];
    lt_together_state state[LT_TOGETHER_MAX];
    /* The first run that is still training: its steps are measured (times.c). */
    int timed;
    lt_failure failure; /* Failure of the first run that could not continue. */
    lt_progress progress;
    char exit_path[LT_PATH_BYTES];
} lt_together;

static inline bool lt_together_runs(const lt_together *g, int i) {
    return g->state[i] == LT_TOGETHER_RUNS;
}
static inline bool lt_together_leads(const lt_together *g) {
    return g->world->comm == NULL || g->world->rank == 0;
}

/* From now on, whatever is opened on the model computes with the adapters of run i. */
lt_training *lt_together_turn_to(lt_together *g, int i);
/* err: the error of run i. A run that cannot continue (NUMERIC) leaves; any other error ends all
 * runs. */
LT_MUST_USE lt_err lt_together_leave_or(lt_together *g, int i, lt_err err);
/* Finish a run that has taken all its steps. */
LT_MUST_USE lt_err lt_together_finish_if_done(lt_together *g, int i);

/* together_step.c: the rows that passes need; and a step of all runs. *stop: why all must stop; 0:
 * they go on. */
LT_MUST_USE lt_err lt_together_open_rows(lt_together *g);
LT_MUST_USE lt_err lt_together_step(lt_together *g, int *stop);

#endif

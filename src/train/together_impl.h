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
    int64_t pass_rows;                /* Rows of all runs in one pass, at most. */
    lt_training *runs;                /* (n) */
    lt_step_rows rows;                /* The batch of a pass. */
    int64_t rows_of[LT_TOGETHER_MAX]; /* Rows of each run in it. */
    lt_step_outcome outcomes[LT_TOGETHER_MAX];
    lt_together_state state[LT_TOGETHER_MAX];
    lt_failure failure; /* Of the first run that could not go on. */
    lt_progress progress;
    char exit_path[LT_PATH_BYTES];
} lt_together;

#endif

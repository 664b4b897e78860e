/* guard.h: should this step's update be applied? A NaN or infinite loss or gradient norm never is; with thresholds set, neither is one that lies
 * that many standard deviations above the mean of the last `window` accepted steps (llm.c's z-score rule). */
#ifndef LT_TRAIN_GUARD_H
#define LT_TRAIN_GUARD_H

#include <stdbool.h>

#include <jansson.h>

#include "train/recipe.h"

#define LT_GUARD_WINDOW_MAX 4096

typedef struct {
    double values[LT_GUARD_WINDOW_MAX]; /* A ring; oldest at `next` once full. */
    int64_t n, next;
} lt_guard_ring;

typedef struct {
    const lt_recipe *recipe;
    lt_guard_ring loss, grad;
    int64_t skipped, skipped_in_a_row;
} lt_guard;

void lt_guard_open(lt_guard *g, const lt_recipe *r);

/* NULL: apply the step. Else why not, e.g. "loss is nan", in `why` (of why_bytes). */
const char *lt_guard_judge(lt_guard *g, double loss, double grad_norm, char *why, size_t why_bytes);

/* State for the checkpoint: exact. */
json_t *lt_guard_save(const lt_guard *g);
LT_MUST_USE lt_err lt_guard_load(lt_guard *g, const json_t *state, const char *what);

#endif

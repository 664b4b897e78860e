/* guard.h: should this step's update be applied? A NaN or infinite loss or gradient norm never is;
 * with thresholds set, neither is one that lies that many standard deviations above the mean of the
 * last `window` accepted steps (llm.c's z-score rule).
 *
 * And has the run diverged, though its numbers are finite? `best` is the lowest loss that the run
 * has held: that of its first step, then the lowest of the means of the last LT_GUARD_RECENT
 * accepted losses at each good checkpoint; `spread` is their standard deviation there, or nine
 * tenths of what it was, whichever is larger. A checkpoint is suspect when the loss of its weights,
 * one micro-batch's, lies more than max(1 nat, best / 2, 4 spreads) above the best, or the mean of
 * the last losses, which is smoother, more than max(0.5, best / 4, 1.5 spreads): 15.75 and 13.1
 * after 10.5; 2.5 and 2 after 1.5. What batches of some thousand tokens scatter is far less; the
 * spread is for the smallest ones. */
#ifndef LT_TRAIN_GUARD_H
#define LT_TRAIN_GUARD_H

#include <stdbool.h>

#include <jansson.h>

#include "train/recipe.h"

#define LT_GUARD_WINDOW_MAX 4096
#define LT_GUARD_RECENT     16

typedef struct {
    double values[LT_GUARD_WINDOW_MAX]; /* A ring; oldest at `next` once full. */
    int64_t n, next;
} lt_guard_ring;

typedef struct {
    const lt_recipe *recipe;
    lt_guard_ring loss, grad;
    int64_t skipped, skipped_in_a_row;
    int64_t not_finite_in_a_row; /* Of these the last, whose loss or norm was not finite. */
    double best;                 /* INFINITY: no loss yet. */
    double spread;
} lt_guard;

void lt_guard_open(lt_guard *g, const lt_recipe *r);

/* Is the update to be applied? Else why not, e.g. "loss is nan", in `why` (of why_bytes). */
bool lt_guard_allows(const lt_guard *g, double loss, double grad_norm, char *why, size_t why_bytes);
/* What was decided of the step: its numbers become part of the window, or it counts as skipped. */
void lt_guard_note(lt_guard *g, bool applied, double loss, double grad_norm);

/* Mean of the last accepted losses; NaN when there is none. */
double lt_guard_recent(const lt_guard *g);
bool lt_guard_suspects(const lt_guard *g, double loss); /* loss: of the present weights. */
/* A good checkpoint is made: the mean of its last losses may be the best, once there are
 * LT_GUARD_RECENT of them or as many as the window holds. */
void lt_guard_note_good(lt_guard *g);

/* State for the checkpoint: exact. A run may go on with another guard.window: the newest losses
 * that fit stay. */
json_t *lt_guard_save(const lt_guard *g);
LT_MUST_USE lt_err lt_guard_load(lt_guard *g, const json_t *state, const char *what);

#endif

/* guard.h: decides whether a step's update is applied. It is not if the loss or the gradient norm
 * is NaN or infinite. With a threshold set, it is not if the loss or the norm lies that many
 * standard deviations above its mean over the last `window` accepted steps (llm.c's z-score rule).
 *
 * The guard also detects a run that has diverged with finite numbers. `best` is the lowest loss
 * that the run has sustained: that of its first step, then the lowest of the means of the last
 * LT_GUARD_RECENT accepted losses at each good checkpoint. `spread` is the standard deviation of
 * these losses there, or nine tenths of its value before, whichever is larger. A checkpoint is
 * suspect in two cases:
 *
 *     the loss of its weights on one micro-batch   > best + max(1 nat, best / 2, 4 spreads)
 *     the mean of the last losses, as above        > best + max(0.5 nats, best / 4, 1.5 spreads)
 *
 * So the limits are 15.75 and 13.1 for a best of 10.5, and 2.5 and 2 for a best of 1.5. Losses of
 * batches of some thousand tokens scatter far less; the spread matters only for the smallest. */
#ifndef LT_TRAIN_GUARD_H
#define LT_TRAIN_GUARD_H

#include <stdbool.h>

#include <jansson.h>

#include "train/recipe/recipe.h"

#define LT_GUARD_WINDOW_MAX 4096
#define LT_GUARD_RECENT     16

typedef struct {
    /* A ring, whose oldest value is at `next` once it is full. */
    double values[LT_GUARD_WINDOW_MAX];
    int64_t n, next;
} lt_guard_ring;

typedef struct {
    const lt_recipe *recipe;
    lt_guard_ring loss, grad;
    int64_t skipped, skipped_in_a_row;
    /* The number of latest steps, without a gap, whose loss or norm was not finite. */
    int64_t not_finite_in_a_row;
    double best; /* INFINITY: no loss was accepted yet. */
    double spread;
} lt_guard;

void lt_guard_open(lt_guard *g, const lt_recipe *r);

/* Shall the update be applied? If not, `why` (why_bytes) gets the reason, e.g. "loss is nan". */
bool lt_guard_allows(const lt_guard *g, double loss, double grad_norm, char *why, size_t why_bytes);
/* Record the decision on a step: its numbers enter the window, or it counts as skipped. */
void lt_guard_note(lt_guard *g, bool applied, double loss, double grad_norm);

/* Mean of the last accepted losses; NaN when there is none. */
double lt_guard_recent(const lt_guard *g);
bool lt_guard_suspects(const lt_guard *g, double loss); /* loss: of the current weights. */
/* Record a good checkpoint: the mean of its last losses may become the best, once there are
 * LT_GUARD_RECENT of them or as many as the window holds. */
void lt_guard_note_good(lt_guard *g);

/* The exact state, for the checkpoint. If a run continues with a smaller guard.window, the newest
 * losses that fit are kept. */
json_t *lt_guard_save(const lt_guard *g);
LT_MUST_USE lt_err lt_guard_load(lt_guard *g, const json_t *state, const char *what);

#endif

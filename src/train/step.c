/* step.c: one optimiser step.
 *
 *   rows of the step ── loader ──▶ micro-batches ── forward, backward ──▶ gradients (sum over all labels / number of labels)
 *                                                                            │ norm, guard, clip
 *                                                                            ▼
 *                                                                        optimiser ──▶ weights
 * The loss is the mean over all counted labels of the step, whatever the micro-batches.
 *
 * The host waits once: behind the last backward pass, for losses and the gradient norm, which
 * decide whether and how the update is applied. Before it waits it draws the next step's rows and
 * sends off the first of them. Gradients are summed with a fixed scale, 1 / (rows of a micro-batch
 * * seq), so that a recorded graph holds no number that changes; what is missing to 1 / labels
 * joins the clip factor in the optimiser's reading of them.
 *
 *   host     ··stage, launch··│draw k+1, stage│··wait··│judge│update, launch k+1··
 *   device   ───────────── forward, backward k ────────┤     ├─ update ─┬─ forward k+1
 */
#include <math.h>

#include "base/clock.h"
#include "base/error.h"
#include "tensor/ops.h"
#include "train/run.h"

#define DEAD_LOSS 1e-3 /* Nats. A gradient of exactly 0 is right where everything is learnt. */

static int64_t count_labels(const lt_batch *b, int64_t rows) {
    int64_t n = 0;
    for (int64_t i = 0; i < rows * b->seq; i++) {
        n += b->labels[i] != LT_LABEL_IGNORED;
    }
    return n;
}

static lt_pass_batch slice(const lt_training *t, const lt_batch *b, int64_t first, int64_t count) {
    const int64_t at = first * b->seq;
    return (lt_pass_batch){.batch = count,
                           .seq = b->seq,
                           .tokens = b->tokens + at,
                           .labels = b->labels + at,
                           .doc_start = t->recipe.mask_documents ? b->doc_start + at : NULL,
                           .positions = b->positions + at};
}

/* The rows of `step`, which begins when `seen` rows have been seen. */
static lt_err draw(lt_training *t, lt_draw *d, int64_t step, uint64_t seen) {
    const double start_s = lt_clock_s();
    d->plan = lt_recipe_plan(&t->recipe, step, seen);
    d->staged = 0;
    LT_TRY(lt_loader_next(t->loader, d->plan.rows, &d->rows.batch, NULL));
    lt_loader_get_state(t->loader, &d->loader);
    d->wait_s = lt_clock_s() - start_s;
    d->n_labels = count_labels(&d->rows.batch, d->plan.rows);
    d->drawn = true;
    return LT_OK;
}

/* Send off the draw's next micro-batch. */
static lt_err stage(lt_training *t, lt_draw *d) {
    const int64_t left = d->plan.rows - d->staged, count = left < t->micro ? left : t->micro;
    const lt_pass_batch b = slice(t, &d->rows.batch, d->staged, count);
    d->staged += count;
    return lt_pass_stage(t->pass, &b);
}

/* Of every gradient: 1 over the labels of a full micro-batch. */
static double gradient_scale(const lt_training *t) {
    return 1.0 / (double)(t->micro * t->recipe.seq);
}

/* Queue all micro-batches of a draw. Results that would not fit are collected on the way. */
static lt_err accumulate(lt_training *t, lt_draw *d, lt_pass_result *sum) {
    LT_TRY(lt_pass_zero_gradients(t->pass));
    while (d->staged < d->plan.rows || lt_pass_staged(t->pass) > 0) {
        if (lt_pass_staged(t->pass) == 0) {
            if (lt_pass_full(t->pass)) {
                LT_TRY(lt_pass_collect(t->pass, sum));
            }
            LT_TRY(stage(t, d));
        }
        LT_TRY(lt_pass_train_staged(t->pass, (float)gradient_scale(t)));
        if (d->staged < d->plan.rows && !lt_pass_full(t->pass)) {
            LT_TRY(stage(t, d));
        }
    }
    return LT_OK;
}

/* While the device computes: the next step's rows, and the first of them on their way. */
static lt_err look_ahead(lt_training *t, lt_draw *next, uint64_t seen) {
    if (t->state.step + 1 >= t->recipe.steps) {
        return LT_OK;
    }
    LT_TRY(draw(t, next, t->state.step + 2, seen));
    return lt_pass_full(t->pass) ? LT_OK : stage(t, next);
}

lt_err lt_training_step(lt_training *t, lt_step_report *report) {
    const int64_t step = t->state.step + 1;
    lt_draw *now = &t->draws[step % 2], *next = &t->draws[(step + 1) % 2];
    const double start_s = lt_clock_s();
    lt_pass_result sum = {0};
    double scale;

    if (!now->drawn) {
        LT_TRY(draw(t, now, step, t->state.rows));
    }
    *report = (lt_step_report){.rows = now->plan.rows,
                               .tokens = now->plan.rows * t->recipe.seq,
                               .labels = now->n_labels,
                               .wait_s = now->wait_s};
    LT_TRY(accumulate(t, now, &sum));
    LT_TRY(lt_optimiser_sumsq(&t->optimiser, lt_pass_gradients(t->pass)));
    LT_TRY(look_ahead(t, next, t->state.rows + (uint64_t)now->plan.rows));
    LT_TRY(lt_pass_collect(t->pass, &sum));
    scale = now->n_labels > 0 ? 1.0 / (double)now->n_labels / gradient_scale(t) : 0.0;
    report->loss = now->n_labels > 0 ? sum.loss_sum / (double)now->n_labels : 0.0;
    report->aux = sum.aux_sum;
    report->router_z = sum.z_sum;
    report->grad_norm = sqrt(*t->optimiser.host_sumsq) * scale;
    report->skipped = lt_guard_judge(&t->guard, report->loss, report->grad_norm, report->why,
                                     sizeof report->why);
    t->dead = report->grad_norm == 0.0 && report->loss > DEAD_LOSS;
    if (t->guard.skipped_in_a_row >= t->recipe.guard_limit) {
        LT_FAIL(LT_ERR_NUMERIC, "step %lld: %lld updates in a row were skipped (%s)",
                (long long)step, (long long)t->guard.skipped_in_a_row, report->why);
    }
    if (t->recipe.clip > 0.0 && report->grad_norm > t->recipe.clip) {
        scale *= t->recipe.clip / report->grad_norm;
    }
    report->lr = now->plan.lr;
    if (report->skipped == NULL) {
        LT_TRY(
            lt_optimiser_step(&t->optimiser, lt_pass_gradients(t->pass), (float)scale, &now->plan));
        t->applied_step = step;
    }
    now->drawn = false;
    t->loader_state = now->loader;
    t->state.step = step;
    t->state.rows += (uint64_t)now->plan.rows;
    t->state.tokens += (uint64_t)report->tokens;
    report->step_s = lt_clock_s() - start_s;
    return LT_OK;
}

lt_err lt_training_probe(lt_training *t, double *loss) {
    const lt_draw *d = &t->draws[t->state.step % 2];
    const int64_t rows = d->plan.rows < t->micro ? d->plan.rows : t->micro;
    lt_pass_result r = {0};

    *loss = lt_guard_recent(&t->guard);
    if (d->plan.rows == 0) { /* No step was taken yet. */
        *loss = 0.0;
        return LT_OK;
    }
    const lt_pass_batch b = slice(t, &d->rows.batch, 0, rows);
    LT_TRY(lt_pass_eval(t->pass, &b, &r, NULL));
    *loss = r.n_labels > 0 ? r.loss_sum / (double)r.n_labels : *loss;
    return LT_OK;
}

/* step.c: one optimiser step.
 *
 *   rows of the step ── loader ──▶ micro-batches ── forward, backward ──▶ gradients (sum over all labels / number of labels)
 *                                                                            │ norm, guard, clip
 *                                                                            ▼
 *                                                                        optimiser ──▶ weights
 * The loss is the mean over all counted labels of the step, whatever the micro-batches. */
#include <math.h>

#include "base/clock.h"
#include "base/error.h"
#include "tensor/ops.h"
#include "train/run.h"

static int64_t count_labels(const lt_batch *b, int64_t rows) {
    int64_t n = 0;
    for (int64_t i = 0; i < rows * b->seq; i++) {
        n += b->labels[i] != LT_LABEL_IGNORED;
    }
    return n;
}

static lt_pass_batch slice(const lt_batch *b, int64_t first, int64_t count) {
    const int64_t at = first * b->seq;
    return (lt_pass_batch){.batch = count,
                           .seq = b->seq,
                           .tokens = b->tokens + at,
                           .labels = b->labels + at,
                           .doc_start = b->doc_start + at,
                           .positions = b->positions + at};
}

static lt_err accumulate(lt_training *t, int64_t rows, lt_step_report *report) {
    const float scale = report->labels > 0 ? 1.0f / (float)report->labels : 0.0f;
    double loss_sum = 0.0;

    LT_TRY(lt_pass_zero_gradients(t->pass));
    for (int64_t first = 0; first < rows; first += t->micro) {
        const int64_t count = rows - first < t->micro ? rows - first : t->micro;
        const lt_pass_batch b = slice(&t->rows.batch, first, count);
        lt_pass_result r = {0};
        LT_TRY(lt_pass_train(t->pass, &b, scale, &r));
        loss_sum += r.loss_sum;
        report->aux += r.aux_sum;
        report->router_z += r.z_sum;
    }
    report->loss = report->labels > 0 ? loss_sum / (double)report->labels : 0.0;
    return LT_OK;
}

static lt_err gradient_norm(lt_training *t, double *norm) {
    double sum = 0.0;
    const lt_sumsq_args a = {
        .out = lt_tensor_1d(&sum, LT_F64, 1),
        .x = lt_tensor_1d(lt_pass_gradients(t->pass), LT_F32, t->model->table.n_elements)};
    LT_TRY(t->model->backend->ops->sumsq(t->optimiser.queue, &a));
    LT_TRY(t->model->backend->sync(t->optimiser.queue));
    *norm = sqrt(sum);
    return LT_OK;
}

lt_err lt_training_step(lt_training *t, lt_step_report *report) {
    const int64_t step = t->state.step + 1, rows = lt_recipe_batch(&t->recipe, t->state.rows);
    const double start_s = lt_clock_s();
    float scale = 1.0f;

    *report = (lt_step_report){.rows = rows, .tokens = rows * t->recipe.seq};
    LT_TRY(lt_loader_next(t->loader, rows, &t->rows.batch, NULL));
    report->wait_s = lt_clock_s() - start_s;
    report->labels = count_labels(&t->rows.batch, rows);
    LT_TRY(accumulate(t, rows, report));
    LT_TRY(gradient_norm(t, &report->grad_norm));
    report->skipped = lt_guard_judge(&t->guard, report->loss, report->grad_norm, report->why,
                                     sizeof report->why);
    if (t->guard.skipped_in_a_row >= t->recipe.guard_limit) {
        LT_FAIL(LT_ERR_NUMERIC,
                "step %lld: %lld updates in a row were skipped (%s): lower optim.lr, or look at "
                "the data",
                (long long)step, (long long)t->guard.skipped_in_a_row, report->why);
    }
    if (t->recipe.clip > 0.0 && report->grad_norm > t->recipe.clip) {
        scale = (float)(t->recipe.clip / report->grad_norm);
    }
    report->lr = t->recipe.lr * lt_recipe_lr(&t->recipe, step);
    if (report->skipped == NULL) {
        LT_TRY(lt_optimiser_step(&t->optimiser, lt_pass_gradients(t->pass), scale, step));
    }
    t->state.step = step;
    t->state.rows += (uint64_t)rows;
    t->state.tokens += (uint64_t)report->tokens;
    report->step_s = lt_clock_s() - start_s;
    return LT_OK;
}

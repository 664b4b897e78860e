/* objective.c: see objective.h. */
#include "train/objective.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/run.h"

/* Tokens of a pass are a multiple of this: few shapes, whole tiles of a kernel. */
#define SEQ_STEP 16

lt_err lt_objective_check(const lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const lt_mesh_shape *mesh = lt_training_has_ranks(t) ? &t->world->shape : NULL;
    const struct {
        const char *what;
        bool asked;
    } refused[] = {{"deterministic = mesh-invariant", r->deterministic != 0},
                   {"model.fp8", r->fp8 != LT_FP8_NONE},
                   {"loss.z", r->z_coef > 0.0},
                   {"mesh.zero = 3", r->zero == 3},
                   {"pp (mesh)", mesh != NULL && mesh->pp > 1},
                   {"cp (mesh)", mesh != NULL && mesh->cp > 1},
                   {"tp (mesh)", mesh != NULL && mesh->tp > 1},
                   {"ep (mesh)", mesh != NULL && mesh->ep > 1}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].asked) {
            LT_FAIL(LT_ERR_UNSUPPORTED, "objective.kind with %s: not built", refused[i].what);
        }
    }
    if (r->init[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "objective.kind is given, but no model.init: it teaches a model that "
                            "already writes");
    }
    return LT_OK;
}

static size_t room_of(const lt_training *t) {
    return (size_t)(t->micro * t->recipe.seq);
}

lt_err lt_objective_open(lt_training *t) {
    const lt_model_spec *s = &t->model->spec;
    lt_objective_room *o = &t->objective_room;
    if (s->n_experts > 0 && (s->moe_aux_coef > 0.0f || s->moe_z_coef > 0.0f)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "objective.kind with model.aux_coef = %g and model.router_z_coef = %g: losses of "
                "the router are not built beside an objective; 0 leaves them out",
                (double)s->moe_aux_coef, (double)s->moe_z_coef);
    }
    o->tokens = malloc(room_of(t) * sizeof *o->tokens);
    o->labels = malloc(room_of(t) * sizeof *o->labels);
    o->values = malloc(room_of(t) * sizeof *o->values);
    o->dvalues = malloc(room_of(t) * sizeof *o->dvalues);
    if (o->tokens == NULL || o->labels == NULL || o->values == NULL || o->dvalues == NULL) {
        LT_FAIL(LT_ERR_OOM, "values of %lld rows", (long long)t->micro);
    }
    return LT_OK;
}

void lt_objective_close(lt_training *t) {
    lt_objective_room *o = &t->objective_room;
    if (t->objective != NULL && t->objective->close != NULL) {
        t->objective->close(t->objective->of);
    }
    free(o->tokens);
    free(o->labels);
    free(o->values);
    free(o->dvalues);
    *o = (lt_objective_room){0};
}

/* Tokens up to the last label of n rows, in whole steps. */
static int64_t used_of(const lt_batch *b, int64_t first, int64_t n) {
    int64_t used = 1;
    for (int64_t i = first; i < first + n; i++) {
        int64_t last = b->seq;
        while (last > used && b->labels[i * b->seq + last - 1] < 0) {
            last--;
        }
        used = last > used ? last : used;
    }
    used = (used + SEQ_STEP - 1) / SEQ_STEP * SEQ_STEP;
    return used < b->seq ? used : b->seq;
}

/* The rows as one pass computes them, and their tokens up to the last label. */
static lt_pass_batch cut(lt_training *t, const lt_row_batch *rows, int64_t first, int64_t n) {
    const lt_batch *b = &rows->ids;
    const lt_objective_room *o = &t->objective_room;
    const int64_t used = used_of(b, first, n);
    LT_ASSERT(n > 0 && n <= t->micro);
    for (int64_t i = 0; i < n; i++) {
        const size_t bytes = (size_t)used * sizeof *o->tokens;
        memcpy(o->tokens + i * used, b->tokens + (first + i) * b->seq, bytes);
        memcpy(o->labels + i * used, b->labels + (first + i) * b->seq, bytes);
    }
    return (lt_pass_batch){.batch = n, .seq = used, .tokens = o->tokens, .labels = o->labels};
}

static lt_err aim(lt_training *t, const lt_pass_batch *b, const int64_t *index) {
    const lt_objective *o = t->objective;
    return o->aim != NULL ? o->aim(o->of, t, b, index) : LT_OK;
}

lt_err lt_objective_values(lt_training *t, const lt_row_batch *rows, int64_t first, int64_t n,
                           const float **values, int64_t *seq) {
    const lt_pass_batch b = cut(t, rows, first, n);
    const bool scores = t->model->spec.n_scores > 0;
    float *v = t->objective_room.values;
    lt_pass_result unused;
    LT_TRY(aim(t, &b, rows->index + first));
    LT_TRY(lt_pass_eval(t->pass, &b, &unused, v));
    for (int64_t i = 0; i < b.batch * b.seq; i++) {
        v[i] = b.labels[i] < 0 ? 0.0f : scores ? v[i] : -v[i];
    }
    *values = v;
    *seq = b.seq;
    return LT_OK;
}

static lt_objective_part part_of(const lt_training *t, const lt_row_batch *rows, int64_t first,
                                 int64_t n, int64_t seq, float *dvalues) {
    return (lt_objective_part){.n = n,
                               .seq = seq,
                               .index = rows->index + first,
                               .labels = t->objective_room.labels,
                               .values = t->objective_room.values,
                               .dvalues = dvalues};
}

static lt_err begin(lt_training *t, const lt_row_batch *rows, int64_t n, bool held_out) {
    const lt_objective *o = t->objective;
    return o->begin != NULL ? o->begin(o->of, t, rows, n, held_out) : LT_OK;
}

lt_err lt_objective_run(lt_training *t, const lt_row_batch *rows, int64_t n, float grad_scale,
                        lt_step_record *sum) {
    const lt_objective *o = t->objective;
    float *const d = t->objective_room.dvalues;
    sum->tokens = 0.0; /* Those that passes computed. */
    LT_TRY(begin(t, rows, n, false));
    LT_TRY(lt_pass_zero_gradients(t->pass));
    for (int64_t first = 0; first < n; first += t->micro) {
        const int64_t count = n - first < t->micro ? n - first : t->micro;
        const lt_pass_batch b = cut(t, rows, first, count);
        const lt_objective_part part = part_of(t, rows, first, count, b.seq, d);
        LT_TRY(aim(t, &b, rows->index + first));
        LT_TRY(lt_training_has_ranks(t) ? lt_zero_begin_batch(&t->zero, 0) : LT_OK);
        LT_TRY(lt_pass_logprobs(t->pass, 0, &b, t->objective_room.values));
        memset(d, 0, (size_t)(count * b.seq) * sizeof *d);
        LT_TRY(o->loss(o->of, &part, false, sum));
        LT_TRY(lt_pass_logprobs_backward(t->pass, 0, d, grad_scale));
        sum->tokens += (double)(count * b.seq);
    }
    return LT_OK;
}

/* The loss of rows without gradients. */
static lt_err losses(lt_training *t, const lt_row_batch *rows, int64_t n, bool held_out,
                     lt_step_record *sum) {
    const lt_objective *o = t->objective;
    for (int64_t first = 0; first < n; first += t->micro) {
        const int64_t count = n - first < t->micro ? n - first : t->micro;
        const float *values;
        int64_t seq;
        LT_TRY(lt_objective_values(t, rows, first, count, &values, &seq));
        const lt_objective_part part = part_of(t, rows, first, count, seq, NULL);
        LT_TRY(o->loss(o->of, &part, held_out, sum));
    }
    return LT_OK;
}

lt_err lt_objective_probe(lt_training *t, const lt_row_batch *rows, int64_t n,
                          lt_step_record *sum) {
    return losses(t, rows, n, false, sum);
}

/* This rank's part of the rows that are held out, in examples. */
static int64_t held_out_share(const lt_training *t) {
    const int64_t dp = lt_training_dp(t), rank = lt_training_dp_rank(t);
    const int64_t all = t->recipe.eval_rows > 0 && t->recipe.eval_rows < t->n_held_out
                            ? t->recipe.eval_rows
                            : t->n_held_out;
    return all > rank ? (all - rank + dp - 1) / dp : 0;
}

/* The rows that are held out, a pass of them after the other, from the first on: their numbers into
 * index, or their losses into *sum. */
static lt_err walk_held_out(lt_training *t, int64_t n, int64_t *index, lt_step_record *sum) {
    const lt_row_source *source = &t->held_out;
    lt_row_batch *rows = &t->valid_rows.batch;
    LT_TRY(source->seek(source->of, NULL));
    for (int64_t first = 0; first < n; first += t->micro) {
        const int64_t count = n - first < t->micro ? n - first : t->micro;
        LT_TRY(source->next(source->of, count, rows));
        if (index != NULL) {
            memcpy(index + first, rows->index, (size_t)count * sizeof *index);
        } else {
            LT_TRY(losses(t, rows, count, true, sum));
        }
    }
    return LT_OK;
}

static lt_err evaluate_rows(lt_training *t, lt_step_record *sum) {
    lt_err err = LT_OK;
    const int64_t together = lt_recipe_together(&t->recipe), n = held_out_share(t) * together;
    int64_t *index = NULL;
    if (t->objective->begin != NULL) {
        index = malloc((size_t)(n > 0 ? n : 1) * sizeof *index);
        if (index == NULL) {
            LT_FAIL_DONE(LT_ERR_OOM, "numbers of %lld rows", (long long)n);
        }
        LT_TRY_DONE(walk_held_out(t, n, index, NULL));
        LT_TRY_DONE(begin(t, &(lt_row_batch){.index = index}, n, true));
    }
    LT_TRY_DONE(walk_held_out(t, n, NULL, sum));
    sum->rows = (double)(n / together);
done:
    free(index);
    return err;
}

lt_err lt_objective_evaluate(lt_training *t) {
    lt_step_record sum = {0};
    double values[LT_EVAL_METRIC_COUNT] = {0};
    bool present[LT_EVAL_METRIC_COUNT] = {false};
    lt_err err;
    if (t->n_held_out == 0 || t->evaluated_step == t->state.step) {
        return LT_OK;
    }
    LT_TRY(lt_training_settle(t));
    err = evaluate_rows(t, &sum);
    LT_TRY(lt_ranks_combine(&t->ranks, &sum, err));
    t->evaluated_step = t->state.step;
    if (!lt_ranks_lead(&t->ranks)) {
        return LT_OK;
    }
    values[LT_EVAL_step] = (double)t->state.step;
    values[LT_EVAL_loss] = sum.loss_sum / sum.weight_sum;
    present[LT_EVAL_step] = present[LT_EVAL_loss] = true;
    lt_log_info("step %lld: validation: loss %.4f over %.0f examples", (long long)t->state.step,
                values[LT_EVAL_loss], sum.rows);
    LT_TRY(lt_metrics_row(&t->metrics, "eval", lt_eval_metrics, LT_EVAL_METRIC_COUNT, values,
                          present));
    return lt_objective_tell(t, &sum, true);
}

lt_err lt_objective_tell(lt_training *t, const lt_step_record *sum, bool eval) {
    const lt_objective *o = t->objective;
    double values[LT_OBJECTIVE_METRICS] = {0};
    bool present[LT_OBJECTIVE_METRICS] = {false};
    char kind[64];
    LT_ASSERT(o->n_metrics <= LT_OBJECTIVE_METRICS);
    values[0] = (double)t->state.step;
    present[0] = true;
    o->report(o->of, sum, values, present);
    (void)snprintf(kind, sizeof kind, "%s%s", o->kind, eval ? "_eval" : "");
    return lt_metrics_row(&t->metrics, kind, o->metrics, o->n_metrics, values, present);
}

lt_err lt_objective_sum(const lt_training *t, double *numbers, int64_t n) {
    return lt_training_dp(t) > 1 ? lt_all_reduce(t->world->mesh.world, numbers, numbers, n, LT_F64,
                                                 LT_REDUCE_SUM, NULL)
                                 : LT_OK;
}

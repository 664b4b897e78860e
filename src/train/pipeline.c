/* pipeline.c: a run whose layers are divided over the ranks of pp: which are whose, a step's
 * micro-batches through the pipeline, and what each rank tells of its bubble. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/run.h"

#define MAX_SIZES 64 /* Numbers of micro-batches that the steps of a run have. */

bool lt_training_has_pipeline(const lt_training *t) {
    return lt_training_has_ranks(t) && t->world->shape.pp > 1;
}

lt_err lt_training_place_stages(lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const lt_schedule_kind kind = (lt_schedule_kind)r->schedule;
    if (!lt_training_has_pipeline(t)) {
        return LT_OK;
    }
    return lt_stages_open(&t->stages, &t->spec, kind, t->world->shape.pp, (int)r->chunks, r->seq,
                          r->stages);
}

/* ---- Opening ---- */

static lt_err add_size(int64_t sizes[MAX_SIZES], int *n, const lt_training *t, int64_t batch) {
    const int64_t rows = batch / lt_training_dp(t), micros = (rows + t->micro - 1) / t->micro;
    for (int i = 0; i < *n; i++) {
        if (sizes[i] == micros) {
            return LT_OK;
        }
    }
    if (*n == MAX_SIZES) {
        LT_FAIL(LT_ERR_LIMIT, "batch.ramp: more than %d sizes of a step in a pipeline", MAX_SIZES);
    }
    sizes[(*n)++] = micros;
    return LT_OK;
}

/* The numbers of micro-batches of all steps. */
static lt_err step_sizes(int64_t sizes[MAX_SIZES], int *n, const lt_training *t) {
    const char *p = t->recipe.ramp;
    int64_t size;
    uint64_t from;
    bool ok;
    *n = 0;
    LT_TRY(add_size(sizes, n, t, t->recipe.batch));
    while (lt_recipe_next_ramp(&p, &size, &from, &ok)) {
        LT_TRY(add_size(sizes, n, t, size));
    }
    return LT_OK;
}

lt_err lt_training_open_pipeline(lt_training *t, const lt_pass_options *o) {
    lt_group *group = t->world->mesh.pp;
    int64_t sizes[MAX_SIZES], most = 0;
    int n;
    LT_TRY(step_sizes(sizes, &n, t));
    for (int i = 0; i < n; i++) {
        most = sizes[i] > most ? sizes[i] : most;
    }
    t->batches = calloc((size_t)most, sizeof *t->batches);
    if (t->batches == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld micro-batches", (long long)most);
    }
    LT_TRY(lt_pipeline_measure(&t->pass_memory, &t->model->spec, t->model->options.dtype, o,
                               &t->stages, lt_group_rank(group), sizes, n));
    return lt_pipeline_open(&t->pipeline, t->model, o, &t->stages, group, sizes, n);
}

/* ---- A step ---- */

lt_err lt_training_run_pipeline(lt_training *t, const lt_row_batch *rows, int64_t n_rows,
                                float grad_scale, lt_pass_result *sum) {
    lt_pipeline_times times;
    int64_t n = 0;
    for (int64_t first = 0; first < n_rows; first += t->micro) {
        const int64_t left = n_rows - first;
        t->batches[n++] = lt_training_slice(t, rows, first, left < t->micro ? left : t->micro);
    }
    LT_TRY(lt_pipeline_train(t->pipeline, t->batches, n, grad_scale, sum));
    times = lt_pipeline_last(t->pipeline);
    t->piped.step_s += times.step_s;
    t->piped.busy_s += times.busy_s;
    t->piped.schedule_idle += times.schedule_idle * times.step_s;
    t->piped.sent_bytes += times.sent_bytes;
    t->piped.n_messages += times.n_messages;
    return LT_OK;
}

/* ---- What it tells ---- */

/* Of one rank, as it is gathered. */
typedef struct {
    double step_s, busy_s, table_idle, sent_bytes, messages, first_layer, n_layers;
} told;
#define TOLD_COUNT ((int64_t)(sizeof(told) / sizeof(double)))

static told told_of(const lt_training *t) {
    const lt_pipeline_times *p = &t->piped;
    told out = {.step_s = p->step_s,
                .busy_s = p->busy_s,
                .table_idle = p->step_s > 0 ? p->schedule_idle / p->step_s : 0.0,
                .sent_bytes = (double)p->sent_bytes,
                .messages = (double)p->n_messages,
                .first_layer = -1};
    for (int64_t layer = 0; layer < t->spec.n_layers; layer++) {
        if (t->world->layout.layers[layer]) {
            out.first_layer = out.first_layer < 0 ? (double)layer : out.first_layer;
            out.n_layers++;
        }
    }
    return out;
}

static lt_err tell(lt_training *t, const told *all, int n) {
    json_t *ranks = json_array();
    lt_log_info("pipeline %s, %d x %d stages: idle while a step's passes run, by the table and "
                "measured",
                lt_schedule_name(t->stages.schedule), t->stages.ranks, t->stages.chunks);
    for (int i = 0; i < n; i++) {
        const told *x = &all[i];
        const double idle = x->step_s > 0 ? 1.0 - x->busy_s / x->step_s : 0.0;
        lt_log_info("  rank %-3d %3.0f layers from %3.0f   table %5.1f %%   measured %5.1f %%   "
                    "sent %.1f MiB",
                    i, x->n_layers, x->first_layer, 100.0 * x->table_idle, 100.0 * idle,
                    x->sent_bytes / 1048576.0);
        json_array_append_new(
            ranks, json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:I}", "rank", i, "first_layer",
                             (int)x->first_layer, "layers", (int)x->n_layers, "idle_table",
                             x->table_idle, "idle_measured", idle, "passes_s", x->step_s, "busy_s",
                             x->busy_s, "sent_bytes", (json_int_t)x->sent_bytes));
    }
    return lt_metrics_put(&t->metrics,
                          json_pack("{s:s, s:I, s:s, s:i, s:i, s:o}", "kind", "pipeline", "step",
                                    (json_int_t)t->state.step, "schedule",
                                    lt_schedule_name(t->stages.schedule), "pp", t->stages.ranks,
                                    "chunks", t->stages.chunks, "ranks", ranks));
}

lt_err lt_training_tell_pipeline(lt_training *t) {
    lt_err err = LT_OK;
    told *all, own;
    int n;
    if (!lt_training_has_pipeline(t)) {
        return LT_OK;
    }
    n = lt_group_size(t->world->mesh.world);
    own = told_of(t);
    all = calloc((size_t)n, sizeof *all);
    if (all == NULL) {
        LT_FAIL(LT_ERR_OOM, "what %d ranks tell", n);
    }
    err = lt_all_gather(t->world->mesh.world, all, &own, TOLD_COUNT, LT_F64, NULL);
    if (err == LT_OK && lt_ranks_lead(&t->ranks) && own.step_s > 0) {
        err = tell(t, all, n);
    }
    free(all);
    return err;
}

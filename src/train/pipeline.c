/* pipeline.c: a run whose layers are divided over the ranks of pp: the assignment of layers, a
 * step's micro-batches through the pipeline, and the report of each rank's bubble. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "train/run.h"
#include "train/together_impl.h"

#define MAX_SIZES 64 /* Most different numbers of micro-batches in the steps of a run. */

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

static lt_err add_size(int64_t sizes[MAX_SIZES], int *n, const lt_training *t, const lt_recipe *r,
                       int64_t micro, int64_t batch) {
    const int64_t rows = batch / lt_training_shares(t) * lt_recipe_together(r),
                  micros = (rows + micro - 1) / micro;
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

static lt_err add_sizes(int64_t sizes[MAX_SIZES], int *n, const lt_training *t, const lt_recipe *r,
                        int64_t micro) {
    const char *p = r->ramp;
    int64_t size;
    uint64_t from;
    bool ok;
    LT_TRY(add_size(sizes, n, t, r, micro, r->batch));
    while (lt_recipe_next_ramp(&p, &size, &from, &ok)) {
        LT_TRY(add_size(sizes, n, t, r, micro, size));
    }
    return LT_OK;
}

/* The numbers of micro-batches of all steps; a step of several runs has as many as each of them. */
static lt_err step_sizes(int64_t sizes[MAX_SIZES], int *n, const lt_training *t) {
    const lt_together *g = t->together;
    *n = 0;
    for (int i = 0; g != NULL && i < g->n; i++) {
        LT_TRY(add_sizes(sizes, n, t, g->named[i].recipe, g->micros[i]));
    }
    return g != NULL ? LT_OK : add_sizes(sizes, n, t, &t->recipe, t->micro);
}

/* Log the layers of each stage, and the costliest stage's share of the work. */
static void log_stages(const lt_training *t) {
    const int n = t->stages.ranks * t->stages.chunks;
    double shares[LT_MAX_LAYERS], most = 0.0;
    char text[4 * LT_MAX_LAYERS + 1] = "";
    size_t used = 0;
    lt_stages_shares(shares, &t->stages, &t->spec, t->recipe.seq);
    for (int s = 0; s < n; s++) {
        most = shares[s] > most ? shares[s] : most;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%d", s > 0 ? "," : "",
                                 t->stages.first[s + 1] - t->stages.first[s]);
    }
    lt_log_info("pipeline %s: stages of %s layers; the costliest has %.1f %% of the work, an equal "
                "share is %.1f %%",
                lt_schedule_name(t->stages.schedule), text, 100.0 * most, 100.0 / n);
}

lt_err lt_training_measure_pipeline(lt_training *t, lt_dtype dtype, const lt_pass_options *o) {
    int64_t sizes[MAX_SIZES];
    int n;
    LT_TRY(step_sizes(sizes, &n, t));
    return lt_pipeline_measure(&t->pass_memory, &t->spec, dtype, o, &t->stages,
                               lt_group_rank(t->world->mesh.pp), sizes, n);
}

lt_err lt_training_open_pipeline(lt_training *t, const lt_pass_options *o) {
    lt_group *group = lt_world_twin(t->world, t->world->mesh.pp);
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
    if (lt_ranks_lead(&t->ranks)) {
        log_stages(t);
    }
    LT_TRY(lt_training_measure_pipeline(t, t->model->options.dtype, o));
    return lt_pipeline_open(&t->pipeline, t->model, o, &t->stages, group, sizes, n);
}

/* ---- A step ---- */

lt_err lt_training_run_batches(lt_training *t, int64_t n, float grad_scale, lt_pass_result *sum) {
    lt_pipeline_times times;
    LT_TRY(lt_pipeline_train(t->pipeline, t->batches, n, grad_scale, sum));
    times = lt_pipeline_last(t->pipeline);
    t->piped.step_s += times.step_s;
    t->piped.busy_s += times.busy_s;
    t->piped.sent_bytes += times.sent_bytes;
    t->piped.micros = times.micros;
    t->n_piped++;
    return LT_OK;
}

lt_err lt_training_run_pipeline(lt_training *t, const lt_row_batch *rows, uint64_t seen,
                                int64_t n_rows, float grad_scale, lt_pass_result *sum) {
    int64_t n = 0;
    for (int64_t first = 0; first < n_rows; first += t->micro) {
        const int64_t left = n_rows - first;
        t->batches[n] = lt_training_slice(t, rows, first, left < t->micro ? left : t->micro);
        lt_training_number(t, &t->batches[n++], seen, first);
    }
    return lt_training_run_batches(t, n, grad_scale, sum);
}

/* ---- What it tells ---- */

/* Times of one rank in the form in which they are gathered: doubles, then for each chunk the
 * seconds of F, B and W. */
typedef struct {
    double step_s, busy_s, sent_bytes, first_layer, n_layers;
} told;
#define TOLD_COUNT ((int)(sizeof(told) / sizeof(double)))

static void fill_told(double *out, const lt_training *t) {
    const lt_pipeline_times *p = &t->piped;
    told own = {.step_s = p->step_s,
                .busy_s = p->busy_s,
                .sent_bytes = (double)p->sent_bytes,
                .first_layer = -1};
    for (int64_t layer = 0; layer < t->spec.n_layers; layer++) {
        if (t->world->layout.layers[layer]) {
            own.first_layer = own.first_layer < 0 ? (double)layer : own.first_layer;
            own.n_layers++;
        }
    }
    memcpy(out, &own, sizeof own);
    for (int chunk = 0; chunk < t->stages.chunks; chunk++) {
        for (int kind = 0; kind < 3; kind++) {
            out[TOLD_COUNT + 3 * chunk + kind] = lt_pipeline_op_s(t->pipeline, chunk,
                                                                  (lt_schedule_op_kind)kind);
        }
    }
}

/* Idle time of each rank of pp in the table, (ranks), if operations take their measured times,
 * averaged over the replicas of the pipeline, and messages take none. */
static lt_err table_idle(double *idle, const lt_training *t, const double *all, int n, int each) {
    const int p = t->stages.ranks, v = t->stages.chunks, stages = p * v, replica = n / p;
    const lt_schedule_shape shape = {t->stages.schedule, p, v, t->piped.micros};
    lt_err err = LT_OK;
    lt_schedule table = {0};
    lt_schedule_times times = {0};
    double *seconds = calloc(3 * (size_t)stages, sizeof *seconds);
    const lt_schedule_costs costs = {seconds, seconds + stages, seconds + 2 * stages, 0.0};

    if (seconds == NULL) {
        LT_FAIL(LT_ERR_OOM, "times of %d stages", stages);
    }
    for (int rank = 0; rank < n; rank++) { /* pp is the outermost axis. */
        for (int k = 0; k < 3 * v; k++) {
            const int stage = lt_schedule_stage(&shape, rank / replica, k / 3);
            seconds[k % 3 * stages + stage] += all[rank * each + TOLD_COUNT + k] / replica;
        }
    }
    LT_TRY_DONE(lt_schedule_open(&table, &shape));
    LT_TRY_DONE(lt_schedule_simulate(&times, &table, &costs));
    for (int rank = 0; rank < p; rank++) {
        idle[rank] = times.makespan_s > 0 ? 1.0 - times.busy_s[rank] / times.makespan_s : 0.0;
    }
done:
    lt_schedule_times_close(&times);
    lt_schedule_close(&table);
    free(seconds);
    return err;
}

/* Mean idle seconds of a rank in a step's passes. */
static double bubble_of(const lt_training *t, const double *all, int n, int each) {
    double idle_s = 0.0;
    for (int i = 0; i < n; i++) {
        told x;
        memcpy(&x, all + i * each, sizeof x);
        idle_s += (x.step_s - x.busy_s) / n;
    }
    return idle_s / (double)t->n_piped;
}

static lt_err tell(lt_training *t, const double *all, int n, int each) {
    const double bubble_s = bubble_of(t, all, n, each);
    const int replica = n / t->stages.ranks;
    const char *name = lt_schedule_name(t->stages.schedule);
    double idle[LT_MAX_LAYERS];
    json_t *ranks = json_array();
    LT_TRY(table_idle(idle, t, all, n, each));
    lt_log_info(
        "pipeline %s, %d x %d stages: idle while a step's passes run, by the table with the "
        "times that its operations took, and measured",
        name, t->stages.ranks, t->stages.chunks);
    for (int i = 0; i < n; i++) {
        told x;
        memcpy(&x, all + i * each, sizeof x);
        const double table = idle[i / replica],
                     measured = x.step_s > 0 ? 1.0 - x.busy_s / x.step_s : 0.0;
        lt_log_info("  rank %-3d %3.0f layers from %3.0f   table %5.1f %%   measured %5.1f %%   "
                    "sent %.1f MiB",
                    i, x.n_layers, x.first_layer, 100.0 * table, 100.0 * measured,
                    x.sent_bytes / 1048576.0);
        json_array_append_new(
            ranks, json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:I}", "rank", i, "first_layer",
                             (int)x.first_layer, "layers", (int)x.n_layers, "idle_table", table,
                             "idle_measured", measured, "passes_s", x.step_s, "busy_s", x.busy_s,
                             "sent_bytes", (json_int_t)x.sent_bytes));
    }
    if (t->times.predicted.steps > 0) {
        lt_log_info("bubble of a step: predicted %.1f ms, measured %.1f ms",
                    1e3 * t->times.predicted_bubble_s, 1e3 * bubble_s);
    }
    return lt_metrics_put(
        &t->metrics, json_pack("{s:s, s:I, s:s, s:i, s:i, s:I, s:f, s:o}", "kind", "pipeline",
                               "step", (json_int_t)t->state.step, "schedule", name, "pp",
                               t->stages.ranks, "chunks", t->stages.chunks, "micros",
                               (json_int_t)t->piped.micros, "bubble_s", bubble_s, "ranks", ranks));
}

lt_err lt_training_tell_pipeline(lt_training *t) {
    lt_err err = LT_OK;
    double *all;
    int n, each;
    if (!lt_training_has_pipeline(t)) {
        return LT_OK;
    }
    n = lt_group_size(t->world->mesh.world);
    each = TOLD_COUNT + 3 * t->stages.chunks;
    all = calloc((size_t)((n + 1) * each), sizeof *all);
    if (all == NULL) {
        LT_FAIL(LT_ERR_OOM, "what %d ranks tell", n);
    }
    fill_told(all + n * each, t);
    err = lt_all_gather(t->world->mesh.world, all, all + n * each, each, LT_F64, NULL);
    if (err == LT_OK && lt_ranks_lead(&t->ranks) && t->piped.step_s > 0) {
        err = tell(t, all, n, each);
    }
    free(all);
    return err;
}

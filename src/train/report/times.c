/* times.c: see times.h. */
#include "train/report/times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "train/run.h"
#include "train/together_impl.h"

#define MIB              1048576.0
#define LAYOUT_BYTES_MAX ((size_t)1 << 16)
#define TABLE_MOST       16 /* Most ranks in the table at the end; metrics.jsonl has all. */

/* ---- All ranks ---- */

lt_err lt_rank_records_open(lt_rank_records **out, lt_world *w, const lt_recipe *recipe) {
    lt_rank_records *r = calloc(1, sizeof *r);
    const int n = lt_group_size(w->mesh.world);
    lt_err err;
    if (r != NULL) {
        *r = (lt_rank_records){.world = w,
                               .n = n,
                               .every = recipe->log_every,
                               .all = calloc((size_t)n, sizeof *r->all),
                               .times = calloc((size_t)n, sizeof *r->times)};
    }
    if (r == NULL || r->all == NULL || r->times == NULL) {
        lt_rank_records_close(r);
        LT_FAIL(LT_ERR_OOM, "records of %d ranks", n);
    }
    err = lt_stragglers_open(&r->stragglers, n, n / w->shape.pp, recipe->guard_slow,
                             recipe->guard_slow_s);
    if (err != LT_OK) {
        lt_rank_records_close(r);
        return err;
    }
    *out = r;
    return LT_OK;
}

void lt_rank_records_close(lt_rank_records *r) {
    if (r != NULL) {
        free(r->all);
        free(r->times);
        lt_stragglers_close(&r->stragglers);
        free(r);
    }
}

/* Find the slowest rank of a step, and add the step to each rank's sums. The first step of a
 * process is excluded, because it also compiles kernels and opens connections. */
static void add_up(lt_rank_records *r) {
    double step_s = 0.0;
    r->slowest = 0;
    for (int i = 0; i < r->n; i++) {
        const lt_step_record *one = &r->all[i];
        lt_rank_times *t = &r->times[i];
        r->slowest = one->compute_s > r->all[r->slowest].compute_s ? i : r->slowest;
        t->announced_bytes = one->announced_bytes;
        t->peak_bytes = one->peak_bytes;
        if (one->first == 0.0) {
            t->steps++;
            t->compute_s += one->compute_s;
            t->comm_s += one->comm_s;
            t->transfer_s += one->transfer_s;
            lt_stragglers_add(&r->stragglers, i, one->compute_s);
            step_s = fmax(step_s, one->compute_s + one->comm_s);
        }
    }
    r->judged = step_s > 0.0 && lt_stragglers_pass(&r->stragglers, step_s * (double)r->every);
}

lt_err lt_rank_records_combine(void *of, lt_step_record *record) {
    lt_rank_records *r = of;
    LT_TRY(lt_all_gather(r->world->mesh.world, r->all, record, sizeof *record / sizeof(double),
                         LT_F64, NULL));
    *record = r->all[0];
    for (int i = 1; i < r->n; i++) {
        lt_step_record_combine(record, &r->all[i]);
    }
    if (record->compute_s > 0.0) {
        add_up(r);
    }
    return LT_OK;
}

/* ---- This rank ---- */

void lt_times_open(lt_training *t) {
    lt_timeline_open(&t->times.line, t->device, lt_training_queue(t));
}

/* Start or stop measuring; waits and transfers up to now do not count. */
static void listen_to_waits(lt_training *t, bool on) {
    lt_times *x = &t->times;
    if (!lt_training_has_ranks(t) || x->listens == on) {
        return;
    }
    x->listens = on;
    x->line.waited_s = 0.0;
    (void)lt_comm_moved(lt_world_buffers(t->world));
    lt_comm_tell_waits(t->world->comm, on ? &x->line : NULL);
    if (t->world->device != NULL) {
        lt_comm_tell_waits(t->world->device, on ? &x->line : NULL);
    }
}

void lt_times_close(lt_training *t) {
    lt_timeline_close(&t->times.line);
}

static void trace_passes(lt_training *t, lt_timeline *line) {
    if (t->pipeline != NULL) {
        lt_pipeline_trace(t->pipeline, line);
    } else {
        lt_pass_trace(t->pass, line);
    }
}

static lt_err begin_trace(lt_training *t) {
    lt_times *x = &t->times;
    LT_TRY(lt_timeline_restart(&x->line, true));
    trace_passes(t, &x->line);
    if (lt_training_has_ranks(t)) {
        x->first_host = lt_comm_last(t->world->comm);
        x->first_device = t->world->device != NULL ? lt_comm_last(t->world->device) : 0;
    }
    return LT_OK;
}

/* A step of several runs is measured once, by the first of them. */
static bool is_timed(const lt_training *t) {
    return t->together == NULL || t->together->timed == t->member;
}

lt_err lt_times_begin(lt_training *t, int64_t step) {
    lt_times *x = &t->times;
    if (!is_timed(t)) {
        x->measured = false;
        return LT_OK;
    }
    listen_to_waits(t, true);
    x->traced = step == t->recipe.trace_step;
    x->measured = x->traced || step % t->recipe.log_every == 0;
    if (lt_training_has_ranks(t)) {
        LT_TRY(lt_comm_measure(lt_world_buffers(t->world), x->measured, x->traced));
    }
    return x->traced ? begin_trace(t) : LT_OK;
}

/* The peak memory: on a GPU, that which this process uses there; otherwise the process's. */
static lt_err ask_peak(lt_training *t) {
    const lt_backend *be = t->device->backend;
    size_t left = 0;
    if (be->host_memory || be->memory_left == NULL) {
        t->times.peak_bytes = (double)lt_memory_peak();
        return LT_OK;
    }
    LT_TRY(be->memory_left(t->device, &left));
    t->times.peak_bytes = t->times.left_bytes - (double)left;
    return LT_OK;
}

lt_err lt_times_note(lt_training *t, lt_step_record *r, double start_s) {
    lt_times *x = &t->times;
    const int64_t step = t->state.step + 1;
    const bool host = t->device->backend->host_memory;
    if (!lt_training_has_ranks(t) || !is_timed(t)) {
        return LT_OK;
    }
    LT_TRY(lt_timeline_settle(&x->line));
    const double moved_s = lt_comm_moved(lt_world_buffers(t->world));
    if (!x->measured) {
        return LT_OK;
    }
    /* Memory hardly grows after the first steps, and reading it takes time. */
    LT_TRY((step & (step - 1)) == 0 || step == t->recipe.steps || x->peak_bytes == 0.0 ? ask_peak(t)
                                                                                       : LT_OK);
    r->comm_s = x->line.waited_s;
    r->transfer_s = moved_s;
    r->compute_s = lt_clock_s() - start_s - r->comm_s;
    r->compute_s = r->compute_s > 1e-9 ? r->compute_s : 1e-9;
    r->announced_bytes = (double)(host ? t->memory.announced_bytes : t->memory.device_bytes);
    r->peak_bytes = x->peak_bytes;
    r->first = step == t->first_step;
    return LT_OK;
}

/* Report a rank that has become slow, or is no longer: the rank tells its own launcher, and the
 * leading rank tells people. */
static lt_err tell_stragglers(lt_training *t, int64_t step) {
    lt_rank_records *r = t->rank_records;
    lt_stragglers *s = r != NULL ? &r->stragglers : NULL;
    if (r == NULL || !r->judged) {
        return LT_OK;
    }
    r->judged = false;
    for (int i = 0; i < s->n; i++) {
        if (s->news[i] && i == t->ranks.rank) {
            lt_board_slow(lt_training_board(t), s->slow[i] ? s->shares[i] : 0.0);
        }
        if (!s->news[i] || !lt_ranks_lead(&t->ranks)) {
            continue;
        }
        if (s->slow[i]) {
            lt_log_warn("step %lld: rank %d is slow: it computes %.0f ms a step, %.0f %% more than "
                        "the others, which wait for it",
                        (long long)step, i, 1e3 * s->means[i], 100.0 * s->shares[i]);
        } else {
            lt_log_info("step %lld: rank %d is no longer slow", (long long)step, i);
        }
        LT_TRY(lt_metrics_put(&t->metrics,
                              json_pack("{s:s, s:I, s:i, s:b, s:f, s:f}", "kind", "straggler",
                                        "step", (json_int_t)step, "rank", i, "slow", s->slow[i],
                                        "share", s->shares[i], "compute_s", s->means[i])));
    }
    return LT_OK;
}

lt_err lt_times_end(lt_training *t, int64_t step) {
    lt_times *x = &t->times;
    LT_TRY(tell_stragglers(t, step));
    if (!x->traced) {
        return LT_OK;
    }
    x->traced = false;
    trace_passes(t, NULL);
    LT_TRY(lt_training_settle(t));
    LT_TRY(lt_timeline_settle(&x->line));
    LT_TRY(lt_trace_write(t, step));
    return lt_timeline_restart(&x->line, false);
}

lt_err lt_times_pause(lt_training *t) {
    LT_TRY(lt_timeline_settle(&t->times.line));
    listen_to_waits(t, false);
    return LT_OK;
}

lt_err lt_times_phase(lt_training *t, lt_open_span *s, lt_span_kind kind) {
    return lt_timeline_begin(&t->times.line, s, kind, t->state.step + 1, 0);
}

/* ---- The report ---- */

static json_t *rank_json(int rank, const lt_rank_times *x) {
    const double n = x->steps > 0 ? (double)x->steps : 1.0;
    return json_pack("{s:i, s:f, s:f, s:f, s:I, s:I}", "rank", rank, "compute_s", x->compute_s / n,
                     "comm_s", x->comm_s / n, "transfer_s", x->transfer_s / n, "announced_bytes",
                     (json_int_t)x->announced_bytes, "peak_bytes", (json_int_t)x->peak_bytes);
}

static lt_rank_times mean_of(const lt_rank_records *r, int *slowest) {
    lt_rank_times mean = {.steps = r->times[0].steps};
    *slowest = 0;
    for (int i = 0; i < r->n; i++) {
        mean.compute_s += r->times[i].compute_s / r->n;
        mean.comm_s += r->times[i].comm_s / r->n;
        mean.transfer_s += r->times[i].transfer_s / r->n;
        *slowest = r->times[i].compute_s > r->times[*slowest].compute_s ? i : *slowest;
    }
    return mean;
}

/* One line of the table: means of a step. */
static void log_line(const char *who, const lt_rank_times *x) {
    const double ms = 1e3 / (double)x->steps, step_s = x->compute_s + x->comm_s;
    const double hidden = x->transfer_s > x->comm_s ? 1.0 - x->comm_s / x->transfer_s : 0.0;
    char memory[64] = "", ratio[24] = "-";
    if (x->transfer_s > 0.0) {
        (void)snprintf(ratio, sizeof ratio, "%.2f", x->compute_s / x->transfer_s);
    }
    if (x->announced_bytes > 0.0) {
        (void)snprintf(memory, sizeof memory, "%10.1f %10.1f", x->announced_bytes / MIB,
                       x->peak_bytes / MIB);
    }
    lt_log_info("  %-8s %9.1f %9.1f %6.1f %% %9.1f %6.0f %% %9s %s", who, ms * x->compute_s,
                ms * x->comm_s, step_s > 0.0 ? 100.0 * x->comm_s / step_s : 0.0, ms * x->transfer_s,
                100.0 * hidden, ratio, memory);
}

static void log_table(const lt_rank_records *r, const lt_rank_times *mean, int slowest) {
    char who[24];
    lt_log_info("times of a step on each rank, mean of %lld steps, ms; memory in MiB",
                (long long)mean->steps);
    lt_log_info("  %-8s %9s %9s %8s %9s %8s %9s %10s %10s", "rank", "computing", "exposed", "",
                "transfers", "hidden", "comp/comm", "announced", "peak");
    for (int i = 0; i < r->n; i++) {
        if (r->n <= TABLE_MOST || i == slowest) {
            (void)snprintf(who, sizeof who, "%d%s", i, i == slowest ? " slowest" : "");
            log_line(who, &r->times[i]);
        }
    }
    log_line("all", mean);
}

static void log_prediction(const lt_rank_times *plan, const lt_rank_times *mean) {
    const double ms = 1e3 / (double)mean->steps;
    if (plan->steps > 0) {
        log_line("plan", plan);
        lt_log_info("a step: predicted %.1f ms, measured %.1f ms",
                    1e3 * (plan->compute_s + plan->comm_s), ms * (mean->compute_s + mean->comm_s));
    }
}

lt_err lt_times_predict(lt_training *t) {
    lt_err err = LT_OK;
    char path[LT_PATH_BYTES];
    const char *text = "";
    lt_mesh_shape mesh;
    json_t *plan = NULL, *line;
    lt_rank_times x = {.steps = 1};
    double bubble_s = 0.0;
    int64_t zero = 0, bytes = 0;
    LT_TRY(lt_path_join(path, t->recipe.out, LT_LAYOUT_FILE));
    if (!lt_training_has_ranks(t) || !lt_file_exists(path)) {
        return LT_OK;
    }
    LT_TRY(lt_json_load(&plan, path, LAYOUT_BYTES_MAX));
    LT_TRY_DONE(lt_json_str(plan, "mesh", &text, false, path));
    LT_TRY_DONE(lt_mesh_parse(&mesh, text));
    LT_TRY_DONE(lt_json_i64(plan, "zero", &zero, false, path));
    LT_TRY_DONE(lt_json_f64(plan, "compute_s", &x.compute_s, false, path));
    LT_TRY_DONE(lt_json_f64(plan, "comm_s", &x.comm_s, false, path));
    LT_TRY_DONE(lt_json_f64(plan, "bubble_s", &bubble_s, false, path));
    LT_TRY_DONE(lt_json_i64(plan, "bytes", &bytes, false, path));
    /* The file was written by an earlier start. */
    if (memcmp(&mesh, &t->world->shape, sizeof mesh) != 0 || zero != t->recipe.zero) {
        goto done;
    }
    x.announced_bytes = (double)bytes;
    t->times.predicted = x;
    t->times.predicted_bubble_s = bubble_s;
    line = json_pack("{s:s, s:I}", "kind", "plan", "step", (json_int_t)t->state.step);
    json_object_update(line, plan);
    err = lt_metrics_put(&t->metrics, line);
done:
    json_decref(plan);
    return err;
}

lt_err lt_times_tell(lt_training *t, bool table) {
    const lt_rank_records *r = t->rank_records;
    lt_rank_times mean;
    json_t *ranks;
    int slowest;
    if (r == NULL || !lt_ranks_lead(&t->ranks) || r->times[0].steps == 0) {
        return LT_OK;
    }
    mean = mean_of(r, &slowest);
    ranks = json_array();
    for (int i = 0; i < r->n; i++) {
        json_array_append_new(ranks, rank_json(i, &r->times[i]));
    }
    if (table) {
        log_table(r, &mean, slowest);
        log_prediction(&t->times.predicted, &mean);
    }
    return lt_metrics_put(&t->metrics,
                          json_pack("{s:s, s:I, s:I, s:i, s:o}", "kind", "ranks", "step",
                                    (json_int_t)t->state.step, "steps", (json_int_t)mean.steps,
                                    "slowest", slowest, "ranks", ranks));
}

/* tell.c: what the leading rank reports of a run while it trains and at its end: progress, metrics,
 * the curve of losses. Nothing here decides anything, and the report of a step allocates
 * nothing. */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/peak.h"
#include "train/run.h"

#define PLOT_WIDTH  72
#define PLOT_HEIGHT 12

/* All 0 for a pipeline, which shares nothing. */
static lt_pass_shares shares_of(const lt_training *t) {
    return t->pass != NULL ? lt_pass_shared(t->pass) : (lt_pass_shares){0};
}

/* The share of a step's tokens for which the model computed something: with shared prompts it is
 * less than 1, and MFU does not count the rest. */
static double computed_share(const lt_training *t) {
    const lt_pass_shares s = shares_of(t);
    return s.rows < s.needed ? (double)s.rows / (double)s.needed : 1.0;
}

static void show_progress(lt_training *t, const lt_step_outcome *o, double mfu) {
    char eta[LT_CLOCK_TEXT_BYTES], brief[LT_OBJECTIVE_BRIEF_BYTES] = "";
    if (t->objective != NULL && t->objective->brief != NULL) {
        t->objective->brief(t->objective->of, brief);
    }
    lt_progress_show(
        &t->progress,
        "step %lld/%lld  loss %.4f%s  lr %.2e  norm %.2f  %.0f tok/s  MFU %.0f %%  ETA %s",
        (long long)t->state.step, (long long)t->recipe.steps, o->decision.loss, brief, o->plan.lr,
        o->decision.grad_norm, o->record.tokens / o->step_s, 100.0 * mfu,
        lt_duration_text(eta, (double)(t->recipe.steps - t->state.step) * o->step_s));
}

/* The curve for the end of the run: each value is a mean of equally many losses, so that the memory
 * does not grow. */
static void remember_loss(lt_training *t, double loss) {
    t->losses_open += loss;
    t->losses_in_open++;
    if (t->losses_in_open < t->losses_each) {
        return;
    }
    t->losses[t->n_losses++] = t->losses_open / (double)t->losses_each;
    t->losses_open = 0.0;
    t->losses_in_open = 0;
    if (t->n_losses == LT_CURVE_ROOM) {
        for (int64_t i = 0; i < LT_CURVE_ROOM / 2; i++) {
            t->losses[i] = 0.5 * (t->losses[2 * i] + t->losses[2 * i + 1]);
        }
        t->n_losses = LT_CURVE_ROOM / 2;
        t->losses_each *= 2;
    }
}

double lt_training_energy(const lt_training *t) {
    lt_device *d = t->device;
    double joules = 0.0;
    return d->backend->energy != NULL && d->backend->energy(d, &joules) == LT_OK ? joules : -1.0;
}

/* Joules since this process opened the run, if the device counts them. */
static void add_energy(const lt_training *t, json_t *line) {
    const double joules = t->energy_start_j >= 0.0 ? lt_training_energy(t) : -1.0;
    if (joules >= 0.0) {
        json_object_set_new(line, "energy_j", json_real(joules - t->energy_start_j));
    }
}

void lt_training_spend(lt_training *t, lt_goodput_kind kind) {
    lt_goodput_spend(&t->goodput, kind);
    lt_live_goodput(t->live, &t->goodput);
}

lt_err lt_training_tell_goodput(lt_training *t) {
    json_t *line = json_pack("{s:s, s:I}", "kind", "goodput", "step", (json_int_t)t->state.step);
    for (int kind = 0; kind < LT_GOODPUT_COUNT; kind++) {
        (void)json_object_set_new(line, lt_goodput_names[kind], json_real(t->goodput.s[kind]));
    }
    return lt_metrics_put(&t->metrics, line);
}

/* A step is new if no earlier attempt has reported it. */
static void count_time(lt_training *t, const lt_step_outcome *o) {
    const bool applied = o->decision.apply, is_new = t->state.step > t->metrics.step_told;
    lt_goodput_step(&t->goodput, o->record.wait_s, applied && is_new);
    lt_log_set_step(t->state.step);
    lt_live_step(t->live, t->state.step, applied, &t->goodput);
}

lt_err lt_training_tell(lt_training *t, const lt_step_outcome *o) {
    const lt_step_record *r = &o->record;
    const lt_step_decision *d = &o->decision;
    const double rate = r->tokens / o->step_s;
    const int straggler = t->rank_records != NULL
                              ? lt_stragglers_slowest(&t->rank_records->stragglers)
                              : -1;
    lt_shard_cache_report fetched = {0};
    double values[LT_TRAIN_METRIC_COUNT], mfu, joules;
    bool present[LT_TRAIN_METRIC_COUNT];

    count_time(t, o);
    LT_TRY(lt_matmul_peak_share(&mfu, &t->peak_flops, rate * t->flops_per_token * computed_share(t),
                                t->model->device, t->model->options.dtype));
    if (!d->apply) {
        lt_log_warn("step %lld: update skipped: %s", (long long)t->state.step, d->why);
        LT_TRY(lt_metrics_put(&t->metrics, json_pack("{s:s, s:I, s:s}", "kind", "skip", "step",
                                                     (json_int_t)t->state.step, "why", d->why)));
    }
    if (t->together == NULL) { /* Otherwise there is one line for all runs (together.c). */
        show_progress(t, o, mfu);
    }
    if (isfinite(d->loss)) {
        remember_loss(t, d->loss);
    }
    if (t->state.step % t->recipe.log_every != 0 || !isfinite(d->loss) || !isfinite(d->grad_norm)) {
        return LT_OK; /* The line of a skipped step says so in words. */
    }
    joules = t->energy_start_j >= 0.0 ? lt_training_energy(t) : -1.0;
    for (int i = 0; i < LT_TRAIN_METRIC_COUNT; i++) {
        present[i] = true;
    }
    values[LT_TRAIN_step] = (double)t->state.step;
    values[LT_TRAIN_time_s] = lt_clock_s() - t->start_s;
    values[LT_TRAIN_loss] = d->loss;
    values[LT_TRAIN_lr] = o->plan.lr;
    values[LT_TRAIN_grad_norm] = d->grad_norm;
    values[LT_TRAIN_batch] = r->rows;
    values[LT_TRAIN_tokens] = (double)t->state.tokens;
    values[LT_TRAIN_tokens_per_s] = rate;
    values[LT_TRAIN_mfu] = mfu;
    values[LT_TRAIN_step_s] = o->step_s;
    values[LT_TRAIN_wait_s] = r->wait_s;
    values[LT_TRAIN_comm_s] = r->comm_s;
    values[LT_TRAIN_transfer_s] = r->transfer_s;
    values[LT_TRAIN_slowest_rank] = t->rank_records != NULL ? t->rank_records->slowest : 0;
    present[LT_TRAIN_comm_s] = present[LT_TRAIN_transfer_s] = present[LT_TRAIN_slowest_rank] =
        t->rank_records != NULL;
    values[LT_TRAIN_straggler] = straggler;
    values[LT_TRAIN_straggler_share] = straggler >= 0
                                           ? t->rank_records->stragglers.shares[straggler]
                                           : 0.0;
    present[LT_TRAIN_straggler] = present[LT_TRAIN_straggler_share] = straggler >= 0;
    values[LT_TRAIN_memory_bytes] = (double)lt_memory_resident();
    values[LT_TRAIN_load_balance] = r->aux_sum;
    values[LT_TRAIN_router_z] = r->router_z_sum;
    values[LT_TRAIN_energy_j] = joules - t->energy_start_j;
    present[LT_TRAIN_load_balance] = present[LT_TRAIN_router_z] = t->model->spec.n_experts > 0 &&
                                                                  t->objective == NULL;
    present[LT_TRAIN_energy_j] = joules >= 0.0;
    if (t->shard_cache != NULL) {
        lt_shard_cache_tell(t->shard_cache, &fetched);
    }
    values[LT_TRAIN_fetched_bytes] = (double)fetched.fetched_bytes;
    values[LT_TRAIN_fetch_waits] = (double)fetched.n_waits;
    values[LT_TRAIN_fetch_wait_s] = fetched.wait_s;
    present[LT_TRAIN_fetched_bytes] = present[LT_TRAIN_fetch_waits] =
        present[LT_TRAIN_fetch_wait_s] = t->shard_cache != NULL;
    LT_TRY(lt_metrics_row(&t->metrics, "train", lt_train_metrics, LT_TRAIN_METRIC_COUNT, values,
                          present));
    return t->objective != NULL ? lt_objective_tell(t, r, false) : LT_OK;
}

static void print_curve(const lt_training *t) {
    char *plot = NULL;
    if (lt_log_is_json() || t->together != NULL || t->n_losses < 2 ||
        lt_report_plot(&plot, t->losses, t->n_losses, PLOT_WIDTH, PLOT_HEIGHT) != LT_OK) {
        return;
    }
    fprintf(stderr, "\n   loss over %lld steps\n%s\n", (long long)(t->n_losses * t->losses_each),
            plot);
    free(plot);
}

/* A device's share of the announced memory is not resident here. */
static void tell_peak(const lt_training *t, size_t peak) {
    const double mib = 1.0 / 1048576.0;
    if (t->together != NULL) {
        return; /* The announced memory is that of a single run. */
    }
    if (t->device->backend->host_memory) {
        lt_log_info("peak memory %.1f MiB, announced %.1f MiB (%+.1f %%)", (double)peak * mib,
                    (double)t->memory.announced_bytes * mib,
                    100.0 * ((double)peak / (double)t->memory.announced_bytes - 1.0));
    } else {
        lt_log_info("peak memory of the host %.1f MiB", (double)peak * mib);
    }
}

/* Report the saving of objective.share_prompts. */
static void tell_shared(const lt_training *t) {
    const lt_pass_shares s = shares_of(t);
    if (s.rows < s.tokens) {
        lt_log_info("of %lld tokens of micro-batches %lld were computed (%.0f %%), the others are "
                    "shared or padding (objective.share_prompts)",
                    (long long)s.tokens, (long long)s.rows,
                    100.0 * (double)s.rows / (double)s.tokens);
    }
}

lt_err lt_training_report(const lt_training *t) {
    return lt_report_write(t->recipe.out, &t->lease);
}

lt_err lt_training_tell_end(lt_training *t) {
    char took[LT_CLOCK_TEXT_BYTES];
    const size_t peak = lt_memory_peak();
    json_t *line = json_pack("{s:s, s:I, s:f, s:I, s:I}", "kind", "end", "step",
                             (json_int_t)t->state.step, "time_s", lt_clock_s() - t->start_s,
                             "peak_bytes", (json_int_t)peak, "announced_bytes",
                             (json_int_t)t->memory.announced_bytes);

    add_energy(t, line);
    LT_TRY(lt_training_tell_goodput(t));
    LT_TRY(lt_metrics_put(&t->metrics, line));
    LT_TRY(lt_training_report(t));
    print_curve(t);
    tell_peak(t, peak);
    tell_shared(t);
    lt_diloco_tell_end(t);
    if (t->state.suspect) {
        lt_log_warn(
            "the last losses are far above the best (%.4g): this is the model of a run that "
            "has diverged",
            t->guard.best);
    }
    lt_log_info("finished %lld step%s in %s; report: %s/report.html", (long long)t->state.step,
                t->state.step == 1 ? "" : "s", lt_duration_text(took, lt_clock_s() - t->start_s),
                t->recipe.out);
    if (t->recipe.export_model) {
        lt_log_info("%s: %s/%s", lt_training_product(t), t->recipe.out, lt_training_product(t));
    }
    return LT_OK;
}

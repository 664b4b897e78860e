/* run.c: the storyboard of training: step, tell, validate, sample, save; and how a run ends.
 *
 *            ┌────────────────────────────────────────────────────────────┐
 *   open ──▶ step ──▶ metrics ──▶ every N: validate, sample, save ──▶ stop asked or last step? ──▶ save, export, report
 *
 * A stop is asked by SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 (Slurm's warning before a time
 * limit), SIGXCPU or a file named `exit` in the run folder, and is obeyed at the next step's edge.
 * A second SIGINT kills at once; nothing is lost but the steps since the last checkpoint. A run
 * that was stopped is LT_ERR_INTERRUPTED, not done. SIGHUP stays ignored where nohup made it so; a
 * reader of our output that went away does not end the run. */
#include "train/run.h"

#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "kernels/peak.h"
#include "lateen/train.h"
#include "tensor/backend.h"
#include "train/changes.h"

#define PLOT_WIDTH  72
#define PLOT_HEIGHT 12
#define LARGE_BYTES (1 << 20)

static volatile sig_atomic_t stop_signal;

static void on_signal(int number) {
    if (number == SIGINT && stop_signal == SIGINT) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    stop_signal = number;
}

static void catch_signals(void) {
    const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    stop_signal = 0;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const bool ignored = numbers[i] == SIGHUP && sigaction(SIGHUP, NULL, &before) == 0 &&
                             before.sa_handler == SIG_IGN;
        if (!ignored) {
            sigaction(numbers[i], &action, NULL);
        }
    }
    signal(SIGPIPE, SIG_IGN);
}

/* Why the run should stop now, or NULL. */
static const char *stop_asked(const lt_training *t) {
    if (stop_signal != 0) {
        return strsignal(stop_signal);
    }
    return access(t->exit_path, F_OK) == 0 ? "the file named exit" : NULL;
}

static void show_progress(lt_training *t, const lt_step_report *r, double mfu) {
    char eta[LT_CLOCK_TEXT_BYTES];
    lt_progress_show(
        &t->progress,
        "step %lld/%lld  loss %.4f  lr %.2e  norm %.2f  %.0f tok/s  MFU %.0f %%  ETA %s",
        (long long)t->state.step, (long long)t->recipe.steps, r->loss, r->lr, r->grad_norm,
        (double)r->tokens / r->step_s, 100.0 * mfu,
        lt_duration_text(eta, (double)(t->recipe.steps - t->state.step) * r->step_s));
}

static lt_err remember_loss(lt_training *t, double loss) {
    if (t->n_losses == t->losses_room) {
        const int64_t room = t->losses_room == 0 ? 1024 : 2 * t->losses_room;
        double *grown = realloc(t->losses, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            LT_FAIL(LT_ERR_OOM, "curve of %lld losses", (long long)room);
        }
        t->losses = grown;
        t->losses_room = room;
    }
    t->losses[t->n_losses++] = loss;
    return LT_OK;
}

double lt_training_energy(const lt_training *t) {
    lt_device *d = t->device;
    double joules = 0.0;
    return d->backend->energy != NULL && d->backend->energy(d, &joules) == LT_OK ? joules : -1.0;
}

/* Joules since this process opened the run, where the device counts them. */
static void add_energy(const lt_training *t, json_t *line) {
    const double joules = t->energy_start_j >= 0.0 ? lt_training_energy(t) : -1.0;
    if (joules >= 0.0) {
        json_object_set_new(line, "energy_j", json_real(joules - t->energy_start_j));
    }
}

static lt_err tell(lt_training *t, const lt_step_report *r) {
    const double rate = (double)r->tokens / r->step_s;
    double mfu;
    json_t *line;

    LT_TRY(lt_matmul_peak_share(&mfu, &t->peak_flops, rate * t->flops_per_token, t->model->device,
                                t->model->options.dtype));

    if (r->skipped != NULL) {
        lt_log_warn("step %lld: update skipped: %s", (long long)t->state.step, r->skipped);
        LT_TRY(
            lt_metrics_put(&t->metrics, json_pack("{s:s, s:I, s:s}", "kind", "skip", "step",
                                                  (json_int_t)t->state.step, "why", r->skipped)));
    }
    show_progress(t, r, mfu);
    if (isfinite(r->loss)) {
        LT_TRY(remember_loss(t, r->loss));
    }
    if (t->state.step % t->recipe.log_every != 0 || !isfinite(r->loss) || !isfinite(r->grad_norm)) {
        return LT_OK; /* JSON has no NaN: a skipped step's line says it in words. */
    }
    line = json_pack(
        "{s:s, s:I, s:f, s:f, s:f, s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:I}", "kind", "train",
        "step", (json_int_t)t->state.step, "time_s", lt_clock_s() - t->start_s, "loss", r->loss,
        "lr", r->lr, "grad_norm", r->grad_norm, "batch", (json_int_t)r->rows, "tokens",
        (json_int_t)t->state.tokens, "tokens_per_s", rate, "mfu", mfu, "step_s", r->step_s,
        "wait_s", r->wait_s, "memory_bytes", (json_int_t)lt_memory_resident());
    if (t->model->spec.n_experts > 0) {
        json_object_set_new(line, "load_balance", lt_metrics_real(r->aux));
        json_object_set_new(line, "router_z", lt_metrics_real(r->router_z));
    }
    add_energy(t, line);
    return lt_metrics_put(&t->metrics, line);
}

/* The loader's and the guard's state, as JSON, into the run state. */
static lt_err snapshot(lt_training *t) {
    lt_err err = LT_OK;
    const size_t room = (size_t)LT_LOADER_SOURCES_MAX * 256 + 4096;
    char *text = malloc(room);

    if (text == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "loader state");
    }
    LT_TRY_DONE(lt_loader_state_print(&t->loader_state, text, room));
    json_decref(t->state.loader);
    json_decref(t->state.guard);
    json_decref(t->state.recipe);
    json_decref(t->state.data);
    t->state.loader = json_loads(text, 0, NULL);
    t->state.guard = lt_guard_save(&t->guard);
    t->state.recipe = lt_recipe_json(&t->recipe);
    t->state.data = json_incref(t->data);
    if (t->state.loader == NULL || t->state.guard == NULL || t->state.recipe == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "run state");
    }
done:
    free(text);
    return err;
}

lt_err lt_training_settle(lt_training *t) {
    return t->model->backend->sync(lt_pass_queue(t->pass));
}

lt_err lt_training_save(lt_training *t) {
    double start;
    bool publish = false;
    if (t->saved_step == t->state.step) {
        return LT_OK;
    }
    start = lt_clock_s();
    LT_TRY(lt_training_settle(t));
    LT_TRY(lt_training_judge(t, &publish));
    t->save_late = !publish;
    if (!publish) {
        return LT_OK;
    }
    LT_TRY(snapshot(t));
    LT_TRY(lt_checkpoint_save(t->checkpoints, t->model, &t->optimiser, &t->state));
    t->saved_step = t->state.step;
    LT_TRY(lt_checkpoint_prune(t->checkpoints, t->recipe.keep_last, t->recipe.keep_every));
    lt_log_debug("step %lld: checkpoint in %.2f s", (long long)t->state.step, lt_clock_s() - start);
    return LT_OK;
}

static bool is_due(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

static lt_err train_steps(lt_training *t, const char **stopped) {
    *stopped = NULL;
    while (t->state.step < t->recipe.steps) {
        lt_step_report report;
        bool changed = false;
        *stopped = stop_asked(t);
        if (*stopped != NULL) {
            return LT_OK;
        }
        LT_TRY(lt_training_step(t, &report));
        LT_TRY(tell(t, &report));
        if (is_due(t->state.step, t->recipe.eval_every)) {
            LT_TRY(lt_training_evaluate(t));
            changed = true;
        }
        if (is_due(t->state.step, t->recipe.sample_every)) {
            LT_TRY(lt_training_sample(t));
            changed = true;
        }
        if (t->save_late || is_due(t->state.step, t->recipe.save_every)) {
            LT_TRY(lt_training_save(t));
            changed = true;
        }
        if (changed) {
            LT_TRY(lt_report_write(t->recipe.out));
        }
    }
    return LT_OK;
}

/* RUN/model: weights, config and, when there is one, the tokenizer's file. */
static lt_err export_model(lt_training *t) {
    char folder[LT_PATH_BYTES], path[LT_PATH_BYTES];

    LT_TRY(lt_training_settle(t));
    LT_TRY(lt_path_join(folder, t->recipe.out, "model"));
    LT_TRY(lt_model_save(t->model, folder, t->model->options.dtype, 0));
    if (!lt_path_has_suffix(t->recipe.tokenizer, ".json")) {
        return LT_OK;
    }
    LT_TRY(lt_path_join(path, folder, "tokenizer.json"));
    return lt_file_copy(t->recipe.tokenizer, path, (size_t)1 << 30);
}

static void print_curve(const lt_training *t) {
    char *plot = NULL;
    if (t->n_losses < 2 ||
        lt_report_plot(&plot, t->losses, t->n_losses, PLOT_WIDTH, PLOT_HEIGHT) != LT_OK) {
        return;
    }
    fprintf(stderr, "\n   loss over %lld steps\n%s\n", (long long)t->n_losses, plot);
    free(plot);
}

/* A device's share of what was announced is not resident here. */
static void tell_peak(const lt_training *t, size_t peak) {
    const double mib = 1.0 / 1048576.0;
    if (t->model->backend->host_memory) {
        lt_log_info("peak memory %.1f MiB, announced %.1f MiB (%+.1f %%)", (double)peak * mib,
                    (double)t->memory.announced_bytes * mib,
                    100.0 * ((double)peak / (double)t->memory.announced_bytes - 1.0));
    } else {
        lt_log_info("peak memory of the host %.1f MiB", (double)peak * mib);
    }
}

static lt_err finish(lt_training *t) {
    char took[LT_CLOCK_TEXT_BYTES];
    json_t *line;
    size_t peak;

    LT_TRY(lt_training_save(t));
    if (t->saved_step != t->state.step) {
        LT_FAIL(LT_ERR_NUMERIC, "step %lld, the last one: the loss is not finite",
                (long long)t->state.step);
    }
    LT_TRY(lt_training_evaluate(t));
    LT_TRY(lt_training_sample(t));
    if (t->recipe.export_model) {
        LT_TRY(export_model(t));
    }
    peak = lt_memory_peak();
    line = json_pack("{s:s, s:I, s:f, s:I, s:I}", "kind", "end", "step", (json_int_t)t->state.step,
                     "time_s", lt_clock_s() - t->start_s, "peak_bytes", (json_int_t)peak,
                     "announced_bytes", (json_int_t)t->memory.announced_bytes);
    add_energy(t, line);
    LT_TRY(lt_metrics_put(&t->metrics, line));
    LT_TRY(lt_report_write(t->recipe.out));
    print_curve(t);
    tell_peak(t, peak);
    if (t->state.suspect) {
        lt_log_warn(
            "the last losses are far above the best (%.4g): this is the model of a run that "
            "has diverged",
            t->guard.best);
    }
    lt_log_info("finished %lld steps in %s; report: %s/report.html%s%s%s", (long long)t->state.step,
                lt_duration_text(took, lt_clock_s() - t->start_s), t->recipe.out,
                t->recipe.export_model ? ", model: " : "",
                t->recipe.export_model ? t->recipe.out : "",
                t->recipe.export_model ? "/model" : "");
    return LT_OK;
}

/* A stop that was asked: save, and say how it goes on. */
static lt_err stop(lt_training *t, const char *stopped) {
    LT_TRY(lt_training_save(t));
    LT_TRY(lt_report_write(t->recipe.out));
    unlink(t->exit_path);
    if (t->saved_step != t->state.step) {
        LT_FAIL(
            LT_ERR_INTERRUPTED,
            "stopped at step %lld by %s. The loss is not finite, so nothing was saved since step "
            "%lld; the same command continues from there",
            (long long)t->state.step, stopped, (long long)(t->saved_step > 0 ? t->saved_step : 0));
    }
    LT_FAIL(LT_ERR_INTERRUPTED,
            "stopped at step %lld by %s; everything is saved in %s; the same command continues",
            (long long)t->state.step, stopped, t->recipe.out);
}

/* Log a failure and write the report of what led to it. The failure stays this thread's last. */
static void report_failure(const lt_training *t, lt_err err) {
    lt_failure failure;
    lt_failure_keep(&failure, err);
    lt_log_note(LT_LOG_ERROR, "%s", lt_error_message());
    lt_log_note_trace();
    if (lt_report_write(t->recipe.out) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
    (void)lt_failure_raise(&failure);
}

lt_err lt_run_training(const lt_recipe *r, lt_device *device) {
    lt_err err = LT_OK;
    lt_training *t = calloc(1, sizeof *t);
    const char *stopped = NULL;

    if (t == NULL) {
        LT_FAIL(LT_ERR_OOM, "training");
    }
    catch_signals();
    (void)mallopt(M_MMAP_THRESHOLD, LARGE_BYTES); /* Large buffers go back when they are freed. */
    (void)mallopt(M_TRIM_THRESHOLD, LARGE_BYTES);
    LT_TRY_DONE(lt_training_open(t, r, device));
    lt_memory_plan_log(&t->memory);
    lt_log_info(
        "%s model of %.2fM parameters, %s, %lld of %lld steps done",
        lt_family_name(t->model->spec.family), (double)lt_model_spec_params(&t->model->spec) * 1e-6,
        lt_dtype_name(t->model->options.dtype), (long long)t->state.step, (long long)r->steps);
    err = train_steps(t, &stopped);
    lt_progress_end(&t->progress);
    if (err == LT_OK && stopped == NULL) {
        err = finish(t);
    } else if (err == LT_OK) {
        err = stop(t, stopped);
    }
    if (err == LT_ERR_NUMERIC) {
        err = lt_training_give_up(t);
    }
    if (err == LT_ERR_INTERRUPTED) {
        lt_log_note(LT_LOG_INFO, "%s", lt_error_message());
    } else if (err != LT_OK) {
        report_failure(t, err);
    }
done:
    lt_training_close(t);
    free(t);
    return err;
}

lt_err lt_train(const char *recipe_path, const char *const *overrides, int n_overrides) {
    lt_err err = LT_OK;
    char name[LT_OPTION_STR_BYTES];
    lt_recipe *r = calloc(1, sizeof *r);

    if (r == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe");
    }
    lt_options_default(&lt_recipe_table, r);
    if (recipe_path != NULL) {
        LT_TRY_DONE(lt_options_load_yaml(&lt_recipe_table, r, recipe_path));
    }
    for (int i = 0; i < n_overrides; i++) {
        const char *equals = strchr(overrides[i], '=');
        if (equals == NULL || (size_t)(equals - overrides[i]) >= sizeof name) {
            LT_FAIL_DONE(LT_ERR_ARG, "override '%s' is not name=value", overrides[i]);
        }
        snprintf(name, sizeof name, "%.*s", (int)(equals - overrides[i]), overrides[i]);
        LT_TRY_DONE(lt_options_set(&lt_recipe_table, r, name, equals + 1, "override"));
    }
    LT_TRY_DONE(lt_run_training(r, NULL));
done:
    free(r);
    return err;
}

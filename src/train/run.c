/* run.c: the loop of training: step, report, validate, sample, save; and how a run ends.
 *
 *            ┌─────────────────────────────────────────────────┐
 *            ▼                                                 │
 *   open ──▶ step ──▶ metrics ──▶ every N: validate, sample, save ──▶ stop asked or last step?
 *                                                                     ──▶ save, export, report
 *
 * A stop is requested by SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2 (Slurm's warning before a time
 * limit), SIGXCPU or a file named `exit` in the run folder, and is obeyed at the next step's edge.
 * A second SIGINT kills the process at once; only the steps since the last checkpoint are lost.
 * SIGINTs within a second of the first count as the first: srun and scancel send one to each rank
 * and to the launcher, which passes it on. A run that was stopped returns LT_ERR_INTERRUPTED.
 * SIGHUP stays ignored under nohup; a closed pipe on the output does not end the run. */
#include "train/run.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/thread.h"
#include "comm/shm.h"
#include "kernels/peak.h"
#include "lateen/train.h"
#include "platform/telemetry/identity.h"
#include "tensor/backend.h"
#include "train/recipe/changes.h"

#define SAME_INT_NS 1000000000u /* Two SIGINTs within this time count as one. */

static volatile sig_atomic_t stop_signal;
static atomic_ullong first_int_ns; /* 0: there was none. */

static void on_signal(int number) {
    const unsigned long long now_ns = lt_clock_ns(), first_ns = atomic_load(&first_int_ns);
    if (number == SIGINT && first_ns == 0) {
        atomic_store(&first_int_ns, now_ns);
    } else if (number == SIGINT && now_ns - first_ns >= SAME_INT_NS) {
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    stop_signal = number;
}

static void prepare_process(void) {
    const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    stop_signal = 0;
    atomic_store(&first_int_ns, 0);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const bool ignored = numbers[i] == SIGHUP && sigaction(SIGHUP, NULL, &before) == 0 &&
                             before.sa_handler == SIG_IGN;
        if (!ignored) {
            sigaction(numbers[i], &action, NULL);
        }
    }
    signal(SIGPIPE, SIG_IGN);
    lt_limits_return_memory();
}

int lt_training_stop_asked(const lt_training *t) {
    return stop_signal != 0                                              ? (int)stop_signal
           : lt_ranks_lead(&t->ranks) && access(t->exit_path, F_OK) == 0 ? LT_STOP_FILE
                                                                         : 0;
}

lt_err lt_training_settle(lt_training *t) {
    LT_TRY(lt_training_has_ranks(t) ? lt_zero_settle(&t->zero) : LT_OK);
    return t->model->backend->sync(lt_training_queue(t));
}

lt_err lt_training_follow(lt_training *t, const lt_step_decision *d, bool *slow) {
    *slow = d->validate || d->sample || d->save;
    if (!*slow) {
        return LT_OK;
    }
    LT_TRY(lt_times_pause(t));
    LT_TRY(d->validate ? lt_training_evaluate(t) : LT_OK);
    if (d->sample && lt_ranks_lead(&t->ranks)) {
        LT_TRY(lt_training_sample(t));
    }
    lt_training_spend(t, LT_GOODPUT_evaluation);
    LT_TRY(d->save ? lt_training_save(t) : LT_OK);
    lt_training_spend(t, LT_GOODPUT_checkpoint);
    LT_TRY(lt_times_tell(t, false));
    /* A save that continues in the background does not wait for this report, either. */
    const bool reports = d->validate || d->sample || !t->recipe.save_async;
    LT_TRY(reports && lt_ranks_lead(&t->ranks) ? lt_training_report(t) : LT_OK);
    lt_training_spend(t, LT_GOODPUT_evaluation);
    return LT_OK;
}

lt_err lt_training_ask_stop(const lt_training *t, int *stop) {
    lt_step_record r = {.stop = (double)lt_training_stop_asked(t)};
    LT_TRY(lt_ranks_combine(&t->ranks, &r, LT_OK));
    *stop = (int)r.stop;
    return LT_OK;
}

/* A model that learns to answer writes a sample before its first step, for comparison. */
lt_err lt_training_sample_first(lt_training *t) {
    const bool first = t->state.step == 0 && lt_training_sample_answers(t);
    return first && lt_ranks_lead(&t->ranks) ? lt_training_sample(t) : LT_OK;
}

/* While ranks are missing, a pass has no more rows than with all ranks, and a step has more passes,
 * so that it needs no more memory. */
static void keep_passes(lt_recipe *r, const lt_world *w) {
    if (r->micro == 0 && w->full_dp > w->dp) {
        const int64_t rows = lt_recipe_largest_batch(r) / w->full_dp /
                             lt_training_passes(&w->shape);
        r->micro = rows > 0 ? rows : 1;
    }
}

/* Report the other numbers of replicas with which the run can continue (shrink and grow). Nothing
 * is reported if dp divides more than rows. */
static void tell_sizes(const lt_training *t) {
    const lt_recipe *r = &t->recipe;
    if (t->world != NULL && r->sites == 1 && r->shard == 0 && t->world->shape.ep == 1 &&
        t->objective == NULL) {
        lt_board_sizes(t->world->board, t->world->full_dp, r->zero > 0 ? 2 : 1,
                       lt_recipe_common_rows(r));
    }
}

/* A step without rows changes nothing. If a stop is asked as well, the run ends as one that was
 * stopped, with everything saved: the rows are drawn when it resumes. */
static lt_err end_undrawn(const lt_training *t, const lt_step_outcome *step, lt_err err,
                          int *stop) {
    if (err == LT_OK || !t->undrawn || step->record.stop == 0.0) {
        return err;
    }
    lt_log_warn("step %lld was not made: %s", (long long)t->state.step + 1, lt_error_message());
    *stop = (int)step->record.stop;
    return LT_OK;
}

/* stop: why the run ended before its last step; 0: it did not. */
static lt_err train_steps(lt_training *t, int *stop) {
    lt_board *board = lt_training_board(t);
    *stop = 0;
    tell_sizes(t);
    lt_board_step(board, t->state.step); /* Step of the checkpoint from which the run resumes. */
    lt_board_phase(board, LT_PHASE_LOADED);
    LT_TRY(lt_training_sample_first(t));
    if (t->state.step < t->recipe.steps || lt_diloco_waits(t)) {
        LT_TRY(lt_training_ask_stop(t, stop));
    }
    lt_training_spend(t, LT_GOODPUT_restart);
    while (t->state.step < t->recipe.steps && *stop == 0) {
        lt_step_outcome step;
        bool slow;
        LT_TRY(end_undrawn(t, &step, lt_training_step(t, &step), stop));
        if (t->undrawn) {
            break;
        }
        lt_board_step(board, t->state.step);
        if (lt_ranks_lead(&t->ranks)) {
            LT_TRY(lt_training_tell(t, &step));
        }
        LT_TRY(lt_training_skip(t, t->state.outer_step)); /* Skip to the step of the other sites. */
        LT_TRY(lt_training_snapshot(t, step.step_s));
        LT_TRY(lt_training_follow(t, &step.decision, &slow));
        *stop = step.decision.stop;
        /* That took a while. */
        if (slow && *stop == 0 && t->state.step < t->recipe.steps && lt_training_is_whole(t)) {
            LT_TRY(lt_training_ask_stop(t, stop)); /* The others wait for the leading rank here. */
        }
    }
    return LT_OK;
}

lt_err lt_training_finish(lt_training *t) {
    LT_TRY(lt_times_pause(t));
    /* A rank that leaves while others gather its weights would leave them waiting. Saving settles,
     * but a run that has been saved at its last step does not save again. */
    LT_TRY(lt_training_settle(t));
    LT_TRY(lt_training_save(t));
    LT_TRY(lt_saver_wait(t));
    lt_training_spend(t, LT_GOODPUT_checkpoint);
    if (t->saved_step != t->state.step) {
        LT_FAIL(LT_ERR_NUMERIC, "step %lld, the last one: the loss is not finite",
                (long long)t->state.step);
    }
    LT_TRY(lt_training_evaluate(t));
    LT_TRY(lt_training_tell_pipeline(t));
    LT_TRY(lt_times_tell(t, true));
    LT_TRY(lt_replicas_tell(t));
    LT_TRY(lt_replay_tell(t));
    LT_TRY(lt_mirror_wait(t, true));
    lt_training_spend(t, LT_GOODPUT_checkpoint);
    LT_TRY(lt_ranks_lead(&t->ranks) ? lt_training_sample(t) : LT_OK);
    lt_training_spend(t, LT_GOODPUT_evaluation);
    if (t->recipe.export_model) {
        LT_TRY(lt_training_export(t));
        lt_training_spend(t, LT_GOODPUT_checkpoint);
    }
    return lt_ranks_lead(&t->ranks) ? lt_training_tell_end(t) : LT_OK;
}

/* Handle a stop request: save, and say how to continue. */
lt_err lt_training_stop(lt_training *t, int why) {
    const char *stopped = lt_stop_text(why);
    lt_board_stop(lt_training_board(t), why);
    LT_TRY(lt_training_save(t));
    LT_TRY(lt_saver_wait(t));
    LT_TRY(lt_mirror_wait(t, false));
    LT_TRY(lt_times_tell(t, true));
    lt_training_spend(t, LT_GOODPUT_checkpoint);
    if (lt_ranks_lead(&t->ranks)) {
        LT_TRY(lt_training_tell_goodput(t));
        LT_TRY(lt_training_report(t));
    }
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

void lt_training_note_end(lt_err err) {
    if (err == LT_ERR_INTERRUPTED) {
        lt_log_note(LT_LOG_INFO, "%s", lt_error_message());
    } else if (err != LT_OK) {
        lt_log_note(LT_LOG_ERROR, "%s", lt_error_message());
        lt_log_note_trace();
    }
}

lt_err lt_training_or_replaced(const lt_training *t, lt_err err) {
    lt_failure failure;
    if (err == LT_OK || err == LT_ERR_INTERRUPTED) {
        return err;
    }
    lt_failure_keep(&failure, err);
    LT_TRY(lt_lease_check(&t->lease));
    return lt_failure_raise(&failure);
}

/* Log what led to a failure, which remains this thread's last error. */
static void report_failure(const lt_training *t, lt_err err) {
    lt_failure failure;
    lt_failure_keep(&failure, err);
    if (lt_ranks_lead(&t->ranks) && err != LT_ERR_REPLACED && lt_training_report(t) != LT_OK) {
        lt_log_warn("%s", lt_error_message());
    }
    (void)lt_failure_raise(&failure);
}

/* For messages as lines of JSON. */
static void name_run(const lt_recipe *r, int rank) {
    const lt_identity who = lt_identity_of_process();
    char name[LT_RUN_NAME_BYTES];
    lt_log_set_run(lt_run_name(name, r->out), who.attempt, who.epoch, rank);
}

lt_err lt_run_training(const lt_recipe *r, lt_device *device) {
    return lt_run_training_with(r, device, NULL);
}

/* One world, from its opening to its end. */
static lt_err run_in_world(const lt_recipe *given, lt_device *device,
                           const lt_objective *objective) {
    lt_err err = LT_OK;
    lt_world world = {0};
    lt_training *t = calloc(1, sizeof *t);
    lt_recipe *r = malloc(sizeof *r);
    int stopped = 0;

    if (t == NULL || r == NULL) {
        free(t);
        free(r);
        LT_FAIL(LT_ERR_OOM, "training");
    }
    *r = *given;
    t->lease.lock_fd = -1; /* So that it can be closed safely. */
    LT_TRY_DONE(
        lt_world_open(&world, r->mesh, r->site < 0 ? (int)r->sites : 1, r->deadline, r->out));
    LT_TRY_DONE(lt_diloco_place(r, &world));
    keep_passes(r, &world);
    if (world.rank > 0) {
        lt_log_set_level(LT_LOG_ERROR); /* Rank 0 reports for all. */
    }
    name_run(r, world.rank);
    LT_TRY_DONE(lt_training_open_ranks(t, r, device, &world, objective));
    lt_memory_plan_log(&t->memory);
    lt_log_info(
        "%s model of %.2fM parameters, %s, %lld of %lld steps done",
        lt_family_name(t->model->spec.family), (double)lt_model_spec_params(&t->model->spec) * 1e-6,
        lt_dtype_name(t->model->options.dtype), (long long)t->state.step, (long long)r->steps);
    err = train_steps(t, &stopped);
    lt_progress_end(&t->progress);
    if (err == LT_OK && stopped == 0) {
        err = lt_training_finish(t);
    } else if (err == LT_OK) {
        err = lt_training_stop(t, stopped);
    }
    if (err == LT_ERR_NUMERIC && lt_ranks_lead(&t->ranks)) {
        err = lt_training_give_up(t);
    }
    err = lt_training_or_replaced(t, err);
    lt_training_note_end(err);
    if (err != LT_OK && err != LT_ERR_INTERRUPTED) {
        report_failure(t, err);
    }
done:
    err = lt_training_or_replaced(t, err);
    if (err == LT_ERR_INTERRUPTED && lt_ranks_lead(&t->ranks)) {
        unlink(t->exit_path); /* If this file requested the stop, the request has been fulfilled. */
    } else if (err == LT_ERR_INTERRUPTED) {
        /* The leading rank reports it; mpirun would end all ranks when one exits with an error. */
        err = LT_OK;
    }
    lt_saver_settle(t); /* It knows the world. */
    lt_world_close(&world, err);
    lt_training_close(t);
    free(t);
    free(r);
    return err;
}

/* This rank's world has failed because of another rank. If the launcher keeps ranks, wait for the
 * next world; segment: what the launcher gave this process. False: there will be none. */
static bool wait_for_next_world(const char *segment) {
    static const struct timespec pause = {.tv_nsec = 2000000};
    lt_board *board = lt_board_of_rank();
    const char *text = getenv(LT_ENV_EPOCH);
    const uint64_t epoch = text != NULL ? strtoull(text, NULL, 10) : 0;
    char next[24];
    if (segment[0] == '\0' || !lt_board_leave(board)) {
        lt_board_close(board);
        return false;
    }
    while (lt_board_epoch(board) <= epoch) { /* If the launcher ends, so does this process. */
        (void)nanosleep(&pause, NULL);
    }
    (void)snprintf(next, sizeof next, "%llu", (unsigned long long)lt_board_epoch(board));
    lt_board_close(board);
    return setenv(LT_ENV_EPOCH, next, 1) == 0 && setenv(LT_ENV_SEGMENT, segment, 1) == 0;
}

/* An objective has its own state, which only one world can use. */
static lt_err check_keeps(const lt_objective *objective) {
    lt_board *board = objective != NULL ? lt_board_of_rank() : NULL;
    const bool keeps = lt_board_keeps(board);
    lt_board_close(board);
    if (keeps) {
        LT_FAIL(LT_ERR_ARG,
                "lateen launch --keep: ranks with an objective.kind other than sft cannot go on in "
                "their processes; without --keep they are started again");
    }
    return LT_OK;
}

lt_err lt_training_in_worlds(lt_err (*run)(const void *of), const void *of) {
    const char *given = getenv(LT_ENV_SEGMENT);
    char segment[24];
    const int threads = lt_thread_count();
    lt_err err;
    (void)snprintf(segment, sizeof segment, "%s", given != NULL ? given : "");
    prepare_process();
    do {
        err = run(of);
        lt_thread_set_count(threads); /* For the next world, or the next stage of a recipe. */
    } while (err == LT_ERR_REMOTE && wait_for_next_world(segment));
    LT_TRY(err);
    return LT_OK;
}

/* A run for lt_training_in_worlds. */
typedef struct {
    const lt_recipe *recipe;
    lt_device *device;
    const lt_objective *objective;
} one_run;

static lt_err run_one(const void *of) {
    const one_run *x = of;
    return run_in_world(x->recipe, x->device, x->objective);
}

lt_err lt_run_training_with(const lt_recipe *r, lt_device *device, const lt_objective *objective) {
    const one_run x = {r, device, objective};
    LT_TRY(check_keeps(objective));
    return lt_training_in_worlds(run_one, &x);
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

/* tuning_slurm.c: trainers of jobs of fine-tuning as jobs of Slurm: see tuning.h.
 *
 * SUBMITTED  by sbatch with the script of `lateen submit` (platform/cluster/job.h) for one node, so
 *            it saves and queues again before its time limit and when it is preempted, and starts
 *            again after a fault. Its name is the id of the job of fine-tuning, and its number is
 *            kept in job.json. A server that was killed before it wrote the number finds the job by
 *            its name, so nothing is submitted before squeue has answered.
 * WATCHED    by squeue, one call for all jobs, POLL_S after the last one; sacct is asked about a
 *            job that squeue no longer lists. A job that neither of them knows is submitted again,
 *            as after a death, and goes on from its newest checkpoint.
 * ENDED      by scancel, again after each answer of squeue until Slurm says that the job has ended.
 *            Only then is a job that was paused and resumed submitted again.
 *
 * Commands run beside the loop (platform/command.h), which checks whether they have ended. One that
 * fails is tried again later, so that jobs survive when Slurm is down. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "platform/cluster/job.h"
#include "serve/api/files/tuning.h"

#define POLL_S 3.0 /* Interval between two calls of squeue. */
/* Of a command; Slurm's own commands give up after 10 s (MessageTimeout). */
#define DEADLINE_S 60.0
#define RETRY_S    30.0 /* After a failed sbatch. */
#define LEAD_S     120  /* A trainer is asked to save this long before its time limit. */
#define CORES      8    /* Of a trainer, as in `lateen submit`. */
#define RETRIES    2    /* Of the launcher. */
#define OPTION     "--fine-tuning-sbatch"

int64_t lt_tunings_slurm_cores(const lt_tunings *f) {
    const int64_t threads = f->server->o.tuning.threads;
    return threads > 0 ? threads : CORES;
}

/* ---- Submitting ---- */

/* Write the script of a job to `path`. */
static lt_err write_script(const lt_tunings *f, const char *path, const char *name, const char *out,
                           const char *log, const char *const *words) {
    static const int64_t one_node[] = {1};
    const lt_job job = {.name = name,
                        .account = "",
                        .qos = "",
                        .partition = "",
                        .time = f->words.time,
                        .reservation = "",
                        .log = log,
                        .container = "",
                        .program = f->program,
                        .words = words,
                        .out = out,
                        .axes = "",
                        .rest = 1,
                        .sizes = one_node,
                        .n_sizes = 1,
                        .node_gpus = 1,
                        .cpus = lt_tunings_slurm_cores(f),
                        .lead_s = LEAD_S,
                        .retries = RETRIES,
                        .mpi = "none",
                        .asks_gpus = strcmp(f->server->o.tuning.device, "cpu") != 0};
    char *script = NULL;
    lt_err err;
    LT_TRY(lt_job_script(&script, &job));
    err = lt_file_write_atomic(path, script, strlen(script));
    free(script);
    return err;
}

/* sbatch --parsable [first] OPTIONS PATH */
static lt_err begin_sbatch(const lt_tunings *f, lt_command *c, const char *first,
                           const char *path) {
    const char *words[LT_QUEUE_MOST_WORDS + 5] = {"sbatch", "--parsable", first};
    size_t n = first != NULL ? 3 : 2;
    for (size_t i = 0; i < f->words.n; i++) {
        words[n++] = f->words.words[i];
    }
    words[n] = path;
    return lt_command_begin(c, words, DEADLINE_S);
}

lt_err lt_tuning_submit(lt_tuning *t, const char *const *words) {
    char path[LT_PATH_BYTES], out[LT_PATH_BYTES], log[LT_PATH_BYTES];
    LT_TRY(lt_tuning_path(t, "job.sbatch", path));
    LT_TRY(lt_tuning_path(t, "run", out));
    LT_TRY(lt_tuning_path(t, "log", log));
    LT_TRY(write_script(t->all, path, t->id, out, log, words));
    t->slurm_ending = false;
    t->calling = LT_TUNING_SBATCH;
    return begin_sbatch(t->all, &t->call, NULL, path);
}

bool lt_tuning_may_submit(const lt_tuning *t) {
    return t->all->squeue_seen && lt_clock_s() >= t->slurm_next_s;
}

static void save(const lt_tuning *t) {
    if (lt_tuning_save(t) != LT_OK) {
        lt_log_error("serve: %s: %s", t->id, lt_error_message());
    }
}

static void take_number(lt_tuning *t, int64_t id) {
    t->slurm_job = id;
    t->slurm_known_s = lt_clock_s();
    t->slurm_ending = t->slurm_ending || t->state != LT_TUNING_QUEUED;
    save(t);
}

/* Append an event once. */
static void tell(lt_tuning *t, const char *level, const char *text) {
    if (strncmp(t->slurm_told, text, sizeof t->slurm_told - 1) == 0) {
        return;
    }
    snprintf(t->slurm_told, sizeof t->slurm_told, "%s", text);
    lt_tuning_tell(t, level, "message", NULL, "%s", text);
    save(t);
}

static void on_sbatch(lt_tuning *t, const char *said, int status) {
    const int64_t id = status == 0 ? lt_queue_submitted(said) : 0;
    char text[300], message[200];
    if (id > 0) {
        take_number(t, id);
        snprintf(text, sizeof text, "Submitted to Slurm as job %lld", (long long)id);
        tell(t, "info", text);
        return;
    }
    t->slurm_ending = false;
    t->slurm_next_s = lt_clock_s() + RETRY_S;
    lt_queue_message(message, sizeof message, said);
    snprintf(text, sizeof text, "Slurm does not take the job, and is asked again: %s",
             message[0] != '\0' ? message : "sbatch said nothing");
    lt_log_warn("serve: %s: %s", t->id, text);
    if (!lt_tuning_has_ended(t)) {
        tell(t, "warn", text);
    }
}

/* ---- Ends ---- */

/* A trainer ended through no fault of its own: another one continues. */
static void go_on(lt_tuning *t, const char *how) {
    if (t->deaths >= LT_TUNING_MOST_DEATHS) {
        lt_tuning_fail_by_log(t, how);
        return;
    }
    lt_tuning_tell(t, "warn", "message", NULL, "%s; the job goes on from its newest checkpoint",
                   how);
    lt_tuning_come_to(t, LT_TUNING_QUEUED);
}

/* Slurm's job has ended in this way; `how` describes it. */
static void on_end(lt_tuning *t, lt_queue_state state, const char *how) {
    const bool asked = t->slurm_ending;
    lt_tuning_read_run(t); /* Read its last lines. */
    t->slurm_job = 0;
    t->slurm_ending = false;
    t->slurm_told[0] = '\0';
    if (lt_tuning_has_ended(t)) {
        lt_tuning_tidy(t);
        save(t);
    } else if (state == LT_QUEUE_DONE) {
        lt_tuning_succeed(t); /* Even where it was paused meanwhile. */
    } else if (asked) {
        save(t); /* PAUSED, or resumed already and QUEUED. */
    } else if (state == LT_QUEUE_CANCELLED) {
        snprintf(t->why, sizeof t->why, "%s, not by this server", how);
        lt_tuning_come_to(t, LT_TUNING_CANCELLED);
    } else if (state == LT_QUEUE_FAILED) {
        lt_tuning_fail_by_log(t, how);
    } else {
        t->deaths += state != LT_QUEUE_PREEMPTED;
        go_on(t, how);
    }
}

/* ---- Watching ---- */

static void begin_call(lt_tuning *t, lt_tuning_call which, const char *const *words) {
    t->calling = which;
    if (lt_command_begin(&t->call, words, DEADLINE_S) != LT_OK) {
        lt_log_warn("serve: %s: %s", t->id, lt_error_message());
    }
}

static void cancel(lt_tuning *t) {
    char id[24];
    snprintf(id, sizeof id, "%lld", (long long)t->slurm_job);
    begin_call(t, LT_TUNING_SCANCEL, (const char *const[]){"scancel", id, NULL});
}

/* Handle what Slurm says about the job. */
static void on_answer(lt_tuning *t, const lt_queue_job *j) {
    char how[sizeof t->slurm_told];
    snprintf(how, sizeof how, "Slurm's job %lld is %s%s%s%s", (long long)j->id, j->word,
             j->reason[0] != '\0' ? " (" : "", j->reason, j->reason[0] != '\0' ? ")" : "");
    if (j->state >= LT_QUEUE_DONE) {
        on_end(t, j->state, how);
        return;
    }
    if (t->slurm_ending && t->call.pid == 0) {
        cancel(t);
    }
    if (t->slurm_ending || (t->state != LT_TUNING_QUEUED && t->state != LT_TUNING_RUNNING)) {
        return;
    }
    if (j->state == LT_QUEUE_WAITS || j->state == LT_QUEUE_RUNS) {
        tell(t, "info", how);
    }
    if (j->state == LT_QUEUE_WAITS && t->state == LT_TUNING_RUNNING) {
        lt_tuning_come_to(t, LT_TUNING_QUEUED);
    } else if (j->state == LT_QUEUE_RUNS && t->state == LT_TUNING_QUEUED) {
        lt_tuning_has_begun(t);
        lt_tuning_come_to(t, LT_TUNING_RUNNING);
    }
}

/* squeue no longer knows the job. */
static void on_sacct(lt_tuning *t, const char *said) {
    lt_queue_job j;
    char how[160];
    for (const char *at = said; lt_queue_next(&j, &at);) {
        if (j.id == t->slurm_job && j.state >= LT_QUEUE_DONE) {
            on_answer(t, &j);
            return;
        }
    }
    snprintf(how, sizeof how, "Slurm no longer knows how its job %lld ended",
             (long long)t->slurm_job);
    on_end(t, LT_QUEUE_LOST, how);
}

static const lt_queue_job *find(const lt_tuning *t, const lt_queue_job *all, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (all[i].id == t->slurm_job) {
            return &all[i];
        }
    }
    return NULL;
}

/* The Slurm job that an earlier server submitted without storing its number. One that ended other
 * than well is submitted again. */
static const lt_queue_job *find_by_name(const lt_tuning *t, const lt_queue_job *all, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (strcmp(all[i].name, t->id) == 0 && all[i].state != LT_QUEUE_UNKNOWN &&
            all[i].state <= LT_QUEUE_DONE) {
            return &all[i];
        }
    }
    return NULL;
}

static void look_at(lt_tuning *t, const lt_queue_job *all, size_t n) {
    const lt_queue_job *j;
    lt_queue_account a;
    if (t->call.pid != 0) {
        return;
    }
    if (t->slurm_job == 0) {
        j = t->trainer == 0 && !t->all->squeue_seen ? find_by_name(t, all, n) : NULL;
        if (j != NULL && t->state != LT_TUNING_VALIDATING &&
            (!lt_tuning_has_ended(t) || j->state != LT_QUEUE_DONE)) {
            take_number(t, j->id);
            on_answer(t, j);
        }
        return;
    }
    j = find(t, all, n);
    if (j != NULL) {
        on_answer(t, j);
    } else if (t->slurm_known_s < t->all->squeue_s) {
        lt_queue_account_words(&a, t->slurm_job);
        begin_call(t, LT_TUNING_SACCT, a.words);
        if (t->call.pid == 0) { /* There is no sacct. */
            on_sacct(t, "");
        }
    }
}

static void on_squeue(lt_tunings *f, const char *said) {
    size_t n = 0, room = 1;
    lt_queue_job *all;
    for (const char *p = said; *p != '\0'; p++) {
        room += *p == '\n';
    }
    all = malloc(room * sizeof *all);
    if (all == NULL) {
        return;
    }
    for (const char *at = said; n < room && lt_queue_next(&all[n], &at);) {
        n++;
    }
    for (lt_tuning *t = f->first; t != NULL; t = t->next) {
        look_at(t, all, n);
    }
    f->squeue_seen = true;
    free(all);
}

static void end_squeue(lt_tunings *f) {
    char *said = NULL, message[300];
    int status = 0;
    if (!lt_command_has_ended(&f->squeue, &said, &status)) {
        return;
    }
    if (status == 0 && said != NULL) {
        f->squeue_failed = false;
        on_squeue(f, said);
    } else if (!f->squeue_failed) { /* Reported once, until it answers again. */
        lt_queue_message(message, sizeof message, said != NULL ? said : "");
        lt_log_warn("serve: squeue does not answer (status %d), and is asked again: %s", status,
                    message);
        f->squeue_failed = true;
    }
    free(said);
}

static void end_call(lt_tuning *t) {
    char *said = NULL;
    int status = 0;
    if (t->call.pid == 0 || !lt_command_has_ended(&t->call, &said, &status)) {
        return;
    }
    if (t->calling == LT_TUNING_SBATCH) {
        on_sbatch(t, said != NULL ? said : "", status);
    } else if (t->calling == LT_TUNING_SACCT) {
        on_sacct(t, status == 0 && said != NULL ? said : "");
    }
    free(said);
}

bool lt_tunings_seek(const lt_tunings *f) {
    return f->server->o.tuning.slurm && !f->squeue_seen;
}

void lt_tunings_ask_slurm(lt_tunings *f) {
    bool any = lt_tunings_seek(f);
    for (lt_tuning *t = f->first; t != NULL; t = t->next) {
        end_call(t);
        any = any || t->slurm_job != 0;
    }
    if (f->squeue.pid != 0) {
        end_squeue(f);
    } else if (any && lt_clock_s() >= f->squeue_s + POLL_S) {
        f->squeue_s = lt_clock_s();
        if (lt_command_begin(&f->squeue, lt_queue_list_words, DEADLINE_S) != LT_OK &&
            !f->squeue_failed) {
            lt_log_warn("serve: %s", lt_error_message());
            f->squeue_failed = true;
        }
    }
}

/* ---- Opening ---- */

static lt_err find_program(lt_tunings *f) {
    const ssize_t n = readlink("/proc/self/exe", f->program, sizeof f->program - 1);
    if (n <= 0) {
        LT_FAIL(LT_ERR_IO, "the path of this program cannot be read");
    }
    f->program[n] = '\0';
    return LT_OK;
}

/* Test whether Slurm would accept such a job. */
static lt_err try_sbatch(const lt_tunings *f) {
    static const char *const nothing[] = {NULL};
    char path[LT_PATH_BYTES], message[600], *said = NULL;
    lt_command c;
    int status = 0;
    lt_err err = LT_OK;
    LT_TRY(lt_path_join(path, f->dir, "try.sbatch"));
    LT_TRY(write_script(f, path, "try", f->dir, "", nothing));
    LT_TRY_DONE(begin_sbatch(f, &c, "--test-only", path));
    lt_command_wait(&c, &said, &status);
    lt_queue_message(message, sizeof message, said != NULL ? said : "");
    if (status != 0 && lt_queue_may_pass_later(message)) {
        lt_log_warn("serve: Slurm would not take a job of fine-tuning now: %s", message);
    } else if (status != 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "sbatch refuses jobs of fine-tuning (%s '%s'): %s", OPTION,
                     f->server->o.tuning.sbatch, message);
    }
done:
    (void)unlink(path);
    free(said);
    return err;
}

lt_err lt_tunings_open_slurm(lt_tunings *f) {
    const lt_tuning_options *o = &f->server->o.tuning;
    if (strcmp(o->device, "cpu") != 0 && strcmp(o->device, "cuda") != 0) {
        LT_FAIL(LT_ERR_ARG, "--fine-tuning-device %s: Slurm chooses the GPU of a job: cuda, or cpu",
                o->device);
    }
    if (strpbrk(f->dir, "%\\") != NULL) {
        LT_FAIL(LT_ERR_ARG, "--fine-tuning %s: '%%' and '\\' mean something else in Slurm's paths",
                f->dir);
    }
    LT_TRY(lt_queue_words_read(&f->words, OPTION, o->sbatch));
    LT_TRY(find_program(f));
    const lt_err err = try_sbatch(f);
    return err == LT_OK ? LT_OK : lt_error_prefix(err, "--fine-tuning-submit slurm");
}

void lt_tunings_close_slurm(lt_tunings *f) {
    lt_command_forget(&f->squeue);
    for (lt_tuning *t = f->first; t != NULL; t = t->next) {
        lt_command_forget(&t->call);
    }
}

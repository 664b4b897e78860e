/* tuning_run.c: starts the trainers of fine-tuning jobs, watches them through metrics.jsonl, and
 * handles their end: see tuning.h. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/thread.h"
#include "serve/api/files/tuning.h"

#define LOOK_S         0.25 /* Interval between two looks at trainers. */
#define MOST_TOLD      1000 /* Most steps of a job that have an event. */
#define METRICS_MAX    ((size_t)1 << 30)
#define LAST_WORDS     4096
#define WORDS_MAX      64
#define EXIT_DEVICE    74 /* Exit statuses of `lateen train`. */
#define EXIT_STOPPED   75
#define EXIT_CANNOT    127
#define NICE           19
#define MOST_SUBMITTED 64  /* Most jobs that Slurm has at once. */
#define KEEP_LAST      3   /* OpenAI keeps three checkpoints of a job. */
#define SAVE_STEPS     500 /* It is saved at least this often. */

/* The learning rate of adapters by the width of the model, of thinkingmachines' measurements with
 * Llama ("LoRA Without Regret", 2025; tinker-cookbook, hyperparam_utils.py): 10 * 5e-5 *
 * (2000 / width)^0.781, at most 1e-2; and a tenth of it for preferences. */
static double learning_rate(const lt_tuning *t) {
    const double width = (double)lt_model_get_spec(t->all->server->model)->width;
    const double usual = fmin(5e-4 * pow(2000.0 / width, 0.781), 1e-2);
    return usual * (t->pairs ? 0.1 : 1.0) * t->multiplier;
}

/* ---- The command ---- */

/* Words of a command, one after another. */
typedef struct {
    char text[6 * LT_PATH_BYTES];
    char *words[WORDS_MAX + 1];
    size_t used;
    int n;
    bool full;
} command;

static void add(command *c, const char *fmt, ...) LT_PRINTF(2, 3);
static void add(command *c, const char *fmt, ...) {
    const size_t room = sizeof c->text - c->used;
    va_list args;
    int n;
    va_start(args, fmt);
    n = vsnprintf(c->text + c->used, room, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= room || c->n == WORDS_MAX) {
        c->full = true;
        return;
    }
    c->words[c->n++] = c->text + c->used;
    c->used += (size_t)n + 1;
}

static void add_option(command *c, const char *flag, double value) {
    add(c, "--%s", flag);
    add(c, "%.9g", value);
}

static lt_err add_file(command *c, const char *flag, const lt_tuning *t, const char *name) {
    char path[LT_PATH_BYTES];
    LT_TRY(lt_tuning_path(t, name, path));
    add(c, "--%s", flag);
    add(c, "%s", path);
    return LT_OK;
}

/* What a step learns from: conversations, each in its own row, or pairs. */
static void add_method(command *c, const lt_tuning *t, bool on_cpu) {
    const int64_t seq = (t->longest + 15) / 16 * 16;
    const int64_t most = lt_model_get_spec(t->all->server->model)->max_seq;
    add_option(c, "data.seq", (double)(seq < most ? seq : most));
    add_option(c, "batch.size", (double)t->batch);
    if (on_cpu) { /* Then rows of one conversation are computed without padding. */
        add_option(c, "batch.micro", 1);
    }
    if (t->pairs) {
        add(c, "--objective.kind");
        add(c, "dpo");
        add_option(c, "objective.beta", t->beta);
    } else {
        add(c, "--data.packing");
        add(c, "single");
    }
    add(c, "--data.shuffle");
    add(c, "documents");
}

static void add_schedule(command *c, const lt_tuning *t) {
    const int64_t epoch = (t->examples + t->batch - 1) / t->batch;
    const int64_t every = epoch < SAVE_STEPS ? epoch : SAVE_STEPS;
    add_option(c, "steps", (double)t->steps);
    add_option(c, "seed", (double)t->seed);
    add_option(c, "optim.lr", learning_rate(t));
    add_option(c, "optim.beta2", 0.999);
    add_option(c, "optim.decay", 0);
    add(c, "--lr.schedule");
    add(c, "linear");
    add_option(c, "lr.min", 0);
    add_option(c, "lr.warmup", (double)(t->steps / 20));
    add_option(c, "checkpoint.every", (double)every);
    add_option(c, "checkpoint.keep_last", KEEP_LAST);
    add(c, "--checkpoint.adapters");
    if (t->held_out > 0) {
        add_option(c, "eval.every", (double)every);
    }
}

static lt_err make_command(command *c, const lt_tuning *t) {
    const lt_server *s = t->all->server;
    const lt_tuning_options *o = &s->o.tuning;
    const int64_t half = lt_thread_count() / 2;
    const int64_t threads = o->slurm         ? lt_tunings_slurm_cores(t->all)
                            : o->threads > 0 ? o->threads
                            : half > 0       ? half
                                             : 1;
    const bool on_cpu = strncmp(o->device, "cuda", 4) != 0;

    *c = (command){.used = 0};
    add(c, "lateen");
    add(c, "train");
    LT_TRY(add_file(c, "out", t, "run"));
    LT_TRY(add_file(c, "data.train", t, "train.jsonl"));
    LT_TRY(t->held_out > 0 ? add_file(c, "data.valid", t, "valid.jsonl") : LT_OK);
    LT_TRY(add_file(c, "data.chat_template", t, "template.jinja"));
    add(c, "--model.init");
    add(c, "%s", lt_server_files(s));
    if (o->tokenizer[0] != '\0') {
        add(c, "--data.tokenizer");
        add(c, "%s", o->tokenizer);
    }
    if (t->from[0] != '\0') {
        add(c, "--lora.init");
        add(c, "%s/%s", t->all->dir, t->from);
    } else {
        add_option(c, "lora.rank", (double)o->rank);
        add_option(c, "lora.alpha", (double)(2 * o->rank));
    }
    add_method(c, t, on_cpu);
    add_schedule(c, t);
    add(c, "--data.bad_rows");
    add(c, "fail");
    add(c, "--data.too_long");
    add(c, "fail");
    add_option(c, "sample.tokens", 0);
    add(c, "--device");
    add(c, "%s", o->device);
    add_option(c, "threads", (double)threads);
    if (c->full) {
        LT_FAIL(LT_ERR_LIMIT, "%s: the command of its trainer is too long", t->id);
    }
    return LT_OK;
}

/* ---- The process ---- */

/* In the child of vfork, which shares the server's memory: only system calls. */
static void become_trainer(char *const *words, pid_t parent, int null, int log) {
    sigset_t none;
    sigemptyset(&none);
    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)setpriority(PRIO_PROCESS, 0, NICE);
    if (getppid() != parent || dup2(null, 0) < 0 || dup2(null, 1) < 0 || dup2(log, 2) < 0) {
        _exit(EXIT_CANNOT);
    }
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)execv("/proc/self/exe", words);
    _exit(EXIT_CANNOT);
}

/* vfork, because fork would copy the page tables of the whole server. */
static lt_err spawn(lt_tuning *t, char *const *words) {
    char path[LT_PATH_BYTES];
    const pid_t parent = getpid();
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    lt_err err = LT_OK;
    int log = -1;
    pid_t pid;
    LT_TRY_DONE(lt_tuning_path(t, "log", path));
    log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (null < 0 || log < 0) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: %s", path, strerror(errno));
    }
    pid = vfork();
    if (pid == 0) {
        become_trainer(words, parent, null, log);
    }
    if (pid < 0) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: no process for its trainer: %s", t->id, strerror(errno));
    }
    t->trainer = pid;
done:
    if (null >= 0) {
        close(null);
    }
    if (log >= 0) {
        close(log);
    }
    return err;
}

/* Whether a trainer of an earlier server still holds the run folder. */
static bool is_held(const lt_tuning *t) {
    char path[LT_PATH_BYTES];
    const int fd = lt_tuning_path(t, "run/lock", path) == LT_OK ? open(path, O_RDONLY | O_CLOEXEC)
                                                                : -1;
    bool held = false;
    if (fd >= 0) {
        held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        close(fd);
    }
    return held;
}

static lt_err write_template(const lt_tuning *t) {
    const char *text = lt_chat_template_text(t->all->server->template);
    char path[LT_PATH_BYTES];
    LT_TRY(lt_tuning_path(t, "template.jinja", path));
    return lt_file_write_atomic(path, text, strlen(text));
}

void lt_tuning_has_begun(lt_tuning *t) {
    t->started_s = lt_clock_s();
    t->first_step = t->step = t->told;
}

static void start(lt_tuning *t) {
    const bool slurm = t->all->server->o.tuning.slurm;
    command *c = malloc(sizeof *c);
    lt_err err = c != NULL ? make_command(c, t) : lt_error_set(LT_ERR_OOM, "%s", t->id);
    err = err == LT_OK ? write_template(t) : err;
    if (err == LT_OK) {
        err = slurm ? lt_tuning_submit(t, (const char *const *)(c->words + 2)) : spawn(t, c->words);
    }
    free(c);
    lt_tuning_has_begun(t);
    if (err != LT_OK) {
        lt_tuning_fail(t, "server_error", "", 0, lt_error_message());
    } else if (!slurm) {
        lt_tuning_come_to(t, LT_TUNING_RUNNING);
    }
}

bool lt_tuning_is_trained(const lt_tuning *t) {
    return t->trainer != 0 || t->slurm_job != 0 || t->call.pid != 0;
}

void lt_tuning_stop_trainer(lt_tuning *t, int number) {
    if (t->trainer != 0) {
        (void)kill(t->trainer, number);
    } else if (lt_tuning_is_trained(t)) { /* Slurm is told at one of the next looks. */
        t->slurm_ending = true;
    }
}

/* ---- metrics.jsonl ---- */

static double number(const json_t *line, const char *name) {
    const json_t *value = json_object_get(line, name);
    return json_is_number(value) ? json_number_value(value) : (double)NAN;
}

static void take(double *to, double value) {
    *to = isnan(value) ? *to : value;
}

bool lt_tuning_step_read(lt_tuning_step *s, const char *text, size_t n) {
    json_t *line = lt_json_loadb(text, n, 0, NULL);
    const char *kind = json_string_value(json_object_get(line, "kind"));
    bool known = true;
    kind = kind != NULL ? kind : "";
    s->step = json_integer_value(json_object_get(line, "step"));
    if (strcmp(kind, "train") == 0) {
        take(&s->loss, number(line, "loss"));
    } else if (strcmp(kind, "eval") == 0) {
        take(&s->valid_loss, number(line, "loss"));
        take(&s->valid_accuracy, number(line, "accuracy"));
    } else if (strcmp(kind, "preference") == 0) {
        take(&s->accuracy, number(line, "rewards/accuracies"));
    } else if (strcmp(kind, "preference_eval") == 0) {
        take(&s->valid_accuracy, number(line, "rewards/accuracies"));
    } else {
        known = false;
    }
    json_decref(line);
    return known && s->step > 0;
}

static const lt_tuning_step nothing = {0, NAN, NAN, NAN, NAN};

static void merge(lt_tuning_step *all, size_t *n, const lt_tuning_step *one) {
    if (*n == 0 || all[*n - 1].step != one->step) {
        all[(*n)++] = nothing;
    }
    lt_tuning_step *s = &all[*n - 1];
    s->step = one->step;
    take(&s->loss, one->loss);
    take(&s->accuracy, one->accuracy);
    take(&s->valid_loss, one->valid_loss);
    take(&s->valid_accuracy, one->valid_accuracy);
}

lt_tuning_step *lt_tuning_steps(const lt_tuning *t, size_t *n) {
    char path[LT_PATH_BYTES], *text = NULL;
    lt_tuning_step *all;
    size_t bytes = 0, lines = 1;
    *n = 0;
    if (lt_tuning_path(t, "run/metrics.jsonl", path) != LT_OK || !lt_file_exists(path) ||
        lt_file_read(&text, &bytes, path, METRICS_MAX) != LT_OK) {
        return NULL;
    }
    for (size_t i = 0; i < bytes; i++) {
        lines += text[i] == '\n';
    }
    all = malloc(lines * sizeof *all);
    for (const char *at = text, *end; all != NULL && (end = strchr(at, '\n')) != NULL;
         at = end + 1) {
        lt_tuning_step one = nothing;
        if (lt_tuning_step_read(&one, at, (size_t)(end - at))) {
            merge(all, n, &one);
        }
    }
    free(text);
    return all;
}

/* ---- Events ---- */

void lt_tuning_put_known(lt_json_out *o, const char *key, double value) {
    if (!isnan(value)) {
        lt_out_key_real(o, key, value);
    }
}

static bool is_told(const lt_tuning *t, int64_t step) {
    const int64_t every = t->steps / MOST_TOLD + 1;
    return step % every == 0 || step == 1 || step == t->steps;
}

static void tell_step(lt_tuning *t, const lt_tuning_step *s) {
    lt_json_out o = {0};
    const bool train = !isnan(s->loss), valid = !isnan(s->valid_loss);
    if (train && s->step > t->told && is_told(t, s->step)) {
        t->told = s->step;
        lt_out_key_int(&o, "step", s->step);
        lt_tuning_put_known(&o, "train_loss", s->loss);
        lt_tuning_tell(t, "info", "metrics", &o, "Step %lld/%lld: training loss=%.4f",
                       (long long)s->step, (long long)t->steps, s->loss);
    } else if (valid && s->step > t->told_valid) {
        t->told_valid = s->step;
        lt_out_key_int(&o, "step", s->step);
        lt_tuning_put_known(&o, "valid_loss", s->valid_loss);
        lt_tuning_put_known(&o, "valid_mean_token_accuracy", s->valid_accuracy);
        lt_tuning_tell(t, "info", "metrics", &o, "Step %lld/%lld: validation loss=%.4f",
                       (long long)s->step, (long long)t->steps, s->valid_loss);
    }
    lt_out_free(&o);
}

static void tell_lines(lt_tuning *t, const char *text, size_t n) {
    while (n > 0) {
        const char *end = memchr(text, '\n', n);
        lt_tuning_step one = nothing;
        if (end == NULL) {
            return; /* It is being written. */
        }
        if (lt_tuning_step_read(&one, text, (size_t)(end - text))) {
            t->step = one.step;
            tell_step(t, &one);
        }
        t->read_at += end - text + 1;
        n -= (size_t)(end - text) + 1;
        text = end + 1;
    }
}

/* Read what the trainer has written since the last look. A trainer that resumes writes a new
 * file. */
static void read_metrics(lt_tuning *t) {
    char path[LT_PATH_BYTES];
    struct stat st;
    lt_file_map map = {0};
    if (lt_tuning_path(t, "run/metrics.jsonl", path) != LT_OK || stat(path, &st) != 0) {
        return;
    }
    if ((uint64_t)st.st_ino != t->read_of || st.st_size < t->read_at) {
        t->read_of = (uint64_t)st.st_ino;
        t->read_at = 0;
    }
    if (st.st_size > t->read_at && lt_file_map_open(&map, path) == LT_OK) {
        const size_t at = (size_t)t->read_at;
        if (map.size_bytes > at) {
            tell_lines(t, (const char *)map.data + at, map.size_bytes - at);
        }
        lt_file_map_close(&map);
    }
}

/* ---- Ends ---- */

static void put_cell(lt_json_out *o, double value) {
    if (isnan(value)) {
        lt_out_raw(o, ",", 1);
    } else {
        lt_out_rawf(o, ",%.9g", value);
    }
}

/* Make the table of its metrics a file of its owner. */
static lt_err keep_metrics(const lt_tuning *t) {
    lt_file_entry entry = {.purpose = "fine-tune-results",
                           .name = "step_metrics.csv",
                           .created = (int64_t)lt_clock_unix_s()};
    char path[LT_PATH_BYTES];
    lt_files *files = t->all->server->files;
    lt_json_out o = {0};
    lt_api_error e;
    size_t n = 0;
    lt_tuning_step *steps = lt_tuning_steps(t, &n);
    lt_err err;

    lt_out_rawf(&o, "step,train_loss,train_accuracy,valid_loss,%s\n",
                t->pairs ? "valid_accuracy" : "valid_mean_token_accuracy");
    for (size_t i = 0; i < n; i++) {
        lt_out_rawf(&o, "%lld", (long long)steps[i].step);
        put_cell(&o, steps[i].loss);
        put_cell(&o, steps[i].accuracy);
        put_cell(&o, steps[i].valid_loss);
        put_cell(&o, steps[i].valid_accuracy);
        lt_out_raw(&o, "\n", 1);
    }
    free(steps);
    lt_tuning_result_id(t, entry.id);
    memcpy(entry.owner, t->owner, sizeof entry.owner);
    err = o.failed ? lt_error_set(LT_ERR_OOM, "%s", entry.id)
                   : lt_files_path(files, entry.id, path);
    err = err == LT_OK ? lt_file_write_atomic(path, o.data, o.n) : err;
    lt_out_free(&o);
    LT_TRY(err);
    if (!lt_files_put(files, &entry, NULL, 0, &e)) {
        LT_FAIL(LT_ERR_IO, "%s: %s", entry.id, e.message);
    }
    return LT_OK;
}

void lt_tuning_succeed(lt_tuning *t) {
    char name[LT_TUNING_NAME_BYTES];
    if (keep_metrics(t) != LT_OK) {
        lt_tuning_fail(t, "server_error", "", 0, lt_error_message());
        return;
    }
    lt_tuning_name(t, -1, name);
    lt_tuning_own(t, -1);
    lt_tuning_tell(t, "info", "message", NULL, "New fine-tuned model created: %s", name);
    lt_tuning_come_to(t, LT_TUNING_SUCCEEDED);
}

/* The last line in which the trainer said why it ends, "lateen: ..." or, under the launcher, "[0]
 * lateen: ..."; else the last line. The launcher and Slurm write after it. */
static const char *last_words(char *text) {
    static const char own[] = "lateen: ";
    const char *said = NULL, *last = text;
    for (char *rest = text, *line; (line = strtok_r(rest, "\r\n", &rest)) != NULL;) {
        const char *at = strstr(line, own);
        said = at != NULL ? at + sizeof own - 1 : said;
        last = line;
    }
    return said != NULL ? said : last;
}

void lt_tuning_fail_by_log(lt_tuning *t, const char *ended) {
    char path[LT_PATH_BYTES], words[LAST_WORDS + 1] = "", why[LAST_WORDS + 200];
    FILE *f = lt_tuning_path(t, "log", path) == LT_OK ? fopen(path, "re") : NULL;
    const char *last;
    if (f != NULL) {
        if (fseek(f, -LAST_WORDS, SEEK_END) != 0) {
            rewind(f);
        }
        words[fread(words, 1, LAST_WORDS, f)] = '\0';
        fclose(f);
    }
    last = last_words(words);
    snprintf(why, sizeof why, "%s%s%s", ended, ended[0] != '\0' ? ": " : "",
             last[0] != '\0' ? last : "the trainer said nothing");
    lt_tuning_fail(t, "training_failed", "", 0, why);
}

static void on_end(lt_tuning *t, int status) {
    const bool died = WIFSIGNALED(status) || WEXITSTATUS(status) == EXIT_DEVICE ||
                      WEXITSTATUS(status) == EXIT_STOPPED;
    t->trainer = 0;
    if (lt_tuning_has_ended(t)) {
        lt_tuning_tidy(t);
        if (lt_tuning_save(t) != LT_OK) {
            lt_log_warn("serve: %s: %s", t->id, lt_error_message());
        }
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        lt_tuning_succeed(t); /* Even if it has been paused meanwhile. */
    } else if (t->state != LT_TUNING_RUNNING) {
        return;
    } else if (died && ++t->deaths < LT_TUNING_MOST_DEATHS) {
        lt_tuning_tell(t, "warn", "message", NULL,
                       "The trainer died at step %lld and goes on from its newest checkpoint",
                       (long long)t->step);
        lt_tuning_come_to(t, LT_TUNING_QUEUED);
    } else {
        lt_tuning_fail_by_log(t, "");
    }
}

/* ---- Turns ---- */

void lt_tuning_read_run(lt_tuning *t) {
    read_metrics(t);
    lt_tuning_name_saved(t);
}

static void look(lt_tuning *t) {
    int status = 0;
    pid_t ended;
    if (t->state == LT_TUNING_VALIDATING) {
        lt_tuning_begin_check(t);
    }
    if (t->trainer == 0) {
        if (t->slurm_job != 0) {
            lt_tuning_read_run(t);
        }
        return;
    }
    ended = waitpid(t->trainer, &status, WNOHANG);
    lt_tuning_read_run(t); /* Also read its last lines. */
    if (ended == t->trainer) {
        on_end(t, status);
    }
}

static int64_t count_trainers(const lt_tunings *f) {
    int64_t n = 0;
    for (const lt_tuning *t = f->first; t != NULL; t = t->next) {
        n += lt_tuning_is_trained(t);
    }
    return n;
}

static bool may_start(const lt_tuning *t) {
    const lt_tuning_options *o = &t->all->server->o.tuning;
    const int64_t most = o->jobs > 0 ? o->jobs : o->slurm ? MOST_SUBMITTED : 1;
    return t->state == LT_TUNING_QUEUED && !lt_tuning_is_trained(t) &&
           count_trainers(t->all) < most && (!o->slurm || lt_tuning_may_submit(t)) && !is_held(t);
}

static void on_time(evutil_socket_t fd, short what, void *arg) {
    const struct timeval pause = lt_clock_span(LOOK_S);
    lt_tunings *f = arg;
    bool waits;
    (void)fd;
    (void)what;
    if (!f->runs) {
        return;
    }
    for (lt_tuning *t = f->first; t != NULL; t = t->next) {
        look(t);
    }
    lt_tunings_ask_slurm(f);
    waits = lt_tunings_seek(f);
    for (lt_tuning *t = f->first; t != NULL; t = t->next) {
        if (may_start(t)) {
            start(t);
        }
        waits = waits || lt_tuning_is_trained(t) || t->state == LT_TUNING_VALIDATING ||
                t->state == LT_TUNING_QUEUED;
    }
    if (waits) {
        event_add(f->on_time, &pause);
    }
}

void lt_tunings_wake(lt_tunings *f) {
    if (f->runs) {
        event_active(f->on_time, EV_TIMEOUT, 0);
    }
}

void lt_tunings_begin(lt_tunings *f) {
    if (f == NULL || f->runs) {
        return;
    }
    f->on_time = event_new(f->server->base, -1, 0, on_time, f);
    if (f->on_time == NULL) {
        lt_log_error("serve: jobs of fine-tuning do not run: out of memory");
        return;
    }
    f->runs = true;
    lt_tunings_wake(f);
}

void lt_tunings_stop(lt_tunings *f) {
    if (f == NULL || !f->runs) {
        return;
    }
    f->runs = false;
    for (lt_tuning *t = f->first; t != NULL; t = t->next) {
        if (t->trainer != 0) { /* Jobs of Slurm continue. */
            lt_tuning_stop_trainer(t, SIGTERM);
        }
    }
}

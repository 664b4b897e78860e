/* tuning.c: jobs of fine-tuning on disk, and the actions of their owners: see tuning.h. */
#include "serve/api/files/tuning.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "data/text_utf8.h"

#define MAX_JOB_BYTES ((size_t)1 << 20) /* Most bytes of the file of a job. */

/* ---- The file of a job ---- */

typedef enum { TEXT, WHOLE, REAL, YES } kind;
#define ROW(kind, member)                                                                          \
    { #member, kind, offsetof(lt_tuning, member), sizeof(((lt_tuning *)0)->member) }
static const struct {
    const char *name;
    kind kind;
    size_t offset, room;
} rows[] = {
    ROW(TEXT, id),        ROW(TEXT, owner),      ROW(TEXT, model),       ROW(TEXT, from),
    ROW(TEXT, training),  ROW(TEXT, validation), ROW(TEXT, suffix),      ROW(YES, pairs),
    ROW(WHOLE, seed),     ROW(WHOLE, epochs),    ROW(WHOLE, batch),      ROW(REAL, multiplier),
    ROW(REAL, beta),      ROW(WHOLE, state),     ROW(WHOLE, order_us),   ROW(WHOLE, created),
    ROW(WHOLE, finished), ROW(WHOLE, examples),  ROW(WHOLE, tokens),     ROW(WHOLE, longest),
    ROW(WHOLE, held_out), ROW(WHOLE, steps),     ROW(WHOLE, deaths),     ROW(WHOLE, bytes),
    ROW(YES, deleted),    ROW(TEXT, why),        ROW(TEXT, code),        ROW(TEXT, param),
    ROW(WHOLE, line),     ROW(WHOLE, slurm_job), ROW(YES, slurm_ending), ROW(TEXT, slurm_told)};
#undef ROW
#define N_ROWS (sizeof rows / sizeof *rows)

lt_err lt_tuning_path(const lt_tuning *t, const char *name, char out[LT_PATH_BYTES]) {
    char folder[LT_PATH_BYTES];
    LT_TRY(lt_path_join(folder, t->all->dir, t->id));
    return lt_path_join(out, folder, name);
}

lt_err lt_tuning_save(const lt_tuning *t) {
    char path[LT_PATH_BYTES];
    lt_json_out o = {0};
    lt_err err;

    LT_TRY(lt_tuning_path(t, "job.json", path));
    lt_out_open(&o, '{');
    for (size_t i = 0; i < N_ROWS; i++) {
        const char *at = (const char *)t + rows[i].offset;
        switch (rows[i].kind) {
        case TEXT:
            lt_out_key_str(&o, rows[i].name, at);
            break;
        case WHOLE:
            lt_out_key_int(&o, rows[i].name, *(const int64_t *)(const void *)at);
            break;
        case REAL:
            lt_out_key_real(&o, rows[i].name, *(const double *)(const void *)at);
            break;
        case YES:
            lt_out_key_bool(&o, rows[i].name, *(const bool *)(const void *)at);
        }
    }
    lt_out_key_value(&o, "metadata", t->metadata);
    lt_out_shut(&o, '}');
    err = o.failed ? lt_error_set(LT_ERR_OOM, "%s", t->id)
                   : lt_file_write_atomic(path, o.data, o.n);
    lt_out_free(&o);
    return err;
}

static lt_err read_row(lt_tuning *t, size_t i, const json_t *file, const char *path) {
    char *at = (char *)t + rows[i].offset;
    const char *text = NULL;
    switch (rows[i].kind) {
    case WHOLE:
        return lt_json_i64(file, rows[i].name, (int64_t *)(void *)at, false, path);
    case REAL:
        return lt_json_f64(file, rows[i].name, (double *)(void *)at, false, path);
    case YES:
        return lt_json_bool(file, rows[i].name, (bool *)(void *)at, false, path);
    default:
        LT_TRY(lt_json_str(file, rows[i].name, &text, false, path));
        if (strlen(text) >= rows[i].room) {
            LT_FAIL(LT_ERR_FORMAT, "%s: '%s' is too long", path, rows[i].name);
        }
        memcpy(at, text, strlen(text) + 1);
        return LT_OK;
    }
}

static lt_err load(lt_tuning *t, const char *name) {
    char path[LT_PATH_BYTES];
    json_t *file = NULL;
    lt_err err = LT_OK;

    snprintf(t->id, sizeof t->id, "%s", name);
    LT_TRY(lt_tuning_path(t, "job.json", path));
    LT_TRY(lt_json_load(&file, path, MAX_JOB_BYTES));
    for (size_t i = 0; i < N_ROWS; i++) {
        LT_TRY_DONE(read_row(t, i, file, path));
    }
    t->metadata = json_is_object(json_object_get(file, "metadata"))
                      ? json_deep_copy(json_object_get(file, "metadata"))
                      : NULL;
    if (strcmp(t->id, name) != 0 || t->state < 0 || t->state >= LT_TUNING_STATES) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "%s: job %s in state %lld", path, t->id, (long long)t->state);
    }
done:
    json_decref(file);
    return err;
}

/* ---- Events ---- */

void lt_tuning_tell(lt_tuning *t, const char *level, const char *type, const lt_json_out *data,
                    const char *fmt, ...) {
    char path[LT_PATH_BYTES], said[500], message[3 * sizeof said], id[80];
    lt_json_out o = {0};
    va_list args;
    FILE *f = NULL;

    va_start(args, fmt);
    vsnprintf(said, sizeof said, fmt, args);
    va_end(args);
    message[lt_utf8_replace_invalid(message, said, strlen(said))] = '\0';
    snprintf(id, sizeof id, "ftevent-%s-%lld", t->id + strlen("ftjob-"), (long long)++t->n_events);
    lt_out_open(&o, '{');
    lt_out_key_str(&o, "object", "fine_tuning.job.event");
    lt_out_key_str(&o, "id", id);
    lt_out_key_int(&o, "created_at", (int64_t)lt_clock_unix_s());
    lt_out_key_str(&o, "level", level);
    lt_out_key_str(&o, "message", message);
    lt_out_key_str(&o, "type", type);
    lt_out_key_open(&o, "data", '{');
    if (data != NULL) {
        lt_out_raw(&o, data->data, data->n);
    }
    lt_out_shut(&o, '}');
    lt_out_shut(&o, '}');
    lt_out_raw(&o, "\n", 1);
    if (lt_tuning_path(t, "events.jsonl", path) == LT_OK && !o.failed) {
        f = fopen(path, "ae");
    }
    if (f == NULL || fwrite(o.data, 1, o.n, f) != o.n) {
        lt_log_warn("serve: %s: an event is lost: %s", t->id, strerror(errno));
    }
    if (f != NULL && fclose(f) != 0) {
        lt_log_warn("serve: %s: an event is lost: %s", t->id, strerror(errno));
    }
    lt_out_free(&o);
}

/* Restore what the events of an earlier server reported; an event cut off by a crash is removed. */
static void count_events(lt_tuning *t) {
    char path[LT_PATH_BYTES], *text = NULL;
    const char *at;
    size_t n = 0;
    if (lt_tuning_path(t, "events.jsonl", path) != LT_OK ||
        lt_file_read(&text, &n, path, LT_TUNING_EVENTS_BYTES) != LT_OK) {
        return;
    }
    at = text;
    for (const char *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        json_t *event = lt_json_loadb(at, (size_t)(end - at), 0, NULL);
        const json_t *data = json_object_get(event, "data");
        const int64_t step = json_integer_value(json_object_get(data, "step"));
        int64_t *told = json_object_get(data, "valid_loss") != NULL ? &t->told_valid : &t->told;
        *told = step > *told ? step : *told;
        t->n_events++;
        json_decref(event);
    }
    if (*at != '\0' && truncate(path, at - text) != 0) {
        lt_log_warn("serve: %s: %s", path, strerror(errno));
    }
    free(text);
}

/* ---- States ---- */

static const struct {
    const char *name, *message;
    bool ended;
} states[LT_TUNING_STATES] = {
    [LT_TUNING_VALIDATING] = {"validating_files", "The job was created; its files are checked",
                              false},
    [LT_TUNING_QUEUED] = {"queued", "The job waits for a trainer", false},
    [LT_TUNING_RUNNING] = {"running", "The trainer was started", false},
    [LT_TUNING_PAUSED] = {"paused", "The job is paused", false},
    [LT_TUNING_SUCCEEDED] = {"succeeded", "The job has successfully completed", true},
    [LT_TUNING_FAILED] = {"failed", "The job has failed", true},
    [LT_TUNING_CANCELLED] = {"cancelled", "The job was cancelled", true},
};

bool lt_tuning_has_ended(const lt_tuning *t) {
    return states[t->state].ended;
}

void lt_tuning_come_to(lt_tuning *t, lt_tuning_state state) {
    t->state = state;
    t->finished = states[state].ended ? (int64_t)lt_clock_unix_s() : 0;
    if (states[state].ended) {
        lt_tuning_tidy(t);
    }
    if (lt_tuning_save(t) != LT_OK) {
        lt_log_error("serve: %s: %s", t->id, lt_error_message());
    }
    lt_tuning_tell(t, state == LT_TUNING_FAILED ? "error" : "info", "message", NULL, "%s%s%s",
                   states[state].message, t->why[0] != '\0' ? ": " : "", t->why);
}

void lt_tuning_fail(lt_tuning *t, const char *code, const char *param, int64_t line,
                    const char *why) {
    char whole[3 * sizeof t->why];
    const size_t n = lt_utf8_replace_invalid(whole, why, strnlen(why, sizeof t->why - 1));
    snprintf(t->why, sizeof t->why, "%.*s", (int)lt_utf8_valid_prefix(whole, n), whole);
    t->why[lt_utf8_valid_prefix(t->why, strlen(t->why))] = '\0';
    lt_log_warn("serve: %s: %s", t->id, t->why);
    lt_api_hide_paths(t->why);
    snprintf(t->code, sizeof t->code, "%s", code);
    snprintf(t->param, sizeof t->param, "%s", param);
    t->line = line;
    lt_tuning_come_to(t, LT_TUNING_FAILED);
}

void lt_tuning_result_id(const lt_tuning *t, char id[LT_FILE_ID_BYTES]) {
    snprintf(id, LT_FILE_ID_BYTES, "file-%s-metrics", t->id);
}

/* ---- What owners do ---- */

static bool may_create(const lt_tunings *f, const char *owner, lt_api_error *e) {
    const lt_tuning_options *o = &f->server->o.tuning;
    int64_t unfinished = 0, bytes = 0;
    for (const lt_tuning *t = f->first; t != NULL; t = t->next) {
        const bool own_job = strcmp(t->owner, owner) == 0;
        unfinished += own_job && !lt_tuning_has_ended(t);
        bytes += own_job ? t->bytes : 0;
    }
    if (unfinished < o->waiting && bytes < o->bytes) {
        return true;
    }
    if (unfinished >= o->waiting) {
        lt_api_refuse(e, NULL, "%lld jobs have not ended yet (--fine-tuning-waiting)",
                      (long long)unfinished);
    } else {
        lt_api_refuse(e, NULL,
                      "the models of earlier jobs take %lld bytes of %lld (--fine-tuning-bytes): "
                      "delete some of them",
                      (long long)bytes, (long long)o->bytes);
    }
    e->status = 429;
    e->code = "fine_tuning_limit";
    return false;
}

static void insert(lt_tunings *f, lt_tuning *t) {
    lt_tuning **at = &f->first;
    while (*at != NULL && (*at)->order_us <= t->order_us) {
        at = &(*at)->next;
    }
    t->next = *at;
    *at = t;
}

static void tuning_free(lt_tuning *t) {
    if (t != NULL) {
        json_decref(t->metadata);
        free(t);
    }
}

lt_tuning *lt_tuning_create(lt_tunings *f, const lt_tuning *asked, lt_api_error *e) {
    char path[LT_PATH_BYTES];
    lt_tuning *t;
    lt_err err;

    if (!may_create(f, asked->owner, e)) {
        return NULL;
    }
    t = malloc(sizeof *t);
    if (t == NULL) {
        lt_api_refuse_oom(e);
        return NULL;
    }
    *t = *asked;
    t->all = f;
    t->metadata = json_incref(asked->metadata);
    t->order_us = (int64_t)(lt_clock_unix_s() * 1e6);
    t->created = t->order_us / 1000000;
    t->seed = t->seed >= 0 ? t->seed : t->order_us % 2147483647;
    lt_server_make_id(f->server, "ftjob-", t->id);
    err = lt_tuning_path(t, "", path);
    err = err == LT_OK ? lt_file_make_dirs(path) : err;
    err = err == LT_OK ? lt_tuning_save(t) : err;
    if (err != LT_OK) {
        lt_api_refuse_error(e, NULL, err);
        tuning_free(t);
        return NULL;
    }
    insert(f, t);
    lt_tuning_come_to(t, LT_TUNING_VALIDATING);
    lt_tunings_wake(f);
    return t;
}

lt_tuning *lt_tuning_find(const lt_tunings *f, const char *id, const char *owner) {
    for (lt_tuning *t = f->first; t != NULL; t = t->next) {
        if (strcmp(t->id, id) == 0) {
            return strcmp(t->owner, owner) == 0 ? t : NULL;
        }
    }
    return NULL;
}

static bool refuse_state(const lt_tuning *t, const char *what, lt_api_error *e) {
    return lt_api_refuse(e, "fine_tuning_job_id", "%s is %s: it cannot be %s", t->id,
                         states[t->state].name, what);
}

bool lt_tuning_cancel(lt_tuning *t, lt_api_error *e) {
    if (lt_tuning_has_ended(t)) {
        return refuse_state(t, "cancelled", e);
    }
    lt_tuning_end_check(t);
    lt_tuning_stop_trainer(t, SIGKILL);
    lt_tuning_come_to(t, LT_TUNING_CANCELLED);
    lt_tunings_wake(t->all);
    return true;
}

bool lt_tuning_pause(lt_tuning *t, lt_api_error *e) {
    if (t->state != LT_TUNING_QUEUED && t->state != LT_TUNING_RUNNING) {
        return refuse_state(t, "paused", e);
    }
    lt_tuning_stop_trainer(t, SIGTERM);
    lt_tuning_come_to(t, LT_TUNING_PAUSED);
    return true;
}

bool lt_tuning_resume(lt_tuning *t, lt_api_error *e) {
    if (t->state != LT_TUNING_PAUSED) {
        return refuse_state(t, "resumed", e);
    }
    lt_tuning_come_to(t, LT_TUNING_QUEUED);
    lt_tunings_wake(t->all);
    return true;
}

/* ---- As JSON ---- */

static void put_or_auto(lt_json_out *o, const char *key, double value, bool whole) {
    if (value == 0) {
        lt_out_key_str(o, key, "auto");
    } else if (whole) {
        lt_out_key_int(o, key, (int64_t)value);
    } else {
        lt_out_key_real(o, key, value);
    }
}

static void put_hyperparameters(lt_json_out *o, const lt_tuning *t, bool beta) {
    lt_out_key_open(o, "hyperparameters", '{');
    put_or_auto(o, "n_epochs", (double)t->epochs, true);
    put_or_auto(o, "batch_size", (double)t->batch, true);
    put_or_auto(o, "learning_rate_multiplier", t->multiplier, false);
    if (beta) {
        put_or_auto(o, "beta", t->beta, false);
    }
    lt_out_shut(o, '}');
}

static void put_time(lt_json_out *o, const char *key, int64_t time) {
    if (time > 0) {
        lt_out_key_int(o, key, time);
    } else {
        lt_out_key_null(o, key);
    }
}

static void put_error(lt_json_out *o, const lt_tuning *t) {
    if (t->state != LT_TUNING_FAILED) {
        lt_out_key_null(o, "error");
        return;
    }
    lt_out_key_open(o, "error", '{');
    lt_out_key_str(o, "code", t->code);
    lt_out_key_str(o, "message", t->why);
    lt_out_key_str(o, "param", t->param[0] != '\0' ? t->param : NULL);
    put_time(o, "line", t->line);
    lt_out_shut(o, '}');
}

/* Estimated from the steps since this start of the trainer. */
static int64_t estimate(const lt_tuning *t) {
    const double now = lt_clock_s(), done = (double)(t->step - t->first_step);
    return t->state == LT_TUNING_RUNNING && done > 0
               ? (int64_t)(lt_clock_unix_s() +
                           (now - t->started_s) / done * (double)(t->steps - t->step))
               : 0;
}

void lt_tuning_write(lt_json_out *o, const lt_tuning *t) {
    const char *method = t->pairs ? "dpo" : "supervised";
    const bool done = t->state == LT_TUNING_SUCCEEDED;
    char name[LT_TUNING_NAME_BYTES], file[LT_FILE_ID_BYTES];
    lt_tuning_name(t, -1, name);
    lt_out_open(o, '{');
    lt_out_key_str(o, "object", "fine_tuning.job");
    lt_out_key_str(o, "id", t->id);
    lt_out_key_str(o, "model", t->model);
    lt_out_key_int(o, "created_at", t->created);
    put_time(o, "finished_at", t->finished);
    lt_out_key_str(o, "fine_tuned_model", done ? name : NULL);
    lt_out_key_str(o, "organization_id", "lateen");
    lt_out_key_open(o, "result_files", '[');
    if (done) {
        lt_tuning_result_id(t, file);
        lt_out_text(o, file);
    }
    lt_out_shut(o, ']');
    lt_out_key_str(o, "status", states[t->state].name);
    lt_out_key_str(o, "training_file", t->training);
    lt_out_key_str(o, "validation_file", t->validation[0] != '\0' ? t->validation : NULL);
    put_hyperparameters(o, t, false);
    put_time(o, "trained_tokens", done ? t->tokens * t->epochs : 0);
    put_error(o, t);
    lt_out_key_str(o, "user_provided_suffix", t->suffix[0] != '\0' ? t->suffix : NULL);
    lt_out_key_int(o, "seed", t->seed);
    put_time(o, "estimated_finish", estimate(t));
    lt_out_key_open(o, "integrations", '[');
    lt_out_shut(o, ']');
    lt_out_key_value(o, "metadata", t->metadata);
    lt_out_key_open(o, "method", '{');
    lt_out_key_str(o, "type", method);
    lt_out_key_open(o, method, '{');
    put_hyperparameters(o, t, t->pairs);
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
    lt_out_shut(o, '}');
}

void lt_tunings_metrics(const lt_tunings *f, lt_expo *e) {
    int64_t counts[LT_TUNING_STATES] = {0};
    for (const lt_tuning *t = f->first; t != NULL; t = t->next) {
        counts[t->state]++;
    }
    lt_expo_family(e, LT_EXPO_GAUGE, "lateen_fine_tuning_jobs", "Jobs of fine-tuning.");
    for (int i = 0; i < LT_TUNING_STATES; i++) {
        lt_expo_value(e, (double)counts[i], "status=\"%s\"", states[i].name);
    }
}

/* ---- Opening ---- */

static lt_err load_one(lt_tunings *f, const char *name) {
    lt_tuning *t = calloc(1, sizeof *t);
    if (t == NULL) {
        LT_FAIL(LT_ERR_OOM, "%s", name);
    }
    t->all = f;
    const lt_err err = load(t, name);
    if (err != LT_OK) {
        tuning_free(t);
        return err;
    }
    if (t->state == LT_TUNING_RUNNING && t->slurm_job == 0) {
        t->state = LT_TUNING_QUEUED;
    }
    if (!lt_tuning_has_ended(t)) {
        count_events(t);
        lt_tuning_has_begun(t);
    }
    if (t->state == LT_TUNING_SUCCEEDED && !t->deleted) {
        lt_tuning_own(t, -1);
    }
    lt_tuning_name_saved(t);
    insert(f, t);
    return LT_OK;
}

lt_err lt_tunings_open(lt_tunings **out, lt_server *s) {
    lt_err err = LT_OK;
    char **names = NULL, files[LT_PATH_BYTES], path[LT_PATH_BYTES];
    size_t n = 0;
    lt_tunings *f;

    if (s->o.tuning.dir[0] == '\0') {
        return LT_OK;
    }
    lt_server_find_files(s, files);
    if (lt_path_join(path, files, "adapter_config.json") == LT_OK && lt_file_exists(path)) {
        LT_FAIL(LT_ERR_ARG,
                "--fine-tuning: %s is a folder of adapters: serve their base, with them as --lora",
                s->o.model);
    }
    f = calloc(1, sizeof *f);
    if (f == NULL) {
        LT_FAIL(LT_ERR_OOM, "jobs of fine-tuning");
    }
    f->server = s;
    if (snprintf(f->dir, sizeof f->dir, "%s", s->o.tuning.dir) >= (int)sizeof f->dir) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "--fine-tuning %s is too long", s->o.tuning.dir);
    }
    LT_TRY_DONE(s->o.tuning.slurm ? lt_tunings_open_slurm(f) : LT_OK);
    LT_TRY_DONE(lt_file_list(&names, &n, f->dir));
    for (size_t i = 0; i < n; i++) {
        if (strncmp(names[i], "ftjob-", 6) == 0 && load_one(f, names[i]) != LT_OK) {
            lt_log_warn("serve: %s", lt_error_message());
        }
    }
    *out = f;
    f = NULL;
done:
    lt_file_list_free(names, n);
    lt_tunings_close(f);
    return err;
}

void lt_tunings_close(lt_tunings *f) {
    if (f == NULL) {
        return;
    }
    if (f->on_time != NULL) {
        event_free(f->on_time);
    }
    lt_tunings_close_slurm(f);
    while (f->first != NULL) {
        lt_tuning *t = f->first;
        f->first = t->next;
        lt_tuning_drop_check(t);
        tuning_free(t);
    }
    free(f);
}

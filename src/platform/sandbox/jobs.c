/* jobs.c: see jobs.h. */
#include "platform/sandbox/jobs.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "base/thread.h"
#include "data/text_utf8.h"
#include "platform/command.h"

#define MOST_WORDS 256
#define MOST_FILES 256
#define SPARE_S    60.0 /* Additional time for starting processes on a busy machine. */

static json_t *text_json(const char *text, size_t bytes) {
    char *valid;
    json_t *s;
    if (lt_utf8_valid_prefix(text, bytes) == bytes) {
        return json_stringn_nocheck(text, bytes);
    }
    valid = malloc(3 * bytes);
    s = valid != NULL ? json_stringn_nocheck(valid, lt_utf8_replace_invalid(valid, text, bytes))
                      : NULL;
    free(valid);
    return s;
}

json_t *lt_sandbox_result_json(const lt_sandbox_result *r) {
    json_t *status = r->status >= 0 ? json_integer(r->status) : json_null();
    json_t *signal = r->signal > 0 ? json_integer(r->signal) : json_null();
    return json_pack("{s:o, s:o, s:s?, s:f, s:f, s:I, s:o, s:o, s:I, s:I}", "status", status,
                     "signal", signal, "limit", r->limit, "wall_s", r->wall_s, "cpu_s", r->cpu_s,
                     "peak_bytes", (json_int_t)r->peak_bytes, "stdout",
                     text_json(r->out, r->out_bytes), "stderr", text_json(r->err, r->err_bytes),
                     "stdout_bytes", (json_int_t)r->out_bytes, "stderr_bytes",
                     (json_int_t)r->err_bytes);
}

/* ---- A job ---- */

typedef struct {
    lt_sandbox_job job;
    const char *words[MOST_WORDS + 1];
    lt_sandbox_file files[MOST_FILES];
} read_job;

static lt_err read_words(read_job *out, const json_t *line) {
    const json_t *list = json_object_get(line, "command");
    const size_t n = json_array_size(list);
    if (n == 0 || n > MOST_WORDS) {
        LT_FAIL(LT_ERR_FORMAT, "\"command\" is not a list of 1 to %d words", MOST_WORDS);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *word = json_array_get(list, i);
        out->words[i] = json_string_value(word);
        if (out->words[i] == NULL || strlen(out->words[i]) != json_string_length(word)) {
            LT_FAIL(LT_ERR_FORMAT, "\"command\"[%zu] is not a text%s", i,
                    out->words[i] != NULL ? " that a program can be given: it has a NUL" : "");
        }
    }
    out->job.command = out->words;
    return LT_OK;
}

static lt_err read_files(read_job *out, json_t *line) {
    json_t *files = json_object_get(line, "files"), *text;
    const char *name;
    if (files != NULL && (!json_is_object(files) || json_object_size(files) > MOST_FILES)) {
        LT_FAIL(LT_ERR_FORMAT, "\"files\" is not an object of at most %d texts", MOST_FILES);
    }
    json_object_foreach(files, name, text) {
        if (!json_is_string(text)) {
            LT_FAIL(LT_ERR_FORMAT, "file \"%s\" is not a text", name);
        }
        out->files[out->job.n_files++] = (lt_sandbox_file){name, json_string_value(text),
                                                           json_string_length(text)};
    }
    out->job.files = out->files;
    return LT_OK;
}

static lt_err read_limits(lt_sandbox_limits *l, const json_t *line) {
    const struct {
        const char *name;
        int64_t *value;
    } whole[] = {{"memory_bytes", &l->memory_bytes},
                 {"disk_bytes", &l->disk_bytes},
                 {"output_bytes", &l->output_bytes},
                 {"processes", &l->processes},
                 {"open_files", &l->files}};
    LT_TRY(lt_json_f64(line, "wall_s", &l->wall_s, true, "the job"));
    LT_TRY(lt_json_f64(line, "cpu_s", &l->cpu_s, true, "the job"));
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        LT_TRY(lt_json_i64(line, whole[i].name, whole[i].value, true, "the job"));
    }
    return LT_OK;
}

/* A misspelt member would be a limit without effect, so unknown ones are refused. A member that is
 * null counts as absent. */
static lt_err check_members(json_t *line) {
    static const char *const known[] = {"command",   "stdin",        "files",      "wall_s",
                                        "cpu_s",     "memory_bytes", "disk_bytes", "output_bytes",
                                        "processes", "open_files"};
    const size_t n = sizeof known / sizeof *known;
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(line, next, name, value) {
        size_t i = 0;
        while (i < n && strcmp(known[i], name) != 0) {
            i++;
        }
        if (i == n) {
            LT_FAIL(LT_ERR_FORMAT, "a job has no member \"%s\"", name);
        }
        if (json_is_null(value)) {
            json_object_del(line, name);
        }
    }
    return LT_OK;
}

static lt_err job_read(read_job *out, json_t *line, const lt_sandbox_job *base) {
    const json_t *input;
    *out = (read_job){.job = *base};
    out->job.n_files = 0;
    if (!json_is_object(line)) {
        LT_FAIL(LT_ERR_FORMAT, "not an object");
    }
    LT_TRY(check_members(line));
    input = json_object_get(line, "stdin");
    if (input != NULL && !json_is_string(input)) {
        LT_FAIL(LT_ERR_FORMAT, "\"stdin\" is not a text");
    }
    out->job.input = json_string_value(input);
    out->job.input_bytes = json_string_length(input);
    LT_TRY(read_words(out, line));
    LT_TRY(read_files(out, line));
    return read_limits(&out->job.limits, line);
}

/* ---- Many jobs ---- */

typedef struct {
    const json_t *jobs;
    const lt_sandbox_job *base;
    json_t **results;
    lt_failure *failures;
} batch;

/* A failure of a job is its result; a failure of the machine or the list is returned. */
static void run_one(void *ctx, size_t i) {
    const batch *b = ctx;
    lt_sandbox_result result = {0};
    read_job *job = malloc(sizeof *job);
    lt_err err = job != NULL ? job_read(job, json_array_get(b->jobs, i), b->base)
                             : lt_error_set(LT_ERR_OOM, "a job");
    if (err != LT_OK) {
        err = lt_error_prefix(err, "job %zu", i + 1);
    } else {
        err = lt_sandbox_run(&result, &job->job);
        if (err == LT_OK) {
            b->results[i] = lt_sandbox_result_json(&result);
        } else if (err == LT_ERR_NOT_FOUND || err == LT_ERR_ARG) {
            b->results[i] = json_pack("{s:s}", "error", lt_error_message());
            err = LT_OK;
        }
    }
    lt_failure_keep(&b->failures[i], err);
    lt_sandbox_result_free(&result);
    free(job);
}

lt_err lt_sandbox_jobs_run(json_t **results, const json_t *jobs, const lt_sandbox_job *base,
                           int parallel) {
    const size_t n = json_array_size(jobs);
    const int threads = lt_thread_count();
    batch b = {.jobs = jobs, .base = base};
    json_t *list = json_array();
    lt_err err = LT_OK;

    if (!json_is_array(jobs)) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "jobs are not a list");
    }
    b.results = calloc(n + 1, sizeof(json_t *));
    b.failures = calloc(n + 1, sizeof *b.failures);
    if (list == NULL || b.results == NULL || b.failures == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu jobs", n);
    }
    lt_thread_set_count(parallel);
    lt_parallel_for(n, run_one, &b);
    lt_thread_set_count(threads);
    for (size_t i = 0; i < n; i++) {
        LT_TRY_DONE(lt_failure_raise(&b.failures[i]));
        if (json_array_append(list, b.results[i]) != 0) {
            LT_FAIL_DONE(LT_ERR_OOM, "%zu results", n);
        }
    }
    *results = list;
    list = NULL;
done:
    for (size_t i = 0; b.results != NULL && i < n; i++) {
        json_decref(b.results[i]);
    }
    free(b.results);
    free(b.failures);
    json_decref(list);
    return err;
}

/* ---- Another process ---- */

/* The longest time that the jobs can take, this many at a time. */
static double longest_s(const json_t *jobs, int parallel) {
    double sum_s = 0.0, most_s = 0.0;
    for (size_t i = 0; i < json_array_size(jobs); i++) {
        const json_t *given = json_object_get(json_array_get(jobs, i), "wall_s");
        const double wall_s = given != NULL ? json_number_value(given) : LT_SANDBOX_LIMITS.wall_s;
        sum_s += wall_s;
        most_s = fmax(most_s, wall_s);
    }
    return SPARE_S + 2.0 * (sum_s / parallel + most_s);
}

static lt_err write_jobs(int fd, const json_t *jobs) {
    return fd >= 0 && json_dumpfd(jobs, fd, JSON_COMPACT) == 0
               ? LT_OK
               : lt_error_set(LT_ERR_IO, "sandbox: %zu jobs: %s", json_array_size(jobs),
                              strerror(errno));
}

lt_err lt_sandbox_jobs_ask(json_t **results, const json_t *jobs, const char *program,
                           lt_sandbox_kind kind, int parallel) {
    static const char *const kinds[] = {"namespaces", "rlimits"};
    char path[32], at_once[16], *text = NULL;
    const char *const words[] = {program,     "sandbox",    "--jobs", path, "--kind",
                                 kinds[kind], "--parallel", at_once,  NULL};
    const int fd = memfd_create("jobs", 0); /* The child process inherits it. */
    json_t *list = NULL;
    lt_err err = LT_OK;

    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    snprintf(at_once, sizeof at_once, "%d", parallel);
    LT_TRY_DONE(write_jobs(fd, jobs));
    LT_TRY_DONE(lt_command_run(&text, words, longest_s(jobs, parallel)));
    LT_TRY_DONE(lt_json_parse(&list, text, strlen(text), "results of the sandbox"));
    if (json_array_size(list) != json_array_size(jobs)) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "sandbox: %zu results of %zu jobs", json_array_size(list),
                     json_array_size(jobs));
    }
    *results = list;
    list = NULL;
done:
    if (fd >= 0) {
        close(fd);
    }
    free(text);
    json_decref(list);
    return err;
}

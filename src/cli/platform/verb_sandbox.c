/* verb_sandbox.c: `lateen sandbox -- COMMAND`: runs an untrusted program. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/thread.h"
#include "cli/verb.h"
#include "platform/sandbox/jobs.h"

#define MOST_LIST  LT_SANDBOX_BINDS
#define MOST_BYTES ((size_t)1 << 30)

#define SANDBOX_OPTIONS(X)                                                                         \
    X(ENUM, kind, "kind", "namespaces", 0, 0, LT_SANDBOX_KINDS,                                    \
      "rlimits is weaker: the program sees the files that its user may read")                      \
    X(F64, wall, "wall", "10", 1e-3, 1e6, "s",                                                     \
      "time after which the program and everything that it started are ended")                     \
    X(F64, cpu, "cpu", "10", 1, 1e6, "s", "CPU time of each process, whole seconds")               \
    X(I64, memory, "memory", "1024", 1, 1e9, "MiB", "address space of each process")               \
    X(I64, disk, "disk", "64", 1, 1e9, "MiB", "size of all files; kind rlimits: of each file")     \
    X(I64, output, "output", "1024", 1, 1e6, "KiB", "size of standard output and error together")  \
    X(I64, processes, "processes", "32", 1, 1e6, "", "processes and threads")                      \
    X(I64, open_files, "open-files", "256", 8, 1e6, "", "files that a process may have open")      \
    X(STR, files, "files", "", 0, 0, "FILE,...",                                                   \
      "files to copy into the folder where the program starts")                                    \
    X(STR, bind, "bind", "", 0, 0, "PATH,...", "further folders that the program sees, read-only") \
    X(STR, input, "stdin", "", 0, 0, "FILE", "its standard input; -: that of this command")        \
    X(STR, jobs, "jobs", "", 0, 0, "FILE",                                                         \
      "run the JSON list of jobs in this file, not COMMAND, and print the list of results")        \
    X(I64, parallel, "parallel", "0", 0, 4096, "N", "jobs at once; 0: as many as cores")           \
    X(BOOL, json, "json", "false", 0, 0, "", "print one JSON object")

typedef struct {
    SANDBOX_OPTIONS(LT_OPTION_FIELD)
} sandbox_options;
#define LT_OPTION_STRUCT sandbox_options
static const lt_option rows[] = {SANDBOX_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_sandbox_options = LT_OPTION_TABLE("sandbox", rows);

static const char usage[] = "sandbox [options] -- COMMAND...\n"
                            "       lateen sandbox --jobs FILE.json [--parallel N]";
static const char prose[] =
    "Run an untrusted program in its own namespaces, with limits, a filter of system calls,\n"
    "no network, and no files but /usr, its libraries and an empty /work. Its output is printed\n"
    "when it has ended, and its exit status is the command's; a signal N gives 128 + N. A limit\n"
    "that ended it is named on standard error. docs/post-training.md says what this protects\n"
    "against, and what it does not.";

/* ---- Inputs ---- */

/* Split a comma-separated list in place; the last part is followed by NULL. */
static lt_err split(char *text, const char *parts[MOST_LIST + 1], const char *option) {
    int n = 0;
    for (char *part; *text != '\0' && (part = strsep(&text, ",")) != NULL;) {
        if (n == MOST_LIST) {
            LT_FAIL(LT_ERR_ARG, "--%s has more than %d parts", option, MOST_LIST);
        }
        parts[n++] = part;
        if (text == NULL) {
            break;
        }
    }
    parts[n] = NULL;
    return LT_OK;
}

static lt_err read_input(const char *path, char **out, size_t *bytes) {
    return path[0] == '\0'
               ? LT_OK
               : lt_file_read(out, bytes, strcmp(path, "-") == 0 ? "/dev/stdin" : path, MOST_BYTES);
}

/* Read files for the job, under the last parts of their names. */
static lt_err read_files(const char *const *paths, lt_sandbox_job *job, char *data[MOST_LIST],
                         lt_sandbox_file files[MOST_LIST]) {
    for (int i = 0; paths[i] != NULL; i++) {
        const char *slash = strrchr(paths[i], '/');
        LT_TRY(lt_file_read(&data[i], &files[i].bytes, paths[i], MOST_BYTES));
        files[i].name = slash != NULL ? slash + 1 : paths[i];
        files[i].data = data[i];
        job->n_files = i + 1;
    }
    job->files = files;
    return LT_OK;
}

/* ---- One command ---- */

static int print_result(const lt_sandbox_result *r, bool json) {
    if (json) {
        json_t *o = lt_sandbox_result_json(r);
        json_dumpf(o, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(o);
        return LT_EXIT_DONE;
    }
    (void)fwrite(r->out, 1, r->out_bytes, stdout);
    (void)fflush(stdout);
    (void)fwrite(r->err, 1, r->err_bytes, stderr);
    if (r->limit != NULL) {
        (void)fprintf(stderr, "lateen: sandbox: ended by the limit '%s' after %.2f s\n", r->limit,
                      r->wall_s);
    }
    return r->status >= 0 ? r->status : 128 + r->signal;
}

static lt_err run_command(sandbox_options *o, lt_sandbox_job *job, int *status) {
    const char *paths[MOST_LIST + 1], *binds[MOST_LIST + 1];
    lt_sandbox_file files[MOST_LIST];
    char *data[MOST_LIST] = {NULL}, *input = NULL;
    lt_sandbox_result result = {0};
    lt_err err = LT_OK;

    LT_TRY_DONE(split(o->files, paths, "files"));
    LT_TRY_DONE(split(o->bind, binds, "bind"));
    job->binds = binds;
    LT_TRY_DONE(read_files(paths, job, data, files));
    LT_TRY_DONE(read_input(o->input, &input, &job->input_bytes));
    job->input = input;
    LT_TRY_DONE(lt_sandbox_run(&result, job));
    *status = print_result(&result, o->json);
done:
    for (int i = 0; i < MOST_LIST; i++) {
        free(data[i]);
    }
    free(input);
    lt_sandbox_result_free(&result);
    return err;
}

/* ---- Many jobs ---- */

static lt_err run_jobs(sandbox_options *o, lt_sandbox_job *job) {
    const int parallel = o->parallel > 0 ? (int)o->parallel : lt_thread_count();
    const char *binds[MOST_LIST + 1];
    json_t *jobs = NULL, *results = NULL;
    lt_err err = LT_OK;

    LT_TRY_DONE(split(o->bind, binds, "bind"));
    job->binds = binds;
    LT_TRY_DONE(
        lt_json_load(&jobs, strcmp(o->jobs, "-") == 0 ? "/dev/stdin" : o->jobs, MOST_BYTES));
    LT_TRY_DONE(lt_sandbox_jobs_run(&results, jobs, job, parallel));
    if (json_dumpf(results, stdout, JSON_COMPACT | JSON_PRESERVE_ORDER) != 0 ||
        putchar('\n') == EOF || fflush(stdout) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "write: %s", strerror(errno));
    }
done:
    json_decref(jobs);
    json_decref(results);
    return err;
}

/* ---- The verb ---- */

static lt_sandbox_job job_of(const sandbox_options *o) {
    return (lt_sandbox_job){.kind = (lt_sandbox_kind)o->kind,
                            .limits = {.wall_s = o->wall,
                                       .cpu_s = o->cpu,
                                       .memory_bytes = o->memory << 20,
                                       .disk_bytes = o->disk << 20,
                                       .output_bytes = o->output << 10,
                                       .processes = o->processes,
                                       .files = o->open_files}};
}

int lt_verb_sandbox(int argc, char **argv);
int lt_verb_sandbox(int argc, char **argv) {
    sandbox_options o;
    lt_sandbox_job job;
    int at = 1, n = 0, status = LT_EXIT_DONE;
    lt_err err;

    while (at < argc && strcmp(argv[at], "--") != 0) {
        at++;
    }
    if (!lt_verb_parse(&lt_verb_sandbox_options, &o, at, argv, usage, prose, NULL, 0, &n,
                       &status)) {
        return status;
    }
    if ((at + 1 < argc) == (o.jobs[0] != '\0')) {
        return lt_verb_fail(lt_error_set(
            LT_ERR_ARG, "sandbox needs either a command after -- or --jobs\nusage: lateen %s",
            usage));
    }
    job = job_of(&o);
    if (o.jobs[0] != '\0') {
        err = run_jobs(&o, &job);
    } else {
        job.command = (const char *const *)(argv + at + 1);
        err = run_command(&o, &job, &status);
    }
    return err == LT_OK ? status : lt_verb_fail(err);
}

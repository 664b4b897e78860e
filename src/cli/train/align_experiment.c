/* align_experiment.c: `lateen align experiment FILE.yaml`: measures methods of alignment
 * (align/experiment.h). */
#include <stdio.h>

#include "align/experiment.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/train/align.h"
#include "cli/opened.h"
#include "cli/verb.h"
#include "tensor/backend.h"

#define EXPERIMENT_OPTIONS(X)                                                                      \
    X(STR, out, "out", "", 0, 0, "DIR", "folder of results; empty: `out` of the file")             \
    X(ENUM, dtype, "dtype", "stored", 0, 0, "stored|fp32|bf16", LT_OPENED_DTYPE_HELP)              \
    X(STR, device, "device", "auto", 0, 1, LT_DEVICE_NAMES, "where to compute")                    \
    X(I64, threads, "threads", "0", 0, 4096, "N", "threads of the CPU; 0: all cores")              \
    X(BOOL, report, "report", "false", 0, 0, "",                                                   \
      "run nothing: write summary and report of the results that are there")                       \
    X(BOOL, quiet, "quiet", "false", 0, 0, "", "print errors only")

typedef struct {
    EXPERIMENT_OPTIONS(LT_OPTION_FIELD)
} experiment_options;
#define LT_OPTION_STRUCT experiment_options
static const lt_option rows[] = {EXPERIMENT_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("align experiment", rows);

static const char usage[] = "align experiment FILE.yaml [--out DIR]";
static const char prose[] =
    "Measure methods of alignment: each method with each of its parameters, on each model and "
    "task,\nwith seeds. The folder gets results.jsonl, summary.jsonl and report.html. A run that "
    "was\ninterrupted or killed goes on with the same command, and has the same results.\n"
    "docs/alignment.md explains the file.";

typedef struct {
    const experiment_options *o;
    lt_opened opened; /* The parts that the model's server does not close. */
    lt_progress line;
    double started_s;
    int64_t had; /* Number of requests that were done before. */
} job;

static lt_err load(void *ctx, const lt_experiment_model *m, lt_model **model,
                   lt_tokenizer **tokenizer) {
    job *j = ctx;
    return lt_opened_give(&j->opened, model, tokenizer, m->path, "", m->tokenizer,
                          (lt_opened_dtype)j->o->dtype, j->o->device, j->o->threads);
}

static void unload(void *ctx) {
    job *j = ctx;
    lt_opened_close(&j->opened);
}

static void progress(void *ctx, int64_t done, int64_t of) {
    job *j = ctx;
    char left[LT_CLOCK_TEXT_BYTES] = "";
    const double now = lt_clock_s();
    if (j->started_s == 0) {
        j->started_s = now;
        j->had = done;
    }
    if (done > j->had) {
        lt_duration_text(left,
                         (now - j->started_s) / (double)(done - j->had) * (double)(of - done));
    }
    if (!j->o->quiet) {
        lt_progress_show(&j->line, "%lld of %lld requests%s%s", (long long)done, (long long)of,
                         left[0] != '\0' ? ", to go: " : "", left);
    }
}

int lt_align_experiment(int argc, char **argv) {
    experiment_options o;
    job j = {.o = &o, .line = {.plain_every_s = 10}};
    const lt_experiment_host host = {load, unload, progress, &j};
    const char *file = NULL;
    int n = 0, status = LT_EXIT_DONE;
    lt_experiment e = {0};
    lt_err err;

    if (!lt_verb_parse(&table, &o, argc, argv, usage, prose, &file, 1, &n, &status)) {
        return status;
    }
    if (n != 1) {
        return lt_verb_fail(lt_error_set(LT_ERR_ARG, "align: usage: lateen %s", usage));
    }
    lt_device_few_queues();
    err = lt_experiment_open(&e, file, o.out);
    err = err != LT_OK ? err : o.report ? lt_experiment_read(&e) : lt_experiment_run(&e, &host);
    if (err == LT_OK && !o.quiet) {
        lt_progress_end(&j.line);
        lt_log_info("align: %s/report.html: %lld of %lld requests", e.out, (long long)e.n_done,
                    (long long)e.n_cells);
    }
    lt_experiment_close(&e);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}

/* verb_plan.c: `lateen plan`: the main form here; `fit`, `validate`, `serve` and `schedule` in
 * plan_points.c, plan_serve.c and plan_schedule.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/plan/plan_verbs.h"
#include "plan/report.h"

#define PLAN_OPTIONS(X)                                                                            \
    X(STR, model, "model", "", 1, 0, "name|path",                                                  \
      "recipes/models name, Hugging Face folder, config.json; or a recipe or run folder of "       \
      "Lateen's")                                                                                  \
    X(STR, cluster, "cluster", "", 1, 0, "name|path",                                              \
      "recipes/clusters name, YAML file, or kind of GPU: one node of them")                        \
    X(I64, gpus, "gpus", "0", 0, 1e7, "",                                                          \
      "number of GPUs (0: all of the cluster); with a recipe: of ranks, whose layouts are ranked") \
    X(I64, tokens, "tokens", "1T", 1, 1e18, "", "tokens of the whole run")                         \
    X(I64, batch, "batch", "0", 0, 1e12, "tokens",                                                 \
      "tokens per step (0: chosen by the model's size, 4 to 16 million)")                          \
    X(I64, seq, "seq", "0", 0, 1e9, "tokens", "sequence length (0: the model's, at most 8192)")    \
    X(ENUM, precision, "precision", "bf16", 0, 0, "fp32|bf16|fp8|mxfp8|nvfp4|fp8-rowwise",         \
      "precision of matrix products")                                                              \
    X(ENUM, moments, "moments", "fp32", 0, 0, "fp32|bf16", "storage of the optimiser's moments")   \
    X(I64, tp, "tp", "0", 0, 65536, "", "tensor-parallel ranks (0: search)")                       \
    X(I64, pp, "pp", "0", 0, 65536, "", "pipeline stages (0: search)")                             \
    X(I64, vpp, "vpp", "0", 0, 1024, "", "virtual stages of each stage (0: search)")               \
    X(ENUM, schedule, "schedule", "search", 0, 0, "search|gpipe|1f1b|interleaved|zero-bubble",     \
      "schedule of the pipeline; search: tries 1f1b and interleaved")                              \
    X(I64, cp, "cp", "0", 0, 65536, "", "context-parallel ranks (0: search)")                      \
    X(I64, ep, "ep", "0", 0, 65536, "", "expert-parallel ranks (0: search)")                       \
    X(I64, micro, "micro", "0", 0, 65536, "sequences", "sequences of a micro-batch (0: search)")   \
    X(I64, zero, "zero", "-1", -1, 3, "", "ZeRO stage (-1: search)")                               \
    X(ENUM, recompute, "recompute", "search", 0, 0, "search|none|selective|full",                  \
      "activation recomputation")                                                                  \
    X(BOOL, lora, "lora", "false", 0, 0, "", "train low-rank adapters only")                       \
    X(F64, interval, "interval", "0", 0, 1e4, "min",                                               \
      "minutes between saves (0: by Daly's formula)")                                              \
    X(BOOL, async, "async", "true", 0, 0, "", "asynchronous saves")                                \
    X(BOOL, sensitivity, "sensitivity", "false", 0, 0, "", "print what would make the run faster") \
    X(I64, top, "top", "5", 1, 1000, "", "number of layouts to print")                             \
    X(BOOL, json, "json", "false", 0, 0, "", "print JSON")                                         \
    X(STR, html, "html", "", 0, 0, "file", "write a report with pictures")

typedef struct {
    PLAN_OPTIONS(LT_OPTION_FIELD)
} plan_options;
#define LT_OPTION_STRUCT plan_options
static const lt_option rows[] = {PLAN_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_plan_options = LT_OPTION_TABLE("plan", rows);

static void show_progress(void *ctx, size_t done, size_t all) {
    lt_progress_show(ctx, "search: %zu of %zu layouts", done, all);
}

/* Tokens per step that labs use: 4 M up to 20 B parameters, 8 M up to 100 B, 16 M above. */
static int64_t usual_batch(const lt_plan_model *m) {
    const double n = lt_plan_model_params(m).active;
    return n < 2e10 ? 4 << 20 : n < 1e11 ? 8 << 20 : 16 << 20;
}

static int64_t greatest_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* "16M" means about 16 million: choose the number of sequences within 5 % that has the largest
 * common divisor with the GPUs, then the nearest. */
static int64_t round_batch(int64_t seqs, int64_t gpus) {
    const int64_t reach = seqs / 20 < 100000 ? seqs / 20 : 100000;
    int64_t best = seqs, shared = greatest_divisor(seqs, gpus);
    for (int64_t step = 1; step <= reach; step++) {
        for (int side = -1; side <= 1; side += 2) {
            const int64_t candidate = seqs + side * step, now = greatest_divisor(candidate, gpus);
            if (now > shared) {
                shared = now;
                best = candidate;
            }
        }
    }
    return best;
}

static lt_err fill(lt_plan_report *r, const plan_options *o) {
    lt_plan_query *q = &r->query;
    int64_t batch, gpus;
    if (o->model[0] == 0 || o->cluster[0] == 0) {
        LT_FAIL(LT_ERR_ARG, "plan needs %s: a name under recipes/%s or a file",
                o->model[0] == 0 ? "--model" : "--cluster",
                o->model[0] == 0 ? "models" : "clusters");
    }
    LT_TRY(lt_plan_model_load(&r->model, o->model));
    LT_TRY(lt_plan_cluster_load(&r->cluster, o->cluster));
    r->model.max_seq = o->seq > 0 ? o->seq : r->model.max_seq > 8192 ? 8192 : r->model.max_seq;
    gpus = o->gpus > 0 ? o->gpus : r->cluster.gpus;
    batch = o->batch > 0 ? o->batch : usual_batch(&r->model);
    if (batch < r->model.max_seq) {
        LT_FAIL(LT_ERR_ARG, "a batch of %lld tokens contradicts sequences of %lld",
                (long long)batch, (long long)r->model.max_seq);
    }
    *q = (lt_plan_query){.gpus = gpus,
                         .batch_seqs = round_batch(batch / r->model.max_seq, gpus),
                         .seq = r->model.max_seq,
                         .zero = (int)o->zero,
                         .precision = (lt_plan_precision)o->precision,
                         .tune = o->lora ? LT_PLAN_TUNE_LORA : LT_PLAN_TUNE_ALL,
                         .tp = (int)o->tp,
                         .pp = (int)o->pp,
                         .vpp = (int)o->vpp,
                         .cp = (int)o->cp,
                         .ep = (int)o->ep,
                         .micro = o->micro,
                         .recompute = o->recompute - 1,
                         .schedule = (int)o->schedule,
                         .fp32_grads = true,
                         .bf16_moments = o->moments != 0,
                         .exact = true};
    r->tokens = (double)o->tokens;
    return LT_OK;
}

/* A recipe describes a run of Lateen completely: refuse other options, which would have no
 * effect. */
static lt_err refuse_beside_recipe(const plan_options *o) {
    plan_options plain;
    char value[LT_OPTION_STR_BYTES], usual[LT_OPTION_STR_BYTES];
    lt_options_default(&lt_verb_plan_options, &plain);
    for (size_t i = 0; i < lt_verb_plan_options.n_rows; i++) {
        const lt_option *row = &rows[i];
        lt_option_text(row, o, value, sizeof value);
        lt_option_text(row, &plain, usual, sizeof usual);
        if (strcmp(value, usual) != 0 && strcmp(row->name, "model") != 0 &&
            strcmp(row->name, "cluster") != 0 && strcmp(row->name, "json") != 0 &&
            strcmp(row->name, "gpus") != 0 && strcmp(row->name, "top") != 0) {
            LT_FAIL(LT_ERR_ARG, "--%s %s contradicts --model %s: a recipe says how it is trained",
                    row->name, value, o->model);
        }
    }
    return LT_OK;
}

static int run(lt_plan_report *r, const plan_options *o) {
    lt_progress progress = {0};
    char recipe[LT_PATH_BYTES];
    lt_err err;
    if (o->model[0] != 0 && lt_plan_is_own(o->model, recipe)) {
        err = refuse_beside_recipe(o);
        return err != LT_OK
                   ? lt_verb_fail(err)
                   : lt_plan_own_run(recipe, o->cluster, (int)o->gpus, (int)o->top, o->json);
    }
    err = fill(r, o);
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    if (isatty(STDERR_FILENO)) {
        r->query.progress = show_progress;
        r->query.progress_ctx = &progress;
    }
    err = lt_plan_report_make(r, o->interval * 60.0, o->async, o->sensitivity || o->html[0] != 0);
    if (isatty(STDERR_FILENO)) {
        lt_progress_end(&progress);
    }
    if (err == LT_OK && o->html[0] != 0) {
        err = lt_plan_report_html(r, o->html);
    }
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    if (o->json) {
        json_t *root = lt_plan_report_json(r, (int)o->top);
        json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
        putchar('\n');
        json_decref(root);
    } else {
        lt_plan_report_text(r, stdout, (int)o->top);
        if (o->html[0] != 0) {
            printf("\n  pictures: %s\n", o->html);
        }
    }
    return LT_EXIT_DONE;
}

int lt_verb_plan(int argc, char **argv);
int lt_verb_plan(int argc, char **argv) {
    static const char usage[] =
        "plan --model llama3-70b --cluster alps --gpus 4096 --tokens 15T [options]\n"
        "       lateen plan serve|schedule|fit|validate ...";
    plan_options o;
    lt_plan_report r = {0};
    int n = 0, status = LT_EXIT_DONE;

    if (argc > 1 && strcmp(argv[1], "validate") == 0) {
        return lt_plan_validate_verb(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "fit") == 0) {
        return lt_plan_fit_verb(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "serve") == 0) {
        return lt_plan_serve_verb(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "schedule") == 0) {
        return lt_plan_schedule_verb(argc - 1, argv + 1);
    }
    if (!lt_verb_parse(&lt_verb_plan_options, &o, argc, argv, usage,
                       "Predict a training run: whether it fits, its best layout, its speed, "
                       "duration and price, and what fails.",
                       NULL, 0, &n, &status)) {
        return status;
    }
    status = run(&r, &o);
    lt_plan_report_close(&r);
    return status;
}

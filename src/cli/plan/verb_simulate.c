/* verb_simulate.c: `lateen simulate`: simulates months of a run with failures, restarts, repairs
 * and spares, many times. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/error.h"
#include "cli/plan/plan_verbs.h"
#include "cli/verb.h"
#include "plan/plan.h"
#include "plan/recoveries.h"

#define DIFFERS 0.01 /* Probability with which the test rejects a correct simulation. */

#define SIMULATE_OPTIONS(X)                                                                        \
    X(STR, model, "model", "llama3-70b", 1, 0, "name|path",                                        \
      "model that gives the size of a checkpoint")                                                 \
    X(STR, cluster, "cluster", "", 0, 0, "name|path", "failure rates, storage, restart phases")    \
    X(I64, gpus, "gpus", "0", 0, 1e7, "", "GPUs of the job (0: all of the cluster)")               \
    X(F64, days, "days", "54", 0.001, 1e5, "", "days of productive work")                          \
    X(F64, mtbf, "mtbf", "0", 0, 1e6, "h", "mean time between failures; 0: the cluster's")         \
    X(F64, save, "save", "-1", -1, 1e6, "s",                                                       \
      "blocking part of a save (-1: from the storage's speed)")                                    \
    X(F64, restart, "restart", "-1", -1, 1e6, "s",                                                 \
      "time to detect, reschedule, load and warm up (-1: the cluster's)")                          \
    X(STR, recoveries, "recoveries", "", 0, 0, "FILE",                                             \
      "events.jsonl of runs: restarts take as long as these, instead of --restart")                \
    X(STR, compare, "compare", "", 0, 0, "FILE",                                                   \
      "events.jsonl of similar runs: compare what a fault cost there with the simulation; "        \
      "exit status 1 if they differ")                                                              \
    X(F64, interval, "interval", "0", 0, 1e5, "min",                                               \
      "minutes between saves (0: by Daly's formula)")                                              \
    X(I64, every, "every", "0", 0, 1e12, "STEPS",                                                  \
      "steps between saves; a step takes as long as in --recoveries (0: --interval)")              \
    X(BOOL, async, "async", "true", 0, 0, "", "asynchronous saves")                                \
    X(I64, spares, "spares", "-1", -1, 1e6, "nodes",                                               \
      "spare nodes (-1: enough for 99 % of the time)")                                             \
    X(F64, shape, "shape", "1", 0.1, 10, "", "Weibull shape of the failures (1: exponential)")     \
    X(I64, runs, "runs", "1000", 1, 1e6, "", "runs to simulate")                                   \
    X(I64, seed, "seed", "1", 0, 1e15, "", "seed of the random numbers")                           \
    X(BOOL, json, "json", "false", 0, 0, "", "print JSON")

typedef struct {
    SIMULATE_OPTIONS(LT_OPTION_FIELD)
} simulate_options;
#define LT_OPTION_STRUCT simulate_options
static const lt_option rows[] = {SIMULATE_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_simulate_options = LT_OPTION_TABLE("simulate", rows);

static lt_err check(const simulate_options *o) {
    const bool measured = o->recoveries[0] != 0;
    if (measured && o->restart >= 0) {
        LT_FAIL(LT_ERR_ARG,
                "--restart contradicts --recoveries, which say how long a restart takes");
    }
    if (o->every > 0 && o->interval > 0) {
        LT_FAIL(LT_ERR_ARG,
                "--every and --interval contradict each other: both say when a save is");
    }
    if (!measured && (o->every > 0 || o->compare[0] != 0)) {
        LT_FAIL(LT_ERR_ARG, "%s needs --recoveries", o->every > 0 ? "--every" : "--compare");
    }
    if (o->cluster[0] == 0 && (o->mtbf <= 0 || o->save < 0 || (o->restart < 0 && !measured))) {
        LT_FAIL(LT_ERR_ARG, "simulate needs --cluster, or all of --mtbf, --save and --restart (or "
                            "--recoveries)");
    }
    return LT_OK;
}

/* Take values that the options do not give from the cluster. */
static lt_err ask_cluster(lt_plan_sim *s, lt_plan_goodput *g, const simulate_options *o) {
    lt_plan_model m;
    lt_plan_cluster c;
    int64_t gpus = o->gpus;
    LT_TRY(lt_plan_model_load(&m, o->model));
    LT_TRY(lt_plan_cluster_load(&c, o->cluster));
    gpus = gpus > 0 ? gpus : c.gpus;
    if (gpus > c.gpus) {
        LT_FAIL(LT_ERR_ARG, "--gpus %lld contradicts cluster %s of %lld", (long long)gpus, c.name,
                (long long)c.gpus);
    }
    *g = lt_plan_goodput_estimate(&m, &c, gpus, o->interval * 60.0, o->async);
    s->repair_s = c.repair_h * 3600.0;
    s->nodes = gpus / c.gpu.node_gpus;
    s->spares = o->spares >= 0 ? o->spares : g->spares;
    s->persist_lag_s = o->async ? g->save_s : 0;
    return LT_OK;
}

static lt_err prepare(lt_plan_sim *s, const simulate_options *o, const lt_plan_recoveries *r) {
    lt_plan_goodput g = {.mtbf_s = 1e30};

    *s = (lt_plan_sim){.work_s = o->days * 86400.0,
                       .recoveries = r->n > 0 ? r : NULL,
                       .weibull_shape = o->shape,
                       .runs = o->runs,
                       .seed = (uint64_t)o->seed};
    LT_TRY(o->cluster[0] != 0 ? ask_cluster(s, &g, o) : LT_OK);
    if (o->every > 0 && r->step_s <= 0) {
        LT_FAIL(LT_ERR_ARG,
                "--every %lld: the %lld recoveries of %s do not determine how long a step takes, "
                "because all have lost the same number of steps; give --interval",
                (long long)o->every, (long long)r->n, o->recoveries);
    }
    s->mtbf_s = o->mtbf > 0 ? o->mtbf * 3600.0 : g.mtbf_s;
    s->save_s = o->save >= 0 ? o->save : g.block_s;
    s->restart_s = r->n > 0 ? r->restart_s : o->restart >= 0 ? o->restart : g.restart_s;
    s->interval_s = o->every > 0      ? (double)o->every * r->step_s
                    : o->interval > 0 ? o->interval * 60.0
                                      : lt_plan_daly_s(s->mtbf_s, s->save_s);
    if (s->interval_s < s->persist_lag_s) {
        s->interval_s = s->persist_lag_s;
    }
    if (s->save_s <= 0 && o->interval <= 0 && o->every == 0) {
        LT_FAIL(LT_ERR_ARG,
                "saves that cost nothing (--save 0) have no best interval: give --interval");
    }
    return LT_OK;
}

/* ---- Recoveries ------------------------------------------------------------------------------ */

/* The cost of a fault in the simulation, compared with its cost in runs that the simulation has not
 * seen. */
typedef struct {
    int64_t n; /* 0: nothing was compared. */
    double median, d, p;
} comparison;

static lt_err compare(comparison *c, const simulate_options *o, const lt_plan_recoveries *r,
                      const lt_plan_sim_result *sim) {
    lt_err err = LT_OK;
    lt_plan_recoveries other = {0};
    double *values = NULL;
    LT_TRY_DONE(lt_plan_recoveries_load(&other, o->compare));
    if (sim->n_lost == 0) {
        LT_FAIL_DONE(LT_ERR_ARG, "--compare: no failure was simulated in %lld runs of %g days",
                     (long long)sim->runs, o->days);
    }
    values = malloc((size_t)other.n * sizeof *values);
    if (values == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", o->compare);
    }
    lt_plan_recoveries_sorted(values, &other, LT_RECOVERY_PHASES);
    c->n = other.n;
    c->median = lt_plan_quantile(values, (size_t)other.n, 0.5);
    c->d = lt_plan_ks(sim->lost_s, sim->n_lost, values, other.n);
    /* The sample size is the number of recoveries that the simulation draws from, however many it
     * draws. */
    LT_TRY_DONE(lt_plan_ks_p(&c->p, c->d, r->n, other.n));
done:
    free(values);
    lt_plan_recoveries_close(&other);
    return err;
}

static lt_err print_recoveries(const simulate_options *o, const lt_plan_recoveries *r,
                               const lt_plan_sim_result *sim, const comparison *c) {
    double *values = malloc((size_t)r->n * sizeof *values);
    if (values == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld recoveries", (long long)r->n);
    }
    printf("\n  %lld recoveries of %s, medians:", (long long)r->n, o->recoveries);
    for (int i = 0; i < LT_RECOVERY_PHASES; i++) {
        lt_plan_recoveries_sorted(values, r, i);
        printf("%s %s %.2f s", i > 0 ? "," : "", lt_recovery_names[i],
               lt_plan_quantile(values, (size_t)r->n, 0.5));
    }
    free(values);
    printf("; a step takes %.4g s\n", r->step_s);
    printf("  lost to a failure in the simulation, until the step that it interrupted has ended: "
           "median %.2f s, 9 of 10 under %.2f s\n",
           lt_plan_quantile(sim->lost_s, (size_t)sim->n_lost, 0.5),
           lt_plan_quantile(sim->lost_s, (size_t)sim->n_lost, 0.9));
    if (c->n > 0) {
        printf("  %lld recoveries of %s: median %.2f s; two-sample Kolmogorov-Smirnov test: D = "
               "%.3f, p = %.3g: %s\n",
               (long long)c->n, o->compare, c->median, c->d, c->p,
               c->p < DIFFERS ? "the two differ" : "the two agree");
    }
    return LT_OK;
}

static void print_json(const lt_plan_sim *s, const lt_plan_sim_result *r,
                       const lt_plan_recoveries *m, const comparison *c) {
    json_t *root = json_pack(
        "{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:I}", "ettr_mean", r->ettr_mean,
        "ettr_p5", r->ettr_p5, "ettr_p50", r->ettr_p50, "ettr_p95", r->ettr_p95, "wall_days_mean",
        r->wall_days_mean, "wall_days_p95", r->wall_days_p95, "failures_mean", r->failures_mean,
        "lost_work_h_mean", r->lost_work_h_mean, "restart_h_mean", r->restart_h_mean, "save_h_mean",
        r->save_h_mean, "wait_h_mean", r->wait_h_mean, "interval_s", s->interval_s,
        "ettr_closed_form", lt_plan_ettr_exact(s->mtbf_s, s->save_s, s->restart_s, s->interval_s),
        "runs", (json_int_t)r->runs);
    if (m->n > 0 && r->n_lost > 0) {
        json_object_update_new(
            root, json_pack("{s:I,s:f,s:f,s:f,s:f}", "recoveries", (json_int_t)m->n, "step_s",
                            m->step_s, "restart_s_mean", m->restart_s, "lost_s_p50",
                            lt_plan_quantile(r->lost_s, (size_t)r->n_lost, 0.5), "lost_s_p90",
                            lt_plan_quantile(r->lost_s, (size_t)r->n_lost, 0.9)));
    }
    if (c->n > 0) {
        json_object_update_new(root,
                               json_pack("{s:I,s:f,s:f,s:f}", "compared", (json_int_t)c->n,
                                         "compared_s_p50", c->median, "ks_d", c->d, "ks_p", c->p));
    }
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(root);
}

static void print_text(const lt_plan_sim *s, const lt_plan_sim_result *r) {
    const double closed = lt_plan_ettr_exact(s->mtbf_s, s->save_s, s->restart_s, s->interval_s);
    printf("%.1f days of work take %.1f days (1 run in 20 more than %.1f): ETTR %.1f %%, between "
           "%.1f and %.1f %% in 9 runs of 10.\n\n",
           s->work_s / 86400.0, r->wall_days_mean, r->wall_days_p95, 100 * r->ettr_mean,
           100 * r->ettr_p5, 100 * r->ettr_p95);
    printf("  failures %.0f (one every %.2f h)   lost work %.1f h   restarts %.1f h   saves %.1f h "
           "  waiting for nodes %.1f h\n",
           r->failures_mean, s->mtbf_s / 3600.0, r->lost_work_h_mean, r->restart_h_mean,
           r->save_h_mean, r->wait_h_mean);
    printf("  save every %.1f min (%.1f s, durable %.1f s later), restart %.0f s, %lld spare "
           "nodes, %lld runs\n",
           s->interval_s / 60.0, s->save_s, s->persist_lag_s, s->restart_s, (long long)s->spares,
           (long long)r->runs);
    if (fabs(s->weibull_shape - 1.0) < 1e-9 && s->persist_lag_s == 0) {
        printf("  closed form (exponential failures, no shortage of nodes): ETTR %.1f %%\n",
               100 * closed);
    }
}

static lt_err simulate(const simulate_options *o, lt_plan_recoveries *measured,
                       lt_plan_sim_result *r, bool *differs) {
    lt_plan_sim s;
    comparison c = {0};
    LT_TRY(check(o));
    LT_TRY(o->recoveries[0] != 0 ? lt_plan_recoveries_load(measured, o->recoveries) : LT_OK);
    LT_TRY(prepare(&s, o, measured));
    LT_TRY(lt_plan_simulate(&s, r));
    LT_TRY(o->compare[0] != 0 ? compare(&c, o, measured, r) : LT_OK);
    *differs = c.n > 0 && c.p < DIFFERS;
    if (o->json) {
        print_json(&s, r, measured, &c);
        return LT_OK;
    }
    print_text(&s, r);
    return measured->n > 0 && r->n_lost > 0 ? print_recoveries(o, measured, r, &c) : LT_OK;
}

int lt_verb_simulate(int argc, char **argv);
int lt_verb_simulate(int argc, char **argv) {
    simulate_options o;
    lt_plan_recoveries measured = {0};
    lt_plan_sim_result r = {0};
    bool differs = false;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;

    if (argc > 1 && strcmp(argv[1], "policy") == 0) {
        return lt_simulate_policy_verb(argc - 1, argv + 1);
    }
    if (!lt_verb_parse(&lt_verb_simulate_options, &o, argc, argv,
                       "simulate --cluster h100-24k --gpus 16384 --days 54 [options]\n"
                       "       lateen simulate --mtbf 3.09 --save 60 --restart 300 --days 54\n"
                       "       lateen simulate --mtbf 3.09 --save 60 --recoveries "
                       "RUN/events.jsonl\n"
                       "       lateen simulate policy FILE.yaml --trace FILE.csv",
                       "Simulate a run with failures, saves, restarts, repairs and spares many "
                       "times, and print how much productive time remains.",
                       NULL, 0, &n, &status)) {
        return status;
    }
    err = simulate(&o, &measured, &r, &differs);
    free(r.lost_s);
    lt_plan_recoveries_close(&measured);
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    return differs ? LT_EXIT_FAILED : LT_EXIT_DONE;
}

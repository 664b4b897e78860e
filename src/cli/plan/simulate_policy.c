/* simulate_policy.c: `lateen simulate policy FILE.yaml --trace FILE.csv`: the jobs of a trace under
 * a policy of tenants. */
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "base/error.h"
#include "cli/plan/plan_verbs.h"
#include "plan/queue.h"

#define QUEUE_OPTIONS(X)                                                                           \
    X(STR, trace, "trace", "", 0, 1, "FILE.csv",                                                   \
      "jobs: columns tenant (or vc), arrival_s, gpus (or scale_factor), run_s; also .gz, .zst")    \
    X(STR, runtimes, "runtimes", "", 0, 0, "FILE.csv",                                             \
      "for traces without run_s: a column runtime, from which each job draws its own")             \
    X(I64, live, "live", "-1", -1, 1e9, "GPUS", "GPUs that work; -1: all")                         \
    X(I64, seed, "seed", "1", 0, 1e15, "", "seed of the drawn run times")                          \
    X(BOOL, json, "json", "false", 0, 0, "", "print JSON")

typedef struct {
    QUEUE_OPTIONS(LT_OPTION_FIELD)
} queue_options;
#define LT_OPTION_STRUCT queue_options
static const lt_option rows[] = {QUEUE_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("simulate policy", rows);

typedef struct {
    const char *name;
    size_t jobs;
    double gpu_hours, wait_p50_s, wait_p90_s, wait_mean_s, ran_share;
    int64_t preemptions;
} line;

static int by_value(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The line of one tenant, or of all tenants if `tenant` is n_tenants. waits: room for all jobs. */
static line sum_up(const lt_policy *p, size_t tenant, const lt_queue_job *jobs, size_t n,
                   double *waits) {
    line l = {.name = tenant < p->n_tenants ? p->tenants[tenant].name : "all"};
    for (size_t i = 0; i < n; i++) {
        const lt_queue_job *j = &jobs[i];
        const double all_s = j->wait_s + j->run_s;
        if (tenant < p->n_tenants && j->tenant != tenant) {
            continue;
        }
        waits[l.jobs++] = j->wait_s;
        l.gpu_hours += (double)j->gpus * j->run_s / 3600.0;
        l.wait_mean_s += j->wait_s;
        l.ran_share += all_s > 0 ? j->run_s / all_s : 1;
        l.preemptions += j->preemptions;
    }
    if (l.jobs > 0) {
        qsort(waits, l.jobs, sizeof *waits, by_value);
        l.wait_p50_s = waits[(l.jobs - 1) / 2];
        l.wait_p90_s = waits[(size_t)(0.9 * (double)(l.jobs - 1))];
        l.wait_mean_s /= (double)l.jobs;
        l.ran_share /= (double)l.jobs;
    }
    return l;
}

static void print_text(const lt_policy *p, const lt_queue_result *r, const line *lines,
                       double jain) {
    printf("%-31s %8s %12s %14s %14s %14s %12s\n", "tenant", "jobs", "GPU hours", "wait median s",
           "wait p90 s", "wait mean s", "preemptions");
    for (size_t i = 0; i <= p->n_tenants; i++) {
        const line *l = &lines[i];
        printf("%-31s %8zu %12.0f %14.0f %14.0f %14.0f %12lld\n", l->name, l->jobs, l->gpu_hours,
               l->wait_p50_s, l->wait_p90_s, l->wait_mean_s, (long long)l->preemptions);
    }
    printf("\n%lld GPUs for %.1f days: utilisation %.1f %%", (long long)p->live,
           r->span_s / 86400.0, r->span_s > 0 ? 100 * r->busy_s / (double)p->live / r->span_s : 0);
    if (r->begun_s > 0) {
        printf(", until the last arrival %.1f %%",
               100 * r->busy_until_begun_s / (double)p->live / r->begun_s);
    }
    printf("\nfairness %.3f: Jain's index of the tenants' share of time in which their jobs ran, "
           "run / (wait + run)\n",
           jain);
}

static void print_json(const lt_policy *p, const lt_queue_result *r, const line *lines,
                       double jain) {
    json_t *tenants = json_array();
    json_t *root;
    for (size_t i = 0; i <= p->n_tenants; i++) {
        const line *l = &lines[i];
        json_array_append_new(tenants,
                              json_pack("{s:s,s:I,s:f,s:f,s:f,s:f,s:f,s:I}", "tenant", l->name,
                                        "jobs", (json_int_t)l->jobs, "gpu_hours", l->gpu_hours,
                                        "wait_p50_s", l->wait_p50_s, "wait_p90_s", l->wait_p90_s,
                                        "wait_mean_s", l->wait_mean_s, "ran_share", l->ran_share,
                                        "preemptions", (json_int_t)l->preemptions));
    }
    root = json_pack("{s:o,s:I,s:f,s:f,s:f,s:f,s:f}", "tenants", tenants, "gpus",
                     (json_int_t)p->live, "span_s", r->span_s, "busy_gpu_s", r->busy_s, "begun_s",
                     r->begun_s, "busy_until_begun_gpu_s", r->busy_until_begun_s, "jain", jain);
    json_dumpf(root, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    putchar('\n');
    json_decref(root);
}

static lt_err run(lt_policy *p, const char *path, const queue_options *o) {
    lt_err err = LT_OK;
    lt_queue_job *jobs = NULL;
    lt_queue_result result;
    line *lines = NULL;
    double *waits = NULL, *shares = NULL;
    size_t n = 0, with_jobs = 0;
    LT_TRY(lt_policy_open(p, path, o->live, ""));
    LT_TRY_DONE(lt_queue_read(&jobs, &n, p, o->trace, o->runtimes, (uint64_t)o->seed));
    LT_TRY_DONE(lt_queue_simulate(&result, p, jobs, n));
    lines = calloc(p->n_tenants + 1, sizeof *lines);
    waits = calloc(n, sizeof *waits);
    shares = calloc(p->n_tenants, sizeof *shares);
    if (lines == NULL || waits == NULL || shares == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu tenants", p->n_tenants);
    }
    for (size_t i = 0; i <= p->n_tenants; i++) {
        lines[i] = sum_up(p, i, jobs, n, waits);
        if (i < p->n_tenants && lines[i].jobs > 0) {
            shares[with_jobs++] = lines[i].ran_share;
        }
    }
    (o->json ? print_json : print_text)(p, &result, lines, lt_queue_jain(shares, with_jobs));
done:
    free(jobs);
    free(lines);
    free(waits);
    free(shares);
    return err;
}

int lt_simulate_policy_verb(int argc, char **argv) {
    queue_options o;
    lt_policy p = {0};
    const char *path[1] = {NULL};
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;
    if (!lt_verb_parse(&table, &o, argc, argv, "simulate policy FILE.yaml --trace FILE.csv",
                       "Simulate the jobs of a trace under a policy of tenants (lateen cluster "
                       "policy), and print how\nlong they wait, how busy the GPUs are, and how "
                       "fair it is.",
                       path, 1, &n, &status)) {
        return status;
    }
    err = n == 1 && o.trace[0] != '\0'
              ? run(&p, path[0], &o)
              : lt_error_set(LT_ERR_ARG, "simulate policy needs a policy and --trace");
    lt_policy_close(&p);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}

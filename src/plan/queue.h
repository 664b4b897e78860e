/* queue.h: jobs of tenants under a policy (platform/cluster/policy.h), event by event: how long
 * they wait, how busy the GPUs are, and how evenly the waiting is spread.
 *
 * It simulates what the policy's configuration makes Slurm do:
 *   order      by weight: priority of the tenant / the highest one, fair share, age / 7 days
 *              (Slurm's PriorityMaxAge). Fair share is 2^(-U/S): U is the tenant's share of all
 *              GPU seconds, of which old ones count less by half_life, and S its share of the
 *              weights (Slurm, "Classic Fairshare Algorithm"). A tenant's jobs keep their order of
 *              arrival
 *   limits     a job counts against the quota if it fits, else against what may be borrowed. One
 *              that fits neither waits, and does not delay later ones
 *   preemption a job within a quota takes GPUs of jobs that have borrowed for exempt_s seconds or
 *              more, the youngest first; these wait again, and lose no work
 *   backfill   the first job that waits for GPUs gets a time at which enough will be free; a later
 *              job begins before it only if that does not delay the first (EASY; Lifka 1995)
 *
 * Simplified: GPUs are one pool without nodes, times to save and to start are 0, limits of time are
 * the real run times, guarantees are left out. The same jobs give the same result. */
#ifndef LT_PLAN_QUEUE_H
#define LT_PLAN_QUEUE_H

#include "platform/cluster/policy.h"

typedef struct {
    size_t tenant; /* Index in the policy. */
    double arrival_s, run_s;
    int64_t gpus;
    /* Results: seconds that it waited, including after a preemption; when it ended; how often it
     * was preempted. */
    double wait_s, end_s;
    int64_t preemptions;
} lt_queue_job;

typedef struct {
    double span_s;  /* From the first arrival to the last end. */
    double busy_s;  /* GPU seconds in which GPUs were allocated, added up event by event. */
    double begun_s; /* When the last job arrived, since the first arrival. */
    double busy_until_begun_s;
    int64_t preemptions;
} lt_queue_result;

/* Jobs are in order of arrival. ARG: a job can never run; the message names the tenant and the
 * numbers. */
LT_MUST_USE lt_err lt_queue_simulate(lt_queue_result *out, const lt_policy *p, lt_queue_job *jobs,
                                     size_t n);

/* Jain's index of fairness, (sum x)^2 / (n sum x^2): 1 if all are equal, 1/n if one has all (Jain,
 * Chiu and Hawe 1984, DEC-TR-301). 1 if all are 0. */
double lt_queue_jain(const double *x, size_t n);

/* Read a trace: CSV, also gzip or zstd, with a header that names tenant (or vc), arrival_s, gpus
 * (or scale_factor) and run_s. Without run_s, `runtimes` is a CSV with a column runtime, from which
 * each job draws its own by the seed. Sorted by arrival; free *out. */
LT_MUST_USE lt_err lt_queue_read(lt_queue_job **out, size_t *n, const lt_policy *p,
                                 const char *path, const char *runtimes, uint64_t seed);

#endif

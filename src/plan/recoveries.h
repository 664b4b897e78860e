/* recoveries.h: recoveries that a launcher has measured, as input of the simulation: the
 * distribution of what a fault costs, instead of one number (--restart).
 *
 * It reads lines of RUN/events.jsonl (platform/agent/events.h), of one run or of several joined
 * files: the phases of each recovery and how many steps were lost. A recovery that another fault
 * has interrupted is left out, as in the launcher, and so is growth (kind "grow"), which is no
 * fault.
 *
 *     seconds   detect + fence + decide + relaunch + connect + load + recompute
 *     step_s    how much longer `recompute` takes for each step that was lost: the median of the
 *               slopes between all pairs of recoveries (Theil 1950, Sen 1968), which a few slow
 *               ones do not move; 0: all have lost the same number of steps
 *     restart_s seconds - (steps lost + 1) step_s: what a fault costs besides the repeated steps,
 *               which the simulation computes from the time since the last save
 *
 * The simulation draws restart_s of whole recoveries with replacement: phases of one recovery
 * belong together (a stopped rank takes long to notice; a busy machine is slow in all phases). */
#ifndef LT_PLAN_RECOVERIES_H
#define LT_PLAN_RECOVERIES_H

#include "lateen/plan.h"
#include "platform/agent/events.h"

#define LT_PLAN_RECOVERIES_MOST 4000

typedef struct {
    double phase_s[LT_RECOVERY_PHASES];
    double seconds, restart_s;
    int64_t steps_lost;
} lt_plan_recovery;

struct lt_plan_recoveries {
    lt_plan_recovery *all;
    int64_t n;
    double step_s, restart_s; /* restart_s: the mean. */
};

/* path: the file. FORMAT or NOT_FOUND: a line is not one of events.jsonl, a recovery lacks a phase,
 * or there is no recovery; LIMIT: more than LT_PLAN_RECOVERIES_MOST. Always close it. */
LT_MUST_USE lt_err lt_plan_recoveries_load(lt_plan_recoveries *out, const char *path);
void lt_plan_recoveries_close(lt_plan_recoveries *r); /* Accepts a zeroed struct. */
/* Values of one field, sorted: a phase, or `seconds` for LT_RECOVERY_PHASES. values: (n). */
void lt_plan_recoveries_sorted(double *values, const lt_plan_recoveries *r, int phase);

/* The largest distance between the distributions of two sorted samples (Smirnov 1939). */
double lt_plan_ks(const double *a, int64_t n, const double *b, int64_t m);
/* The probability that two samples of one continuous distribution lie at least d apart: the share
 * of the paths from (0, 0) to (n, m) that leave the strip |i/n - j/m| < d, counted exactly in n m
 * steps (Hodges 1958). n, m at most LT_PLAN_RECOVERIES_MOST. */
LT_MUST_USE lt_err lt_plan_ks_p(double *p, double d, int64_t n, int64_t m);

#endif

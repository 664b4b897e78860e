/* simulate.c: months of a run, event by event: work, saves, failures, restarts, repairs and spares.
 *
 *     state     ends after                                  next
 *     WORK      tau seconds of work                         SAVE
 *               a failure: work that is not durable is lost RESTART
 *     SAVE      w seconds; durable persist_lag_s later      WORK
 *               a failure: the save is void                 RESTART
 *     RESTART   u seconds, or a measured recovery's time    WORK, from the last durable state
 *               (recoveries.h)
 *               a failure                                   RESTART
 *     WAIT      a repair; until then fewer nodes are whole  RESTART
 *               than the job needs
 *
 * Failures: a Weibull renewal process of the job (shape 1: Poisson, where lt_plan_ettr_exact holds
 * and a test compares). Each failure takes one node into repair for repair_s (exponential); the job
 * runs on while a spare stands ready. Runs are independent streams of one seed and are played in
 * parallel; the same seed gives the same table. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/thread.h"
#include "plan/plan.h"
#include "plan/recoveries.h"

#define MAX_EVENTS   5e7 /* Failures of all runs together: half a minute. */
#define MAX_FAILURES 4000000
#define MAX_REPAIRS  65536

typedef struct {
    double wall, failures, lost, restart, save, wait;
    int64_t n_lost; /* Number of values in the field's lost_s. */
    double again;   /* The most work that had been done at a failure, which must be reached
                     * again. */
    bool noted;     /* The last value belongs to the last failure. */
} life;

typedef struct {
    const lt_plan_sim *s;
    life *lives;
    double *lost_s; /* (runs, lost_each); NULL: not wanted. */
    int64_t lost_each;
    bool too_many;
} field;

typedef struct {
    lt_rng rng;
    double now, next_failure;
    double *repair; /* Times at which nodes come back, unordered. */
    int64_t n_repair;
} world;

static double draw(const lt_plan_sim *s, lt_rng *rng) {
    const double u = 1.0 - lt_rng_uniform(rng);
    const double scale = s->mtbf_s / tgamma(1.0 + 1.0 / s->weibull_shape);
    return scale * pow(-log(u), 1.0 / s->weibull_shape);
}

/* Remove nodes whose repair has ended from the list; returns the earliest end of the others. */
static double repairs_done(world *w) {
    double first = INFINITY;
    for (int64_t i = 0; i < w->n_repair;) {
        if (w->repair[i] <= w->now) {
            w->repair[i] = w->repair[--w->n_repair];
        } else {
            first = lt_plan_min(first, w->repair[i++]);
        }
    }
    return first;
}

/* Spend `span` seconds; true if a failure cut it short (at *spent). */
static bool spend(world *w, const lt_plan_sim *s, double span, double *spent, life *l) {
    if (w->now + span <= w->next_failure) {
        w->now += span;
        *spent = span;
        return false;
    }
    *spent = lt_plan_max(0.0, w->next_failure - w->now);
    w->now += *spent;
    w->next_failure = w->now + draw(s, &w->rng);
    l->failures += 1;
    if (s->repair_s > 0 && w->n_repair < MAX_REPAIRS) {
        w->repair[w->n_repair++] = w->now - s->repair_s * log(1.0 - lt_rng_uniform(&w->rng));
    }
    return true;
}

/* What a launcher counts for a failure: the restart and the steps from the last save up to and with
 * the one that was interrupted. Where another failure comes before that step has ended, only the
 * last one counts, up to the same step. */
static void note_lost(const field *f, size_t index, life *l, double restart, double done,
                      double durable) {
    const double step = f->s->recoveries != NULL ? f->s->recoveries->step_s : 0.0;
    l->n_lost -= l->noted && done < l->again;
    l->again = lt_plan_max(l->again, done);
    l->noted = l->n_lost < f->lost_each;
    if (l->noted) {
        const double rework = l->again - durable;
        f->lost_s[(int64_t)index * f->lost_each + l->n_lost++] =
            restart + (step > 0.0 ? (floor(rework / step) + 1.0) * step : rework);
    }
}

static double draw_restart(const lt_plan_sim *s, lt_rng *rng) {
    const lt_plan_recoveries *m = s->recoveries;
    return m != NULL ? m->all[lt_rng_below(rng, (uint64_t)m->n)].restart_s : s->restart_s;
}

/* From a failure to working again; returns how long the first restart takes if no failure
 * interrupts it. Recoveries that were measured are those that were not interrupted, so that leaving
 * out the interrupted ones here, too, would favour short ones twice. */
static double recover(world *w, const lt_plan_sim *s, life *l) {
    double first_restart = -1.0;
    bool failed = true;
    while (failed && l->failures < MAX_FAILURES) {
        double spent, first = repairs_done(w);
        /* Idle nodes do not fail here, because the job's clock stands still. */
        while (w->n_repair > s->spares) {
            const double wait = first - w->now;
            l->wait += wait;
            w->next_failure += wait;
            w->now = first;
            first = repairs_done(w);
        }
        const double restart = draw_restart(s, &w->rng);
        first_restart = first_restart < 0.0 ? restart : first_restart;
        failed = spend(w, s, restart, &spent, l);
        l->restart += spent;
    }
    return first_restart;
}

static void one_life(void *ctx, size_t index) {
    field *f = ctx;
    const lt_plan_sim *s = f->s;
    life l = {0};
    double durable = 0, done = 0, pending = -1, pending_at = 0, spent;
    world w = {.rng = {.seed = s->seed, .stream = index + 1},
               .repair = malloc(MAX_REPAIRS * sizeof(double))};

    if (w.repair == NULL) {
        f->too_many = true;
        return;
    }
    w.next_failure = draw(s, &w.rng);
    while (done < s->work_s && l.failures < MAX_FAILURES) {
        const double chunk = lt_plan_min(s->interval_s, s->work_s - done);
        bool failed = spend(&w, s, chunk, &spent, &l);
        done += spent;
        if (pending >= 0 && w.now >= pending_at) {
            durable = pending;
            pending = -1;
        }
        if (!failed && done < s->work_s) {
            failed = spend(&w, s, s->save_s, &spent, &l);
            l.save += spent;
            /* A newer save replaces one that is still being written only after the newer one is
             * durable. */
            if (!failed) {
                if (s->persist_lag_s <= 0) {
                    durable = done;
                } else {
                    pending = done;
                    pending_at = w.now + s->persist_lag_s;
                }
            }
        }
        if (failed) {
            const double interrupted = done;
            l.lost += done - durable;
            done = durable;
            pending = -1;
            note_lost(f, index, &l, recover(&w, s, &l), interrupted, durable);
        }
    }
    f->too_many = f->too_many || l.failures >= MAX_FAILURES;
    l.wall = w.now;
    f->lives[index] = l;
    free(w.repair);
}

static int by_wall(const void *a, const void *b) {
    const life *x = a, *y = b;
    return (x->wall > y->wall) - (x->wall < y->wall);
}

static lt_err check(const lt_plan_sim *s) {
    if (!(s->mtbf_s > 0) || !(s->interval_s > 0) || !(s->work_s > 0) || !(s->save_s >= 0) ||
        !(s->restart_s >= 0) || s->runs < 1 || s->runs > 10000000 || !(s->weibull_shape > 0.05)) {
        LT_FAIL(LT_ERR_ARG,
                "simulate: MTBF %g s, interval %g s, work %g s, save %g s, restart %g s, shape %g, "
                "%lld runs",
                s->mtbf_s, s->interval_s, s->work_s, s->save_s, s->restart_s, s->weibull_shape,
                (long long)s->runs);
    }
    if (!(lt_plan_ettr_exact(s->mtbf_s, s->save_s, s->restart_s, s->interval_s) > 1e-3)) {
        LT_FAIL(
            LT_ERR_LIMIT,
            "simulate: an interval of %.0f s and a restart of %.0f s contradict a failure every "
            "%.0f s: the run would never end",
            s->interval_s, s->restart_s, s->mtbf_s);
    }
    if (s->work_s / lt_plan_ettr_exact(s->mtbf_s, s->save_s, s->restart_s, s->interval_s) /
            s->mtbf_s * (double)s->runs >
        MAX_EVENTS) {
        LT_FAIL(LT_ERR_LIMIT,
                "simulate: %.0f days of work with a failure every %.0f s are too many failures to "
                "simulate %lld times: ask for fewer days or runs",
                s->work_s / 86400.0, s->mtbf_s, (long long)s->runs);
    }
    if (s->persist_lag_s > s->interval_s + s->save_s) {
        LT_FAIL(LT_ERR_ARG,
                "simulate: a save takes %.0f s to be durable, longer than the %.0f s between saves",
                s->persist_lag_s, s->interval_s);
    }
    return LT_OK;
}

/* Join the values of all runs and sort them. Call it before the lives are sorted. */
static void gather_lost(field *f, lt_plan_sim_result *out) {
    for (int64_t i = 0; f->lost_s != NULL && i < f->s->runs; i++) {
        for (int64_t k = 0; k < f->lives[i].n_lost; k++) {
            f->lost_s[out->n_lost++] = f->lost_s[i * f->lost_each + k];
        }
    }
    lt_plan_sort(f->lost_s, out->n_lost);
    out->lost_s = f->lost_s;
    f->lost_s = NULL;
}

static void sum_up(const lt_plan_sim *s, life *lives, lt_plan_sim_result *out) {
    const double n = (double)s->runs;
    const size_t last = (size_t)s->runs - 1;
    for (size_t i = 0; i <= last; i++) {
        out->ettr_mean += s->work_s / lives[i].wall / n;
        out->wall_days_mean += lives[i].wall / 86400.0 / n;
        out->failures_mean += lives[i].failures / n;
        out->lost_work_h_mean += lives[i].lost / 3600.0 / n;
        out->restart_h_mean += lives[i].restart / 3600.0 / n;
        out->save_h_mean += lives[i].save / 3600.0 / n;
        out->wait_h_mean += lives[i].wait / 3600.0 / n;
    }
    qsort(lives, (size_t)s->runs, sizeof *lives, by_wall);
    out->ettr_p95 = s->work_s / lives[(size_t)(0.05 * (double)last)].wall;
    out->ettr_p50 = s->work_s / lives[(size_t)(0.50 * (double)last)].wall;
    out->ettr_p5 = s->work_s / lives[(size_t)(0.95 * (double)last)].wall;
    out->wall_days_p95 = lives[(size_t)(0.95 * (double)last)].wall / 86400.0;
    out->runs = s->runs;
}

lt_err lt_plan_simulate(const lt_plan_sim *s, lt_plan_sim_result *out) {
    lt_err err = LT_OK;
    field f = {.s = s};
    LT_ASSERT(s != NULL && out != NULL);
    LT_TRY(check(s));
    f.lives = calloc((size_t)s->runs, sizeof *f.lives);
    if (s->recoveries != NULL) {
        f.lost_each = s->runs < LT_PLAN_SIM_LOST ? LT_PLAN_SIM_LOST / s->runs : 1;
        f.lost_s = calloc((size_t)(s->runs * f.lost_each), sizeof *f.lost_s);
    }
    if (f.lives == NULL || (s->recoveries != NULL && f.lost_s == NULL)) {
        LT_FAIL_DONE(LT_ERR_OOM, "simulate: %lld runs", (long long)s->runs);
    }
    lt_parallel_for((size_t)s->runs, one_life, &f);
    if (f.too_many) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "simulate: more than %d failures in one run, or no memory",
                     MAX_FAILURES);
    }
    *out = (lt_plan_sim_result){0};
    gather_lost(&f, out);
    sum_up(s, f.lives, out);
done:
    free(f.lost_s);
    free(f.lives);
    return err;
}

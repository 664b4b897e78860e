/* pipeline.c: one pipeline, simulated from the table that the trainer runs (parallel/schedule.h),
 * so bubbles are a result, not an input.
 *
 * A stage's operation starts when the rank is free and its input has come. Forward and backward
 * times are those of a whole rank; a chunk takes its part, the first stage the embedding's too and
 * the last one the head's.
 *
 * Closed forms (uniform stages): bubble = (pp - 1)(F + B) / vpp; zero-bubble (pp - 1)(F + B - 2W).
 * The search uses them; tests compare the simulation with them. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "parallel/schedule.h"
#include "plan/plan.h"

/* Once the pipeline has been full for a while, each micro-batch takes as long as the one before. So
 * the time of more than twice this many is extrapolated. It is a multiple of the stages. */
static int64_t steady(int stages) {
    return (int64_t)stages * (stages >= 16 ? 8 : (128 + stages - 1) / stages);
}

static lt_schedule_kind kind_of(const lt_plan_pipeline *p) {
    static const lt_schedule_kind kinds[] = {[LT_PLAN_GPIPE] = LT_SCHEDULE_GPIPE,
                                             [LT_PLAN_ONE_F_ONE_B] = LT_SCHEDULE_ONE_F_ONE_B,
                                             [LT_PLAN_INTERLEAVED] = LT_SCHEDULE_INTERLEAVED,
                                             [LT_PLAN_ZERO_BUBBLE] = LT_SCHEDULE_ZB_H1};
    const bool one = p->schedule == LT_PLAN_INTERLEAVED && p->chunks == 1;
    return one ? LT_SCHEDULE_ONE_F_ONE_B : kinds[p->schedule];
}

/* Seconds of each stage's forward, backward and weight gradients, (stages * chunks) each. */
static void stage_times(double *f, double *b, double *w, const lt_plan_pipeline *p) {
    const int n = p->stages * p->chunks;
    const bool apart = p->schedule == LT_PLAN_ZERO_BUBBLE;
    for (int s = 0; s < n; s++) {
        const double extra = (s == 0 ? p->first_extra_s : 0.0) +
                             (s == n - 1 ? p->last_extra_s : 0.0),
                     backward = p->backward_s / p->chunks + extra * 2.0 / 3.0;
        f[s] = p->forward_s / p->chunks + extra / 3.0;
        w[s] = apart ? backward * p->weight_share : 0.0;
        b[s] = backward - w[s];
    }
}

static lt_err check(const lt_plan_pipeline *p) {
    if (p->stages < 1 || p->chunks < 1 || p->micros < 1 || !(p->forward_s >= 0) ||
        !(p->backward_s >= 0)) {
        LT_FAIL(LT_ERR_ARG, "pipeline: %d stages, %d chunks, %lld micro-batches", p->stages,
                p->chunks, (long long)p->micros);
    }
    if (p->chunks > 1 && p->micros % p->stages != 0) {
        LT_FAIL(LT_ERR_ARG,
                "pipeline: interleaving needs micro-batches (%lld) in multiples of the stages (%d)",
                (long long)p->micros, p->stages);
    }
    return LT_OK;
}

/* ---- Tables ---- */

/* A fit simulates the same few shapes thousands of times, with other seconds each time, and most of
 * the work is to open and check their tables. So the last tables are kept, unless they are large.
 * Who takes one has it alone until it is given back. */
#define MOST_KEPT     16
#define MOST_KEPT_OPS (1 << 16) /* About 4 MB. */
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static lt_schedule kept[MOST_KEPT]; /* Oldest first; empty ones have no rows. */

static bool same_shape(const lt_schedule_shape *a, const lt_schedule_shape *b) {
    return a->kind == b->kind && a->ranks == b->ranks && a->chunks == b->chunks &&
           a->micros == b->micros;
}

static lt_err table_take(lt_schedule *out, const lt_schedule_shape *shape) {
    *out = (lt_schedule){0};
    pthread_mutex_lock(&kept_lock);
    for (int i = 0; i < MOST_KEPT && out->rows == NULL; i++) {
        if (kept[i].rows != NULL && same_shape(&kept[i].shape, shape)) {
            *out = kept[i];
            kept[i] = (lt_schedule){0};
        }
    }
    pthread_mutex_unlock(&kept_lock);
    return out->rows != NULL ? LT_OK : lt_schedule_open(out, shape);
}

static void table_give_back(lt_schedule *t) {
    lt_schedule oldest = {0};
    if (t->rows == NULL || t->n_ops > MOST_KEPT_OPS) {
        lt_schedule_close(t);
        return;
    }
    pthread_mutex_lock(&kept_lock);
    int at = 0; /* The first empty place, else the oldest. */
    while (at < MOST_KEPT && kept[at].rows != NULL) {
        at++;
    }
    if (at == MOST_KEPT) {
        at = 0;
        oldest = kept[0];
    }
    memmove(&kept[at], &kept[at + 1], (size_t)(MOST_KEPT - 1 - at) * sizeof *kept);
    kept[MOST_KEPT - 1] = *t;
    pthread_mutex_unlock(&kept_lock);
    lt_schedule_close(&oldest);
}

/* ---- The simulation ---- */

/* In the order in which the operations start; those that start together, by their stage. */
static int by_start(const void *a, const void *b) {
    const lt_plan_slot *x = a, *y = b;
    return x->start_s != y->start_s ? (x->start_s > y->start_s) - (x->start_s < y->start_s)
                                    : x->stage - y->stage;
}

static size_t copy_slots(lt_plan_slot *slots, size_t max_slots, const lt_schedule *t,
                         const lt_schedule_times *times) {
    size_t n = 0;
    for (int stage = 0; stage < t->shape.ranks; stage++) {
        const lt_schedule_row *row = &t->rows[stage];
        for (int64_t i = 0; i < row->n_ops && n < max_slots; i++) {
            const lt_schedule_op *op = &row->ops[i];
            slots[n++] = (lt_plan_slot){times->start_s[row->first + i],
                                        times->end_s[row->first + i],
                                        stage,
                                        op->chunk,
                                        op->micro,
                                        LT_SCHEDULE_LETTERS[op->kind]};
        }
    }
    qsort(slots, n, sizeof *slots, by_start);
    return n;
}

static lt_err run(const lt_plan_pipeline *p, double *makespan_s, lt_plan_slot *slots,
                  size_t max_slots, size_t *n_slots) {
    lt_err err = LT_OK;
    const lt_schedule_shape shape = {
        .kind = kind_of(p), .ranks = p->stages, .chunks = p->chunks, .micros = p->micros};
    const size_t n = (size_t)p->stages * (size_t)p->chunks;
    lt_schedule table = {0};
    lt_schedule_times times = {0};
    double *seconds = NULL;

    LT_TRY(lt_schedule_check_shape(&shape));
    seconds = calloc(3 * n, sizeof *seconds);
    if (seconds == NULL) {
        LT_FAIL(LT_ERR_OOM, "pipeline of %zu stages", n);
    }
    stage_times(seconds, seconds + n, seconds + 2 * n, p);
    const lt_schedule_costs costs = {seconds, seconds + n, seconds + 2 * n, p->send_s};
    LT_TRY_DONE(table_take(&table, &shape));
    LT_TRY_DONE(lt_schedule_simulate(&times, &table, &costs));
    *makespan_s = times.makespan_s;
    if (n_slots != NULL) {
        *n_slots = slots != NULL ? copy_slots(slots, max_slots, &table, &times) : 0;
    }
done:
    lt_schedule_times_close(&times);
    table_give_back(&table);
    free(seconds);
    return err;
}

double lt_plan_pipeline_closed(const lt_plan_pipeline *p) {
    const double unit_s = p->forward_s + p->backward_s, m = (double)p->micros, s = p->stages;
    const double extra = lt_plan_max(0.0, lt_plan_max(p->first_extra_s, p->last_extra_s));
    double fill = (s - 1.0) * (unit_s / p->chunks + 2.0 * p->send_s);
    if (p->schedule == LT_PLAN_ZERO_BUBBLE) {
        fill = (s - 1.0) *
               lt_plan_max(0.0, unit_s - 2.0 * p->backward_s * p->weight_share + 2.0 * p->send_s);
    }
    /* The slowest stage works through all micro-batches; the share of the others fills and
     * drains. */
    return m * (unit_s + extra) +
           lt_plan_max(0.0, fill + lt_plan_min(p->first_extra_s, p->last_extra_s));
}

lt_err lt_plan_pipeline_simulate(const lt_plan_pipeline *p, double *makespan_s, lt_plan_slot *slots,
                                 size_t max_slots, size_t *n_slots) {
    LT_ASSERT(p != NULL && makespan_s != NULL);
    LT_TRY(check(p));
    const int64_t n = steady(p->stages);
    if (slots == NULL && p->micros > 2 * n) {
        lt_plan_pipeline part = *p;
        double half;
        part.micros = n;
        LT_TRY(run(&part, &half, NULL, 0, NULL));
        part.micros = 2 * n;
        LT_TRY(run(&part, makespan_s, NULL, 0, NULL));
        *makespan_s += (*makespan_s - half) / (double)n * (double)(p->micros - 2 * n);
        return LT_OK;
    }
    return run(p, makespan_s, slots, max_slots, n_slots);
}

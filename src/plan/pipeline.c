/* pipeline.c: one pipeline, simulated from its schedule.
 *
 * A schedule is, for each stage, an order of slots F(micro, chunk), B(micro, chunk) and, for
 * zero-bubble, W. The simulation walks the orders: a slot starts when its stage is free and its
 * input has arrived (F from the stage before, B from the stage behind; across chunks the pipe wraps
 * round), so bubbles come out, they are not put in.
 *
 *     GPipe        all F, then all B
 *     1F1B         pp - 1 - stage warm-up F, then F B F B ..., then the B left (Narayanan 2019)
 *     interleaved  2 (pp - 1 - stage) + (vpp - 1) pp warm-up F over chunks in groups of pp
 *                  (Narayanan 2021)
 *     zero-bubble  1F1B where B splits into input gradient B and weight gradient W; W fills the
 *                  waits (ZB-H1, Qi 2023)
 *
 * Closed forms (uniform stages): bubble = (pp - 1)(F + B) / vpp; zero-bubble (pp - 1)(F + B - 2W).
 * The search uses them; tests hold the simulation to them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/plan.h"

#define MAX_SLOTS ((size_t)64 << 20)
/* Behind so many micro-batches each takes as long as the one before: the time of more is continued,
 * not walked through. */
#define STEADY 1024

typedef struct {
    int chunk;
    int64_t micro;
} unit;

typedef struct {
    const lt_plan_pipeline *p;
    double *done_f,
        *done_b;     /* (stage, chunk, micro): when its output has been sent; negative = not yet. */
    double *free_at; /* (stage) */
    int64_t *next_f, *next_b, *next_w, *warm; /* (stage): positions in the orders. */
    lt_plan_slot *slots;
    size_t n_slots, max_slots;
} walk;

static size_t at(const walk *w, int stage, int chunk, int64_t micro) {
    return ((size_t)stage * (size_t)w->p->chunks + (size_t)chunk) * (size_t)w->p->micros +
           (size_t)micro;
}

/* The i-th forward (or backward) unit of a stage: chunks in turn, pp micro-batches each. */
static unit unit_at(const lt_plan_pipeline *p, int64_t i, bool backward) {
    unit u = {0, i};
    if (p->chunks > 1) {
        const int64_t group = (int64_t)p->stages * p->chunks, in = i % group;
        u.chunk = (int)(in / p->stages);
        u.micro = i / group * p->stages + in % p->stages;
    }
    if (backward) {
        u.chunk = p->chunks - 1 - u.chunk;
    }
    return u;
}

static double forward_s(const lt_plan_pipeline *p, int stage, int chunk) {
    return p->forward_s / p->chunks + (stage == 0 && chunk == 0 ? p->first_extra_s / 3.0 : 0.0) +
           (stage == p->stages - 1 && chunk == p->chunks - 1 ? p->last_extra_s / 3.0 : 0.0);
}

static double backward_s(const lt_plan_pipeline *p, int stage, int chunk) {
    return p->backward_s / p->chunks +
           (stage == 0 && chunk == 0 ? p->first_extra_s * 2.0 / 3.0 : 0.0) +
           (stage == p->stages - 1 && chunk == p->chunks - 1 ? p->last_extra_s * 2.0 / 3.0 : 0.0);
}

/* When the input of a slot is there; negative: not yet known. */
static double ready_f(const walk *w, int stage, unit u) {
    const lt_plan_pipeline *p = w->p;
    if (stage > 0) {
        return w->done_f[at(w, stage - 1, u.chunk, u.micro)];
    }
    return u.chunk == 0 ? 0.0 : w->done_f[at(w, p->stages - 1, u.chunk - 1, u.micro)];
}

static double ready_b(const walk *w, int stage, unit u) {
    const lt_plan_pipeline *p = w->p;
    const double own = w->done_f[at(w, stage, u.chunk, u.micro)];
    double from;
    if (own < 0) {
        return -1;
    }
    if (stage < p->stages - 1) {
        from = w->done_b[at(w, stage + 1, u.chunk, u.micro)];
    } else {
        from = u.chunk == p->chunks - 1 ? 0.0 : w->done_b[at(w, 0, u.chunk + 1, u.micro)];
    }
    return from < 0 ? -1 : lt_plan_max(from, own - p->send_s);
}

static double put(walk *w, int stage, char kind, unit u, double ready, double length) {
    const double start = lt_plan_max(ready, w->free_at[stage]);
    w->free_at[stage] = start + length;
    if (w->slots != NULL && w->n_slots < w->max_slots) {
        w->slots[w->n_slots] = (lt_plan_slot){start, start + length, stage, u.chunk, u.micro, kind};
    }
    w->n_slots += w->slots != NULL;
    return start + length;
}

static bool put_f(walk *w, int stage) {
    const unit u = unit_at(w->p, w->next_f[stage], false);
    const double ready = ready_f(w, stage, u);
    if (ready < 0) {
        return false;
    }
    w->done_f[at(w, stage, u.chunk, u.micro)] =
        put(w, stage, 'F', u, ready, forward_s(w->p, stage, u.chunk)) + w->p->send_s;
    w->next_f[stage]++;
    return true;
}

static void put_w(walk *w, int stage) {
    const unit u = unit_at(w->p, w->next_w[stage]++, true);
    put(w, stage, 'W', u, 0, backward_s(w->p, stage, u.chunk) * w->p->weight_share);
}

static bool put_b(walk *w, int stage) {
    const lt_plan_pipeline *p = w->p;
    const bool zero = p->schedule == LT_PLAN_ZERO_BUBBLE;
    const unit u = unit_at(p, w->next_b[stage], true);
    const double ready = ready_b(w, stage, u);
    const double all = backward_s(p, stage, u.chunk),
                 length = zero ? all * (1.0 - p->weight_share) : all;
    if (ready < 0) {
        return false;
    }
    while (zero && w->next_w[stage] < w->next_b[stage] &&
           w->free_at[stage] + all * p->weight_share <= ready + 1e-12) {
        put_w(w, stage); /* Fill the wait with a weight gradient that is due. */
    }
    w->done_b[at(w, stage, u.chunk, u.micro)] = put(w, stage, 'B', u, ready, length) + p->send_s;
    w->next_b[stage]++;
    /* ZB-H1 keeps the memory of 1F1B's first stage: stage s holds s micro-batches less in warm-up,
     * so s W may be put off. */
    while (zero && w->next_b[stage] - w->next_w[stage] > stage) {
        put_w(w, stage);
    }
    return true;
}

/* Put the next slot of a stage if its input is known. */
static bool advance(walk *w, int stage) {
    const lt_plan_pipeline *p = w->p;
    const int64_t units = p->micros * p->chunks, warm = w->warm[stage];
    if (w->next_f[stage] < units &&
        (w->next_f[stage] < warm + 1 || w->next_f[stage] - w->next_b[stage] <= warm)) {
        if (p->schedule == LT_PLAN_GPIPE || w->next_f[stage] <= warm ||
            w->next_f[stage] - w->next_b[stage] <= warm) {
            return put_f(w, stage);
        }
    }
    if (w->next_b[stage] < units) {
        return put_b(w, stage);
    }
    if (p->schedule == LT_PLAN_ZERO_BUBBLE && w->next_w[stage] < units) {
        put_w(w, stage);
        return true;
    }
    return false;
}

static int64_t warm_up(const lt_plan_pipeline *p, int stage) {
    const int64_t units = p->micros * p->chunks;
    int64_t warm;
    if (p->schedule == LT_PLAN_GPIPE) {
        return units;
    }
    warm = p->chunks == 1
               ? p->stages - 1 - stage
               : 2 * (int64_t)(p->stages - 1 - stage) + (int64_t)(p->chunks - 1) * p->stages;
    return warm < units ? warm : units;
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
    if ((double)p->stages * (double)p->chunks * (double)p->micros > (double)MAX_SLOTS) {
        LT_FAIL(LT_ERR_LIMIT, "pipeline: %d x %d x %lld slots are too many to simulate", p->stages,
                p->chunks, (long long)p->micros);
    }
    return LT_OK;
}

static lt_err walk_open(walk *w, const lt_plan_pipeline *p) {
    const size_t cells = (size_t)p->stages * (size_t)p->chunks * (size_t)p->micros,
                 stages = (size_t)p->stages;
    w->p = p;
    w->done_f = malloc(cells * sizeof *w->done_f);
    w->done_b = malloc(cells * sizeof *w->done_b);
    w->free_at = calloc(stages, sizeof *w->free_at);
    w->next_f = calloc(4 * stages, sizeof *w->next_f);
    if (w->done_f == NULL || w->done_b == NULL || w->free_at == NULL || w->next_f == NULL) {
        LT_FAIL(LT_ERR_OOM, "pipeline of %zu slots", cells);
    }
    w->next_b = w->next_f + stages;
    w->next_w = w->next_b + stages;
    w->warm = w->next_w + stages;
    for (size_t i = 0; i < cells; i++) {
        w->done_f[i] = w->done_b[i] = -1;
    }
    for (int s = 0; s < p->stages; s++) {
        w->warm[s] = warm_up(p, s);
    }
    return LT_OK;
}

static lt_err run(const lt_plan_pipeline *p, double *makespan_s, lt_plan_slot *slots,
                  size_t max_slots, size_t *n_slots) {
    lt_err err = LT_OK;
    walk w = {.slots = slots, .max_slots = max_slots};
    bool moved = true;

    LT_TRY_DONE(walk_open(&w, p));
    while (moved) { /* Ends: every pass puts a slot or stops. */
        moved = false;
        for (int s = 0; s < p->stages; s++) {
            while (advance(&w, s)) {
                moved = true;
            }
        }
    }
    *makespan_s = 0;
    for (int s = 0; s < p->stages; s++) {
        if (w.next_b[s] != p->micros * p->chunks) {
            LT_FAIL_DONE(LT_ERR_STATE, "pipeline: stage %d stands still after %lld backward passes",
                         s, (long long)w.next_b[s]);
        }
        *makespan_s = lt_plan_max(*makespan_s, w.free_at[s]);
    }
    if (n_slots != NULL) {
        *n_slots = w.n_slots < max_slots ? w.n_slots : max_slots;
    }
done:
    free(w.done_f);
    free(w.done_b);
    free(w.free_at);
    free(w.next_f);
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
    /* The slowest stage works through all micro-batches; the others' share of it fills and
     * drains. */
    return m * (unit_s + extra) +
           lt_plan_max(0.0, fill + lt_plan_min(p->first_extra_s, p->last_extra_s));
}

lt_err lt_plan_pipeline_run(const lt_plan_pipeline *p, double *makespan_s, lt_plan_slot *slots,
                            size_t max_slots, size_t *n_slots) {
    LT_ASSERT(p != NULL && makespan_s != NULL);
    LT_TRY(check(p));
    const int64_t n = (STEADY + p->stages - 1) / p->stages * p->stages;
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

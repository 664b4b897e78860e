/* schedule_order.c: see schedule_order.h. */
#include "parallel/schedule_order.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "parallel/layout.h"

typedef struct {
    int chunk;
    int64_t micro;
} unit;

/* Interleaved chunks take turns for a group of micro-batches: p of them, or a few more where p does
 * not divide their number, so that all groups are about equal; one group where there are fewer than
 * p. */
static int64_t n_groups(const lt_schedule_shape *s) {
    return s->micros > s->ranks ? s->micros / s->ranks : 1;
}

static int64_t group_first(const lt_schedule_shape *s, int64_t group) {
    return lt_share_first(s->micros, (int)n_groups(s), (int)group);
}

static int64_t largest_group(const lt_schedule_shape *s) {
    return (s->micros + n_groups(s) - 1) / n_groups(s);
}

/* The i-th forward (or backward) of a rank. With one chunk, micro-batches come in order. */
static unit unit_at(const lt_schedule_shape *s, int64_t i, bool backward) {
    int64_t group = i / s->chunks * n_groups(s) / s->micros;
    while (group_first(s, group + 1) <= i / s->chunks) {
        group++;
    }
    while (group_first(s, group) > i / s->chunks) {
        group--;
    }
    const int64_t first = group_first(s, group), size = group_first(s, group + 1) - first,
                  in = i - first * s->chunks;
    const int chunk = (int)(in / size);
    return (unit){backward ? s->chunks - 1 - chunk : chunk, first + in % size};
}

static void put(lt_schedule_row *row, lt_schedule_op_kind kind, int chunk, int64_t micro) {
    row->ops[row->n_ops++] = (lt_schedule_op){
        .kind = kind, .chunk = chunk, .micro = (int32_t)micro};
}

static void put_unit(lt_schedule_row *row, const lt_schedule_shape *s, lt_schedule_op_kind kind,
                     int64_t i) {
    const unit u = unit_at(s, i, kind != LT_OP_FORWARD);
    put(row, kind, u.chunk, u.micro);
}

/* Forwards before the first pair of a forward and a backward. */
static int64_t warm_up(const lt_schedule_shape *s, int rank) {
    const int64_t units = s->micros * s->chunks, behind = s->ranks - 1 - rank;
    const int64_t warm = s->kind == LT_SCHEDULE_GPIPE ? units
                         : s->chunks == 1             ? behind
                                          : 2 * behind + (s->chunks - 1) * largest_group(s);
    return warm < units ? warm : units;
}

/* Warm-up, then one F and one B in turn, then the remaining B. With a separate W, W of micro-batch
 * i - rank follows B of i. */
static void in_turn(lt_schedule_row *row, const lt_schedule_shape *s, int rank, bool split) {
    const int64_t units = s->micros * s->chunks, warm = warm_up(s, rank);
    for (int64_t i = 0; i < warm; i++) {
        put_unit(row, s, LT_OP_FORWARD, i);
    }
    for (int64_t i = 0; i < units; i++) {
        if (warm + i < units) {
            put_unit(row, s, LT_OP_FORWARD, warm + i);
        }
        put_unit(row, s, LT_OP_BACKWARD, i);
        if (split && i >= rank) {
            put_unit(row, s, LT_OP_WEIGHTS, i - rank);
        }
    }
    for (int64_t i = units > rank ? units - rank : 0; split && i < units; i++) {
        put_unit(row, s, LT_OP_WEIGHTS, i);
    }
}

/* ---- V shapes ---- */

/* The rule of schedule.h, tick by tick with F = B = W = 1. */
typedef struct {
    const lt_schedule_shape *s;
    int32_t *done[3];       /* (stages): number of micro-batches that have done F, B, W, */
    int32_t *before[2];     /* and that had done F and B before this tick. */
    int *held;              /* (ranks): chunks held. */
    int limit, limit_first; /* Limits of `held` for an F of the second chunk, and of the first. */
    int peak;
    int64_t ticks;
} v_walk;

static bool has_input(const v_walk *w, lt_schedule_op_kind kind, int stage) {
    const int last = 2 * w->s->ranks - 1;
    const int32_t next = w->done[kind][stage];
    if (next == w->s->micros) {
        return false;
    }
    if (kind == LT_OP_FORWARD) {
        return stage == 0 || w->before[LT_OP_FORWARD][stage - 1] > next;
    }
    return w->before[LT_OP_FORWARD][stage] > next &&
           (stage == last || w->before[LT_OP_BACKWARD][stage + 1] > next);
}

/* Choose the rank's operation in this tick; false: it waits. */
static bool choose(const v_walk *w, int rank, lt_schedule_op_kind *kind, int *chunk) {
    const int stage[2] = {rank, 2 * w->s->ranks - 1 - rank};
    *kind = LT_OP_BACKWARD;
    for (*chunk = 1; *chunk >= 0; --*chunk) {
        if (has_input(w, LT_OP_BACKWARD, stage[*chunk])) {
            return true;
        }
    }
    *kind = LT_OP_FORWARD;
    for (*chunk = 1; *chunk >= 0; --*chunk) {
        if (has_input(w, LT_OP_FORWARD, stage[*chunk]) &&
            w->held[rank] < (*chunk == 0 ? w->limit_first : w->limit)) {
            return true;
        }
    }
    *kind = LT_OP_WEIGHTS;
    for (*chunk = 1; *chunk >= 0; --*chunk) {
        if (w->done[LT_OP_WEIGHTS][stage[*chunk]] < w->done[LT_OP_BACKWARD][stage[*chunk]]) {
            return true;
        }
    }
    return false;
}

/* Run all ticks; false: no rank can proceed. rows NULL: only ticks and peak are computed. */
static bool v_run(v_walk *w, lt_schedule_row *rows) {
    const int p = w->s->ranks, stages = 2 * p;
    const int64_t all = 6 * w->s->micros * p;
    int64_t n = 0;
    const size_t bytes = (size_t)stages * sizeof(int32_t);
    for (int k = 0; k < 3; k++) {
        memset(w->done[k], 0, bytes);
    }
    memset(w->held, 0, (size_t)p * sizeof(int));
    w->peak = 0;
    for (w->ticks = 0; n < all; w->ticks++) {
        const int64_t n_before = n;
        memcpy(w->before[0], w->done[0], bytes);
        memcpy(w->before[1], w->done[1], bytes);
        for (int rank = 0; rank < p; rank++) {
            lt_schedule_op_kind kind;
            int chunk;
            if (choose(w, rank, &kind, &chunk)) {
                const int32_t micro = w->done[kind][chunk == 0 ? rank : stages - 1 - rank]++;
                w->held[rank] += kind == LT_OP_FORWARD ? 1 : kind == LT_OP_WEIGHTS ? -1 : 0;
                w->peak = w->held[rank] > w->peak ? w->held[rank] : w->peak;
                n++;
                if (rows != NULL) {
                    put(&rows[rank], kind, chunk, micro);
                }
            }
        }
        if (n == n_before) {
            return false;
        }
    }
    return true;
}

/* Delaying first chunks slightly more than second ones may shorten the step: try a few limits with
 * the same peak memory and keep the best. */
static lt_err v_shape(lt_schedule *t) {
    lt_err err = LT_OK;
    const lt_schedule_shape *s = &t->shape;
    const int p = s->ranks, limit = s->kind == LT_SCHEDULE_ZBV ? 2 * p : p + 2;
    const size_t stages = 2 * (size_t)p;
    int32_t *counts = calloc(5 * stages, sizeof *counts);
    v_walk w = {.s = s, .limit = limit, .held = calloc((size_t)p, sizeof(int))};
    int64_t best_ticks = INT64_MAX;
    int best = 0;

    if (counts == NULL || w.held == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schedule of %d ranks", p);
    }
    for (int k = 0; k < 5; k++) {
        *(k < 3 ? &w.done[k] : &w.before[k - 3]) = counts + (size_t)k * stages;
    }
    for (int first = limit; first > limit - 3 && first > 0; first--) {
        w.limit_first = first;
        if (v_run(&w, NULL) && w.ticks < best_ticks) {
            best_ticks = w.ticks;
            best = first;
        }
    }
    w.limit_first = best;
    if (best == 0 || !v_run(&w, t->rows)) {
        LT_FAIL_DONE(LT_ERR_STATE, "schedule %s of %d ranks: no rank can go on",
                     lt_schedule_name(s->kind), p);
    }
done:
    free(counts);
    free(w.held);
    return err;
}

lt_err lt_schedule_order(lt_schedule *t) {
    if (lt_schedule_is_v(t->shape.kind)) {
        return v_shape(t);
    }
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        in_turn(&t->rows[rank], &t->shape, rank, t->split_backward);
    }
    return LT_OK;
}

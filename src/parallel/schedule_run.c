/* schedule_run.c: walks through a table to find whether its ranks reach the end, and when each
 * operation runs. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "parallel/schedule.h"

static size_t n_stages(const lt_schedule *t) {
    return (size_t)t->shape.ranks * (size_t)t->shape.chunks;
}

/* ---- Check ---- */

static lt_err wrong(const lt_schedule *t, int rank, int64_t at, const char *what) {
    const lt_schedule_op *op = &t->rows[rank].ops[at];
    return lt_error_set(LT_ERR_STATE,
                        "schedule %s of %d ranks, %d chunks, %lld micro-batches: rank %d, "
                        "operation %lld (%c of micro-batch %d, chunk %d): %s",
                        lt_schedule_name(t->shape.kind), t->shape.ranks, t->shape.chunks,
                        (long long)t->shape.micros, rank, (long long)at,
                        LT_SCHEDULE_LETTERS[op->kind], (int)op->micro, op->chunk, what);
}

/* Check that each stage runs every micro-batch once, in order, F before B before W. next: (3,
 * stages), zero. */
static lt_err check_stages(const lt_schedule *t, int32_t *next) {
    const size_t stages = n_stages(t);
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        for (int64_t i = 0; i < t->rows[rank].n_ops; i++) {
            const lt_schedule_op *op = &t->rows[rank].ops[i];
            int32_t *now = &next[lt_schedule_stage(&t->shape, rank, op->chunk)];
            if (op->micro != now[(size_t)op->kind * stages]) {
                return wrong(t, rank, i, "not the next micro-batch of its stage");
            }
            now[(size_t)op->kind * stages]++;
            if (op->kind > 0 && now[((size_t)op->kind - 1) * stages] <= op->micro) {
                return wrong(t, rank, i, "before the operation whose result it needs");
            }
        }
    }
    for (size_t k = 0; k < stages * (t->split_backward ? 3 : 2); k++) {
        if (next[k] != t->shape.micros) {
            LT_FAIL(LT_ERR_STATE, "schedule %s: stage %zu runs %c of %d of %lld micro-batches",
                    lt_schedule_name(t->shape.kind), k % stages, LT_SCHEDULE_LETTERS[k / stages],
                    (int)next[k], (long long)t->shape.micros);
        }
    }
    return LT_OK;
}

/* Check that the messages of each pair of ranks are received in the order in which they are sent.
 * next: (ranks, ranks), -1: index of the receive that was posted last. */
static lt_err check_order(const lt_schedule *t, int32_t *next) {
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        for (int64_t i = 0; i < t->rows[rank].n_ops; i++) {
            const lt_schedule_op *op = &t->rows[rank].ops[i];
            const lt_schedule_row *to = op->to >= 0 ? &t->rows[op->to] : NULL;
            int32_t *last =
                &next[(size_t)rank * (size_t)t->shape.ranks + (size_t)(op->to >= 0 ? op->to : 0)];
            if (to == NULL) {
                continue;
            }
            if (op->posted < 0 || op->posted >= to->n_receives ||
                to->receives[op->posted].from != rank) {
                return wrong(t, rank, i, "its result is sent and never received");
            }
            if (op->posted <= *last) {
                return wrong(t, rank, i, "its result is received out of order");
            }
            *last = op->posted;
        }
    }
    return LT_OK;
}

/* ---- The walk ---- */

/* The progress of each rank, and when operations ended. */
typedef struct {
    const lt_schedule *t;
    const lt_schedule_costs *costs; /* NULL: every operation takes no time. */
    int64_t *at;                    /* (ranks): operations done. */
    double *free_at;                /* (ranks) */
    double *end[2];                 /* (stages, micros): of F and B; < 0: not done. */
    /* Only if sends wait for their receives: (ranks, room): the last sends from each set, one
     * forward and one backward. */
    const lt_schedule_op **out;
    size_t room;
} walk;

static double *end_of(const walk *w, int kind, int stage, int32_t micro) {
    return &w->end[kind][(int64_t)stage * w->t->shape.micros + micro];
}

/* When the result of another stage arrives at this rank; < 0: not yet known. */
static double arrival(const walk *w, int rank, int kind, int stage, int32_t micro) {
    const double end = *end_of(w, kind, stage, micro);
    const bool away = lt_schedule_rank_of(&w->t->shape, stage) != rank;
    return end < 0 || !away || w->costs == NULL ? end : end + w->costs->send_s;
}

/* When the inputs of an operation are ready; < 0: not yet known. */
static double ready(const walk *w, int rank, const lt_schedule_op *op) {
    const lt_schedule_shape *s = &w->t->shape;
    const int stage = lt_schedule_stage(s, rank, op->chunk);
    double own;
    if (op->kind == LT_OP_FORWARD) {
        return stage == 0 ? 0.0 : arrival(w, rank, LT_OP_FORWARD, stage - 1, op->micro);
    }
    own = *end_of(w, op->kind == LT_OP_BACKWARD ? LT_OP_FORWARD : LT_OP_BACKWARD, stage, op->micro);
    if (op->kind == LT_OP_WEIGHTS || own < 0 || stage == s->ranks * s->chunks - 1) {
        return own;
    }
    return arrival(w, rank, LT_OP_BACKWARD, stage + 1, op->micro);
}

static double length(const walk *w, int rank, const lt_schedule_op *op) {
    const int stage = lt_schedule_stage(&w->t->shape, rank, op->chunk);
    if (w->costs == NULL) {
        return 0.0;
    }
    return op->kind == LT_OP_FORWARD    ? w->costs->forward_s[stage]
           : op->kind == LT_OP_BACKWARD ? w->costs->backward_s[stage]
                                        : w->costs->weights_s[stage];
}

static const lt_schedule_op **sent_from(const walk *w, int rank, const lt_schedule_op *op) {
    const size_t set = (size_t)op->set * (size_t)w->t->shape.chunks + (size_t)op->chunk;
    return &w->out[(size_t)rank * w->room + 2 * set];
}

/* Whether the receiver has posted its receive of this message. */
static bool has_left(const walk *w, const lt_schedule_op *sent) {
    return sent == NULL || w->at[sent->to] >= w->t->rows[sent->to].receives[sent->posted].post_at;
}

/* Do the next operation of a rank; false: it cannot begin yet. */
static bool advance(walk *w, int rank, lt_schedule_times *times) {
    const lt_schedule_row *row = &w->t->rows[rank];
    const lt_schedule_op *op = &row->ops[w->at[rank]];
    const double from = ready(w, rank, op);
    double start;
    if (from < 0) {
        return false;
    }
    if (w->out != NULL) {
        const lt_schedule_op **out = sent_from(w, rank, op);
        if (op->kind == LT_OP_FORWARD && (!has_left(w, out[0]) || !has_left(w, out[1]))) {
            return false;
        }
        if (op->kind != LT_OP_WEIGHTS) {
            out[op->kind] = op->to >= 0 ? op : NULL;
        }
    }
    start = from > w->free_at[rank] ? from : w->free_at[rank];
    w->free_at[rank] = start + length(w, rank, op);
    if (op->kind != LT_OP_WEIGHTS) {
        *end_of(w, (int)op->kind, lt_schedule_stage(&w->t->shape, rank, op->chunk),
                op->micro) = w->free_at[rank];
    }
    if (times != NULL) {
        times->start_s[row->first + w->at[rank]] = start;
        times->end_s[row->first + w->at[rank]] = w->free_at[rank];
        times->busy_s[rank] += w->free_at[rank] - start;
    }
    w->at[rank]++;
    return true;
}

static size_t most_sets(const lt_schedule *t) {
    int most = 0;
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        for (int chunk = 0; chunk < t->shape.chunks; chunk++) {
            const int n = t->rows[rank].n_sets[chunk];
            most = n > most ? n : most;
        }
    }
    return (size_t)most;
}

static void walk_close(walk *w) {
    free(w->at);
    free(w->free_at);
    free(w->end[0]);
    free(w->out);
}

static lt_err walk_open(walk *w, const lt_schedule *t, bool sends_wait) {
    const size_t p = (size_t)t->shape.ranks, cells = n_stages(t) * (size_t)t->shape.micros;
    w->t = t;
    w->at = calloc(p, sizeof *w->at);
    w->free_at = calloc(p, sizeof *w->free_at);
    w->end[0] = malloc(2 * cells * sizeof *w->end[0]);
    w->room = 2 * most_sets(t) * (size_t)t->shape.chunks;
    w->out = sends_wait ? calloc(p * w->room, sizeof *w->out) : NULL;
    if (w->at == NULL || w->free_at == NULL || w->end[0] == NULL ||
        (sends_wait && w->out == NULL)) {
        LT_FAIL(LT_ERR_OOM, "schedule of %zu operations", cells);
    }
    w->end[1] = w->end[0] + cells;
    for (size_t i = 0; i < 2 * cells; i++) {
        w->end[0][i] = -1.0;
    }
    return LT_OK;
}

/* Walk every rank to the end of its row. */
static lt_err walk_all(walk *w, lt_schedule_times *times) {
    bool moved = true;
    while (moved) { /* The loop ends, because each round but the last does an operation. */
        moved = false;
        for (int rank = 0; rank < w->t->shape.ranks; rank++) {
            while (w->at[rank] < w->t->rows[rank].n_ops && advance(w, rank, times)) {
                moved = true;
            }
        }
    }
    for (int rank = 0; rank < w->t->shape.ranks; rank++) {
        if (w->at[rank] < w->t->rows[rank].n_ops) {
            return wrong(w->t, rank, w->at[rank], "waits for ever");
        }
    }
    return LT_OK;
}

lt_err lt_schedule_check(const lt_schedule *t) {
    lt_err err = LT_OK;
    const size_t pairs = (size_t)t->shape.ranks * (size_t)t->shape.ranks;
    int32_t *next = calloc(3 * n_stages(t), sizeof *next), *last = malloc(pairs * sizeof *last);
    walk w = {0};

    if (next == NULL || last == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schedule of %zu stages", n_stages(t));
    }
    memset(last, -1, pairs * sizeof *last);
    LT_TRY_DONE(check_stages(t, next));
    LT_TRY_DONE(check_order(t, last));
    LT_TRY_DONE(walk_open(&w, t, true));
    LT_TRY_DONE(walk_all(&w, NULL));
done:
    free(next);
    free(last);
    walk_close(&w);
    return err;
}

lt_err lt_schedule_simulate(lt_schedule_times *out, const lt_schedule *t,
                            const lt_schedule_costs *c) {
    lt_err err = LT_OK;
    walk w = {.costs = c};
    lt_schedule_times times = {.start_s = calloc((size_t)t->n_ops, sizeof *times.start_s),
                               .end_s = calloc((size_t)t->n_ops, sizeof *times.end_s),
                               .busy_s = calloc((size_t)t->shape.ranks, sizeof *times.busy_s)};
    if (times.start_s == NULL || times.end_s == NULL || times.busy_s == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schedule of %lld operations", (long long)t->n_ops);
    }
    LT_TRY_DONE(walk_open(&w, t, false));
    LT_TRY_DONE(walk_all(&w, &times));
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        times.makespan_s = w.free_at[rank] > times.makespan_s ? w.free_at[rank] : times.makespan_s;
    }
    *out = times;
    times = (lt_schedule_times){0};
done:
    walk_close(&w);
    lt_schedule_times_close(&times);
    return err;
}

void lt_schedule_times_close(lt_schedule_times *times) {
    free(times->start_s);
    free(times->end_s);
    free(times->busy_s);
    *times = (lt_schedule_times){0};
}

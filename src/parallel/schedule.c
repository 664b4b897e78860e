/* schedule.c: see schedule.h. Opens a table and adds its messages and sets. */
#include "parallel/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "parallel/schedule_order.h"

#define MAX_CELLS ((double)((int64_t)8 << 20)) /* Ranks * chunks * micro-batches. */

const char *lt_schedule_name(lt_schedule_kind kind) {
    static const char *const names[] = {
#define SCHEDULE_NAME(code, name) name,
        LT_SCHEDULE_MAP(SCHEDULE_NAME)
#undef SCHEDULE_NAME
    };
    return names[kind];
}

bool lt_schedule_is_v(lt_schedule_kind kind) {
    return kind == LT_SCHEDULE_ZBV || kind == LT_SCHEDULE_V_HALF;
}

bool lt_schedule_splits_backward(lt_schedule_kind kind) {
    return kind == LT_SCHEDULE_ZB_H1 || lt_schedule_is_v(kind);
}

int lt_schedule_fewest_chunks(lt_schedule_kind kind) {
    return lt_schedule_is_v(kind) || kind == LT_SCHEDULE_INTERLEAVED ? 2 : 1;
}

int lt_schedule_stage(const lt_schedule_shape *s, int rank, int chunk) {
    return lt_schedule_is_v(s->kind) && chunk % 2 == 1 ? (chunk + 1) * s->ranks - 1 - rank
                                                       : chunk * s->ranks + rank;
}

int lt_schedule_chunk_of(const lt_schedule_shape *s, int stage) {
    return stage / s->ranks;
}

int lt_schedule_rank_of(const lt_schedule_shape *s, int stage) {
    const int in = stage % s->ranks;
    return lt_schedule_is_v(s->kind) && lt_schedule_chunk_of(s, stage) % 2 == 1 ? s->ranks - 1 - in
                                                                                : in;
}

lt_err lt_schedule_check_shape(const lt_schedule_shape *s) {
    const char *name = lt_schedule_name(s->kind);
    const bool v = lt_schedule_is_v(s->kind), rounds = s->kind == LT_SCHEDULE_INTERLEAVED;
    if (s->ranks < 1 || s->chunks < 1 || s->micros < 1) {
        LT_FAIL(LT_ERR_ARG,
                "schedule %s: %d ranks, %d chunks, %lld micro-batches; each is at "
                "least 1",
                name, s->ranks, s->chunks, (long long)s->micros);
    }
    if (v ? s->chunks != 2 : rounds ? s->chunks < 2 : s->chunks != 1) {
        LT_FAIL(LT_ERR_ARG, "schedule %s has %s; %d were asked for%s", name,
                v        ? "two chunks a rank"
                : rounds ? "two chunks a rank or more"
                         : "one chunk a rank",
                s->chunks, v || rounds ? "" : ": interleaved has as many");
    }
    if ((double)s->ranks * s->chunks * (double)s->micros > MAX_CELLS) {
        LT_FAIL(LT_ERR_LIMIT,
                "schedule %s: %d ranks x %d chunks x %lld micro-batches are more than %.0f", name,
                s->ranks, s->chunks, (long long)s->micros, MAX_CELLS);
    }
    return LT_OK;
}

/* ---- Messages ---- */

/* The stage from which an operation's input comes, or to which its result goes; -1: none. */
static int neighbour(const lt_schedule_shape *s, const lt_schedule_op *op, int stage, bool input) {
    const int step = (op->kind == LT_OP_FORWARD) == input ? -1 : 1, other = stage + step;
    const bool none = op->kind == LT_OP_WEIGHTS || other < 0 || other == s->ranks * s->chunks;
    return none ? -1 : other;
}

static int peer_of(const lt_schedule_shape *s, const lt_schedule_op *op, int rank, bool input) {
    const int other = neighbour(s, op, lt_schedule_stage(s, rank, op->chunk), input);
    const int peer = other < 0 ? -1 : lt_schedule_rank_of(s, other);
    return peer == rank ? -1 : peer; /* At the turn of a V the data remain on the rank. */
}

/* A message that a rank needs, while its receives are ordered. */
typedef struct {
    int from;
    int32_t sent; /* The sender's operation. */
    int32_t op, post_at;
} message;

static int by_sender(const void *a, const void *b) {
    const message *x = a, *y = b;
    return x->from != y->from ? x->from - y->from : (x->sent > y->sent) - (x->sent < y->sent);
}

static int by_post(const void *a, const void *b) {
    const message *x = a, *y = b;
    return x->post_at != y->post_at ? x->post_at - y->post_at : by_sender(a, b);
}

/* Index in its row of the F or B of a stage and micro-batch. */
typedef struct {
    int32_t *at[2]; /* (stages, micros) */
    message *list;  /* Room for the messages of one rank. */
} places;

static int32_t *place_of(const places *l, const lt_schedule_shape *s, lt_schedule_op_kind kind,
                         int stage, int32_t micro) {
    return &l->at[kind][(int64_t)stage * s->micros + micro];
}

static void find_places(const lt_schedule *t, places *l) {
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        for (int64_t i = 0; i < t->rows[rank].n_ops; i++) {
            lt_schedule_op *op = &t->rows[rank].ops[i];
            op->receive = op->posted = -1;
            if (op->kind != LT_OP_WEIGHTS) {
                *place_of(l, &t->shape, op->kind, lt_schedule_stage(&t->shape, rank, op->chunk),
                          op->micro) = (int32_t)i;
            }
        }
    }
}

/* Order the rank's receives as their senders send. Each is posted one operation ahead, or earlier
 * if a later message of the same sender is needed sooner. */
static void order_receives(lt_schedule *t, int rank, const places *l) {
    const lt_schedule_shape *s = &t->shape;
    lt_schedule_row *row = &t->rows[rank];
    int64_t n = 0;
    for (int64_t i = 0; i < row->n_ops; i++) {
        lt_schedule_op *op = &row->ops[i];
        const int stage = lt_schedule_stage(s, rank, op->chunk);
        op->from = peer_of(s, op, rank, true);
        op->to = peer_of(s, op, rank, false);
        if (op->from >= 0) {
            const int32_t sent = *place_of(l, s, op->kind, neighbour(s, op, stage, true),
                                           op->micro);
            l->list[n++] = (message){op->from, sent, (int32_t)i, i > 0 ? (int32_t)i - 1 : 0};
        }
    }
    qsort(l->list, (size_t)n, sizeof *l->list, by_sender);
    for (int64_t i = n - 2; i >= 0; i--) {
        if (l->list[i].from == l->list[i + 1].from && l->list[i].post_at > l->list[i + 1].post_at) {
            l->list[i].post_at = l->list[i + 1].post_at;
        }
    }
    qsort(l->list, (size_t)n, sizeof *l->list, by_post);
    for (int64_t i = 0; i < n; i++) {
        const message *m = &l->list[i];
        row->receives[i] = (lt_schedule_receive){
            .from = m->from, .op = m->op, .post_at = m->post_at};
        row->ops[m->op].receive = (int32_t)i;
        t->rows[m->from].ops[m->sent].posted = (int32_t)i;
    }
    row->n_receives = n;
}

/* ---- Buffers and sets ---- */

/* Numbers that are taken and returned; the smallest free number is taken first. */
typedef struct {
    bool *taken;
    int n, in_use;
} numbers;

static int take(numbers *l) {
    int i = 0;
    while (i < l->n && l->taken[i]) {
        i++;
    }
    l->taken[i] = true;
    l->n = i == l->n ? i + 1 : l->n;
    l->in_use++;
    return i;
}

static void give_back(numbers *l, int i) {
    l->taken[i] = false;
    l->in_use--;
}

/* flags: room for one per operation of the row. */
static void number_buffers(lt_schedule_row *row, bool *flags) {
    numbers buffers = {.taken = flags};
    int64_t next = 0;
    memset(flags, 0, (size_t)row->n_ops);
    for (int64_t i = 0; i < row->n_ops; i++) {
        for (; next < row->n_receives && row->receives[next].post_at == i; next++) {
            row->receives[next].buffer = take(&buffers);
        }
        if (row->ops[i].receive >= 0) {
            give_back(&buffers, row->receives[row->ops[i].receive].buffer);
        }
    }
    row->n_buffers = buffers.n;
}

/* A micro-batch occupies a set of its chunk from F to its last operation. set_of (micros):
 * scratch. */
static void number_sets(lt_schedule_row *row, const lt_schedule *t, int chunk, bool *flags,
                        int *set_of) {
    numbers sets = {.taken = flags};
    memset(flags, 0, (size_t)t->shape.micros);
    for (int64_t i = 0; i < row->n_ops; i++) {
        lt_schedule_op *op = &row->ops[i];
        if (op->chunk != chunk) {
            continue;
        }
        if (op->kind == LT_OP_FORWARD) {
            set_of[op->micro] = take(&sets);
        }
        op->set = set_of[op->micro];
        if (op->kind == (t->split_backward ? LT_OP_WEIGHTS : LT_OP_BACKWARD)) {
            give_back(&sets, op->set);
        }
    }
    row->n_sets[chunk] = sets.n;
}

static void count_held(lt_schedule_row *row, bool split) {
    int now = 0;
    for (int64_t i = 0; i < row->n_ops; i++) {
        const lt_schedule_op_kind kind = row->ops[i].kind;
        now += kind == LT_OP_FORWARD;
        row->held = now > row->held ? now : row->held;
        now -= kind == (split ? LT_OP_WEIGHTS : LT_OP_BACKWARD);
    }
}

/* ---- Opening ---- */

static lt_err rows_open(lt_schedule *t) {
    const size_t p = (size_t)t->shape.ranks, v = (size_t)t->shape.chunks,
                 ops = (t->split_backward ? 3 : 2) * v * (size_t)t->shape.micros;
    t->rows = calloc(p, sizeof *t->rows);
    if (t->rows == NULL) {
        LT_FAIL(LT_ERR_OOM, "schedule of %zu ranks", p);
    }
    t->n_ops = (int64_t)(p * ops);
    for (size_t rank = 0; rank < p; rank++) {
        lt_schedule_row *row = &t->rows[rank];
        row->first = (int64_t)(rank * ops);
        row->ops = calloc(ops, sizeof *row->ops);
        row->receives = calloc(ops, sizeof *row->receives);
        row->n_sets = calloc(v, sizeof *row->n_sets);
        if (row->ops == NULL || row->receives == NULL || row->n_sets == NULL) {
            LT_FAIL(LT_ERR_OOM, "schedule of %zu ranks with %zu operations each", p, ops);
        }
    }
    return LT_OK;
}

static lt_err add_messages(lt_schedule *t) {
    lt_err err = LT_OK;
    const size_t cells = (size_t)t->shape.ranks * (size_t)t->shape.chunks * (size_t)t->shape.micros,
                 ops = (size_t)(t->n_ops / t->shape.ranks);
    int32_t *at = calloc(2 * cells, sizeof *at);
    bool *flags = calloc(ops, sizeof *flags);
    int *set_of = calloc((size_t)t->shape.micros, sizeof *set_of);
    places l = {.at = {at, at + cells}, .list = calloc(ops, sizeof *l.list)};

    if (at == NULL || flags == NULL || set_of == NULL || l.list == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "schedule of %lld operations", (long long)t->n_ops);
    }
    find_places(t, &l);
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        order_receives(t, rank, &l);
    }
    for (int rank = 0; rank < t->shape.ranks; rank++) {
        lt_schedule_row *row = &t->rows[rank];
        number_buffers(row, flags);
        for (int chunk = 0; chunk < t->shape.chunks; chunk++) {
            number_sets(row, t, chunk, flags, set_of);
        }
        count_held(row, t->split_backward);
    }
done:
    free(at);
    free(flags);
    free(set_of);
    free(l.list);
    return err;
}

lt_err lt_schedule_open(lt_schedule *out, const lt_schedule_shape *s) {
    lt_err err = LT_OK;
    lt_schedule t = {.shape = *s, .split_backward = lt_schedule_splits_backward(s->kind)};
    LT_TRY(lt_schedule_check_shape(s));
    LT_TRY_DONE(rows_open(&t));
    LT_TRY_DONE(lt_schedule_order(&t));
    LT_TRY_DONE(add_messages(&t));
    LT_TRY_DONE(lt_schedule_check(&t));
    *out = t;
    t = (lt_schedule){0};
done:
    lt_schedule_close(&t);
    return err;
}

void lt_schedule_close(lt_schedule *t) {
    for (int rank = 0; t->rows != NULL && rank < t->shape.ranks; rank++) {
        free(t->rows[rank].ops);
        free(t->rows[rank].receives);
        free(t->rows[rank].n_sets);
    }
    free(t->rows);
    *t = (lt_schedule){0};
}

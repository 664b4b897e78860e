/* owners.c: see owners.h. */
#include "parallel/owners.h"

#include <stdlib.h>

#include "base/error.h"

/* ---- Owners ---- */

typedef struct {
    lt_owned matrix;
    double cost;
} item;

/* Multiplications of one iteration: twice the shorter side's square times the longer side, and the
 * shorter side's cube. */
static double cost_of(int64_t rows, int64_t cols) {
    const double side = (double)(rows < cols ? rows : cols), length = (double)(rows + cols) - side;
    return side * side * (2.0 * length + side);
}

static int by_cost(const void *a_in, const void *b_in) {
    const item *a = a_in, *b = b_in;
    const int cost = (a->cost < b->cost) - (a->cost > b->cost);
    const int param = (a->matrix.param > b->matrix.param) - (a->matrix.param < b->matrix.param);
    return cost != 0    ? cost
           : param != 0 ? param
                        : (a->matrix.first > b->matrix.first) - (a->matrix.first < b->matrix.first);
}

static bool are_whole(const lt_param_table *t, const lt_param *p) {
    bool whole = true;
    for (int b = 0; b < p->n_boxes; b++) {
        const lt_box *box = &lt_param_boxes(t, p)[b];
        for (int d = p->n_dims - 2; d < p->n_dims; d++) {
            whole = whole && box->extent[d] == p->shape[d];
        }
    }
    return whole;
}

static lt_err list_matrices(item **out, int64_t *n, const lt_param_table *t) {
    int64_t count = 0, at = 0;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        if (p->matrix && p->local_count > 0 && !are_whole(t, p)) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "optimiser muon: of %s, %lld of %lld elements are held here; Muon needs whole "
                    "matrices",
                    p->name, (long long)p->local_count, (long long)p->count);
        }
        count += lt_param_matrix_count(p);
    }
    *out = calloc((size_t)count + 1, sizeof **out);
    if (*out == NULL) {
        LT_FAIL(LT_ERR_OOM, "list of %lld matrices", (long long)count);
    }
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        for (int64_t m = 0; m < lt_param_matrix_count(p); m++) {
            const int64_t cols = p->shape[p->n_dims - 1];
            int64_t rows, first = lt_param_matrix_at(p, m, &rows);
            (*out)[at++] = (item){{i, first, rows, cols}, cost_of(rows, cols)};
        }
    }
    qsort(*out, (size_t)count, sizeof **out, by_cost);
    *n = count;
    return LT_OK;
}

/* Assign each matrix to the rank with the least work; of several, to the first. */
static lt_err assign(lt_owners *o, const item *items, int64_t n_items) {
    const int n = o->shards->n;
    lt_err err = LT_OK;
    double *load = calloc((size_t)n, sizeof *load);
    int *held = calloc((size_t)n, sizeof *held);
    o->table = calloc((size_t)(n_items * n) + 1, sizeof *o->table);
    o->counts = calloc(2 * (size_t)n, sizeof *o->counts);
    if (load == NULL || held == NULL || o->table == NULL || o->counts == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "owners of %lld matrices", (long long)n_items);
    }
    for (int64_t i = 0; i < n_items * n; i++) {
        o->table[i].param = -1;
    }
    for (int64_t i = 0; i < n_items; i++) {
        int least = 0;
        for (int r = 1; r < n; r++) {
            least = load[r] < load[least] ? r : least;
        }
        o->table[held[least]++ * n + least] = items[i].matrix;
        load[least] += items[i].cost;
        o->n_rounds = held[least] > o->n_rounds ? held[least] : o->n_rounds;
    }
done:
    free(load);
    free(held);
    return err;
}

/* Elements [*from, *to) of the parameter: the part of the matrix that a member keeps. */
static int64_t overlap(const lt_owners *o, const lt_owned *m, int member, int64_t *from) {
    const lt_param *p;
    int64_t first, end, size;
    *from = 0;
    if (m->param < 0) {
        return 0;
    }
    p = &o->shards->full.params[m->param];
    size = m->rows * m->cols;
    lt_shards_range(o->shards, p, member, &first, &end);
    *from = first > m->first ? first : m->first;
    end = end < m->first + size ? end : m->first + size;
    return end > *from ? end - *from : 0;
}

lt_err lt_owners_open(lt_owners *o, const lt_shards *s, const lt_backend *backend,
                      lt_queue *queue) {
    lt_err err = LT_OK;
    item *items = NULL;
    int64_t n_items = 0, from;
    *o = (lt_owners){.shards = s, .backend = backend, .queue = queue};
    LT_TRY_DONE(list_matrices(&items, &n_items, &s->full));
    LT_TRY_DONE(assign(o, items, n_items));
    for (int round = 0; round < o->n_rounds; round++) {
        const lt_owned *own = lt_owners_own(o, round);
        const int64_t size = own->param >= 0 ? own->rows * own->cols : 0;
        int64_t sends = 0;
        for (int r = 0; r < s->n; r++) {
            sends += overlap(o, &o->table[round * s->n + r], s->own, &from);
        }
        o->room = size > o->room ? size : o->room;
        o->sends = sends > o->sends ? sends : o->sends;
    }
done:
    free(items);
    return err;
}

void lt_owners_close(lt_owners *o) {
    free(o->table);
    free(o->counts);
    *o = (lt_owners){0};
}

int64_t lt_owners_scratch(const lt_owners *o) {
    return LT_OWNERS_BUFFERS * (o->room + o->sends);
}

const lt_owned *lt_owners_own(const lt_owners *o, int round) {
    return &o->table[round * o->shards->n + o->shards->own];
}

/* ---- Exchange ---- */

/* Copy between a buffer in the order of owners and this rank's slices of each owner's matrix. */
static lt_err copy_slices(const lt_owners *o, int round, float *packed, int64_t *counts,
                          const lt_param_table *own, const lt_param_buffer *const *buffers, int n,
                          bool pack) {
    const lt_shards *s = o->shards;
    for (int r = 0; r < s->n; r++) {
        const lt_owned *m = &o->table[round * s->n + r];
        int64_t from, first, end;
        const int64_t count = overlap(o, m, s->own, &from);
        counts[r] = n * count;
        if (count == 0) {
            continue;
        }
        lt_shards_range(s, &s->full.params[m->param], s->own, &first, &end);
        for (int b = 0; b < n; b++, packed += count) {
            float *slice = (float *)lt_param_data(buffers[b], &own->params[m->param]) +
                           (from - first);
            LT_TRY(o->backend->copy(o->queue, pack ? packed : slice, pack ? slice : packed,
                                    (size_t)count * sizeof *packed));
        }
    }
    return LT_OK;
}

/* Copy between this rank's matrix of the round, whole in n buffers, and its slices in the order of
 * ranks. */
static lt_err copy_whole(const lt_owners *o, int round, float *packed, int64_t *counts,
                         float *whole, int n, bool pack) {
    const lt_owned *m = lt_owners_own(o, round);
    const int64_t size = m->rows * m->cols;
    for (int r = 0; r < o->shards->n; r++) {
        int64_t from;
        const int64_t count = overlap(o, m, r, &from);
        counts[r] = n * count;
        for (int b = 0; b < n && count > 0; b++, packed += count) {
            float *at = whole + b * size + (from - m->first);
            LT_TRY(o->backend->copy(o->queue, pack ? packed : at, pack ? at : packed,
                                    (size_t)count * sizeof *packed));
        }
    }
    return LT_OK;
}

/* The queue continues when everything has arrived. */
static lt_err exchange(const lt_owners *o, float *dst, const int64_t *dst_counts, const float *src,
                       const int64_t *src_counts) {
    const lt_world *w = o->shards->world;
    lt_comm_work work = 0;
    LT_TRY(lt_all_to_all(lt_world_twin(w, o->shards->ranks), dst, dst_counts, src, src_counts,
                         LT_F32, &work));
    return lt_comm_order(lt_world_buffers(w), work, o->queue);
}

/* scratch: | slices, owner by owner | the own matrix, rank by rank | */
static float *whole_of(const lt_owners *o, float *scratch) {
    return scratch + LT_OWNERS_BUFFERS * o->sends;
}

lt_err lt_owners_gather(const lt_owners *o, int round, float *whole, float *scratch,
                        const lt_param_table *own, const lt_param_buffer *const *from, int n) {
    float *in = whole_of(o, scratch);
    int64_t *out_counts = o->counts, *in_counts = o->counts + o->shards->n, ignored;
    LT_ASSERT(n <= LT_OWNERS_BUFFERS);
    LT_TRY(copy_slices(o, round, scratch, out_counts, own, from, n, true));
    for (int r = 0; r < o->shards->n; r++) {
        in_counts[r] = n * overlap(o, lt_owners_own(o, round), r, &ignored);
    }
    LT_TRY(exchange(o, in, in_counts, scratch, out_counts));
    return copy_whole(o, round, in, in_counts, whole, n, false);
}

lt_err lt_owners_scatter(const lt_owners *o, int round, const float *whole, float *scratch,
                         const lt_param_table *own, const lt_param_buffer *const *to, int n) {
    float *out = whole_of(o, scratch);
    int64_t *out_counts = o->counts, *in_counts = o->counts + o->shards->n, ignored;
    LT_ASSERT(n <= LT_OWNERS_BUFFERS);
    /* `whole` is not changed: packing only reads it. */
    LT_TRY(copy_whole(o, round, out, out_counts, (float *)(uintptr_t)whole, n, true));
    for (int r = 0; r < o->shards->n; r++) {
        in_counts[r] = n *
                       overlap(o, &o->table[round * o->shards->n + r], o->shards->own, &ignored);
    }
    LT_TRY(exchange(o, scratch, in_counts, out, out_counts));
    return copy_slices(o, round, scratch, in_counts, own, to, n, false);
}

/* norm.c: see norm.h. Elements that are contiguous both in the whole and here, padding included,
 * form a stretch. A cell inside one stretch takes one call of sumsq, with the same bits as for that
 * cell of the whole. */
#include "train/norm.h"

#include "base/error.h"
#include "parallel/slice.h"
#include "tensor/ops.h"

int64_t lt_norm_cells(const lt_param_table *t) {
    return (t->whole_elements + LT_NORM_CELL - 1) / LT_NORM_CELL;
}

/* Elements [whole, whole + count) of the whole layout, at `data`. */
typedef struct {
    float *data;
    int64_t whole, count;
    int unit; /* 0 if all units are contiguous. */
} stretch;

typedef struct {
    const lt_backend *be;
    lt_queue *queue;
    const lt_param_table *table;
    double *cells;
    stretch now;
} summing;

static lt_err add_to_cell(summing *s, int64_t cell, float *data, int64_t count) {
    const lt_sumsq_args a = {.out = lt_tensor_1d(s->cells + cell, LT_F64, 1),
                             .x = lt_tensor_1d(data, LT_F32, count),
                             .accumulate = true};
    LT_ASSERT(cell >= 0 && cell < lt_norm_cells(s->table));
    return count > 0 ? s->be->ops->sumsq(s->queue, &a) : LT_OK;
}

static lt_err flush(summing *s) {
    stretch *n = &s->now;
    while (n->count > 0) {
        const int64_t cell = n->whole / LT_NORM_CELL, left = (cell + 1) * LT_NORM_CELL - n->whole;
        const int64_t count = left < n->count ? left : n->count;
        LT_TRY(add_to_cell(s, cell, n->data, count));
        n->data += count;
        n->whole += count;
        n->count -= count;
    }
    return LT_OK;
}

/* Whether the stretch ends where these elements begin, here and in the whole. */
static bool continues(const summing *s, const stretch *next) {
    const stretch *n = &s->now;
    return n->count > 0 && n->unit == next->unit && n->whole + n->count == next->whole &&
           n->data + n->count == next->data;
}

static lt_err add_stretch(summing *s, const stretch *next) {
    if (continues(s, next)) {
        s->now.count += next->count;
        return LT_OK;
    }
    LT_TRY(flush(s));
    s->now = *next;
    return LT_OK;
}

/* A box whose elements have gaps in the whole: sum the elements of each cell, which are contiguous
 * here. */
static lt_err add_box(summing *s, const lt_param *p, const lt_box *box, float *data) {
    const int64_t count = lt_box_count(box, p->n_dims);
    LT_TRY(flush(s));
    for (int64_t at = 0; at < count;) {
        int64_t run;
        const int64_t whole = p->whole_at +
                              lt_box_whole_index(box, 1, p->n_dims, p->shape, at, &run);
        const int64_t cell = whole / LT_NORM_CELL;
        const int64_t end = lt_box_count_below(box, p->n_dims, p->shape,
                                               (cell + 1) * LT_NORM_CELL - p->whole_at);
        LT_ASSERT(end > at && end <= count);
        LT_TRY(add_to_cell(s, cell, data + at, end - at));
        at = end;
    }
    return LT_OK;
}

/* Number of zeros after a parameter whose end is held here that exist both here and in the whole,
 * so that what follows may be contiguous. */
static int64_t common_padding(const lt_param *p) {
    const int64_t whole = -p->count & (LT_PARAM_ALIGN - 1),
                  local = -p->local_count & (LT_PARAM_ALIGN - 1);
    return whole == local ? whole : 0;
}

lt_err lt_norm_partials(double *cells, const lt_backend *be, lt_queue *queue,
                        const lt_param_table *t, const lt_param_buffer *gradients) {
    summing s = {.be = be, .queue = queue, .table = t, .cells = cells};
    LT_TRY(be->zero(queue, cells, (size_t)lt_norm_cells(t) * sizeof *cells));
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const lt_box *boxes = lt_param_boxes(t, p);
        float *data = lt_param_data(gradients, p);
        LT_ASSERT((data != NULL) == (p->local_count > 0));
        for (int b = 0; b < p->n_boxes; b++) {
            const int64_t count = lt_box_count(&boxes[b], p->n_dims);
            int64_t run;
            const int64_t at = lt_box_whole_index(&boxes[b], 1, p->n_dims, p->shape, 0, &run);
            stretch next = {data, p->whole_at + at, count, gradients->flat != NULL ? 0 : p->unit};
            if (b == p->n_boxes - 1 && at + count == p->count) {
                next.count += common_padding(p);
            }
            LT_TRY(run == count ? add_stretch(&s, &next) : add_box(&s, p, &boxes[b], data));
            data += count;
        }
    }
    return flush(&s);
}

double lt_norm_total(const double *const *parts, int n, int64_t n_cells) {
    double total = 0.0;
    for (int64_t cell = 0; cell < n_cells; cell++) {
        double sum = 0.0;
        for (int part = 0; part < n; part++) {
            sum += parts[part][cell];
        }
        total += sum;
    }
    return total;
}

/* ---- A rank's share ---- */

/* Elements of a unit that are contiguous except for gaps of zeros. */
typedef struct {
    const lt_backend *be;
    lt_queue *queue;
    double *sum;
    float *base;
    int64_t base_at; /* The unit's element at that place. */
    lt_slice now;    /* Empty at first. */
} sharing;

static lt_err flush_share(sharing *s) {
    const int64_t count = s->now.end - s->now.first;
    const lt_sumsq_args a = {
        .out = lt_tensor_1d(s->sum, LT_F64, 1),
        .x = lt_tensor_1d(s->base + (s->now.first - s->base_at), LT_F32, count),
        .accumulate = true};
    s->now = (lt_slice){0, 0};
    return count > 0 ? s->be->ops->sumsq(s->queue, &a) : LT_OK;
}

/* Add the part of [first, end) in the slice; append it to the previous elements if they end in the
 * same gap. */
static lt_err add_share(sharing *s, lt_slice slice, int64_t first, int64_t end) {
    const int64_t from = first > slice.first ? first : slice.first,
                  to = end < slice.end ? end : slice.end;
    if (from >= to) {
        return LT_OK;
    }
    if (s->now.end == 0 || from - s->now.end >= LT_PARAM_ALIGN) {
        LT_TRY(flush_share(s));
        s->now.first = from;
    }
    s->now.end = to;
    return LT_OK;
}

static lt_err share_unit(sharing *s, const lt_shards *shards, const lt_param_table *t,
                         const lt_unit *u) {
    const lt_layout *l = &shards->world->layout;
    const lt_mesh_shape *m = &l->shape;
    const bool sliced = shards->level > 0;
    /* With ep, another rank sums the same slices, except those of experts. */
    const bool experts_alone = shards->replicas != NULL && lt_group_rank(shards->replicas) > 0;
    const int n = sliced ? shards->n : m->dp * m->cp;
    const int own = sliced ? shards->own : l->dp * m->cp + l->cp;
    for (int i = u->first_param; i < u->first_param + u->n_params; i++) {
        const lt_param *p = &t->params[i];
        const bool expert = lt_layout_expert(l, p);
        const lt_slice slice = lt_slice_of(u->n_elements, expert && !sliced ? n / m->ep : n,
                                           expert && !sliced ? l->edp : own);
        int64_t at = p->at;
        s->base_at = sliced ? slice.first : 0;
        for (int b = 0; b < p->n_boxes; b++) {
            const lt_box *box = &lt_param_boxes(t, p)[b];
            const int64_t count = lt_box_count(box, p->n_dims);
            if (lt_layout_answers(l, p, box) && (expert || !experts_alone)) {
                LT_TRY(add_share(s, slice, at, at + count));
            } else {
                LT_TRY(flush_share(s));
            }
            at += count;
        }
    }
    return flush_share(s);
}

lt_err lt_norm_share(double *sum, const lt_backend *be, lt_queue *queue, const lt_shards *shards,
                     const lt_param_table *t, const lt_param_buffer *gradients) {
    sharing s = {.be = be, .queue = queue, .sum = sum};
    LT_TRY(be->zero(queue, sum, sizeof *sum));
    if (shards->replicas != NULL && lt_group_rank(shards->replicas) > 0 &&
        shards->world->shape.ep == 1) {
        return LT_OK; /* Another rank sums the same slices. */
    }
    for (int u = 0; u < t->n_units; u++) {
        s.base = gradients->base[u];
        if (s.base != NULL) {
            LT_TRY(share_unit(&s, shards, t, &t->units[u]));
        }
    }
    return LT_OK;
}

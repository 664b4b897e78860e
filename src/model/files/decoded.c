/* decoded.c: see decoded.h. A row of a matrix is decoded like a row of an embedding, by the op that
 * every backend has for it: the matrix is the table, and the ids are 0, 1, 2, ... */
#include "model/files/decoded.h"

#include "model/pass/acts.h"
#include "model/files/stored_weights.h"

/* Rows of a piece of a matrix of K columns, where scratch has this many elements. */
static int64_t rows_at_once(int64_t elements, int64_t cols) {
    return cols < elements ? elements / cols : 1;
}

/* Whether a parameter may be decoded. One of experts has the matrices of all experts that are
 * here. */
static bool is_decoded(const lt_param *p) {
    return lt_stored_weights_is_matrix(p->kind) && p->local_count > 0;
}

static int64_t matrix_of(const lt_param *experts) {
    return experts->local_shape[1] * experts->local_shape[2];
}

/* Elements of the largest piece. */
static int64_t most_elements(const lt_param_table *t, bool on_device) {
    int64_t room = LT_DECODED_ELEMENTS, most = 0;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const bool in_layer = p->kind != LT_PARAM_EMBED && p->kind != LT_PARAM_HEAD;
        const int64_t whole = p->experts && !on_device ? matrix_of(p) : p->local_count;
        if (is_decoded(p) && in_layer && (on_device || p->experts)) {
            room = whole > room ? whole : room;
        }
    }
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        if (is_decoded(p)) {
            const int64_t unit = p->experts ? matrix_of(p) : p->local_shape[1],
                          at_once = rows_at_once(room, unit) * unit,
                          n = at_once < p->local_count ? at_once : p->local_count;
            most = n > most ? n : most;
        }
    }
    return most;
}

void lt_decoded_carve(lt_exec *r, const lt_param_table *t, lt_dtype dtype, bool on_device,
                      lt_arena *a) {
    r->decoded = lt_tensor_take(a, dtype, most_elements(t, on_device), 0, 0);
}

bool lt_decoded_has(const lt_exec *r, int index) {
    return r->model->stored != NULL && r->model->options.decoded &&
           r->model->stored[index].n_ranges > 0;
}

/* Rows [first, first + n) of a range to rows of scratch. */
static lt_err decode_range(lt_exec *r, lt_tensor rows, const lt_weight_range *range, int64_t first,
                           int64_t n) {
    const int32_t *numbers = (const int32_t *)r->model->row_numbers + first;
    return lt_exec_embed_fwd(
        r, &(lt_embed_args){.y = rows,
                            .table = range->w,
                            .table_scales = range->scales,
                            .ids = lt_tensor_1d((void *)(uintptr_t)numbers, LT_I32, n),
                            .scale = 1.0f});
}

static lt_err decode_rows(lt_exec *r, lt_tensor *out, int index, int64_t first, int64_t n) {
    const lt_stored_weight *h = &r->model->stored[index];
    const int64_t cols = h->ranges[0].w.shape[1];
    *out = lt_tensor_2d(r->decoded.data, r->decoded.dtype, n, cols);
    LT_ASSERT(n * cols <= r->decoded.shape[0]);
    for (int i = 0; i < h->n_ranges; i++) {
        const lt_weight_range *range = &h->ranges[i];
        const int64_t range_end = range->first_row + range->w.shape[0],
                      from = range->first_row > first ? range->first_row : first,
                      to = range_end < first + n ? range_end : first + n;
        if (from < to) {
            LT_TRY(decode_range(r, lt_tensor_rows(out, from - first, to - from), range,
                                from - range->first_row, to - from));
        }
    }
    return LT_OK;
}

/* ---- Experts ---- */

/* Experts [first, first + n) to (n, rows, cols) of scratch. A range that has all rows of every
 * expert is decoded at once. */
static lt_err decode_experts(lt_exec *r, lt_tensor *out, int index, int64_t first, int64_t n) {
    const lt_stored_weight *h = &r->model->stored[index];
    const int64_t *shape = r->model->table.params[index].local_shape, rows = shape[1];
    const lt_tensor all = lt_tensor_2d(r->decoded.data, r->decoded.dtype, n * rows, shape[2]);
    LT_ASSERT(lt_tensor_count(&all) <= r->decoded.shape[0]);
    *out = lt_tensor_3d(all.data, all.dtype, n, rows, shape[2]);
    for (int i = 0; i < h->n_ranges; i++) {
        const lt_weight_range *range = &h->ranges[i];
        const int64_t own = range->w.shape[0] / range->n_experts,
                      at_once = own == rows && range->each == NULL ? n : 1;
        for (int64_t e = 0; e < n; e += at_once) {
            lt_weight_range one = *range;
            int64_t from = (first + e) * own;
            if (range->each != NULL) {
                one.w.data = (void *)(uintptr_t)range->each[first + e];
                one.w.shape[0] = own;
                from = 0;
            }
            LT_TRY(decode_range(r, lt_tensor_rows(&all, e * rows + range->first_row, at_once * own),
                                &one, from, at_once * own));
        }
    }
    return LT_OK;
}

/* Whether no row is for this expert, as far as the host knows it. */
static bool is_idle(const lt_exec *r, lt_tensor expert_start, int64_t e) {
    const int32_t *start = expert_start.data;
    return r->backend->host_memory && start[e] == start[e + 1];
}

static lt_err experts_product(lt_exec *r, int index, lt_matmul_grouped_args a) {
    const lt_param *p = &r->model->table.params[index];
    const lt_tensor start = a.expert_start;
    const int64_t all = p->local_shape[0], most = rows_at_once(r->decoded.shape[0], matrix_of(p));
    for (int64_t first = 0, n; first < all; first += n) {
        n = 1;
        if (is_idle(r, start, first)) {
            continue;
        }
        while (n < most && first + n < all && !is_idle(r, start, first + n)) {
            n++;
        }
        LT_TRY(decode_experts(r, &a.b, index, first, n));
        a.expert_start = lt_tensor_rows(&start, first, n + 1);
        LT_TRY(lt_exec_matmul_grouped(r, &a));
    }
    return LT_OK;
}

lt_err lt_decoded_experts_forward(lt_exec *r, int index, lt_tensor y, lt_tensor x,
                                  lt_tensor expert_start) {
    return experts_product(r, index,
                           (lt_matmul_grouped_args){.y = y,
                                                    .a = x,
                                                    .expert_start = expert_start,
                                                    .trans_b = true,
                                                    .fixed_order = r->fixed_order});
}

lt_err lt_decoded_experts_backward(lt_exec *r, int index, lt_tensor dx, lt_tensor dy,
                                   lt_tensor expert_start) {
    return experts_product(
        r, index, (lt_matmul_grouped_args){.y = dx, .a = dy, .expert_start = expert_start});
}

/* ---- Rows ---- */

lt_err lt_decoded_rows(lt_exec *r, lt_tensor *out, lt_param_kind kind, int layer, int64_t first,
                       int64_t n) {
    const int index = lt_param_index(&r->model->table, kind, layer);
    if (lt_decoded_has(r, index)) {
        return decode_rows(r, out, index, first, n);
    }
    const lt_tensor w = lt_exec_weight(r, kind, layer);
    *out = lt_tensor_rows(&w, first, n);
    return LT_OK;
}

lt_err lt_decoded_forward(lt_exec *r, int index, lt_tensor y, lt_tensor x, lt_tensor bias) {
    const int64_t all = r->model->table.params[index].local_shape[0],
                  most = rows_at_once(r->decoded.shape[0], x.shape[1]);
    for (int64_t first = 0; first < all; first += most) {
        const int64_t n = all - first < most ? all - first : most;
        lt_tensor w;
        LT_TRY(decode_rows(r, &w, index, first, n));
        LT_TRY(lt_exec_matmul(
            r, &(lt_matmul_args){.y = lt_tensor_cols(&y, first, n),
                                 .a = x,
                                 .b = w,
                                 .bias = bias.data == NULL ? bias : lt_tensor_rows(&bias, first, n),
                                 .trans_b = true,
                                 .fixed_order = r->fixed_order}));
    }
    return LT_OK;
}

lt_err lt_decoded_backward(lt_exec *r, int index, lt_tensor dx, lt_tensor dy, bool add_dx) {
    const int64_t all = r->model->table.params[index].local_shape[0],
                  most = rows_at_once(r->decoded.shape[0], dx.shape[1]);
    for (int64_t first = 0; first < all; first += most) {
        const int64_t n = all - first < most ? all - first : most;
        lt_tensor w;
        LT_TRY(decode_rows(r, &w, index, first, n));
        LT_TRY(lt_exec_matmul(r, &(lt_matmul_args){.y = dx,
                                                   .a = lt_tensor_cols(&dy, first, n),
                                                   .b = w,
                                                   .accumulate = add_dx || first > 0}));
    }
    return LT_OK;
}

/* decoded.c: see decoded.h. A row of a matrix is decoded like a row of an embedding, by the op that
 * every backend has for it: the matrix is the table, and the ids are 0, 1, 2, ... */
#include "model/files/decoded.h"

#include "model/pass/acts.h"
#include "model/files/stored_weights.h"

/* Rows of a piece of a matrix of K columns, where scratch has this many elements. */
static int64_t rows_at_once(int64_t elements, int64_t cols) {
    return cols < elements ? elements / cols : 1;
}

/* Elements of the largest matrix of a layer. */
static int64_t layer_elements(const lt_param_table *t) {
    int64_t most = 0;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        const bool in_layer = p->kind != LT_PARAM_EMBED && p->kind != LT_PARAM_HEAD;
        if (in_layer && lt_stored_weights_is_matrix(p->kind) && p->n_dims == 2) {
            most = p->local_count > most ? p->local_count : most;
        }
    }
    return most;
}

/* Elements of the largest piece. */
static int64_t most_elements(const lt_param_table *t, bool on_device) {
    const int64_t of_layer = on_device ? layer_elements(t) : 0,
                  room = of_layer > LT_DECODED_ELEMENTS ? of_layer : LT_DECODED_ELEMENTS;
    int64_t most = 0;
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        if (!lt_stored_weights_is_matrix(p->kind) || p->n_dims != 2 || p->local_count == 0) {
            continue;
        }
        const int64_t *shape = p->local_shape, rows = rows_at_once(room, shape[1]),
                      n = (rows < shape[0] ? rows : shape[0]) * shape[1];
        most = n > most ? n : most;
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

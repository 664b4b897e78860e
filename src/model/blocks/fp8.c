/* fp8.c: see fp8.h. */
#include "model/blocks/fp8.h"

#include "model/pass/acts.h"
#include "model/blocks/tp.h"

#define ALIGN 16 /* Bytes, and so elements: the copy engine's alignment of rows. */

static int64_t padded(int64_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static lt_scale_kind row_kind(const lt_fp8 *f) {
    return f->recipe == LT_FP8_TENSORWISE ? LT_SCALE_TENSOR : LT_SCALE_ROW;
}

static lt_scale_kind weight_kind(const lt_fp8 *f) {
    return f->recipe == LT_FP8_TENSORWISE ? LT_SCALE_TENSOR : LT_SCALE_BLOCK;
}

bool lt_fp8_takes(const lt_param *p) {
    return p->n_dims == 2 && (p->kind == LT_PARAM_QKV || p->kind == LT_PARAM_ATTN_OUT ||
                              p->kind == LT_PARAM_UP || p->kind == LT_PARAM_DOWN);
}

static lt_err check_box(const lt_param *p, const lt_box *b) {
    for (int d = 0; d < p->n_dims; d++) {
        if (b->extent[d] != p->shape[d] &&
            (b->first[d] % LT_SCALE_SPAN != 0 || b->extent[d] % LT_SCALE_SPAN != 0)) {
            LT_FAIL(LT_ERR_ARG,
                    "%s: this rank of tp has %lld %s from the %lldth on, which cut blocks of %d; "
                    "8-bit linear layers need whole ones (tensorwise scales do not)",
                    p->name, (long long)b->extent[d], d == 0 ? "rows" : "columns",
                    (long long)b->first[d], LT_SCALE_SPAN);
        }
    }
    return LT_OK;
}

lt_err lt_fp8_check(const lt_param_table *t, lt_fp8_recipe recipe) {
    for (int i = 0; recipe == LT_FP8_BLOCKWISE && i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        for (int b = 0; lt_fp8_takes(p) && b < p->n_boxes; b++) {
            LT_TRY(check_box(p, &lt_param_boxes(t, p)[b]));
        }
    }
    return LT_OK;
}

/* Cast; with one scale for all ranks of tp where they have parts of the matrix. */
static lt_err cast(lt_exec *r, lt_cast_scaled_args *a, bool parted) {
    const bool y = a->y.data != NULL && a->kind == LT_SCALE_TENSOR,
               t = a->t.data != NULL && a->t_kind == LT_SCALE_TENSOR;
    LT_TRY(lt_exec_cast_scaled(r, a));
    if (r->n_tp == 1 || !parted || (!y && !t)) {
        return LT_OK;
    }
    LT_TRY(y ? lt_tp_max(r, a->scale) : LT_OK);
    LT_TRY(t ? lt_tp_max(r, a->t_scale) : LT_OK);
    a->given = true;
    return lt_exec_cast_scaled(r, a);
}

/* Whether ranks of tp divide the columns of x, or those of y, of y = x w^T. */
static bool parts_x(const lt_exec *r, int index) {
    const lt_param_kind kind = r->model->table.params[index].kind;
    return kind == LT_PARAM_ATTN_OUT || kind == LT_PARAM_DOWN;
}

/* (rows, cols) codes with padded rows. */
static lt_tensor codes(void *data, lt_dtype dtype, int64_t rows, int64_t cols) {
    lt_tensor t = lt_tensor_2d(data, dtype, rows, cols);
    t.stride[0] = padded(cols);
    return t;
}

static size_t scale_bytes(lt_scale_kind kind, int64_t rows, int64_t cols) {
    const lt_tensor t = lt_scale_tensor(&(char){0}, kind, rows, cols);
    return (size_t)lt_tensor_count(&t) * sizeof(float);
}

static void take(lt_tensor *w, lt_tensor *scale, const lt_fp8 *f, int64_t rows, int64_t cols,
                 lt_arena *a) {
    const lt_scale_kind kind = weight_kind(f);
    *w = codes(lt_arena_take(a, (size_t)(rows * padded(cols)), LT_ARENA_ALIGN), LT_F8_E4M3, rows,
               cols);
    *scale = lt_scale_tensor(lt_arena_take(a, scale_bytes(kind, rows, cols), LT_ARENA_ALIGN), kind,
                             rows, cols);
}

/* (widest, rows) codes of something transposed, and their scales. */
static void take_transposed(void **codes_at, float **scale, lt_scale_kind kind, int64_t widest,
                            int64_t rows, lt_arena *a) {
    *codes_at = lt_arena_take(a, (size_t)(widest * padded(rows)), LT_ARENA_ALIGN);
    *scale = lt_arena_take(a, scale_bytes(kind, widest, rows), LT_ARENA_ALIGN);
}

void lt_fp8_carve(lt_fp8 *f, const lt_param_table *t, const lt_pass_options *o, lt_arena *a) {
    const int64_t rows = o->batch * o->seq;
    int64_t widest = 0;
    f->recipe = o->fp8;
    f->wgrad = o->fp8_wgrad && o->train;
    f->rows = rows;
    if (f->recipe == LT_FP8_NONE) {
        return;
    }
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        lt_fp8_weight unused, *w = f->weights != NULL ? &f->weights[i] : &unused;
        if (lt_fp8_takes(p) && p->local_count > 0) {
            const int64_t n = p->local_shape[0], k = p->local_shape[1];
            take(&w->w, &w->w_scale, f, n, k, a);
            take(&w->t, &w->t_scale, f, k, n, a);
            widest = n > widest ? n : widest;
            widest = k > widest ? k : widest;
        }
    }
    f->x = lt_arena_take(a, (size_t)(rows * padded(widest)), LT_ARENA_ALIGN);
    f->x_scale = lt_arena_take(a, scale_bytes(row_kind(f), rows, widest), LT_ARENA_ALIGN);
    if (f->wgrad) {
        take_transposed(&f->dy_t, &f->dy_t_scale, row_kind(f), widest, rows, a);
        take_transposed(&f->x_t, &f->x_t_scale, weight_kind(f), widest, rows, a);
    }
}

lt_err lt_fp8_refresh(lt_exec *r, lt_fp8 *f) {
    const lt_model *m = r->model;
    if (f->recipe == LT_FP8_NONE || (f->cast && f->version == m->version)) {
        return LT_OK;
    }
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *p = &m->table.params[i];
        const lt_fp8_weight *w = &f->weights[i];
        if (lt_fp8_takes(p) && p->local_count > 0) {
            LT_TRY(cast(r,
                        &(lt_cast_scaled_args){.y = w->w,
                                               .scale = w->w_scale,
                                               .t = w->t,
                                               .t_scale = w->t_scale,
                                               .x = lt_exec_weight(r, p->kind, p->layer),
                                               .kind = weight_kind(f),
                                               .t_kind = weight_kind(f)},
                        true));
        }
    }
    f->cast = true;
    f->version = m->version;
    return LT_OK;
}

/* Where x (rows, cols) is stored in 8 bits, not transposed. */
static lt_tensor rows_of(const lt_fp8 *f, const lt_tensor *x, lt_dtype type, lt_tensor *scale) {
    LT_ASSERT(x->shape[0] <= f->rows);
    *scale = lt_scale_tensor(f->x_scale, row_kind(f), x->shape[0], x->shape[1]);
    return codes(f->x, type, x->shape[0], x->shape[1]);
}

lt_err lt_fp8_forward(lt_exec *r, int index, lt_tensor y, lt_tensor x, lt_tensor bias) {
    const lt_fp8 *f = r->fp8;
    const lt_fp8_weight *w = &f->weights[index];
    lt_tensor scale;
    const lt_tensor a = rows_of(f, &x, LT_F8_E4M3, &scale);
    LT_TRY(cast(r, &(lt_cast_scaled_args){.y = a, .scale = scale, .x = x, .kind = row_kind(f)},
                parts_x(r, index)));
    return lt_exec_matmul_scaled(r, &(lt_matmul_scaled_args){.y = y,
                                                             .a = a,
                                                             .a_scale = scale,
                                                             .b = w->w,
                                                             .b_scale = w->w_scale,
                                                             .bias = bias,
                                                             .a_kind = row_kind(f),
                                                             .b_kind = weight_kind(f)});
}

/* dw (N, K) [+]= dy^T (N, rows) x, dy^T in 8 bits. */
static lt_err weight_gradient(lt_exec *r, int index, const lt_fp8_backward_args *a,
                              const lt_cast_scaled_args *dy) {
    const lt_fp8 *f = r->fp8;
    const int64_t k = a->x.shape[1], rows = a->x.shape[0];
    const lt_tensor t = codes(f->x_t, LT_F8_E4M3, k, rows),
                    scale = lt_scale_tensor(f->x_t_scale, weight_kind(f), k, rows);
    LT_TRY(cast(
        r, &(lt_cast_scaled_args){.t = t, .t_scale = scale, .x = a->x, .t_kind = weight_kind(f)},
        parts_x(r, index)));
    return lt_exec_matmul_scaled(r, &(lt_matmul_scaled_args){.y = a->dw,
                                                             .a = dy->t,
                                                             .a_scale = dy->t_scale,
                                                             .b = t,
                                                             .b_scale = scale,
                                                             .a_kind = row_kind(f),
                                                             .b_kind = weight_kind(f),
                                                             .accumulate = a->add_dw});
}

lt_err lt_fp8_backward(lt_exec *r, int index, const lt_fp8_backward_args *a) {
    const lt_fp8 *f = r->fp8;
    const lt_fp8_weight *w = &f->weights[index];
    const lt_dtype type = f->recipe == LT_FP8_TENSORWISE ? LT_F8_E5M2 : LT_F8_E4M3;
    const int64_t rows = a->dy.shape[0], n = a->dy.shape[1];
    lt_cast_scaled_args call = {.x = a->dy, .kind = row_kind(f), .t_kind = row_kind(f)};

    if (a->dx.data != NULL) {
        call.y = rows_of(f, &a->dy, type, &call.scale);
    }
    if (f->wgrad) {
        call.t = codes(f->dy_t, type, n, rows);
        call.t_scale = lt_scale_tensor(f->dy_t_scale, row_kind(f), n, rows);
    }
    if (call.y.data != NULL || call.t.data != NULL) {
        LT_TRY(cast(r, &call, !parts_x(r, index)));
    }
    if (f->wgrad) {
        LT_TRY(weight_gradient(r, index, a, &call));
    } else {
        LT_TRY(lt_exec_matmul(
            r, &(lt_matmul_args){
                   .y = a->dw, .a = a->dy, .b = a->x, .trans_a = true, .accumulate = a->add_dw}));
    }
    if (a->dx.data == NULL) {
        return LT_OK;
    }
    return lt_exec_matmul_scaled(r, &(lt_matmul_scaled_args){.y = a->dx,
                                                             .a = call.y,
                                                             .a_scale = call.scale,
                                                             .b = w->t,
                                                             .b_scale = w->t_scale,
                                                             .a_kind = row_kind(f),
                                                             .b_kind = weight_kind(f),
                                                             .accumulate = a->add_dx});
}

/* fp8.c: see fp8.h. */
#include "model/fp8.h"

#include "model/acts.h"

#define ALIGN 16 /* Bytes, and so elements: rows as the copy engine wants them. */

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

void lt_fp8_carve(lt_fp8 *f, const lt_param_table *t, lt_fp8_recipe recipe, int64_t rows,
                  lt_arena *a) {
    int64_t widest = 0;
    f->recipe = recipe;
    f->rows = rows;
    if (recipe == LT_FP8_NONE) {
        return;
    }
    for (int i = 0; i < t->n_params; i++) {
        const lt_param *p = &t->params[i];
        lt_fp8_weight unused, *w = f->weights != NULL ? &f->weights[i] : &unused;
        if (lt_fp8_takes(p)) {
            const int64_t n = p->shape[0], k = p->shape[1];
            take(&w->w, &w->w_scale, f, n, k, a);
            take(&w->t, &w->t_scale, f, k, n, a);
            widest = n > widest ? n : widest;
            widest = k > widest ? k : widest;
        }
    }
    f->x = lt_arena_take(a, (size_t)(rows * padded(widest)), LT_ARENA_ALIGN);
    f->x_scale = lt_arena_take(a, scale_bytes(row_kind(f), rows, widest), LT_ARENA_ALIGN);
}

lt_err lt_fp8_refresh(lt_run *r, lt_fp8 *f) {
    const lt_model *m = r->model;
    if (f->recipe == LT_FP8_NONE || (f->cast && f->version == m->version)) {
        return LT_OK;
    }
    for (int i = 0; i < m->table.n_params; i++) {
        const lt_param *p = &m->table.params[i];
        const lt_fp8_weight *w = &f->weights[i];
        if (lt_fp8_takes(p)) {
            LT_TRY(lt_run_cast_scaled(
                r, &(lt_cast_scaled_args){.y = w->w,
                                          .scale = w->w_scale,
                                          .t = w->t,
                                          .t_scale = w->t_scale,
                                          .x = lt_run_weight(r, p->kind, p->layer),
                                          .kind = weight_kind(f),
                                          .t_kind = weight_kind(f)}));
        }
    }
    f->cast = true;
    f->version = m->version;
    return LT_OK;
}

/* y = x w^T, w in 8 bits already. */
static lt_err multiply(lt_run *r, lt_tensor y, lt_tensor x, lt_dtype type, const lt_tensor *w,
                       const lt_tensor *w_scale, lt_tensor bias, bool accumulate) {
    const lt_fp8 *f = r->fp8;
    const lt_scale_kind kind = row_kind(f);
    const lt_tensor a = codes(f->x, type, x.shape[0], x.shape[1]),
                    a_scale = lt_scale_tensor(f->x_scale, kind, x.shape[0], x.shape[1]);
    LT_ASSERT(x.shape[0] <= f->rows && w->data != NULL);
    LT_TRY(lt_run_cast_scaled(
        r, &(lt_cast_scaled_args){.y = a, .scale = a_scale, .x = x, .kind = kind}));
    return lt_run_matmul_scaled(r, &(lt_matmul_scaled_args){.y = y,
                                                            .a = a,
                                                            .a_scale = a_scale,
                                                            .b = *w,
                                                            .b_scale = *w_scale,
                                                            .bias = bias,
                                                            .a_kind = kind,
                                                            .b_kind = weight_kind(f),
                                                            .accumulate = accumulate});
}

lt_err lt_fp8_forward(lt_run *r, int index, lt_tensor y, lt_tensor x, lt_tensor bias) {
    const lt_fp8_weight *w = &r->fp8->weights[index];
    return multiply(r, y, x, LT_F8_E4M3, &w->w, &w->w_scale, bias, false);
}

lt_err lt_fp8_backward(lt_run *r, int index, lt_tensor dx, lt_tensor dy, bool add_dx) {
    const lt_fp8_weight *w = &r->fp8->weights[index];
    const lt_dtype type = r->fp8->recipe == LT_FP8_TENSORWISE ? LT_F8_E5M2 : LT_F8_E4M3;
    return multiply(r, dx, dy, type, &w->t, &w->t_scale, (lt_tensor){0}, add_dx);
}

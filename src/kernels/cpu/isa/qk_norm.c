/* qk_norm.c: RMSNorm of each head of q and k and its rotation, forward and backward; heads of (R,
 * H, D) rows.
 *
 * MOVEMENT  A head is read from memory once and stays in L1 for the second pass. Backward keeps the
 *           gradient of the head before its rotation in a row on the stack, so that dx may be dy.
 * THREADS   Forward, rows are independent. The gains' gradients: fixed chunks of rows into partial
 *           rows, added in order (rows.h).
 * NUMERICS  On F32 tensors, the bits are those of norm.c and rope one after the other, except where
 *           the compiler contracts operations; in BF16 nothing is rounded between them. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/scratch.h"

#define MAX_WIDTH (2 * MAX_HALF)

typedef struct {
    float cosine[MAX_HALF + VEC], sine[MAX_HALF + VEC];
} angles;

/* Both gains with their offset as F32 rows of `room` floats each, followed by `extra` floats. */
static lt_err gain_rows(const lt_tensor *q_gain, const lt_tensor *k_gain, float offset,
                        int64_t extra, float **gains, int64_t *room) {
    const int64_t width = q_gain->shape[0];
    *room = (width + VEC - 1) / VEC * VEC;
    LT_TRY(
        lt_cpu_scratch(gains, LT_CPU_SLOT_PARTIAL, (size_t)(2 * *room + extra) * sizeof **gains));
    for (int64_t c = 0; c < width; c++) {
        (*gains)[c] = offset + f_load_as(q_gain->data, q_gain->dtype, c);
        (*gains)[*room + c] = offset + f_load_as(k_gain->data, k_gain->dtype, c);
    }
    return LT_OK;
}

/* ---- Forward ---- */

typedef struct {
    const lt_qk_norm_args *a;
    const float *gains;
    int64_t room;
} forward;

LT_INLINE void forward_head(const forward *f, int64_t r, int64_t h, const angles *t,
                            const lt_dtype dtype) {
    const lt_qk_norm_args *a = f->a;
    const int64_t width = a->x.shape[2], half = a->table.shape[1];
    const void *x = at_element(&a->x, row_at(&a->x, r, h));
    void *y = at_element(&a->y, row_at(&a->y, r, h));
    const float *gain = f->gains + (h < a->n_q ? 0 : f->room);
    vf acc = {0};
    for (int64_t c = 0; c < width; c += VEC) { /* Lanes beyond the end are 0. */
        const vf v = v_get(x, dtype, c, width - c);
        acc += v * v;
    }
    const float rstd = 1.0f / __builtin_sqrtf(v_sum(acc) / (float)width + a->eps);
    for (int64_t i = 0; i < half; i += VEC) {
        const int64_t n = half - i;
        const vf u = v_get(x, dtype, i, n) * rstd * v_get(gain, LT_F32, i, n);
        const vf v = v_get(x, dtype, half + i, n) * rstd * v_get(gain, LT_F32, half + i, n);
        const vf c = v_load(t->cosine + i), s = v_load(t->sine + i);
        v_put(y, dtype, i, u * c - v * s, n);
        v_put(y, dtype, half + i, v * c + u * s, n);
    }
    for (int64_t i = 2 * half; i < width; i += VEC) {
        const int64_t n = width - i;
        v_put(y, dtype, i, v_get(x, dtype, i, n) * rstd * v_get(gain, LT_F32, i, n), n);
    }
    if (a->rstd.data != NULL) {
        ((float *)a->rstd.data)[r * a->x.shape[1] + h] = rstd;
    }
}

LT_INLINE void forward_rows(const forward *f, const lt_dtype dtype) {
    const lt_qk_norm_args *a = f->a;
    const int64_t rows = a->x.shape[0];
#pragma omp parallel for schedule(static) if (lt_tensor_count(&a->x) > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        angles t;
        row_angles(t.cosine, t.sine, &a->positions, &a->table, r, 1.0f);
        for (int64_t h = 0; h < a->x.shape[1]; h++) {
            forward_head(f, r, h, &t, dtype);
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_qk_norm_fwd)(lt_queue *q, const void *args) {
    forward f = {.a = args};
    float *gains;
    (void)q;
    LT_ASSERT(f.a->x.n_dims == 3 && f.a->x.shape[2] <= MAX_WIDTH);
    LT_TRY(gain_rows(&f.a->q_gain, &f.a->k_gain, f.a->gain_offset, 0, &gains, &f.room));
    f.gains = gains;
    BY_DTYPE(f.a->x.dtype, forward_rows, &f);
    return LT_OK;
}

/* ---- Backward ---- */

typedef struct {
    const lt_qk_norm_bwd_args *a;
    const float *gains;
    int64_t room, n_chunks;
    float *partial; /* (2, n_chunks, D): of q's gain, then of k's. */
} backward;

/* Rotate du or dy back into `back` (width floats and up to VEC more). */
LT_INLINE void rotate_back(float *back, const void *dy, const angles *t, int64_t half,
                           int64_t width, const lt_dtype dtype) {
    for (int64_t i = 0; i < half; i += VEC) {
        const int64_t n = half - i;
        const vf a = v_get(dy, dtype, i, n), b = v_get(dy, dtype, half + i, n);
        const vf c = v_load(t->cosine + i), s = v_load(t->sine + i);
        v_put(back, LT_F32, i, a * c - b * s, n);
        v_put(back, LT_F32, half + i, b * c + a * s, n);
    }
    for (int64_t i = 2 * half; i < width; i += VEC) {
        v_put(back, LT_F32, i, v_get(dy, dtype, i, width - i), width - i);
    }
}

/* Add one head's share of dgain, then write dx. */
LT_INLINE void backward_head(const backward *f, int64_t r, int64_t h, const angles *t, float *dgain,
                             const lt_dtype dtype) {
    const lt_qk_norm_bwd_args *a = f->a;
    const int64_t width = a->x.shape[2];
    const void *x = at_element(&a->x, row_at(&a->x, r, h));
    void *dx = at_element(&a->dx, row_at(&a->dx, r, h));
    const float *gain = f->gains + (h < a->n_q ? 0 : f->room);
    const float rstd = ((const float *)a->rstd.data)[r * a->x.shape[1] + h];
    float back[MAX_WIDTH + VEC];
    vf sum = {0};
    rotate_back(back, at_element(&a->dy, row_at(&a->dy, r, h)), t, a->table.shape[1], width, dtype);
    for (int64_t c = 0; c < width; c += VEC) {
        const int64_t n = width - c;
        const vf d = v_get(back, LT_F32, c, n), norm = v_get(x, dtype, c, n) * rstd;
        sum += d * v_get(gain, LT_F32, c, n) * norm;
        v_put(dgain, LT_F32, c, v_get(dgain, LT_F32, c, n) + d * norm, n);
    }
    const float mean = v_sum(sum) / (float)width;
    for (int64_t c = 0; c < width; c += VEC) {
        const int64_t n = width - c;
        const vf g = v_get(back, LT_F32, c, n) * v_get(gain, LT_F32, c, n);
        v_put(dx, dtype, c, rstd * (g - v_get(x, dtype, c, n) * rstd * mean), n);
    }
}

LT_INLINE void backward_chunk(const backward *f, int64_t chunk, const lt_dtype dtype) {
    const lt_qk_norm_bwd_args *a = f->a;
    const int64_t rows = a->x.shape[0], width = a->x.shape[2];
    float *const dq = f->partial + chunk * width, *const dk = dq + f->n_chunks * width;
    memset(dq, 0, (size_t)width * sizeof *dq);
    memset(dk, 0, (size_t)width * sizeof *dk);
    for (int64_t r = chunk_start(rows, f->n_chunks, chunk);
         r < chunk_start(rows, f->n_chunks, chunk + 1); r++) {
        angles t;
        row_angles(t.cosine, t.sine, &a->positions, &a->table, r, -1.0f);
        for (int64_t h = 0; h < a->x.shape[1]; h++) {
            backward_head(f, r, h, &t, h < a->n_q ? dq : dk, dtype);
        }
    }
}

LT_INLINE void backward_rows(const backward *f, const lt_dtype dtype) {
#pragma omp parallel for schedule(static) if (lt_tensor_count(&f->a->x) > PARALLEL_MIN)
    for (int64_t chunk = 0; chunk < f->n_chunks; chunk++) {
        backward_chunk(f, chunk, dtype);
    }
}

lt_err LT_ISA_NAME(lt_cpu_qk_norm_bwd)(lt_queue *q, const void *args) {
    backward f = {.a = args};
    const lt_qk_norm_bwd_args *a = args;
    const int64_t width = a->x.shape[2];
    float *gains;
    (void)q;
    LT_ASSERT(a->x.n_dims == 3 && width <= MAX_WIDTH);
    f.n_chunks = row_chunks(a->x.shape[0]);
    LT_TRY(
        gain_rows(&a->q_gain, &a->k_gain, a->gain_offset, 2 * f.n_chunks * width, &gains, &f.room));
    f.gains = gains;
    f.partial = gains + 2 * f.room;
    BY_DTYPE(a->x.dtype, backward_rows, &f);
    if (a->dq_gain.data != NULL) {
        add_partials(a->dq_gain.data, f.partial, f.n_chunks, width);
    }
    if (a->dk_gain.data != NULL) {
        add_partials(a->dk_gain.data, f.partial + f.n_chunks * width, f.n_chunks, width);
    }
    return LT_OK;
}

/* scaled.c: rounding matrices to 8-bit floats with scales, and widening them again (formulas:
 * tensor/ops.h).
 *
 * BOUND     Memory: 2 or 4 bytes in, 1 out, for some 15 integer and float operations an element,
 *           all in vectors.
 * TRANSPOSE A tile of 128 x 128 is transposed in the L1, then rounded as rows.
 * TENSOR    The largest magnitude is found first: of pieces by all threads, then of the pieces; a
 *           maximum is the same in any order. */
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scratch.h"

#define SPAN LT_SCALE_SPAN

/* n elements of a row as F32. */
LT_INLINE void row_get(float *to, const lt_tensor *x, int64_t r, int64_t c, int64_t n) {
    const int64_t at = r * x->stride[0] + c;
    if (x->dtype == LT_F32) {
        memcpy(to, (const float *)x->data + at, (size_t)n * sizeof *to);
    } else {
        const uint16_t *from = (const uint16_t *)x->data + at;
        for (int64_t i = 0; i < n; i++) {
            to[i] = lt_bf16_to_f32(from[i]);
        }
    }
}

/* Magnitudes are compared as integers, so NaN is the largest. */
LT_INLINE uint32_t largest(const float *x, int64_t n, uint32_t most) {
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &x[i], sizeof u);
        u &= 0x7FFFFFFFu;
        most = u > most ? u : most;
    }
    return most;
}

LT_INLINE float scale_of(uint32_t most, bool e5m2, float *inverse) {
    float amax;
    memcpy(&amax, &most, sizeof amax);
    return lt_scale_of(amax, e5m2, inverse);
}

LT_INLINE void round_row(uint8_t *to, const float *x, int64_t n, float inverse, bool e5m2) {
    if (e5m2) {
        for (int64_t i = 0; i < n; i++) {
            to[i] = lt_f32_to_f8(x[i] * inverse, true);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            to[i] = lt_f32_to_f8(x[i] * inverse, false);
        }
    }
}

/* A tile of n_r x n_c elements, row by row, SPAN apart. transposed: of x transposed. */
static void tile_get(float (*tile)[SPAN], const lt_tensor *x, bool transposed, int64_t r, int64_t c,
                     int64_t n_r, int64_t n_c) {
    float row[SPAN];
    if (!transposed) {
        for (int64_t i = 0; i < n_r; i++) {
            row_get(tile[i], x, r + i, c, n_c);
        }
        return;
    }
    for (int64_t j = 0; j < n_c; j++) {
        row_get(row, x, c + j, r, n_r);
        for (int64_t i = 0; i < n_r; i++) {
            tile[i][j] = row[i];
        }
    }
}

static float *scale_at(const lt_tensor *scale, lt_scale_kind kind, int64_t r, int64_t c) {
    float *s = scale->data;
    return kind == LT_SCALE_TENSOR ? s
           : kind == LT_SCALE_ROW  ? s + c / SPAN * scale->stride[0] + r
                                   : s + r / SPAN * scale->stride[0] + c / SPAN;
}

/* inverse: of the single scale, if kind is TENSOR. */
static void tile_round(float (*tile)[SPAN], const lt_tensor *y, const lt_tensor *scale,
                       lt_scale_kind kind, int64_t r, int64_t c, int64_t n_r, int64_t n_c,
                       float inverse) {
    const bool e5m2 = y->dtype == LT_F8_E5M2;
    uint32_t most = 0;
    for (int64_t i = 0; kind == LT_SCALE_BLOCK && i < n_r; i++) {
        most = largest(tile[i], n_c, most);
    }
    if (kind == LT_SCALE_BLOCK) {
        *scale_at(scale, kind, r, c) = scale_of(most, e5m2, &inverse);
    }
    for (int64_t i = 0; i < n_r; i++) {
        if (kind == LT_SCALE_ROW) {
            *scale_at(scale, kind, r + i, c) = scale_of(largest(tile[i], n_c, 0), e5m2, &inverse);
        }
        round_row((uint8_t *)y->data + (r + i) * y->stride[0] + c, tile[i], n_c, inverse, e5m2);
    }
}

LT_INLINE int64_t at_most(int64_t n, int64_t most) {
    return n < most ? n : most;
}

/* Bits of the largest magnitude in x. */
static uint32_t largest_of(const lt_tensor *x) {
    uint32_t most = 0;
#pragma omp parallel for schedule(static) reduction(max : most)
    for (int64_t r = 0; r < x->shape[0]; r++) {
        float row[SPAN];
        for (int64_t c = 0; c < x->shape[1]; c += SPAN) {
            const int64_t n = at_most(x->shape[1] - c, SPAN);
            row_get(row, x, r, c, n);
            most = largest(row, n, most);
        }
    }
    return most;
}

static void cast_to(const lt_tensor *y, const lt_tensor *scale, lt_scale_kind kind,
                    const lt_tensor *x, bool transposed, bool given) {
    const int64_t rows = y->shape[0], cols = y->shape[1];
    float inverse = 0.0f;
    if (kind == LT_SCALE_TENSOR && given) {
        inverse = 1.0f / *(const float *)scale->data; /* The inverse of a power of two is exact. */
    } else if (kind == LT_SCALE_TENSOR) {
        *(float *)scale->data = scale_of(largest_of(x), y->dtype == LT_F8_E5M2, &inverse);
    }
#pragma omp parallel for collapse(2) schedule(static) if (rows * cols > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r += SPAN) {
        for (int64_t c = 0; c < cols; c += SPAN) {
            float tile[SPAN][SPAN];
            const int64_t n_r = at_most(rows - r, SPAN), n_c = at_most(cols - c, SPAN);
            tile_get(tile, x, transposed, r, c, n_r, n_c);
            tile_round(tile, y, scale, kind, r, c, n_r, n_c, inverse);
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_cast_scaled)(lt_queue *q, const void *args) {
    const lt_cast_scaled_args *a = args;
    (void)q;
    if (a->y.data != NULL) {
        cast_to(&a->y, &a->scale, a->kind, &a->x, false, a->given);
    }
    if (a->t.data != NULL) {
        cast_to(&a->t, &a->t_scale, a->t_kind, &a->x, true, a->given);
    }
    return LT_OK;
}

/* to (rows, cols) F32 or BF16, contiguous = code * scale, exactly. */
static void widen(const lt_tensor *to, const lt_tensor *x, const lt_tensor *scale,
                  lt_scale_kind kind) {
    const bool e5m2 = x->dtype == LT_F8_E5M2;
    const int64_t cols = x->shape[1];
    float value[256]; /* The value of each code. */
    for (int i = 0; i < 256; i++) {
        value[i] = lt_f8_to_f32((uint8_t)i, e5m2);
    }
#pragma omp parallel for schedule(static) if (x->shape[0] * cols > PARALLEL_MIN)
    for (int64_t r = 0; r < x->shape[0]; r++) {
        const uint8_t *from = (const uint8_t *)x->data + r * x->stride[0];
        for (int64_t c = 0; c < cols; c += SPAN) {
            const float s = *scale_at(scale, kind, r, c);
            const int64_t n = at_most(cols - c, SPAN), at = r * cols + c;
            for (int64_t i = 0; i < n; i++) {
                const float wide = value[from[c + i]] * s;
                if (to->dtype == LT_F32) {
                    ((float *)to->data)[at + i] = wide;
                } else {
                    ((uint16_t *)to->data)[at + i] = lt_f32_to_bf16(wide);
                }
            }
        }
    }
}

/* Convert both operands to y's type, and multiply those (lists.c). */
lt_err LT_ISA_NAME(lt_cpu_matmul_scaled)(lt_queue *q, const void *args) {
    const lt_matmul_scaled_args *a = args;
    const int64_t k = a->a.shape[1], m = a->a.shape[0], n = a->b.shape[0];
    const size_t bytes = lt_dtype_bytes(a->y.dtype);
    lt_matmul_args product = {
        .y = a->y, .bias = a->bias, .trans_b = true, .accumulate = a->accumulate};
    void *wide_a, *wide_b;
    LT_TRY(lt_cpu_scratch(&wide_a, LT_CPU_SLOT_WIDE_A, (size_t)(m * k) * bytes));
    LT_TRY(lt_cpu_scratch(&wide_b, LT_CPU_SLOT_WIDE_B, (size_t)(n * k) * bytes));
    product.a = lt_tensor_2d(wide_a, a->y.dtype, m, k);
    product.b = lt_tensor_2d(wide_b, a->y.dtype, n, k);
    widen(&product.a, &a->a, &a->a_scale, a->a_kind);
    widen(&product.b, &a->b, &a->b_scale, a->b_kind);
    return lt_backend_cpu()->ops->matmul(q, &product);
}

/* rows.h: loops over the rows of tensors, and divisions of work that make results independent of
 * the number of threads. */
#ifndef LT_CPU_ISA_ROWS_H
#define LT_CPU_ISA_ROWS_H

#include "base/error.h"
#include "kernels/cpu/isa/vec.h"

/* Loops over fewer elements stay on one thread, because waking the others costs a few
 * microseconds. */
#define PARALLEL_MIN 16384

/* Element offset of row `outer` of a (R, C) tensor, or of row (outer, inner) of a (R, H, C) one. */
LT_INLINE int64_t row_at(const lt_tensor *t, int64_t outer, int64_t inner) {
    return outer * t->stride[0] + (t->n_dims == 3 ? inner * t->stride[1] : 0);
}

LT_INLINE void *at_element(const lt_tensor *t, int64_t offset) {
    return t->data == NULL ? NULL : (char *)t->data + offset * (t->dtype == LT_F32 ? 4 : 2);
}

/* How many rows a (R, C) or (R, H, C) tensor has along its last dimension, and how many of them an
 * outer row has. */
LT_INLINE int64_t rows_inner(const lt_tensor *t) {
    return t->n_dims == 3 ? t->shape[1] : 1;
}

LT_INLINE int64_t rows_of(const lt_tensor *t) {
    return t->shape[0] * rows_inner(t);
}

LT_INLINE int64_t width_of(const lt_tensor *t) {
    return t->shape[t->n_dims - 1];
}

/* Reductions over rows are divided into this many chunks, which depends only on the number of rows:
 * at least 16 rows each, at most 64 chunks. */
LT_INLINE int64_t row_chunks(int64_t rows) {
    const int64_t n = (rows + 15) / 16;
    return n < 64 ? n : 64;
}

LT_INLINE int64_t chunk_start(int64_t rows, int64_t n_chunks, int64_t chunk) {
    return rows * chunk / n_chunks;
}

/* dst (n) F32 += the sum of n_chunks partial rows, in their order. */
LT_INLINE void add_partials(float *dst, const float *partial, int64_t n_chunks, int64_t n) {
    for (int64_t c = 0; c < n; c += VEC) {
        vf sum = v_get(dst, LT_F32, c, n - c);
        for (int64_t i = 0; i < n_chunks; i++) {
            sum += v_get(partial + i * n, LT_F32, c, n - c);
        }
        v_put(dst, LT_F32, c, sum, n - c);
    }
}

#define MAX_HALF 512 /* Half of the widest rotary part: lists.c refuses more. */

/* The angles of row r's position, (MAX_HALF + VEC) floats each with zeros after the end: cos, and
 * sin times sign. */
LT_INLINE void row_angles(float *cosine, float *sine, const lt_tensor *positions,
                          const lt_tensor *table, int64_t r, float sign) {
    const int64_t half = table->shape[1];
    const int32_t position = ((const int32_t *)positions->data)[r * positions->stride[0]];
    LT_ASSERT(half <= MAX_HALF && position >= 0 && position < table->shape[0]);
    const float *pair = (const float *)table->data + position * table->stride[0];
    for (int64_t i = 0; i < half; i++) {
        cosine[i] = pair[i * table->stride[1]];
        sine[i] = sign * pair[i * table->stride[1] + 1];
    }
    for (int64_t i = half; i < half + VEC; i++) {
        cosine[i] = sine[i] = 0.0f;
    }
}

/* Load with a dtype known at run time, for loops that wait for memory rather than for the
 * branch. */
LT_INLINE vf get_any(const void *p, lt_dtype dtype, int64_t i, int64_t n) {
    return dtype == LT_F32    ? v_get(p, LT_F32, i, n)
           : dtype == LT_BF16 ? v_get(p, LT_BF16, i, n)
                              : v_get(p, LT_F16, i, n);
}

LT_INLINE void put_any(void *p, lt_dtype dtype, int64_t i, vf x, int64_t n) {
    if (dtype == LT_F32) {
        v_put(p, LT_F32, i, x, n);
    } else if (dtype == LT_BF16) {
        v_put(p, LT_BF16, i, x, n);
    } else {
        v_put(p, LT_F16, i, x, n);
    }
}

/* Call f(..., LT_F32) or f(..., LT_BF16) by the run-time dtype, so that f is compiled for each. */
#define BY_DTYPE(dtype, f, ...)                                                                    \
    do {                                                                                           \
        if ((dtype) == LT_F32) {                                                                   \
            f(__VA_ARGS__, LT_F32);                                                                \
        } else {                                                                                   \
            f(__VA_ARGS__, LT_BF16);                                                               \
        }                                                                                          \
    } while (0)

#endif

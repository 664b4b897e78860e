/* pack.h: copies parts of matrices into the layouts of tile_mul, widened to F32, and transposed in
 * registers if the layout requires it. */
#ifndef LT_CPU_ISA_PACK_H
#define LT_CPU_ISA_PACK_H

#include "kernels/cpu/isa/vec.h"

/* dst[k * dst_step + i] = src(row i, k), i < width, k < depth, of a matrix whose rows run along k.
 * Rows from `rows` on repeat the last one; results computed from them are never stored. */
LT_INLINE void pack_across(float *dst, const int64_t dst_step, const int64_t width, const void *src,
                           lt_dtype dtype, int64_t stride, int64_t rows, int64_t depth) {
    for (int64_t i0 = 0; i0 < width; i0 += VEC) {
        const int64_t lanes = width - i0 < VEC ? width - i0 : VEC;
        int64_t start[VEC];
        for (int i = 0; i < VEC; i++) {
            start[i] = (i0 + i < rows ? i0 + i : rows - 1) * stride;
        }
        int64_t k = 0;
        for (; k + VEC <= depth; k += VEC) {
            vf x[VEC];
#pragma GCC unroll 16
            for (int i = 0; i < VEC; i++) {
                x[i] = v_load_as(src, dtype, start[i] + k);
            }
            v_transpose(x);
#pragma GCC unroll 16
            for (int i = 0; i < VEC; i++) {
                float *to = dst + (k + i) * dst_step + i0;
                if (lanes == VEC) {
                    v_store(to, x[i]);
                } else {
                    v_store_n(to, x[i], lanes);
                }
            }
        }
        for (; k < depth; k++) {
            for (int64_t i = 0; i < lanes; i++) {
                dst[k * dst_step + i0 + i] = f_load_as(src, dtype, start[i] + k);
            }
        }
    }
}

/* The same of a matrix whose rows run along i: dst[k * dst_step + i] = src(k, i). */
LT_INLINE void pack_along(float *dst, const int64_t dst_step, const int64_t width, const void *src,
                          lt_dtype dtype, int64_t stride, int64_t rows, int64_t depth) {
    for (int64_t k = 0; k < depth; k++) {
        for (int64_t i = 0; i < width; i += VEC) {
            const int64_t have = rows - i;
            const int64_t lanes = width - i < VEC ? width - i : VEC;
            const vf x = have >= VEC ? v_load_as(src, dtype, k * stride + i)
                         : have > 0  ? v_load_as_n(src, dtype, k * stride + i, have)
                                     : (vf){0};
            if (lanes == VEC) {
                v_store(dst + k * dst_step + i, x);
            } else {
                v_store_n(dst + k * dst_step + i, x, lanes);
            }
        }
    }
}

/* Rows to prefetch: each is in another page, which no hardware prefetcher reaches. */
#define PACK_AHEAD 12

/* Panels that are adjacent in a matrix whose rows run along i, packed a row of all of them at a
 * time: dst[(p * depth + k) * width + i] = src(at + k, first + from[p] + i), in whole vectors. */
LT_INLINE void pack_side_by_side(float *dst, const int64_t width, const int64_t *from, int64_t n,
                                 const void *src, const lt_dtype dtype, int64_t stride,
                                 int64_t depth) {
    const int64_t elem = dtype == LT_F32 ? 4 : 2;
    const char *row = src;
    for (int64_t k = 0; k < depth; k++) {
        for (int64_t p = 0; p < n; p++) {
            const char *ahead = row + (PACK_AHEAD * stride + from[p]) * elem;
            float *to = dst + p * depth * width;
#pragma GCC unroll 4
            for (int64_t i = 0; i < width; i += VEC) {
                __builtin_prefetch(ahead + i * elem, 0, 3);
                v_store(to + i, v_load_as(row, dtype, from[p] + i));
            }
        }
        row += stride * elem;
        dst += width;
    }
}

/* The same of a tensor of any dtype. */
LT_INLINE void pack_panels_along(float *dst, const int64_t width, const int64_t *from, int64_t n,
                                 const lt_tensor *t, int64_t first, int64_t at, int64_t depth) {
    const void *src = (const char *)t->data +
                      (at * t->stride[0] + first) * (int64_t)(t->dtype == LT_F32 ? 4 : 2);
    if (n == 0) {
        return;
    }
    switch (t->dtype) {
    case LT_F32:
        pack_side_by_side(dst, width, from, n, src, LT_F32, t->stride[0], depth);
        break;
    case LT_BF16:
        pack_side_by_side(dst, width, from, n, src, LT_BF16, t->stride[0], depth);
        break;
    default:
        pack_side_by_side(dst, width, from, n, src, LT_F16, t->stride[0], depth);
        break;
    }
}

/* dst[i] = src[from + i], i < count, as floats. */
LT_INLINE void widen_row(float *dst, const void *src, const lt_dtype dtype, int64_t from,
                         int64_t count) {
    int64_t i = 0;
    for (; i + VEC <= count; i += VEC) {
        v_store(dst + i, v_load_as(src, dtype, from + i));
    }
    if (i < count) {
        v_store_n(dst + i, v_load_as_n(src, dtype, from + i, count - i), count - i);
    }
}

/* Pack `rows` rows (or columns) starting at `first`, and depth k starting at `at`, of an operand.
 * k_last: k is its contiguous dimension. */
LT_INLINE void pack_panel(float *dst, const int64_t width, const lt_tensor *t, bool k_last,
                          int64_t first, int64_t rows, int64_t at, int64_t depth) {
    const int64_t offset = k_last ? first * t->stride[0] + at : at * t->stride[0] + first;
    const void *src = (const char *)t->data + offset * (int64_t)(t->dtype == LT_F32 ? 4 : 2);
    switch (t->dtype * 2 + (k_last ? 1 : 0)) {
    case LT_F32 * 2:
        pack_along(dst, width, width, src, LT_F32, t->stride[0], rows, depth);
        break;
    case LT_F32 * 2 + 1:
        pack_across(dst, width, width, src, LT_F32, t->stride[0], rows, depth);
        break;
    case LT_BF16 * 2:
        pack_along(dst, width, width, src, LT_BF16, t->stride[0], rows, depth);
        break;
    case LT_BF16 * 2 + 1:
        pack_across(dst, width, width, src, LT_BF16, t->stride[0], rows, depth);
        break;
    case LT_F16 * 2:
        pack_along(dst, width, width, src, LT_F16, t->stride[0], rows, depth);
        break;
    default:
        pack_across(dst, width, width, src, LT_F16, t->stride[0], rows, depth);
        break;
    }
}

#endif

/* element.h: how the reference reads and writes tensors: one element at a time, as a double, for
 * any type and strides.
 *
 * Every function of ref/ uses only these helpers, so the same code serves F32, BF16, F16 and F64
 * tensors. With all tensors in F64 it is the oracle of optest, with no rounding but that of double.
 * Speed is not the aim; loops over independent results run in parallel, each result is summed in
 * one fixed order. */
#ifndef LT_KERNELS_REF_ELEMENT_H
#define LT_KERNELS_REF_ELEMENT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "tensor/ops.h"

static inline bool present(const lt_tensor *t) {
    return t->data != NULL;
}

/* The element at an offset in elements. */
static inline double get(const lt_tensor *t, int64_t at) {
    switch (t->dtype) {
    case LT_F32:
        return (double)((const float *)t->data)[at];
    case LT_F64:
        return ((const double *)t->data)[at];
    case LT_BF16:
        return (double)lt_bf16_to_f32(((const uint16_t *)t->data)[at]);
    case LT_F16:
        return (double)lt_f16_to_f32(((const uint16_t *)t->data)[at]);
    case LT_F8_E4M3:
    case LT_F8_E5M2:
        return (double)lt_f8_to_f32(((const uint8_t *)t->data)[at], t->dtype == LT_F8_E5M2);
    default:
        LT_ASSERT(!"a floating type");
        return 0.0;
    }
}

/* Write an element; it is rounded once. */
static inline void set(const lt_tensor *t, int64_t at, double x) {
    switch (t->dtype) {
    case LT_F32:
        ((float *)t->data)[at] = (float)x;
        return;
    case LT_F64:
        ((double *)t->data)[at] = x;
        return;
    case LT_BF16:
        ((uint16_t *)t->data)[at] = lt_f32_to_bf16((float)x);
        return;
    case LT_F16:
        ((uint16_t *)t->data)[at] = lt_f32_to_f16((float)x);
        return;
    case LT_F8_E4M3:
    case LT_F8_E5M2:
        ((uint8_t *)t->data)[at] = lt_f32_to_f8((float)x, t->dtype == LT_F8_E5M2);
        return;
    default:
        LT_ASSERT(!"a floating type");
    }
}

static inline int32_t get_i32(const lt_tensor *t, int64_t at) {
    LT_ASSERT(t->dtype == LT_I32);
    return ((const int32_t *)t->data)[at];
}

static inline void set_i32(const lt_tensor *t, int64_t at, int64_t x) {
    LT_ASSERT(t->dtype == LT_I32 && x >= INT32_MIN && x <= INT32_MAX);
    ((int32_t *)t->data)[at] = (int32_t)x;
}

/* Offsets of (i), (i, j), ... */
static inline int64_t at1(const lt_tensor *t, int64_t i) {
    return i * t->stride[0];
}

static inline int64_t at2(const lt_tensor *t, int64_t i, int64_t j) {
    return i * t->stride[0] + j * t->stride[1];
}

static inline int64_t at3(const lt_tensor *t, int64_t i, int64_t j, int64_t k) {
    return at2(t, i, j) + k * t->stride[2];
}

static inline int64_t at4(const lt_tensor *t, int64_t i, int64_t j, int64_t k, int64_t l) {
    return at3(t, i, j, k) + l * t->stride[3];
}

/* A tensor of any rank as rows of its last dimension: how many, where row `row` starts, and how
 * long it is. */
static inline int64_t n_rows(const lt_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->n_dims - 1; i++) {
        n *= t->shape[i];
    }
    return n;
}

static inline int64_t row_start(const lt_tensor *t, int64_t row) {
    int64_t at = 0;
    for (int i = t->n_dims - 2; i >= 0; i--) {
        at += row % t->shape[i] * t->stride[i];
        row /= t->shape[i];
    }
    return at;
}

static inline int64_t row_width(const lt_tensor *t) {
    return t->shape[t->n_dims - 1];
}

static inline int64_t min_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif

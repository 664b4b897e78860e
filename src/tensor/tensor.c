/* tensor.c: element types, views and conversions (see lateen/tensor.h). */
#include "lateen/tensor.h"

#include <string.h>

#include "base/error.h"

static const struct {
    int64_t elems;
    size_t bytes;
    const char *name;
} dtypes[LT_DTYPE_COUNT] = {
#define LT_DTYPE_ROW(name, elems, bytes, text) [LT_##name] = {elems, bytes, text},
    LT_DTYPE_MAP(LT_DTYPE_ROW)
#undef LT_DTYPE_ROW
};

size_t lt_dtype_bytes(lt_dtype dtype) {
    LT_ASSERT(dtype < LT_DTYPE_PLAIN_COUNT);
    return dtypes[dtype].bytes;
}

int64_t lt_dtype_block(lt_dtype dtype, size_t *bytes) {
    LT_ASSERT(dtype < LT_DTYPE_COUNT);
    *bytes = dtypes[dtype].bytes;
    return dtypes[dtype].elems;
}

bool lt_dtype_is_block(lt_dtype dtype) {
    LT_ASSERT(dtype < LT_DTYPE_COUNT);
    return dtype >= LT_DTYPE_PLAIN_COUNT;
}

size_t lt_dtype_row_bytes(lt_dtype dtype, int64_t count) {
    LT_ASSERT(dtype < LT_DTYPE_COUNT && count % dtypes[dtype].elems == 0);
    return (size_t)(count / dtypes[dtype].elems) * dtypes[dtype].bytes;
}

const char *lt_dtype_name(lt_dtype dtype) {
    LT_ASSERT(dtype < LT_DTYPE_COUNT);
    return dtypes[dtype].name;
}

bool lt_dtype_from_name(lt_dtype *out, const char *name) {
    for (int i = 0; i < LT_DTYPE_PLAIN_COUNT; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (lt_dtype)i;
            return true;
        }
    }
    return false;
}

static lt_tensor contiguous(void *data, lt_dtype dtype, int n_dims, const int64_t *shape) {
    lt_tensor t = {.data = data, .n_dims = n_dims, .dtype = dtype};
    int64_t stride = 1;
    for (int i = n_dims - 1; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        stride *= shape[i];
    }
    return t;
}

lt_tensor lt_tensor_1d(void *data, lt_dtype dtype, int64_t d0) {
    return contiguous(data, dtype, 1, (const int64_t[]){d0});
}

lt_tensor lt_tensor_2d(void *data, lt_dtype dtype, int64_t d0, int64_t d1) {
    return contiguous(data, dtype, 2, (const int64_t[]){d0, d1});
}

lt_tensor lt_tensor_3d(void *data, lt_dtype dtype, int64_t d0, int64_t d1, int64_t d2) {
    return contiguous(data, dtype, 3, (const int64_t[]){d0, d1, d2});
}

lt_tensor lt_tensor_4d(void *data, lt_dtype dtype, int64_t d0, int64_t d1, int64_t d2, int64_t d3) {
    return contiguous(data, dtype, 4, (const int64_t[]){d0, d1, d2, d3});
}

int64_t lt_tensor_count(const lt_tensor *t) {
    int64_t count = t->data != NULL ? 1 : 0;
    for (int i = 0; i < t->n_dims; i++) {
        count *= t->shape[i];
    }
    return count;
}

bool lt_tensor_contiguous(const lt_tensor *t) {
    int64_t stride = 1;
    for (int i = t->n_dims - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != stride) {
            return false;
        }
        stride *= t->shape[i];
    }
    return true;
}

static void *moved(const lt_tensor *t, int64_t elements) {
    return t->data == NULL ? NULL : (char *)t->data + lt_dtype_row_bytes(t->dtype, elements);
}

lt_tensor lt_tensor_cols(const lt_tensor *t, int64_t from, int64_t count) {
    lt_tensor out = *t;
    const int last = t->n_dims - 1;
    LT_ASSERT(from >= 0 && count >= 0 && from + count <= t->shape[last]);
    out.data = moved(t, from * t->stride[last]);
    out.shape[last] = count;
    return out;
}

lt_tensor lt_tensor_rows(const lt_tensor *t, int64_t from, int64_t count) {
    lt_tensor out = *t;
    LT_ASSERT(from >= 0 && count >= 0 && from + count <= t->shape[0]);
    out.data = moved(t, from * t->stride[0]);
    out.shape[0] = count;
    return out;
}

lt_tensor lt_tensor_split_last(const lt_tensor *t, int64_t d0, int64_t d1) {
    lt_tensor out = *t;
    const int last = t->n_dims - 1;
    LT_ASSERT(t->n_dims < LT_MAX_DIMS && t->shape[last] == d0 * d1);
    out.n_dims = t->n_dims + 1;
    out.shape[last] = d0;
    out.shape[last + 1] = d1;
    out.stride[last + 1] = t->stride[last];
    out.stride[last] = t->stride[last] * d1;
    return out;
}

float lt_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t rest = (uint32_t)(h & 0x7FFFu) << 13;
    union {
        uint32_t u;
        float f;
    } w = {.u = rest};
    if (rest >= 0x0F800000u) { /* Inf and NaN have all exponent bits set. */
        w.u = rest | 0x70000000u;
    } else {
        w.f *= 0x1p112f; /* Rebias the exponent; subnormals become normal by the multiplication. */
    }
    w.u |= sign;
    return w.f;
}

uint16_t lt_f32_to_f16(float x) {
    union {
        float f;
        uint32_t u;
    } w = {.f = x};
    const uint16_t sign = (uint16_t)((w.u >> 16) & 0x8000u);
    uint32_t mag = w.u & 0x7FFFFFFFu;
    if (mag > 0x7F800000u) {
        return (uint16_t)(sign | 0x7E00u | ((mag >> 13) & 0x1FFu)); /* Quiet NaN. */
    }
    if (mag >= 0x477FF000u) {
        return (uint16_t)(sign | 0x7C00u); /* Rounds to 65536 or above: infinity. */
    }
    if (mag < 0x38800000u) { /* Below 2^-14: subnormal; adding 2^-1 lets the FPU round at 2^-24. */
        w.u = mag;
        w.f += 0.5f;
        return (uint16_t)(sign | (w.u - 0x3F000000u));
    }
    mag += 0xFFFu + ((mag >> 13) & 1u);
    return (uint16_t)(sign | ((mag - 0x38000000u) >> 13));
}

static double load(const void *src, lt_dtype dtype, size_t i) {
    switch (dtype) {
    case LT_F32:
        return (double)((const float *)src)[i];
    case LT_BF16:
        return (double)lt_bf16_to_f32(((const uint16_t *)src)[i]);
    case LT_F16:
        return (double)lt_f16_to_f32(((const uint16_t *)src)[i]);
    case LT_F64:
        return ((const double *)src)[i];
    case LT_F8_E4M3:
    case LT_F8_E5M2:
        return (double)lt_f8_to_f32(((const uint8_t *)src)[i], dtype == LT_F8_E5M2);
    default:
        LT_ASSERT(!"a floating type");
        return 0.0;
    }
}

static void store(void *dst, lt_dtype dtype, size_t i, double x) {
    switch (dtype) {
    case LT_F32:
        ((float *)dst)[i] = (float)x;
        return;
    case LT_BF16:
        ((uint16_t *)dst)[i] = lt_f32_to_bf16((float)x);
        return;
    case LT_F16:
        ((uint16_t *)dst)[i] = lt_f32_to_f16((float)x);
        return;
    case LT_F64:
        ((double *)dst)[i] = x;
        return;
    case LT_F8_E4M3:
    case LT_F8_E5M2:
        ((uint8_t *)dst)[i] = lt_f32_to_f8((float)x, dtype == LT_F8_E5M2);
        return;
    default:
        LT_ASSERT(!"a floating type");
    }
}

void lt_convert(void *dst, lt_dtype dst_dtype, const void *src, lt_dtype src_dtype, size_t count) {
    if (dst_dtype == src_dtype) {
        memcpy(dst, src, count * lt_dtype_bytes(dst_dtype));
    } else if (dst_dtype == LT_F32 && src_dtype == LT_BF16) {
        /* The most frequent pairs, in loops that can be vectorised. */
        for (size_t i = 0; i < count; i++) {
            ((float *)dst)[i] = lt_bf16_to_f32(((const uint16_t *)src)[i]);
        }
    } else if (dst_dtype == LT_BF16 && src_dtype == LT_F32) {
        for (size_t i = 0; i < count; i++) {
            ((uint16_t *)dst)[i] = lt_f32_to_bf16(((const float *)src)[i]);
        }
    } else if (dst_dtype == LT_F64 && src_dtype == LT_F32) {
        for (size_t i = 0; i < count; i++) {
            ((double *)dst)[i] = (double)((const float *)src)[i];
        }
    } else if (dst_dtype == LT_F32 && src_dtype == LT_F64) {
        for (size_t i = 0; i < count; i++) {
            ((float *)dst)[i] = (float)((const double *)src)[i];
        }
    } else {
        for (size_t i = 0; i < count; i++) {
            store(dst, dst_dtype, i, load(src, src_dtype, i));
        }
    }
}

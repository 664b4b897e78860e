/* tensor.h: element types and tensor views. A view never owns its memory. */
#ifndef LATEEN_TENSOR_H
#define LATEEN_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

/* Columns: name, elements of a block, bytes of a block, name in safetensors. Plain types have
 * blocks of one element. The others are ggml's formats (layouts in tensor/block.h): a row is a
 * sequence of whole blocks, and only ops that say so accept them. */
#define LT_DTYPE_PLAIN_MAP(X)                                                                      \
    X(F32, 1, 4, "F32")                                                                            \
    X(BF16, 1, 2, "BF16")                                                                          \
    X(F16, 1, 2, "F16")                                                                            \
    X(F64, 1, 8, "F64")                                                                            \
    X(I32, 1, 4, "I32")                                                                            \
    X(I64, 1, 8, "I64")                                                                            \
    X(I16, 1, 2, "I16")                                                                            \
    X(U16, 1, 2, "U16")                                                                            \
    X(I8, 1, 1, "I8")                                                                              \
    X(U8, 1, 1, "U8")                                                                              \
    X(BOOL, 1, 1, "BOOL")                                                                          \
    X(F8_E4M3, 1, 1, "F8_E4M3")                                                                    \
    X(F8_E5M2, 1, 1, "F8_E5M2")
#define LT_DTYPE_BLOCK_MAP(X)                                                                      \
    X(Q4_0, 32, 18, "Q4_0")                                                                        \
    X(Q4_1, 32, 20, "Q4_1")                                                                        \
    X(Q5_0, 32, 22, "Q5_0")                                                                        \
    X(Q5_1, 32, 24, "Q5_1")                                                                        \
    X(Q8_0, 32, 34, "Q8_0")                                                                        \
    X(Q2_K, 256, 84, "Q2_K")                                                                       \
    X(Q3_K, 256, 110, "Q3_K")                                                                      \
    X(Q4_K, 256, 144, "Q4_K")                                                                      \
    X(Q5_K, 256, 176, "Q5_K")                                                                      \
    X(Q6_K, 256, 210, "Q6_K")                                                                      \
    X(MXFP4, 32, 17, "MXFP4")                                                                      \
    X(NF4, 64, 36, "NF4")                                                                          \
    X(NF4_DOUBLE, 64, 33, "NF4_DOUBLE")
#define LT_DTYPE_MAP(X) LT_DTYPE_PLAIN_MAP(X) LT_DTYPE_BLOCK_MAP(X)

typedef enum {
#define LT_DTYPE_ENUM(name, elems, bytes, text) LT_##name,
    LT_DTYPE_MAP(LT_DTYPE_ENUM)
#undef LT_DTYPE_ENUM
        LT_DTYPE_COUNT,
    LT_DTYPE_PLAIN_COUNT = LT_Q4_0
} lt_dtype;

size_t lt_dtype_bytes(lt_dtype dtype); /* Bytes of one element of a plain type. */
/* Elements and bytes of a block: 1 and lt_dtype_bytes for plain types. */
int64_t lt_dtype_block(lt_dtype dtype, size_t *bytes);
bool lt_dtype_is_block(lt_dtype dtype);
/* Bytes of count elements; count is a multiple of the block. */
size_t lt_dtype_row_bytes(lt_dtype dtype, int64_t count);
const char *lt_dtype_name(lt_dtype dtype); /* "F32", as safetensors writes it; "Q4_K". */
/* False when the name is unknown; plain types only. */
bool lt_dtype_from_name(lt_dtype *out, const char *name);

#define LT_MAX_DIMS 4

/* Element (i, j, ...) is at data + (i * stride[0] + j * stride[1] + ...) * element size: strides
 * are in elements. A tensor with data NULL is absent (an optional argument). */
typedef struct {
    void *data;
    int64_t shape[LT_MAX_DIMS];
    int64_t stride[LT_MAX_DIMS];
    int n_dims;
    lt_dtype dtype;
} lt_tensor;

/* Contiguous views, last dimension fastest. */
lt_tensor lt_tensor_1d(void *data, lt_dtype dtype, int64_t d0);
lt_tensor lt_tensor_2d(void *data, lt_dtype dtype, int64_t d0, int64_t d1);
lt_tensor lt_tensor_3d(void *data, lt_dtype dtype, int64_t d0, int64_t d1, int64_t d2);
lt_tensor lt_tensor_4d(void *data, lt_dtype dtype, int64_t d0, int64_t d1, int64_t d2, int64_t d3);

int64_t lt_tensor_count(const lt_tensor *t); /* Number of elements; 0 if absent. */
bool lt_tensor_contiguous(const lt_tensor *t);

/* Columns [from, from + count) of the last dimension; all rows. */
lt_tensor lt_tensor_cols(const lt_tensor *t, int64_t from, int64_t count);
/* Indexes [from, from + count) of the first dimension. */
lt_tensor lt_tensor_rows(const lt_tensor *t, int64_t from, int64_t count);
/* The last dimension (which is d0 * d1) split in two: (..., d0 * d1) -> (..., d0, d1). */
lt_tensor lt_tensor_split_last(const lt_tensor *t, int64_t d0, int64_t d1);

/* bf16 and fp16 <-> fp32: round to nearest, ties to even; NaN stays NaN. */
static inline float lt_bf16_to_f32(uint16_t h) {
    union {
        uint32_t u;
        float f;
    } w = {.u = (uint32_t)h << 16};
    return w.f;
}

/* Stochastic rounding with the random number `bits`, 0 <= bits < 65536: up or down to one of the
 * two neighbours, with probabilities such that the result is x on average. A value that is exact in
 * bf16 stays. */
static inline uint16_t lt_f32_to_bf16_drawn(float x, uint32_t bits) {
    union {
        float f;
        uint32_t u;
    } w = {.f = x};
    return (w.u & 0x7FFFFFFFu) > 0x7F800000u ? (uint16_t)((w.u >> 16) | 0x40u)
                                             : (uint16_t)((w.u + (bits & 0xFFFFu)) >> 16);
}

static inline uint16_t lt_f32_to_bf16(float x) {
    union {
        float f;
        uint32_t u;
    } w = {.f = x};
    const uint32_t rounded = w.u + 0x7FFFu + ((w.u >> 16) & 1u);
    return (w.u & 0x7FFFFFFFu) > 0x7F800000u ? (uint16_t)((w.u >> 16) | 0x40u)
                                             : (uint16_t)(rounded >> 16);
}

float lt_f16_to_f32(uint16_t h);
uint16_t lt_f32_to_f16(float x);

/* 8-bit floats (Micikevicius et al. 2022, arXiv:2209.05433): F8_E4M3 has 3 bits of mantissa, 448 as
 * its largest value, no infinities and one NaN; F8_E5M2 has 2 bits and 57344. Round to nearest,
 * ties to even; larger values and infinities become the largest (as cvt.rn.satfinite); NaN stays
 * NaN. There are no branches, so loops over these vectorise. */
#define LT_E4M3_MAX 448.0f
#define LT_E5M2_MAX 57344.0f
static inline uint8_t lt_f32_to_f8(float x, bool e5m2) {
    const uint32_t mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    const uint32_t normal = (128 - bias) << 23; /* The least normal value, 2^(1 - bias). */
    union {
        float f;
        uint32_t u;
    } w = {.f = x}, at, ulp, tiny;
    const uint32_t sign = w.u >> 24 & 0x80u;
    w.u &= 0x7FFFFFFFu;
    const bool nan = w.u > 0x7F800000u;
    at.f = w.f < (e5m2 ? LT_E5M2_MAX : LT_E4M3_MAX) ? w.f : (e5m2 ? LT_E5M2_MAX : LT_E4M3_MAX);
    /* Adding 2^(23 - mantissa) times the power of two below x lets the FPU round at the last bit
     * kept. */
    ulp.u = at.u & 0x7F800000u;
    ulp.u = (ulp.u > normal ? ulp.u : normal) + ((23 - mantissa) << 23);
    at.f = (at.f + ulp.f) - ulp.f;
    tiny.u = normal + ((23 - mantissa) << 23);
    tiny.f += at.f; /* The last bits are then the code of a subnormal number. */
    const uint32_t code = at.u < normal ? tiny.u & 7u
                                        : (at.u >> (23 - mantissa)) - ((127 - bias) << mantissa);
    return (uint8_t)(sign | (nan ? 0x7Fu : code));
}
static inline float lt_f8_to_f32(uint8_t h, bool e5m2) {
    const uint32_t mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    union {
        uint32_t u;
        float f;
    } w = {.u = (uint32_t)(h & 0x7Fu) << (23 - mantissa)}, scale = {.u = (254 - bias) << 23};
    w.f *= scale.f; /* Rebias the exponent; subnormals become normal by the multiplication. */
    if (e5m2 ? (h & 0x7Fu) >= 0x7Cu : (h & 0x7Fu) == 0x7Fu) {
        w.u = e5m2 && (h & 0x7Fu) == 0x7Cu ? 0x7F800000u : 0x7FC00000u;
    }
    w.u |= (uint32_t)(h & 0x80u) << 24;
    return w.f;
}

/* The scale of a block whose largest magnitude is amax: the least power of two with amax / scale <=
 * the type's largest, at least 2^-126. NaN for infinity or NaN. *inverse is 1 / scale. */
static inline float lt_scale_of(float amax, bool e5m2, float *inverse) {
    union {
        float f;
        uint32_t u;
    } w = {.f = amax}, scale, inv;
    const int32_t low = e5m2 ? 15 : 8; /* Both types end at 1.75 times a power of two. */
    const int32_t e = (int32_t)(w.u >> 23 & 255u) - low + ((w.u & 0x7FFFFFu) > 0x600000u);
    const uint32_t bits = (uint32_t)(e < 1 ? 1 : e);
    scale.u = (w.u & 0x7F800000u) == 0x7F800000u ? 0x7FC00000u : bits << 23;
    inv.u = (w.u & 0x7F800000u) == 0x7F800000u ? 0x7FC00000u : (254 - bits) << 23;
    *inverse = inv.f;
    return scale.f;
}

/* Convert count contiguous elements between any two of F32, BF16, F16, F64, F8_E4M3, F8_E5M2. dst
 * and src must not overlap. */
void lt_convert(void *dst, lt_dtype dst_dtype, const void *src, lt_dtype src_dtype, size_t count);

#endif

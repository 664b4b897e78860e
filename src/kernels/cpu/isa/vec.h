/* vec.h: the vector of the instruction set this file is compiled for, and the functions on it that
 * every CPU kernel shares.
 *
 * isa/ *.c is compiled once for each instruction set (see the Makefile): LT_ISA_avx512 gives
 * vectors of 16 floats, LT_ISA_avx2 of 8, portable of 4. The source is plain C on GCC's vector
 * extensions, with an intrinsic only where the extensions lack an operation. Everything is static
 * inline, so that no symbol of a wider instruction set can be linked in place of a narrower one.
 *
 * ACCURACY (tests/unit/kernels/test_vec.c measures it against double): exp 2 ulp; tanh 4 ulp;
 * sigmoid 4 ulp; normal CDF 2e-7 absolute. NaN in, NaN out. */
#ifndef LT_CPU_ISA_VEC_H
#define LT_CPU_ISA_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "lateen/tensor.h"

#ifndef LT_ISA
#define LT_ISA portable
#endif
#define LT_ISA_JOIN2(name, isa) name##_##isa
#define LT_ISA_JOIN(name, isa)  LT_ISA_JOIN2(name, isa)
/* The name of this file's public function in this instruction set: LT_ISA_NAME(lt_cpu_xent) is
 * lt_cpu_xent_avx512. */
#define LT_ISA_NAME(name) LT_ISA_JOIN(name, LT_ISA)

#if defined(__F16C__)
#include <immintrin.h>
#endif

#if defined(LT_ISA_avx512)
#define VEC 16
#elif defined(LT_ISA_avx2)
#define VEC 8
#else
#define VEC 4
#endif

#define LT_INLINE static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(VEC * 4)));
typedef int32_t vi __attribute__((vector_size(VEC * 4)));
typedef uint32_t vu __attribute__((vector_size(VEC * 4)));
typedef uint16_t vh __attribute__((vector_size(VEC * 2)));
typedef double vd __attribute__((vector_size(VEC * 4)));
/* Unaligned vector types, for memory only. */
typedef float vf_mem __attribute__((vector_size(VEC * 4), aligned(4), may_alias));
typedef float vf_half_mem __attribute__((vector_size(VEC * 2), aligned(4), may_alias));
typedef int32_t vi_mem __attribute__((vector_size(VEC * 4), aligned(4), may_alias));
typedef uint16_t vh_mem __attribute__((vector_size(VEC * 2), aligned(2), may_alias));

LT_INLINE vf v_set(float x) {
    return x - (vf){0};
}

LT_INLINE vi vi_set(int32_t x) {
    return x - (vi){0};
}

/* mask ? a : b in each lane; mask lanes are all ones or all zeros, as comparisons give them. */
LT_INLINE vf v_pick(vi mask, vf a, vf b) {
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* a < b ? yes : no in each lane (no if either is NaN). */
LT_INLINE vf v_pick_lt(vf a, vf b, vf yes, vf no) {
#if defined(LT_ISA_avx512)
    const __mmask16 m = _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ);
    return (vf)_mm512_mask_blend_ps(m, (__m512)no, (__m512)yes);
#else
    return v_pick(a < b, yes, no);
#endif
}

/* x is NaN ? x : y in each lane. */
LT_INLINE vf v_keep_nan(vf x, vf y) {
#if defined(LT_ISA_avx512)
    const __mmask16 m = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return (vf)_mm512_mask_blend_ps(m, (__m512)y, (__m512)x);
#else
    return v_pick(x != x, x, y);
#endif
}

LT_INLINE vf v_max(vf a, vf b) { /* b if either is NaN. */
#if defined(LT_ISA_avx512)
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(LT_ISA_avx2)
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return v_pick(a > b, a, b);
#endif
}

LT_INLINE vf v_min(vf a, vf b) { /* b where either is NaN. */
#if defined(LT_ISA_avx512)
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(LT_ISA_avx2)
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return v_pick(a < b, a, b);
#endif
}

LT_INLINE vf v_abs(vf x) {
    return (vf)((vu)x & 0x7FFFFFFFu);
}

/* a * b + c, rounded once if the instruction set can. */
LT_INLINE vf v_fma(vf a, vf b, vf c) {
#if defined(LT_ISA_avx512)
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(LT_ISA_avx2)
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

LT_INLINE vf v_sqrt(vf x) {
#if defined(LT_ISA_avx512)
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif defined(LT_ISA_avx2)
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    vf y;
    for (int i = 0; i < VEC; i++) {
        y[i] = __builtin_sqrtf(x[i]);
    }
    return y;
#endif
}

/* {0, 1, 2, ...} */
LT_INLINE vi vi_iota(void) {
    vi y;
    for (int i = 0; i < VEC; i++) {
        y[i] = i;
    }
    return y;
}

/* ---- memory: F32, BF16, F16; whole vectors, and the first n < VEC lanes (others read as 0, not
 * written) ---- */

LT_INLINE vf v_load(const float *p) {
    return *(const vf_mem *)p;
}

LT_INLINE void v_store(float *p, vf x) {
    *(vf_mem *)p = x;
}

LT_INLINE vf v_from_bf16(vh h) {
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

LT_INLINE vh v_to_bf16(vf x) { /* As lt_f32_to_bf16. */
    const vu u = (vu)x;
    const vu rounded = (u + 0x7FFFu + ((u >> 16) & 1u)) >> 16;
    const vu nan = (u >> 16) | 0x40u;
#if defined(LT_ISA_avx512)
    const __mmask16 m = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    return (vh)_mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(m, (__m512i)rounded, (__m512i)nan));
#else
    return __builtin_convertvector((vu)v_pick(x != x, (vf)nan, (vf)rounded), vh);
#endif
}

LT_INLINE vf v_from_f16(vh h) {
#if defined(LT_ISA_avx512)
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined(LT_ISA_avx2)
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vf y;
    for (int i = 0; i < VEC; i++) {
        y[i] = lt_f16_to_f32(h[i]);
    }
    return y;
#endif
}

LT_INLINE vh v_to_f16(vf x) {
#if defined(LT_ISA_avx512)
    return (vh)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(LT_ISA_avx2)
    return (vh)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vh y;
    for (int i = 0; i < VEC; i++) {
        y[i] = lt_f32_to_f16(x[i]);
    }
    return y;
#endif
}

LT_INLINE vf v_load_n(const float *p, int64_t n) {
#if defined(LT_ISA_avx512)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1u), p);
#else
    vf x = {0};
    memcpy(&x, p, (size_t)n * sizeof *p);
    return x;
#endif
}

LT_INLINE void v_store_n(float *p, vf x, int64_t n) {
#if defined(LT_ISA_avx512)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1u), (__m512)x);
#else
    memcpy(p, &x, (size_t)n * sizeof *p);
#endif
}

/* Elements i .. i + VEC - 1 of an array of dtype, as floats. The dtype is a constant after
 * inlining. */
LT_INLINE vf v_load_as(const void *p, lt_dtype dtype, int64_t i) {
    if (dtype == LT_F32) {
        return v_load((const float *)p + i);
    }
    const vh h = *(const vh_mem *)((const uint16_t *)p + i);
    return dtype == LT_BF16 ? v_from_bf16(h) : v_from_f16(h);
}

LT_INLINE vf v_load_as_n(const void *p, lt_dtype dtype, int64_t i, int64_t n) {
    if (dtype == LT_F32) {
        return v_load_n((const float *)p + i, n);
    }
    vh h = {0};
    memcpy(&h, (const uint16_t *)p + i, (size_t)n * sizeof(uint16_t));
    return dtype == LT_BF16 ? v_from_bf16(h) : v_from_f16(h);
}

LT_INLINE void v_store_as(void *p, lt_dtype dtype, int64_t i, vf x) {
    if (dtype == LT_F32) {
        v_store((float *)p + i, x);
    } else {
        *(vh_mem *)((uint16_t *)p + i) = dtype == LT_BF16 ? v_to_bf16(x) : v_to_f16(x);
    }
}

LT_INLINE void v_store_as_n(void *p, lt_dtype dtype, int64_t i, vf x, int64_t n) {
    if (dtype == LT_F32) {
        v_store_n((float *)p + i, x, n);
    } else {
        const vh h = dtype == LT_BF16 ? v_to_bf16(x) : v_to_f16(x);
        memcpy((uint16_t *)p + i, &h, (size_t)n * sizeof(uint16_t));
    }
}

/* The same if n, the number of elements from i on, may be less than VEC. */
LT_INLINE vf v_get(const void *p, lt_dtype dtype, int64_t i, int64_t n) {
    return n >= VEC ? v_load_as(p, dtype, i) : v_load_as_n(p, dtype, i, n);
}

LT_INLINE void v_put(void *p, lt_dtype dtype, int64_t i, vf x, int64_t n) {
    if (n >= VEC) {
        v_store_as(p, dtype, i, x);
    } else {
        v_store_as_n(p, dtype, i, x, n);
    }
}

/* x with lanes n and above replaced by `other`. */
LT_INLINE vf v_first(vf x, int64_t n, float other) {
    return n >= VEC ? x : v_pick(vi_iota() < vi_set((int32_t)n), x, v_set(other));
}

LT_INLINE float f_load_as(const void *p, lt_dtype dtype, int64_t i) {
    if (dtype == LT_F32) {
        return ((const float *)p)[i];
    }
    const uint16_t h = ((const uint16_t *)p)[i];
    return dtype == LT_BF16 ? lt_bf16_to_f32(h) : lt_f16_to_f32(h);
}

LT_INLINE void f_store_as(void *p, lt_dtype dtype, int64_t i, float x) {
    if (dtype == LT_F32) {
        ((float *)p)[i] = x;
    } else {
        ((uint16_t *)p)[i] = dtype == LT_BF16 ? lt_f32_to_bf16(x) : lt_f32_to_f16(x);
    }
}

/* ---- reductions of one vector, in a fixed tree ---- */

LT_INLINE float v_sum(vf x) {
#if defined(LT_ISA_avx512)
    return _mm512_reduce_add_ps((__m512)x);
#elif defined(LT_ISA_avx2)
    __m128 t = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
#else
    float t[VEC];
    v_store(t, x);
    for (int half = VEC / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            t[i] += t[i + half];
        }
    }
    return t[0];
#endif
}

LT_INLINE float v_max_of(vf x) { /* NaN lanes are ignored. */
    float m = x[0];
    for (int i = 1; i < VEC; i++) {
        m = x[i] > m ? x[i] : m;
    }
    return m;
}

/* ---- transposition: in[i][j] -> out[j][i] of VEC vectors, by log2(VEC) perfect shuffles ---- */

LT_INLINE void v_transpose(vf *x) {
    vi low;
    vi high;
    for (int i = 0; i < VEC; i++) {
        low[i] = (i / 2) + (i % 2) * VEC;
        high[i] = (i / 2) + (i % 2) * VEC + VEC / 2;
    }
    vf t[VEC];
    for (int step = 1; step < VEC; step *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < VEC / 2; i++) {
            t[2 * i] = __builtin_shuffle(x[i], x[i + VEC / 2], low);
            t[2 * i + 1] = __builtin_shuffle(x[i], x[i + VEC / 2], high);
        }
#pragma GCC unroll 16
        for (int i = 0; i < VEC; i++) {
            x[i] = t[i];
        }
    }
}

/* ---- functions ---- */

/* e^x: x = n ln 2 + r, |r| <= ln 2 / 2, e^r by its Taylor polynomial of degree 7 (remainder 3e-9),
 * n added to the exponent. Below -87.3: 0. Above 88.3: 2.3e38. */
LT_INLINE vf v_exp(vf x) {
    /* Adding it rounds to an integer in the low mantissa bits. */
    const vf shift = v_set(0x1.8p23f);
    const vf low = v_set(-87.3365f);
    /* If either is NaN, the second operand is taken. */
    const vf c = v_min(v_set(88.3f), v_max(low, x));
    const vf t = c * 0x1.715476p0f + shift;
    const vf n = t - shift;
    vf r = c - n * 0x1.62e4p-1f; /* ln 2 in two parts: the first product is exact. */
    r = r - n * 0x1.7f7d1cp-20f;
    vf p = v_set(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const vf y = (vf)((vi)p + (((vi)t) << 23));
    return v_keep_nan(x, v_pick_lt(x, low, v_set(0.0f), y));
}

LT_INLINE vf v_sigmoid(vf x) {
    const vf e = v_exp(-v_abs(x)); /* In (0, 1], so nothing overflows. */
    const vf s = 1.0f / (1.0f + e);
    return v_keep_nan(x, v_pick_lt(x, v_set(0.0f), e * s, s));
}

/* tanh: an odd polynomial below 0.6, (1 - e^-2|x|) / (1 + e^-2|x|) above. */
LT_INLINE vf v_tanh(vf x) {
    const vf a = v_abs(x);
    const vf e = v_exp(-2.0f * a);
    const vf far = (1.0f - e) / (1.0f + e);
    const vf z = x * x;
    vf p = v_set(2.373480850e-03f); /* tools/fit_vec.py */
    p = p * z - 8.412519832e-03f;
    p = p * z + 2.178909535e-02f;
    p = p * z - 5.396165146e-02f;
    p = p * z + 1.333331332e-01f;
    p = p * z - 3.333333323e-01f;
    const vf near = x + x * (z * p);
    const vf sign = (vf)((vu)x & 0x80000000u);
    const vf signed_far = (vf)((vu)far | (vu)sign);
    return v_keep_nan(x, v_pick_lt(a, v_set(0.6f), near, signed_far));
}

/* Phi(x), the normal distribution function, as erfc(-x / sqrt 2) / 2; the small tail keeps its
 * relative accuracy. density: e^(-x^2 / 2). */
LT_INLINE vf v_phi(vf x, vf *density) {
    const vf u = v_abs(x) * 0.70710678f;
    const vf z = u * u;
    vf p = v_set(7.882497118e-05f); /* erf(u) / u below 1 */
    p = p * z - 8.018854995e-04f;
    p = p * z + 5.189311943e-03f;
    p = p * z - 2.685432880e-02f;
    p = p * z + 1.128359746e-01f;
    p = p * z - 3.761262690e-01f;
    p = p * z + 1.128379166e+00f;
    const vf t = 1.0f / (1.0f + 0.4f * u);
    vf q = v_set(-1.681864439e-04f); /* erfc(u) e^(u^2) / t above 1 */
    q = q * t - 1.166654581e-01f;
    q = q * t + 2.454010725e-01f;
    q = q * t + 6.071071366e-03f;
    q = q * t + 2.143410112e-01f;
    q = q * t + 1.983790774e-01f;
    q = q * t + 2.267567542e-01f;
    q = q * t + 2.256229383e-01f;
    const vf e = v_exp(-z);
    const vf tail = v_pick_lt(u, v_set(1.0f), 0.5f - 0.5f * (u * p), 0.5f * (t * q * e));
    *density = e;
    return v_keep_nan(x, v_pick_lt(x, v_set(0.0f), tail, 1.0f - tail));
}

#endif

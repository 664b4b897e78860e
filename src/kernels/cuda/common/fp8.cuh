/* fp8.cuh: 8-bit floats and their scales, with the bits of lateen/tensor.h. Conversion uses the
 * instruction where it exists (sm_89), else the same arithmetic. */
#ifndef LT_FP8_CUH
#define LT_FP8_CUH

#include "common/types.cuh"

#define SCALE_SPAN 128

/* The code of x, rounded to nearest even and clamped to the largest value. */
INLINE u32 f8_code(float x, int e5m2) {
    const int mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    const u32 normal = (u32)(128 - bias) << 23, bits = __float_as_uint(x),
              sign = bits >> 24 & 0x80u;
    const float most = e5m2 ? 57344.0f : 448.0f, mag = __uint_as_float(bits & 0x7fffffffu),
                kept = mag < most ? mag : most;
    const u32 power = __float_as_uint(kept) & 0x7f800000u, step = (u32)(23 - mantissa) << 23;
    const float big = __uint_as_float((power > normal ? power : normal) + step);
    const float near = (kept + big) - big;
    const u32 code = __float_as_uint(near) < normal
                         ? __float_as_uint(near + __uint_as_float(normal + step)) & 7u
                         : (__float_as_uint(near) >> (23 - mantissa)) -
                               ((u32)(127 - bias) << mantissa);
    return sign | ((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fu : code);
}
INLINE float f8_value(u32 code, int e5m2) {
    const int mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    const u32 mag = code & 0x7fu, sign = (code & 0x80u) << 24;
    float x = __uint_as_float(mag << (23 - mantissa)) * __uint_as_float((u32)(254 - bias) << 23);
    if (e5m2 ? mag >= 0x7cu : mag == 0x7fu) {
        x = __uint_as_float(e5m2 && mag == 0x7cu ? 0x7f800000u : 0x7fc00000u);
    }
    return __uint_as_float(__float_as_uint(x) | sign);
}

/* Two codes of e4m3, the first in the low byte, as two halves. The conversion is exact, and NaN
 * stays NaN. */
#if __CUDA_ARCH__ >= 890
#define F8_NATIVE 1
INLINE u32 f8x2_to_fp16x2(u16 codes) {
    u32 y;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(codes));
    return y;
}
/* Four codes. */
INLINE void f8x4_to_fp16x2(u32 *low, u32 *high, u32 codes) {
    u16 first, second;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(first), "=h"(second) : "r"(codes));
    *low = f8x2_to_fp16x2(first);
    *high = f8x2_to_fp16x2(second);
}
#else
#define F8_NATIVE 0
#endif
/* Four codes, the first in the lowest byte. */
INLINE void f8_unpack4(float f[4], u32 codes) {
#if F8_NATIVE
    u32 low, high;
    f8x4_to_fp16x2(&low, &high, codes);
    fp16_unpack2(f, low);
    fp16_unpack2(f + 2, high);
#else
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f[i] = f8_value(codes >> 8 * i & 0xffu, 0);
    }
#endif
}

/* Codes of e4m3 as the type of an element, for kernels that are specialised by it. */
typedef struct {
    u8 bits;
} f8e4m3;
INLINE float f8e4m3_to_f32(f8e4m3 x) {
    return f8_value(x.bits, 0);
}
INLINE f8e4m3 f32_to_f8e4m3(float x) {
    f8e4m3 y;
    y.bits = (u8)f8_code(x, 0);
    return y;
}

/* Words of four e4m3 codes each as pairs of halves. apart: of bytes 0 and 2, and of bytes 1 and 3.
 * Otherwise, with the instruction, of bytes 0 and 1, and of 2 and 3; without it, as apart. */
#if F8_NATIVE
INLINE void f8_halves4_apart(u32 even[4], u32 odd[4], const u32 codes[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f8x4_to_fp16x2(&even[i], &odd[i], __byte_perm(codes[i], 0u, 0x3120));
    }
}
INLINE void f8_halves4(u32 first[4], u32 second[4], const u32 codes[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f8x4_to_fp16x2(&first[i], &second[i], codes[i]);
    }
}
#else
/* Codes in the high bytes of two halves. Read as halves their exponent is too low by the difference
 * of the biases; a factor of 2^8 corrects that exactly, also for subnormal codes. */
INLINE u32 f8_placed_to_fp16x2(u32 x) {
    return fp16x2_fma(and_or(x, 0x80008000u, x >> 1 & 0x3f803f80u), 0x5c005c00u, 0x80008000u);
}
INLINE void f8_keep_nan(u32 even[4], u32 odd[4], const u32 codes[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const u32 nan = (codes[i] & 0x7f7f7f7fu) + 0x01010101u;
        even[i] |= (nan >> 7 & 0x00010001u) * 0x7fffu;
        odd[i] |= (nan >> 15 & 0x00010001u) * 0x7fffu;
    }
}
/* All words of the warp are tested for NaN at once, because there is hardly ever one. */
INLINE void f8_halves4_apart(u32 even[4], u32 odd[4], const u32 codes[4]) {
    u32 wild = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        even[i] = f8_placed_to_fp16x2(codes[i] << 8);
        odd[i] = f8_placed_to_fp16x2(codes[i]);
        wild |= (codes[i] & 0x7f7f7f7fu) + 0x01010101u;
    }
    if (__any_sync(0xffffffffu, (wild & 0x80808080u) != 0)) {
        f8_keep_nan(even, odd, codes);
    }
}
INLINE void f8_halves4(u32 first[4], u32 second[4], const u32 codes[4]) {
    f8_halves4_apart(first, second, codes);
}
#endif

/* Four of them, the first in the lowest byte. */
INLINE u32 f8_pack4(float a, float b, float c, float d, int e5m2) {
#if __CUDA_ARCH__ >= 890
    unsigned short lo, hi;
    if (e5m2) {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(lo) : "f"(b), "f"(a));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(hi) : "f"(d), "f"(c));
    } else {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(lo) : "f"(b), "f"(a));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(hi) : "f"(d), "f"(c));
    }
    return (u32)lo | (u32)hi << 16;
#else
    return f8_code(a, e5m2) | f8_code(b, e5m2) << 8 | f8_code(c, e5m2) << 16 |
           f8_code(d, e5m2) << 24;
#endif
}

/* A magnitude as a comparable number: numbers < infinity < NaN. */
INLINE u32 magnitude(float x) {
    return __float_as_uint(x) & 0x7fffffffu;
}
INLINE u32 max_u(u32 a, u32 b) {
    return a > b ? a : b;
}

/* lt_scale_of. */
INLINE float scale_of(u32 amax, int e5m2, float *inverse) {
    const int e = (int)(amax >> 23) - (e5m2 ? 15 : 8) + ((amax & 0x7fffffu) > 0x600000u);
    const u32 bits = (u32)(e < 1 ? 1 : e);
    const bool wild = amax >= 0x7f800000u;
    *inverse = __uint_as_float(wild ? 0x7fc00000u : (254u - bits) << 23);
    return __uint_as_float(wild ? 0x7fc00000u : bits << 23);
}

#endif

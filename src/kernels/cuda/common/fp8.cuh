/* fp8.cuh: 8-bit floats and their scales, with the bits of lateen/tensor.h: conversion by the
 * instruction where there is one (sm_89), else by the same arithmetic. */
#ifndef LT_FP8_CUH
#define LT_FP8_CUH

#include "common/types.cuh"

#define SCALE_SPAN 128

/* The code of x, to nearest even; beyond the largest value the largest. */
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

/* A magnitude as a number to compare: NaN is above infinity, that above all others. */
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

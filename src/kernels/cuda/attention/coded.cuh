/* coded.cuh: pages of keys and values that do not hold numbers of 16 or 32 bits (tensor/cached.h):
 * codes = 1 e4m3, 2 Q8_0, 3 Q4_0. codes is a constant wherever it is an argument; keys and values
 * may have different ones. Blocks of Q8_0 and Q4_0 are 32 neighbours of a head: a scale of 16 bits,
 * then bytes, or nibbles (byte i: element i and, above it, 16 + i).
 *
 * HALVES    codes become pairs of halves exactly: e4m3 by the instruction of sm_89 or by f8_placed;
 *           integers n by their bits in 1024 + n, less 1024 and the offset of the format.
 * WRITING   has the bits of lt_cached_encode: nothing is fused. */
#ifndef LT_CODED_CUH
#define LT_CODED_CUH

#include "common/fp8.cuh"

#define CODES_F8 1
#define CODES_Q8 2
#define CODES_Q4 3

#define CODED_BLOCK      32
#define CODED_LEAST      8.67361738e-19f /* LT_CACHED_LEAST, 2^-60 */
#define CODED_NAN        0x7e00u         /* LT_CACHED_NAN */
#define HALF_ONE         0x3c003c00u
#define HALF_NO_SUM      0x80008000u
#define HALF_1024        0x64006400u
#define HALF_SIGNED_1024 0x64806480u /* Turns a signed byte x into 1024 + 128 + x. */

#define CODED_BYTES(codes) ((codes) == CODES_Q8 ? 34 : 18) /* Bytes of a block. */
/* Bytes of `count` numbers. */
#define CODED_SIZE(codes, count)                                                                   \
    ((codes) == CODES_F8 ? (count) : (count) / CODED_BLOCK * CODED_BYTES(codes))

INLINE u32 and_xor(u32 a, u32 b, u32 c) {
    u32 y;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

/* ---- Whole numbers to halves ---- */

/* The low bytes of both halves of x, signed. */
INLINE u32 bytes_to_halves(u32 x) {
    return fp16x2_fma(and_xor(x, 0x00ff00ffu, HALF_SIGNED_1024), HALF_ONE, 0xe480e480u);
}
/* Nibbles 0 and 4 of x, minus 8; nibbles 1 and 5. */
INLINE u32 low_nibbles_to_halves(u32 x) {
    return fp16x2_fma(and_or(x, 0x000f000fu, HALF_1024), HALF_ONE, 0xe408e408u);
}
INLINE u32 high_nibbles_to_halves(u32 x) {
    return fp16x2_fma(and_or(x, 0x00f000f0u, HALF_1024), 0x2c002c00u, 0xd480d480u);
}

/* ---- One number, and eight neighbours ---- */

/* Of blocks. */
INLINE float coded_at(const u8 *pages, i64 at, const int codes) {
    const u8 *const block = pages + at / CODED_BLOCK * CODED_BYTES(codes);
    const int i = (int)(at % CODED_BLOCK);
    fp16 scale;
    scale.bits = *(const u16 *)block;
    const int n = codes == CODES_Q8 ? (int)(signed char)block[2 + i]
                                    : (block[2 + i % 16] >> i / 16 * 4 & 15) - 8;
    return fp16_to_f32(scale) * (float)n;
}
/* Numbers at .. at + 7; at is a multiple of 8. */
INLINE void coded_eight(float f[8], const u8 *pages, i64 at, const int codes) {
    if (codes == CODES_F8) {
        const uint2 c = *(const uint2 *)(pages + at);
        f8_unpack4(f, c.x);
        f8_unpack4(f + 4, c.y);
        return;
    }
    const u16 *const block = (const u16 *)(pages + at / CODED_BLOCK * CODED_BYTES(codes));
    const int i = (int)(at % CODED_BLOCK);
    fp16 scale;
    scale.bits = block[0];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (codes == CODES_Q8) {
            const u32 two = block[1 + i / 2 + k];
            f[2 * k] = (float)(signed char)(two & 0xffu);
            f[2 * k + 1] = (float)(signed char)(two >> 8);
        } else {
            const u32 two = (u32)block[1 + i % 16 / 2 + k] >> i / 16 * 4;
            f[2 * k] = (float)(two & 15u) - 8.0f;
            f[2 * k + 1] = (float)(two >> 8 & 15u) - 8.0f;
        }
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        f[k] *= fp16_to_f32(scale);
    }
}

/* ---- Writing ---- */

INLINE int coded_code(float x, float inverse, const int codes) {
    const float y = __fmul_rn(x, inverse);
    if (codes == CODES_Q4) {
        const int n = (int)__fadd_rn(y, 8.5f);
        return n < 15 ? n : 15;
    }
    const int whole = (int)fabsf(y), n = whole + (fabsf(y) - (float)whole >= 0.5f);
    return y < 0.0f ? -n : n; /* Halves are rounded away from 0. */
}
/* Encode 32 numbers as a block; x[i] are the original numbers. */
INLINE void coded_block(u8 *block, const float *x, const int codes) {
    float most = 0.0f, extreme = 0.0f;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < CODED_BLOCK; i++) {
        finite = finite && (__float_as_uint(x[i]) & 0x7f800000u) != 0x7f800000u;
        if (fabsf(x[i]) > most) {
            most = fabsf(x[i]);
            extreme = x[i];
        }
    }
    const bool plain = finite && most >= CODED_LEAST;
    const float d = codes == CODES_Q8 ? most / 127.0f : extreme / -8.0f,
                inverse = plain ? 1.0f / d : 0.0f;
    *(u16 *)block = plain    ? f32_to_fp16(d).bits
                    : finite ? (u16)(codes == CODES_Q4 ? 0x8000u : 0u)
                             : (u16)CODED_NAN;
#pragma unroll
    for (int i = 0; i < CODED_BLOCK / 2; i++) {
        const int one = codes == CODES_Q8 ? 2 * i : i, other = codes == CODES_Q8 ? one + 1 : i + 16;
        const u32 zero = codes == CODES_Q8 ? 0u : 8u,
                  low = plain ? (u32)coded_code(x[one], inverse, codes) & 0xffu : zero,
                  high = plain ? (u32)coded_code(x[other], inverse, codes) & 0xffu : zero;
        if (codes == CODES_Q8) {
            /* A block begins at a multiple of 2 bytes. */
            ((u16 *)block)[1 + i] = (u16)(low | high << 8);
        } else {
            block[2 + i] = (u8)(low | high << 4);
        }
    }
}

#endif

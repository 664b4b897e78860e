/* eight_q.cuh: products of quantised weights (tile_q.cuh) with rows of x that are rounded to 8
 * bits, in integers.
 *
 * Each group of 32 columns of a row of x becomes numbers -127 .. 127 and d = largest magnitude /
 * 127, as in ggml and the CPU's kernels (tensor/block.h), but d stays fp32. Every block does this
 * separately, in shared memory:
 *     numbers    of a tile of 128 columns: for groups 0, 1 and 2, 3: lane quarters q x two groups x
 *                8 bytes, those of element_at(q, .) as tile_q.cuh orders bytes
 *     factors    of a group, fp32: d, and the number that is subtracted from the sum of a group's
 *                products before it is scaled (GROUP 16: from each half's)
 * mma.sync adds up a group exactly. It begins with MAGIC, the bits of 2^23 + 2^22: a sum below 2^22
 * then is the last bits of a float, and that float less MAGIC is the sum. Weights of 4 bits are not
 * shifted: a group in the high halves of bytes counts 16-fold, and its d is a sixteenth. The
 * offset, the sum of the group's numbers times OFFSET, is subtracted with MAGIC. With MINS, minima
 * are multiplied by the group's d times the sum of its numbers.
 * -D M rows, WIDTH columns. A row's bits do not depend on how many there are. */
#ifndef LT_CUDA_GEMM_EIGHT_Q_CUH
#define LT_CUDA_GEMM_EIGHT_Q_CUH

#include "gemm/share_q.cuh"

#define TILES   ((WIDTH + TILE_K - 1) / TILE_K)
#define MAGIC   0x4b400000
#define MAGIC_F 12582912.0f
#define FACTORS (GROUP == 32 ? 2 : 4) /* Factors of a group. */
/* Sums of a lane: rows r and r + 8 of a slab, rows of x 2 q and 2 q + 1. */
#define SUMS (M == 1 ? 2 : 4)

/* Distance between the numbers, and the factors, of two rows: it puts the rows in different
 * banks. */
#define NUMBER_PITCH (TILES * TILE_K + 64)
#define FACTOR_BYTES (4 * FACTORS * 4) /* Bytes of a tile's factors. */
#define FACTOR_PITCH (TILES * FACTOR_BYTES + 16)
#define EIGHT_BYTES  (M * (NUMBER_PITCH + FACTOR_PITCH))
static_assert(EIGHT_BYTES == LT_RING_EIGHT_BYTES(M, TILES, FACTOR_BYTES), "x in 8 bits");

/* The largest magnitude; NaN if there is one. */
INLINE float larger(float a, float b) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(fabsf(b)));
    return y;
}
INLINE u32 bytes_of(u32 a, u32 b, u32 c, u32 d) { /* The lowest of each. */
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}
/* Keep piece c (8 columns) of a row: v. All lanes of a group's four pieces call it. keeps: there is
 * a place for the piece. */
INLINE void keep_piece(u8 *numbers, float *factors, u32 c, uint4 v, bool keeps) {
    float f[8], most = 0.0f;
    u32 bits[8];
    UNPACK(DTYPE, f, v);
#pragma unroll
    for (int e = 0; e < 8; e++) {
        most = larger(most, f[e]);
    }
    most = larger(most, __shfl_xor_sync(ALL_LANES, most, 1));
    most = larger(most, __shfl_xor_sync(ALL_LANES, most, 2));
    const float d = most * (1.0f / 127.0f),
                inverse = most > 1e-30f ? __fdividef(127.0f, most) : 0.0f;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        bits[e] = __float_as_uint(__fmaf_rn(f[e], inverse, MAGIC_F));
    }
#if AS_COUNTED
    const u32 lo = bytes_of(bits[0], bits[1], bits[2], bits[3]),
              hi = bytes_of(bits[4], bits[5], bits[6], bits[7]);
#else
    const u32 lo = bytes_of(bits[0], bits[2], bits[1], bits[3]),
              hi = bytes_of(bits[4], bits[6], bits[5], bits[7]);
#endif
    const u32 p = c % 4, g = c / 4 % 4;
#if AS_COUNTED
    /* A quarter has two columns of each of the four pieces: the lanes of two pieces exchange words,
     * so that each has the columns of both that two quarters hold. */
    const u32 theirs = __shfl_xor_sync(ALL_LANES, p % 2 ? lo : hi, 1), even = p % 2 ? theirs : lo,
              odd = p % 2 ? hi : theirs;
#endif
    int sum = __dp4a((int)lo, 0x01010101, __dp4a((int)hi, 0x01010101, 0));
    sum += __shfl_xor_sync(ALL_LANES, sum, 1);
    sum += GROUP == 32 ? __shfl_xor_sync(ALL_LANES, sum, 2) : 0;
    if (!keeps) {
        return;
    }
    const bool sixteenfold = LOW == 4 && HIGH == 0 && g % 2 == 1;
    /* half: of two quarters' words */
    u8 *const to = numbers + c / 16 * TILE_K + g / 2 * 64 + g % 2 * 8, *const half = to +
                                                                                     p % 2 * 32 +
                                                                                     p / 2 * 4;
    factors += c / 4 * FACTORS;
#if AS_COUNTED
    *(u32 *)half = __byte_perm(even, odd, 0x5140),
          *(u32 *)(half + 16) = __byte_perm(even, odd, 0x7362);
#else
    if (GROUP == 32) {
        *(uint2 *)(to + p * 16) = make_uint2(lo, hi);
    } else {
        *(u32 *)half = lo, *(u32 *)(half + 16) = hi;
    }
#endif
    const float off = OFFSET == 128 ? 0.0f : (float)(OFFSET * sum);
    if (GROUP == 16 ? p % 2 == 0 : p == 1) {
        factors[GROUP == 16 ? 1 + p / 2 : 1] = MINS ? d * (float)sum
                                                    : MAGIC_F + (sixteenfold ? 16.0f * off : off);
    }
    if (p == 0) {
        factors[0] = sixteenfold ? d * (1.0f / 16.0f) : d;
    }
}

/* This lane's pieces of a tile of x: numbers of row lane / 4, factors of rows 2 (lane % 4) and the
 * next. */
typedef struct {
    uint4 numbers[2], factors[SUMS / 2][FACTORS];
} eight;
INLINE void take_eight(eight *x, u32 numbers, const u32 factors[SUMS / 2], int tile) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        x->numbers[i] = ld_shared_v4(numbers + (u32)(tile * TILE_K + 64 * i));
    }
#pragma unroll
    for (int i = 0; i < (SUMS / 2) * FACTORS; i++) {
        x->factors[i / FACTORS][i % FACTORS] = ld_shared_v4(
            factors[i / FACTORS] + (u32)(tile * FACTOR_BYTES + 16 * (i % FACTORS)));
    }
}
INLINE float factor_of(const eight *x, int row, int g, int i) {
    const int at = g * FACTORS + i;
    return __uint_as_float(word_of(x->factors[row][at / 4], at % 4));
}
/* Words i of a lane's elements of group g, rows r and r + 8. */
INLINE u32 bytes_of_group(const share *s, int g, int h, int i) {
    const u32 w = word_of(s->v[LOW == 4 ? g / 2 : g % PIECES], 2 * h + i);
    if (LOW == 8) {
        return w;
    }
    if (HIGH == 0) {
        return w & (g % 2 == 0 ? 0x0f0f0f0fu : 0xf0f0f0f0u);
    }
    return and_or(to_bit_4(word_of(s->high, high_word(g, h)), high_bit(g, i)),
                  HIGH == 2 ? 0x30303030u : 0x10101010u, (g % 2 == 0 ? w : w >> 4) & 0x0f0f0f0fu);
}
/* MAGIC and the products of a group, or of its halves (GROUP 16). */
INLINE void dot_group(int dot[SCALES][4], const u32 a[4], const eight *x, int g) {
    const u32 b0 = word_of(x->numbers[g / 2], g % 2 * 2),
              b1 = word_of(x->numbers[g / 2], g % 2 * 2 + 1);
    if (GROUP == 16) {
        mma_16x8x16_u8(dot[0], a[0], a[1], b0, MAGIC);
        mma_16x8x16_u8(dot[SCALES - 1], a[2], a[3], b1, MAGIC);
    } else if (OFFSET == 128) {
        mma_16x8x32_s8(dot[0], a, b0, b1, MAGIC);
    } else {
        mma_16x8x32_u8(dot[0], a, b0, b1, MAGIC);
    }
}
/* Add the products of a tile of a slab to sum. */
INLINE void multiply_eight(float sum[SUMS], const share *s, const eight *x) {
    const int each = SUMS / 2;
    const bool shifted = OFFSET > 0 && OFFSET < 128;
#pragma unroll
    for (int g = 0; g < 4; g++) {
        const u32 a[4] = {bytes_of_group(s, g, 0, 0), bytes_of_group(s, g, 1, 0),
                          bytes_of_group(s, g, 0, 1), bytes_of_group(s, g, 1, 1)};
        int dot[SCALES][4];
        dot_group(dot, a, x, g);
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            const int h = i / each, row = i % each;
            const float d = factor_of(x, row, g, 0);
#pragma unroll
            for (int j = 0; j < SCALES; j++) {
                const float scale = scale_of(s->scale[SCALES == 2 ? g / 2 : 0],
                                             4 * h + (SCALES == 2 ? g % 2 * 2 + j : g));
                sum[i] += scale * d *
                          (__int_as_float(dot[j][2 * h + row]) -
                           (shifted ? factor_of(x, row, g, 1 + j) : MAGIC_F));
            }
            if (MINS) {
                sum[i] -= scale_of(s->least, 4 * h + g) * factor_of(x, row, g, 1);
            }
        }
    }
}

#endif

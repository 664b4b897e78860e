/* operand_q.cuh: a lane's share of a tile of quantised weights (tile_q.cuh) as the left operand of mma.sync of 16-bit floats: gemm_q.cu, which says how.
 * -D TILES operands of 8 rows of x, WHOLE: K is a multiple of 128. */
#ifndef LT_CUDA_GEMM_OPERAND_Q_CUH
#define LT_CUDA_GEMM_OPERAND_Q_CUH

#include "gemm/share_q.cuh"

#define ONE_bf16       0x3f803f80u
#define ONE_fp16       0x3c003c00u
#define EXPONENT_bf16  0x43004300u /* 2^7, 2^7: the last bit counts ones. */
#define EXPONENT_fp16  0x64006400u /* 2^10, 2^10 */
#define ONE            CONCAT(ONE_, DTYPE)
#define EXPONENT       CONCAT(EXPONENT_, DTYPE)
#define MINUS          0x80008000u
#define FMA2(a, b, c)  CONCAT(DTYPE, x2_fma)(a, b, c)

/* The eight elements of group g of row r + 8 h, in pairs, OFFSET taken off. */
INLINE void widen(u32 pair[4], const share *s, int g, int h) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const u32 w = word_of(s->v[LOW == 4 ? g / 2 : g % PIECES], 2 * h + j / 2) >> (8 * (j % 2) + (LOW == 4 ? 4 * (g % 2) : 0));
        const u32 off = OFFSET == 128 ? and_or(w, 0x00800080u, EXPONENT | MINUS) : EXPONENT | MINUS | OFFSET * 0x00010001u;
        u32 x = and_or(w, LOW == 4 ? 0x000f000fu : 0x007f007fu, EXPONENT);
        if (HIGH > 0) {
            x = and_or(to_bit_4(word_of(s->high, high_word(g, h)), high_bit(g, j / 2) + 8 * (j % 2)), HIGH == 2 ? 0x00300030u : 0x00100010u, x);
        }
        pair[j] = FMA2(x, ONE, off);
    }
}
/* The piece of a lane's quarter in a group of 32 of a row of x. */
INLINE uint4 load_x(const elem *x) {
    if (GROUP == 32) {
        return *(const uint4 *)x;
    }
    const uint2 lo = *(const uint2 *)x, hi = *(const uint2 *)(x + 16);
    return make_uint4(lo.x, lo.y, hi.x, hi.y);
}
/* sum += what the 32 columns from k on give: `a0`, `a1` the operands of the two products. */
INLINE void multiply_group(float sum[4], const share *s, int g, const u32 a0[4], const u32 a1[4], uint4 x) {
    const u32 ones[4] = {ONE, ONE, ONE, ONE};
    float dot[2][4] = {{0.0f}}, total[4] = {0.0f};
    mma_16x8x16(dot[0], a0, x.x, x.y);
    mma_16x8x16(dot[SCALES - 1], a1, x.z, x.w);
    if (MINS) {
        mma_16x8x16(total, ones, x.x, x.y);
        mma_16x8x16(total, ones, x.z, x.w);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < SCALES; j++) {
            sum[i] += scale_of(s->scale[SCALES == 2 ? g / 2 : 0], i / 2 * 4 + (SCALES == 2 ? g % 2 * 2 + j : g)) * dot[j][i];
        }
        if (MINS) {
            sum[i] -= scale_of(s->least, i / 2 * 4 + g) * total[i];
        }
    }
}
/* x: this lane's pieces of the tile's first columns; left: columns of x from there on. Past the last the first are read again: their scales are zero. */
INLINE void multiply(float sum[TILES][4], const share *s, const elem *const x[TILES], int k0, int left) {
#pragma unroll
    for (int g = 0; g < 4; g++) {
        const int k = k0 + (WHOLE || 32 * g < left ? 32 * g : 0);
        u32 r[4], r8[4];
        widen(r, s, g, 0);
        widen(r8, s, g, 1);
        const u32 a0[4] = {r[0], r8[0], r[1], r8[1]}, a1[4] = {r[2], r8[2], r[3], r8[3]};
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            multiply_group(sum[t], s, g, a0, a1, load_x(x[t] + k));
        }
    }
}

#endif

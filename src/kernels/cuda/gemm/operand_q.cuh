/* operand_q.cuh: a lane's share of a tile of quantised weights (tile_q.cuh) as the left operand of
 * mma.sync and wgmma of 16-bit floats: gemm_q.cu explains how. */
#ifndef LT_CUDA_GEMM_OPERAND_Q_CUH
#define LT_CUDA_GEMM_OPERAND_Q_CUH

#include "gemm/share_q.cuh"

#define ONE_bf16      0x3f803f80u
#define ONE_fp16      0x3c003c00u
#define EXPONENT_bf16 0x43004300u /* 2^7, 2^7: the last bit counts ones. */
#define EXPONENT_fp16 0x64006400u /* 2^10, 2^10 */
#define ONE           CONCAT(ONE_, DTYPE)
#define EXPONENT      CONCAT(EXPONENT_, DTYPE)
#define MINUS         0x80008000u
#ifndef TAKEN_OFF
#define TAKEN_OFF OFFSET /* A caller may define another. */
#endif
#define FMA2(a, b, c) CONCAT(DTYPE, x2_fma)(a, b, c)

/* The eight elements of group g of row r + 8 h, in pairs, minus TAKEN_OFF. */
INLINE void widen(u32 pair[4], const share *s, int g, int h) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const u32 w = word_of(s->v[LOW == 4 ? g / 2 : g % PIECES], 2 * h + j / 2) >>
                      (8 * (j % 2) + (LOW == 4 ? 4 * (g % 2) : 0));
        const u32 off = OFFSET == 128 ? and_or(w, 0x00800080u, EXPONENT | MINUS)
                                      : EXPONENT | MINUS | TAKEN_OFF * 0x00010001u;
        u32 x = and_or(w, LOW == 4 ? 0x000f000fu : 0x007f007fu, EXPONENT);
        if (HIGH > 0) {
            x = and_or(
                to_bit_4(word_of(s->high, high_word(g, h)), high_bit(g, j / 2) + 8 * (j % 2)),
                HIGH == 2 ? 0x00300030u : 0x00100010u, x);
        }
        pair[j] = FMA2(x, ONE, off);
    }
}
#endif

/* gemm_pairs.c: products of BF16 by VDPBF16PS: gemm.c over pairs. A lane takes two products a step,
 * (x0 y0) + (x1 y1) added to its F32 sum, so that one instruction does the work of two
 * multiply-adds.
 *
 * PANELS   a "float" is two BF16 neighbours in k. An operand whose rows run along k is read as a
 *          matrix of 32-bit elements half as long and packed as gemm.c packs F32; for one whose
 *          rows run across k, two rows are interleaved.
 * ORDER    each element of y is one chain of dot products over k within a step, as in gemm.c.
 * NUMERICS products are exact in F32; a pair's two products are added to the sum one after the
 * other, each rounded; subnormals count as zero (Intel SDM, VDPBF16PS).
 * CHOICE   lists.c chooses it on AMD, where it runs at twice the rate of F32 multiply-adds.
 *          LATEEN_BF16_DOT=1 enables it elsewhere, 0 disables it. k must be even, and so must the
 *          row stride of an operand whose rows run along k; other products go to gemm.c. */
#include "kernels/cpu/isa/vec.h"

#if defined(LT_ISA_avx512)
#include "kernels/cpu/isa/pack.h"
#include "kernels/cpu/isa/tile.h"

/* dst[p * dst_step + i] = (src(2 p, i), src(2 p + 1, i)): rows run across k and are
 * interleaved. */
LT_INLINE void weave_rows(float *dst, const int64_t dst_step, const int64_t width,
                          const uint16_t *src, int64_t stride, int64_t rows, int64_t pairs) {
    for (int64_t p = 0; p < pairs; p++) {
        for (int64_t i = 0; i < width; i += VEC) {
            const int64_t have = rows - i, lanes = width - i < VEC ? width - i : VEC;
            const __mmask16 mask = (__mmask16)(have >= VEC ? 0xffffu
                                                           : (1u << (have > 0 ? have : 0)) - 1u);
            const __m256i even = _mm256_maskz_loadu_epi16(mask, src + 2 * p * stride + i),
                          odd = _mm256_maskz_loadu_epi16(mask, src + (2 * p + 1) * stride + i);
            const __m512i both = _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                                                 _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
            if (lanes == VEC) {
                v_store(dst + p * dst_step + i, (vf)both);
            } else {
                v_store_n(dst + p * dst_step + i, (vf)both, lanes);
            }
        }
    }
}

/* pack_panel of pack.h, with at and depth counted in pairs. */
LT_INLINE void pack_pairs(float *dst, const int64_t width, const lt_tensor *t, bool k_last,
                          int64_t first, int64_t rows, int64_t at, int64_t depth) {
    const uint16_t *src = t->data;
    if (k_last) {
        pack_across(dst, width, width, src + first * t->stride[0] + 2 * at, LT_F32,
                    t->stride[0] / 2, rows, depth);
    } else {
        weave_rows(dst, width, width, src + 2 * at * t->stride[0] + first, t->stride[0], rows,
                   depth);
    }
}

/* tile_mul of tile.h for pairs. */
LT_INLINE void tile_mul_pairs(lt_tile *t, const int mr, int64_t k_count, const float *a,
                              const int64_t a_row, const int64_t a_col, const float *b,
                              const int64_t b_row, const char *next, const int64_t next_step) {
    __m512 acc[LT_TILE_ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
        acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    }
#pragma GCC unroll 1
    for (int64_t k = 0; k < k_count; k++) {
        const __m512bh b0 = (__m512bh)v_load(b), b1 = (__m512bh)v_load(b + VEC);
        if (next != NULL) {
            __builtin_prefetch(next, 0, 2);
            next += next_step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < mr; i++) {
            const __m512bh ai = (__m512bh)_mm512_set1_ps(a[i * a_row]);
            acc[i][0] = _mm512_dpbf16_ps(acc[i][0], b0, ai);
            acc[i][1] = _mm512_dpbf16_ps(acc[i][1], b1, ai);
        }
        a += a_col;
        b += b_row;
    }
#pragma GCC unroll 16
    for (int i = 0; i < mr; i++) {
        t->v[i][0] = (vf)acc[i][0];
        t->v[i][1] = (vf)acc[i][1];
    }
}

#define GEMM_PAIRS 1
#include "kernels/cpu/isa/gemm.c"
#endif

/* quant_act.h: rows of activations to 8 bits a block for quant.c, bit for bit as lt_q8_encode, in
 * the order quant.c reads them.
 *
 *   simple   q      the bytes in order, four a word (K / 4 words a row)
 *            d, s   of each block
 *            start  where a block's integer sum starts (-offset * sum q)
 *   K        q      pairs of 16-bit numbers: word 8 t + l holds elements 16 t + l and 16 t + l + 8
 *                   (K / 2 words a row)
 *            d      of each block
 *            start  four pairs a block, the sums of 32 neighbours each, which multiply the
 *            minima */
#ifndef LT_CPU_ISA_QUANT_ACT_H
#define LT_CPU_ISA_QUANT_ACT_H

#include "kernels/cpu/isa/quant.h"

typedef struct {
    int32_t *q;     /* (M, words) */
    float *d, *s;   /* (M, blocks); s: Q8_1 only. */
    int32_t *start; /* (M, blocks) or (M, blocks, 4) */
    int64_t words, n_blocks;
} quant_acts;

/* The nearest integer of |x| < 2^22, with halves away from 0. */
LT_INLINE vi v_round_away(vf x) {
    const vf half = (vf)(((vu)x & 0x80000000u) | (vu)v_set(0x1.fffffep-2f));
    return __builtin_convertvector(x + half, vi);
}

/* The same with halves to even. */
LT_INLINE vi v_round_even(vf x) {
    const vf shift = v_set(0x1.8p23f);
    return __builtin_convertvector((x + shift) - shift, vi);
}

LT_INLINE int32_t vi_sum(vi x) {
#if defined(LT_ISA_avx512)
    return _mm512_reduce_add_epi32((__m512i)x);
#elif defined(LT_ISA_avx2)
    __m128i t = _mm_add_epi32(_mm256_castsi256_si128((__m256i)x),
                              _mm256_extracti128_si256((__m256i)x, 1));
    t = _mm_add_epi32(t, _mm_unpackhi_epi64(t, t));
    return _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32(t, 1)));
#else
    return x[0] + x[1] + x[2] + x[3];
#endif
}

/* The largest lane; none is NaN. */
LT_INLINE float v_most(vf x) {
#if defined(LT_ISA_avx512)
    return _mm512_reduce_max_ps((__m512)x);
#elif defined(LT_ISA_avx2)
    __m128 t = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
#else
    return v_max_of(x);
#endif
}

/* x rounded to F16 and back. */
LT_INLINE float f_through_f16(float x) {
#if defined(__F16C__)
    return _cvtsh_ss(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT));
#else
    return lt_f16_to_f32(lt_f32_to_f16(x));
#endif
}

/* The low byte of each lane. */
LT_INLINE void store_bytes(int8_t *dst, vi x) {
#if defined(LT_ISA_avx2)
    const __m256i quads = _mm256_shuffle_epi8((__m256i)x, _mm256_set1_epi32(0x0C080400));
    const __m128i high = _mm256_extracti128_si256(quads, 1);
    const __m128i bytes = _mm_unpacklo_epi32(_mm256_castsi256_si128(quads), high);
    memcpy(dst, &bytes, VEC);
#else
    typedef int8_t vb __attribute__((vector_size(VEC)));
    const vb bytes = __builtin_convertvector(x, vb);
    memcpy(dst, &bytes, sizeof bytes);
#endif
}

LT_INLINE void quant_small_block(quant_acts *to, int64_t m, int64_t block, const float *x,
                                 int32_t offset, bool with_s) {
    int8_t *q = (int8_t *)(to->q + m * to->words + block * 8);
    vf most = {0};
    vi sum = {0};
    for (int i = 0; i < LT_BLOCK_SMALL; i += VEC) {
        most = v_max(v_abs(v_load(x + i)), most);
    }
    const float d = v_most(most) / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    for (int i = 0; i < LT_BLOCK_SMALL; i += VEC) {
        const vi r = v_round_away(v_load(x + i) * inverse);
        store_bytes(q + i, r);
        sum += r;
    }
    const int32_t total = vi_sum(sum);
    const int64_t at = m * to->n_blocks + block;
    to->d[at] = f_through_f16(d);
    to->start[at] = -offset * total;
    if (with_s) {
        to->s[at] = f_through_f16((float)total * d);
    }
}

/* The value of largest magnitude, the first of equals. */
LT_INLINE float extreme_of(const float *x) {
    vf most = {0};
    for (int i = 0; i < LT_BLOCK_SUPER; i += VEC) {
        most = v_max(v_abs(v_load(x + i)), most);
    }
    const float magnitude = v_most(most);
    int i = 0;
    while (i < LT_BLOCK_SUPER - 1 && __builtin_fabsf(x[i]) != magnitude) {
        i++;
    }
    return magnitude > 0.0f ? x[i] : 0.0f;
}

LT_INLINE void quant_super_block(quant_acts *to, int64_t m, int64_t block, const float *x) {
    int32_t *q = to->q + m * to->words + block * 128;
    int32_t *start = to->start + (m * to->n_blocks + block) * 4;
    int32_t r[LT_BLOCK_SUPER];
    int32_t sums[8];
    const float extreme = extreme_of(x);
    const float scale = extreme != 0.0f ? -127.0f / extreme : 0.0f;
    for (int i = 0; i < LT_BLOCK_SUPER; i += VEC) {
        const vi v = v_round_even(scale * v_load(x + i));
        *(vi_mem *)(r + i) = (vi)((v < 127) & v) + ((v >= 127) & 127);
    }
    for (int j = 0; j < 8; j++) {
        sums[j] = 0;
        for (int i = 0; i < 32; i++) {
            sums[j] += r[32 * j + i];
        }
    }
    for (int t = 0; t < 16; t++) {
        for (int l = 0; l < 8; l++) {
            q[8 * t + l] = (r[16 * t + l] & 0xFFFF) | (int32_t)((uint32_t)r[16 * t + l + 8] << 16);
        }
    }
    for (int j = 0; j < 4; j++) {
        start[j] = (sums[2 * j] & 0xFFFF) | (int32_t)((uint32_t)sums[2 * j + 1] << 16);
    }
    to->d[m * to->n_blocks + block] = extreme != 0.0f ? 1.0f / scale : 0.0f;
}

#endif

/* quant_act.h: rows of activations to 8 bits a block for quant.c, bit for bit as lt_q8_encode, in the order quant.c reads them.
 *
 *   simple   q: the bytes in order, four a word (K / 4 words a row);  d, s a block;  start: what a block's whole-number sum starts from (-offset * sum q)
 *   K        q: pairs of 16-bit numbers, word 8 t + l = elements 16 t + l and 16 t + l + 8 (K / 2 words a row);  d a block;
 *            start: four pairs a block, the sums of 32 neighbours each: what the minima are multiplied by */
#ifndef LT_CPU_ISA_QUANT_ACT_H
#define LT_CPU_ISA_QUANT_ACT_H

#include "kernels/cpu/isa/quant.h"

typedef struct {
    int32_t *q;     /* (M, words) */
    float *d, *s;   /* (M, blocks); s: Q8_1 only. */
    int32_t *start; /* (M, blocks) or (M, blocks, 4) */
    int64_t words, n_blocks;
} quant_acts;

/* Nearest whole number of |x| < 2^22, halves away from 0. */
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
    int32_t sum = 0;
    for (int i = 0; i < VEC; i++) {
        sum += x[i];
    }
    return sum;
}

LT_INLINE void store_bytes(int8_t *dst, vi x) {
    typedef int8_t vb __attribute__((vector_size(VEC)));
    const vb bytes = __builtin_convertvector(x, vb);
    memcpy(dst, &bytes, sizeof bytes);
}

LT_INLINE void quant_small_block(quant_acts *to, int64_t m, int64_t block, const float *x,
                                 int32_t offset, bool with_s) {
    int8_t *q = (int8_t *)(to->q + m * to->words + block * 8);
    vf most = {0};
    vi sum = {0};
    for (int i = 0; i < LT_BLOCK_SMALL; i += VEC) {
        most = v_max(v_abs(v_load(x + i)), most);
    }
    const float d = v_max_of(most) / 127.0f, inverse = d != 0.0f ? 1.0f / d : 0.0f;
    for (int i = 0; i < LT_BLOCK_SMALL; i += VEC) {
        const vi r = v_round_away(v_load(x + i) * inverse);
        store_bytes(q + i, r);
        sum += r;
    }
    const int32_t total = vi_sum(sum);
    const int64_t at = m * to->n_blocks + block;
    to->d[at] = lt_f16_to_f32(lt_f32_to_f16(d));
    to->start[at] = -offset * total;
    if (with_s) {
        to->s[at] = lt_f16_to_f32(lt_f32_to_f16((float)total * d));
    }
}

/* The value of largest magnitude, the first of equals. */
LT_INLINE float extreme_of(const float *x) {
    vf most = {0};
    for (int i = 0; i < LT_BLOCK_SUPER; i += VEC) {
        most = v_max(v_abs(v_load(x + i)), most);
    }
    const float magnitude = v_max_of(most);
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

/* quant.h: the vectors of quantised products: VEC rows of a group of quant.h side by side, four
 * bytes or two 16-bit numbers a lane, and the two instructions that multiply and add within a
 * lane. */
#ifndef LT_CPU_ISA_QUANT_H
#define LT_CPU_ISA_QUANT_H

#include "kernels/cpu/isa/vec.h"
#include "kernels/cpu/quant.h"

typedef uint8_t vq __attribute__((vector_size(VEC * 4)));  /* Four bytes per lane. */
typedef int16_t vs __attribute__((vector_size(VEC * 4)));  /* Two numbers per lane. */
typedef uint8_t vqh __attribute__((vector_size(VEC * 2))); /* Two bytes per lane. */
typedef uint8_t vq_mem __attribute__((vector_size(VEC * 4), aligned(4), may_alias));
typedef uint8_t vqh_mem __attribute__((vector_size(VEC * 2), aligned(4), may_alias));
typedef int16_t vs_mem __attribute__((vector_size(VEC * 4), aligned(4), may_alias));

LT_INLINE vs vs_pairs(int32_t pair) {
    return (vs)vi_set(pair);
}

/* VEC bytes, sign- or zero-extended, each in both halves of its lane. */
LT_INLINE vs vs_scales(const uint8_t *p, bool is_signed) {
    typedef uint8_t vb __attribute__((vector_size(VEC)));
    typedef int8_t vsb __attribute__((vector_size(VEC)));
    vb b;
    memcpy(&b, p, sizeof b);
    const vu wide = is_signed ? (vu) __builtin_convertvector((vsb)b, vi)
                              : __builtin_convertvector(b, vu);
    return (vs)((wide & 0xFFFFu) | wide << 16);
}

/* acc + w0 a0 + w1 a1 + w2 a2 + w3 a3 in each lane; w are unsigned bytes below 64, a signed
 * bytes. */
LT_INLINE vi v_dot4(vi acc, vq w, vi a) {
#if defined(LT_ISA_avx512)
    return (vi)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, (__m512i)a);
#elif defined(LT_ISA_avx2)
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)w, (__m256i)a);
    return acc + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    int8_t b[4];
    memcpy(b, &a, sizeof b);
    const vu u = (vu)w;
    return acc + (vi)(u & 255u) * b[0] + (vi)(u >> 8 & 255u) * b[1] + (vi)(u >> 16 & 255u) * b[2] +
           (vi)(u >> 24) * b[3];
#endif
}

/* The same for w stored plus 128. Where the instruction takes any unsigned byte the 128s stay in,
 * and DOT4_BIAS says so: the caller starts from -128 * sum a. VPMADDUBSW would saturate: there
 * signs change sides instead. */
#if defined(LT_ISA_avx2)
#define DOT4_BIAS 0
#else
#define DOT4_BIAS 128
#endif
LT_INLINE vi v_dot4_biased(vi acc, vq w, vi a) {
#if defined(LT_ISA_avx2)
    const __m256i signed_w = (__m256i)(w ^ 0x80);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed_w),
                                               _mm256_sign_epi8((__m256i)a, signed_w));
    return acc + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    return v_dot4(acc, w, a);
#endif
}

/* acc + w0 a0 + w1 a1 in each lane. */
LT_INLINE vi v_dot2(vi acc, vs w, vs a) {
#if defined(LT_ISA_avx512)
    return (vi)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)w, (__m512i)a);
#elif defined(LT_ISA_avx2)
    return acc + (vi)_mm256_madd_epi16((__m256i)w, (__m256i)a);
#else
    const vi wide = (vi)w, wide_a = (vi)a;
    return acc + (wide << 16 >> 16) * (wide_a << 16 >> 16) + (wide >> 16) * (wide_a >> 16);
#endif
}

/* w + 16 in the bytes whose bit is set; the first bit of lane 0 is bit `first` of the 64 at p. */
LT_INLINE vq vq_fifths(vq w, const uint8_t *p, const int first) {
#if defined(LT_ISA_avx512)
    uint64_t bits;
    (void)first;
    memcpy(&bits, p, sizeof bits);
    return (vq)_mm512_mask_add_epi8((__m512i)w, bits, (__m512i)w, _mm512_set1_epi8(16));
#elif defined(LT_ISA_avx2)
    int32_t bits;
    memcpy(&bits, p + first / 8, sizeof bits);
    const __m256i byte = _mm256_set_epi64x(0x0303030303030303, 0x0202020202020202,
                                           0x0101010101010101, 0);
    const vq spread = (vq)_mm256_shuffle_epi8(_mm256_set1_epi32(bits), byte);
    const vq one = (vq)_mm256_set1_epi64x((long long)0x8040201008040201);
    return w + ((vq)((spread & one) == one) & 16);
#else
    typedef uint64_t vl __attribute__((vector_size(VEC * 4)));
    const uint64_t each = 0x0101010101010101u, one_each = 0x8040201008040201u;
    const vq spread = (vq)(vl){p[first / 8] * each, p[first / 8 + 1] * each};
    const vq one = (vq)(vl){one_each, one_each};
    return w + ((vq)((spread & one) == one) & 16);
#endif
}

/* The same for 16-bit numbers and 32 bits. */
LT_INLINE vs vs_fifths(vs w, const uint8_t *p, const int first) {
#if defined(LT_ISA_avx512)
    uint32_t bits;
    (void)first;
    memcpy(&bits, p, sizeof bits);
    return (vs)_mm512_mask_add_epi16((__m512i)w, bits, (__m512i)w, _mm512_set1_epi16(16));
#else
    uint16_t bits = 0;
    vs spread, one;
    memcpy(&bits, p + first / 8, VEC == 8 ? 2 : 1);
    for (int i = 0; i < 2 * VEC; i++) {
        spread[i] = (int16_t)bits;
        one[i] = (int16_t)(1 << i);
    }
    return w + ((vs)((spread & one) == one) & 16);
#endif
}

#endif

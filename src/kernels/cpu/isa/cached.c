/* cached.c: keys and values in the types of a cache (tensor/cached.h) and back, in vectors.
 *
 * The results have the bits of lt_cached_encode and lt_cached_decode, so this file is compiled
 * without fused instructions (ISA_EXACT in the Makefile). A block of 32 is 32 / VEC vectors:
 *
 *     encode   largest magnitude ─▶ scale ─▶ x / scale, rounded ─▶ bytes or nibbles
 *     decode   bytes or nibbles ─▶ integers ─▶ times the scale */
#include "kernels/cpu/isa/cached.h"

#include "tensor/block.h"
#include "tensor/cached.h"

#define PARTS    (LT_BLOCK_SMALL / VEC)
#define Q8_BYTES 34
#define Q4_BYTES 18

typedef int8_t vb __attribute__((vector_size(VEC)));
typedef uint8_t vub __attribute__((vector_size(VEC)));
typedef int8_t vb_mem __attribute__((vector_size(VEC), aligned(1), may_alias));
typedef uint8_t vub_mem __attribute__((vector_size(VEC), aligned(1), may_alias));

/* The largest magnitude of a block; NaN if a value is not finite. */
LT_INLINE float largest_of(const vf *x) {
    vf most = {0}, bad = {0};
    for (int i = 0; i < PARTS; i++) {
        most = v_max(v_abs(x[i]), most);
        bad += x[i] - x[i]; /* Adds 0, or NaN if the value is not finite. */
    }
    return v_max_of(most) + v_sum(bad);
}

/* The first value of magnitude `most`, with its sign. */
static float extreme_of(const float *x, float most) {
    int i = 0;
    while (__builtin_fabsf(x[i]) != most) {
        i++;
    }
    return x[i];
}

LT_INLINE vf truncated(vf x) {
    return __builtin_convertvector(__builtin_convertvector(x, vi), vf);
}

/* To the nearest integer, halves away from 0. */
LT_INLINE vi rounded(vf x) {
    const vf whole = truncated(v_abs(x)), rest = v_abs(x) - whole;
    const vi n = __builtin_convertvector(whole, vi) - (rest >= 0.5f);
    const vi negative = (vi)x >> 31;
    return (n ^ negative) - negative;
}

LT_INLINE void put_scale(unsigned char *dst, float d) {
    const uint16_t h = lt_f32_to_f16(d);
    memcpy(dst, &h, sizeof h);
}

/* A block that cannot have a scale: all zeros or, if a value is not finite, NaN. The scale of a
 * block of zeros is 0 / -8 in Q4_0. */
static void encode_odd(unsigned char *dst, lt_dtype type, float most) {
    const uint16_t scale = !(most >= 0.0f) ? LT_CACHED_NAN : type == LT_Q4_0 ? 0x8000 : 0;
    memcpy(dst, &scale, sizeof scale);
    memset(dst + 2, type == LT_Q8_0 ? 0 : 0x88, (type == LT_Q8_0 ? Q8_BYTES : Q4_BYTES) - 2);
}

LT_INLINE void encode_block(unsigned char *dst, const lt_dtype type, const float *src) {
    vf x[PARTS];
    for (int i = 0; i < PARTS; i++) {
        x[i] = v_load(src + i * VEC);
    }
    const float most = largest_of(x);
    if (!(most >= LT_CACHED_LEAST)) {
        encode_odd(dst, type, most);
        return;
    }
    const float d = type == LT_Q8_0 ? most / 127.0f : extreme_of(src, most) / -8.0f;
    const float inverse = 1.0f / d;
    put_scale(dst, d);
    if (type == LT_Q8_0) {
        for (int i = 0; i < PARTS; i++) {
            *(vb_mem *)(dst + 2 + i * VEC) = __builtin_convertvector(rounded(x[i] * inverse), vb);
        }
        return;
    }
    for (int i = 0; i < PARTS / 2; i++) {
        const vi low = __builtin_convertvector(
            v_min(truncated(x[i] * inverse + 8.5f), v_set(15.0f)), vi);
        const vi high = __builtin_convertvector(
            v_min(truncated(x[i + PARTS / 2] * inverse + 8.5f), v_set(15.0f)), vi);
        *(vub_mem *)(dst + 2 + i * VEC) = __builtin_convertvector(low | high << 4, vub);
    }
}

LT_INLINE void decode_block(float *dst, const lt_dtype type, const unsigned char *src) {
    uint16_t h;
    memcpy(&h, src, sizeof h);
    const float d = lt_f16_to_f32(h);
    if (type == LT_Q8_0) {
        for (int i = 0; i < PARTS; i++) {
            v_store(dst + i * VEC,
                    d * __builtin_convertvector(*(const vb_mem *)(src + 2 + i * VEC), vf));
        }
        return;
    }
    for (int i = 0; i < PARTS / 2; i++) {
        const vi q = __builtin_convertvector(*(const vub_mem *)(src + 2 + i * VEC), vi);
        v_store(dst + i * VEC, d * __builtin_convertvector((q & 15) - 8, vf));
        v_store(dst + LT_BLOCK_SMALL / 2 + i * VEC, d * __builtin_convertvector((q >> 4) - 8, vf));
    }
}

static void encode_f8(unsigned char *dst, const float *src, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        dst[i] = lt_f32_to_f8(src[i], false);
    }
}

static void decode_f8(float *dst, const unsigned char *src, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        dst[i] = lt_f8_to_f32(src[i], false);
    }
}

void LT_ISA_NAME(lt_cpu_cached_encode)(void *dst, lt_dtype type, const float *src, int64_t count) {
    if (type == LT_F8_E4M3) {
        encode_f8(dst, src, count);
    } else if (type == LT_Q8_0) {
        for (int64_t i = 0; i < count / LT_BLOCK_SMALL; i++) {
            encode_block((unsigned char *)dst + i * Q8_BYTES, LT_Q8_0, src + i * LT_BLOCK_SMALL);
        }
    } else if (type == LT_Q4_0) {
        for (int64_t i = 0; i < count / LT_BLOCK_SMALL; i++) {
            encode_block((unsigned char *)dst + i * Q4_BYTES, LT_Q4_0, src + i * LT_BLOCK_SMALL);
        }
    } else {
        for (int64_t i = 0; i < count; i += VEC) {
            v_put(dst, type, i, v_get(src, LT_F32, i, count - i), count - i);
        }
    }
}

void LT_ISA_NAME(lt_cpu_cached_decode)(float *dst, lt_dtype type, const void *src, int64_t count) {
    if (type == LT_F8_E4M3) {
        decode_f8(dst, src, count);
    } else if (type == LT_Q8_0) {
        for (int64_t i = 0; i < count / LT_BLOCK_SMALL; i++) {
            decode_block(dst + i * LT_BLOCK_SMALL, LT_Q8_0,
                         (const unsigned char *)src + i * Q8_BYTES);
        }
    } else if (type == LT_Q4_0) {
        for (int64_t i = 0; i < count / LT_BLOCK_SMALL; i++) {
            decode_block(dst + i * LT_BLOCK_SMALL, LT_Q4_0,
                         (const unsigned char *)src + i * Q4_BYTES);
        }
    } else {
        for (int64_t i = 0; i < count; i += VEC) {
            v_put(dst, LT_F32, i, v_get(src, type, i, count - i), count - i);
        }
    }
}

/* block_decode.c: one function per format, and a table of them (block.h has the layouts). */
#include "tensor/block.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

#define SMALL LT_BLOCK_SMALL
#define SUPER LT_BLOCK_SUPER

static float half_at(const unsigned char *p) {
    return lt_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static void from_f32(float *dst, const unsigned char *src) {
    memcpy(dst, src, sizeof *dst);
}

static void from_f16(float *dst, const unsigned char *src) {
    *dst = half_at(src);
}

static void from_bf16(float *dst, const unsigned char *src) {
    *dst = lt_bf16_to_f32((uint16_t)(src[0] | src[1] << 8));
}

static void from_f64(float *dst, const unsigned char *src) {
    double x;
    memcpy(&x, src, sizeof x);
    *dst = (float)x;
}

const float lt_nf4_values[16] = {-1.0f,
                                 -0.6961928009986877f,
                                 -0.5250730514526367f,
                                 -0.39491748809814453f,
                                 -0.28444138169288635f,
                                 -0.18477343022823334f,
                                 -0.09105003625154495f,
                                 0.0f,
                                 0.07958029955625534f,
                                 0.16093020141124725f,
                                 0.24611230194568634f,
                                 0.33791524171829224f,
                                 0.44070982933044434f,
                                 0.5626170039176941f,
                                 0.7229568362236023f,
                                 1.0f};

static void from_nf4(float *dst, const unsigned char *b) {
    float d;
    memcpy(&d, b, sizeof d);
    for (int i = 0; i < LT_BLOCK_NF4 / 2; i++) {
        dst[2 * i] = lt_nf4_values[b[4 + i] >> 4] * d;
        dst[2 * i + 1] = lt_nf4_values[b[4 + i] & 15] * d;
    }
}

static void from_q4_0(float *dst, const unsigned char *b) {
    const float d = half_at(b);
    for (int i = 0; i < SMALL / 2; i++) {
        dst[i] = (float)((b[2 + i] & 15) - 8) * d;
        dst[i + SMALL / 2] = (float)((b[2 + i] >> 4) - 8) * d;
    }
}

static void from_q4_1(float *dst, const unsigned char *b) {
    const float d = half_at(b), m = half_at(b + 2);
    for (int i = 0; i < SMALL / 2; i++) {
        dst[i] = (float)(b[4 + i] & 15) * d + m;
        dst[i + SMALL / 2] = (float)(b[4 + i] >> 4) * d + m;
    }
}

static uint32_t fifth_bits(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Five-bit value of element i: nibble i of 16 packed bytes, and bit i of high. */
static int five_bits(const unsigned char *nibbles, uint32_t high, int i) {
    const int low = i < SMALL / 2 ? nibbles[i] & 15 : nibbles[i - SMALL / 2] >> 4;
    return low | (int)(high >> i & 1u) << 4;
}

static void from_q5_0(float *dst, const unsigned char *b) {
    const float d = half_at(b);
    const uint32_t high = fifth_bits(b + 2);
    for (int i = 0; i < SMALL; i++) {
        dst[i] = (float)(five_bits(b + 6, high, i) - 16) * d;
    }
}

static void from_q5_1(float *dst, const unsigned char *b) {
    const float d = half_at(b), m = half_at(b + 2);
    const uint32_t high = fifth_bits(b + 4);
    for (int i = 0; i < SMALL; i++) {
        dst[i] = (float)five_bits(b + 8, high, i) * d + m;
    }
}

static void from_q8_0(float *dst, const unsigned char *b) {
    const float d = half_at(b);
    for (int i = 0; i < SMALL; i++) {
        dst[i] = (float)(signed char)b[2 + i] * d;
    }
}

static void from_q2_k(float *dst, const unsigned char *b) {
    const unsigned char *q = b + 16;
    const float d = half_at(b + 80), dmin = half_at(b + 82);
    /* There are halves of 128; in each, four bit pairs of 32 bytes. */
    for (int i = 0; i < SUPER; i++) {
        const int half = i / 128, pair = i % 128 / 32, s = b[i / 16];
        dst[i] = d * (float)(s & 15) * (float)(q[half * 32 + i % 32] >> (2 * pair) & 3) -
                 dmin * (float)(s >> 4);
    }
}

/* Sixteen signed 6-bit scales in 12 bytes: low nibbles in bytes 0..7, high pairs in bytes 8..11. */
static int q3_scale(const unsigned char *p, int i) {
    const int low = i < 8 ? p[i] & 15 : p[i - 8] >> 4;
    return (low | (p[8 + i % 4] >> (2 * (i / 4)) & 3) << 4) - 32;
}

static void from_q3_k(float *dst, const unsigned char *b) {
    const unsigned char *high = b, *q = b + 32, *scales = b + 96;
    const float d = half_at(b + 108);
    for (int i = 0; i < SUPER; i++) {
        const int half = i / 128, pair = i % 128 / 32;
        const int low = q[half * 32 + i % 32] >> (2 * pair) & 3;
        const int has_high = high[i % 32] >> (4 * half + pair) & 1;
        dst[i] = d * (float)q3_scale(scales, i / 16) * (float)(low - (has_high ? 0 : 4));
    }
}

/* Scale and minimum j of the eight pairs that are packed in 12 bytes of a Q4_K or Q5_K block. */
static void k_scale_min(const unsigned char *p, int j, int *scale, int *min) {
    *scale = j < 4 ? p[j] & 63 : (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
    *min = j < 4 ? p[j + 4] & 63 : (p[j + 4] >> 4) | (p[j] >> 6) << 4;
}

/* Q4_K (high NULL) and Q5_K: 64 elements share 32 bytes of nibbles; sub-block j has 32 elements. */
static void from_k(float *dst, const unsigned char *b, const unsigned char *high,
                   const unsigned char *nibbles) {
    const float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        int s, m;
        k_scale_min(b + 4, j, &s, &m);
        const float scale = d * (float)s, min = dmin * (float)m;
        for (int i = 0; i < 32; i++) {
            const int packed = nibbles[j / 2 * 32 + i];
            const int low = j % 2 == 0 ? packed & 15 : packed >> 4;
            const int fifth = high != NULL ? (high[i] >> j & 1) << 4 : 0;
            dst[j * 32 + i] = scale * (float)(low + fifth) - min;
        }
    }
}

static void from_q4_k(float *dst, const unsigned char *b) {
    from_k(dst, b, NULL, b + 16);
}

static void from_q5_k(float *dst, const unsigned char *b) {
    from_k(dst, b, b + 16, b + 48);
}

static void from_q6_k(float *dst, const unsigned char *b) {
    const signed char *scales = (const signed char *)(b + 192);
    const float d = half_at(b + 208);
    for (int i = 0; i < SUPER;
         /* Halves of 128; in each, quarters of 32: low nibbles of bytes 0..63, then high ones. */
         i++) {
        const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
        const int packed = b[half * 64 + (quarter % 2) * 32 + at];
        const int low = quarter < 2 ? packed & 15 : packed >> 4;
        const int high = b[128 + half * 32 + at] >> (2 * quarter) & 3;
        dst[i] = d * (float)scales[i / 16] * (float)((low | high << 4) - 32);
    }
}

static const float e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

static void from_mxfp4(float *dst, const unsigned char *b) {
    for (int i = 0; i < SMALL / 2; i++) {
        dst[i] = ldexpf(e2m1[b[1 + i] & 15], b[0] - 127);
        dst[i + SMALL / 2] = ldexpf(e2m1[b[1 + i] >> 4], b[0] - 127);
    }
}

void lt_block_decode_mxfp4(float *dst, const unsigned char *blocks, const unsigned char *scales,
                           size_t from, size_t count) {
    for (size_t i = from; i < from + count; i++) {
        const int packed = blocks[i / 2], q = i % 2 == 0 ? packed & 15 : packed >> 4;
        *dst++ = ldexpf(e2m1[q], scales[i / SMALL] - 127);
    }
}

bool lt_block_mxfp4_as_q5_0(unsigned char *dst, const unsigned char *nibbles, int e,
                            bool adjacent) {
    const int least = 128 - 24, most = 128 + 15, /* e, if d is to be an F16. */
        up = e < least ? least - e : 0;
    int v[SMALL], extreme = 0;
    uint32_t high = 0;
    for (int i = 0; i < SMALL; i++) {
        const int packed = nibbles[adjacent ? i / 2 : i % 16], low = adjacent ? i % 2 == 0 : i < 16;
        v[i] = (int)(2.0f * e2m1[low ? packed & 15 : packed >> 4]);
        extreme = v[i] != 0 ? v[i] : extreme;
    }
    if (e == 255 || (e > most && extreme != 0)) {
        return false;
    }
    const uint16_t d = extreme != 0 ? lt_f32_to_f16(ldexpf(1.0f, e + up - 128)) : 0;
    memset(dst, 0, 22);
    for (int i = 0; i < SMALL; i++) {
        const int u = 16 + (int)nearbyintf(ldexpf((float)v[i], -up));
        dst[6 + i % 16] |= (unsigned char)((u & 15) << (i < 16 ? 0 : 4));
        high |= (uint32_t)(u >> 4) << i;
    }
    memcpy(dst, &d, sizeof d);
    memcpy(dst + 2, &high, sizeof high);
    return true;
}

/* The integers of a block. The float functions above decode the same layouts; they are separate
 * because they cover more formats. */
static void ints_nibbles(lt_block_ints *v, const unsigned char *nibbles, int offset) {
    for (int i = 0; i < SMALL / 2; i++) {
        v->q[i] = (int8_t)((nibbles[i] & 15) - offset);
        v->q[i + SMALL / 2] = (int8_t)((nibbles[i] >> 4) - offset);
    }
}

static void ints_fives(lt_block_ints *v, const unsigned char *nibbles, uint32_t high, int offset) {
    for (int i = 0; i < SMALL; i++) {
        v->q[i] = (int8_t)(five_bits(nibbles, high, i) - offset);
    }
}

static void ints_q4_0(lt_block_ints *v, const unsigned char *b) {
    v->d = half_at(b);
    ints_nibbles(v, b + 2, 8);
}

static void ints_q4_1(lt_block_ints *v, const unsigned char *b) {
    v->d = half_at(b);
    v->m = half_at(b + 2);
    ints_nibbles(v, b + 4, 0);
}

static void ints_q5_0(lt_block_ints *v, const unsigned char *b) {
    v->d = half_at(b);
    ints_fives(v, b + 6, fifth_bits(b + 2), 16);
}

static void ints_q5_1(lt_block_ints *v, const unsigned char *b) {
    v->d = half_at(b);
    v->m = half_at(b + 2);
    ints_fives(v, b + 8, fifth_bits(b + 4), 0);
}

static void ints_q8_0(lt_block_ints *v, const unsigned char *b) {
    v->d = half_at(b);
    memcpy(v->q, b + 2, SMALL);
}

static void ints_k(lt_block_ints *v, const unsigned char *b, const unsigned char *high,
                   const unsigned char *nibbles) {
    v->d = half_at(b);
    v->m = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        int s, m;
        k_scale_min(b + 4, j, &s, &m);
        v->scale[j] = (int8_t)s;
        v->min[j] = (uint8_t)m;
        for (int i = 0; i < 32; i++) {
            const int packed = nibbles[j / 2 * 32 + i];
            const int fifth = high != NULL ? (high[i] >> j & 1) << 4 : 0;
            v->q[j * 32 + i] = (int8_t)((j % 2 == 0 ? packed & 15 : packed >> 4) + fifth);
        }
    }
}

static void ints_q4_k(lt_block_ints *v, const unsigned char *b) {
    ints_k(v, b, NULL, b + 16);
}

static void ints_q5_k(lt_block_ints *v, const unsigned char *b) {
    ints_k(v, b, b + 16, b + 48);
}

static void ints_q6_k(lt_block_ints *v, const unsigned char *b) {
    v->d = half_at(b + 208);
    memcpy(v->scale, b + 192, 16);
    for (int i = 0; i < SUPER; i++) { /* As in from_q6_k. */
        const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
        const int packed = b[half * 64 + (quarter % 2) * 32 + at];
        const int low = quarter < 2 ? packed & 15 : packed >> 4;
        const int high = b[128 + half * 32 + at] >> (2 * quarter) & 3;
        v->q[i] = (int8_t)((low | high << 4) - 32);
    }
}

typedef struct {
    void (*decode)(float *dst, const unsigned char *block);
    lt_partner partner;
    int group; /* Number of elements that share a scale, for formats with a partner. */
    void (*ints)(lt_block_ints *v, const unsigned char *block);
} format;

static const format formats[LT_DTYPE_COUNT] = {
    [LT_F32] = {.decode = from_f32},
    [LT_F16] = {.decode = from_f16},
    [LT_BF16] = {.decode = from_bf16},
    [LT_F64] = {.decode = from_f64},
    [LT_Q4_0] = {from_q4_0, LT_PARTNER_Q8_0, SMALL, ints_q4_0},
    [LT_Q4_1] = {from_q4_1, LT_PARTNER_Q8_1, SMALL, ints_q4_1},
    [LT_Q5_0] = {from_q5_0, LT_PARTNER_Q8_0, SMALL, ints_q5_0},
    [LT_Q5_1] = {from_q5_1, LT_PARTNER_Q8_1, SMALL, ints_q5_1},
    [LT_Q8_0] = {from_q8_0, LT_PARTNER_Q8_0, SMALL, ints_q8_0},
    [LT_Q2_K] = {.decode = from_q2_k},
    [LT_Q3_K] = {.decode = from_q3_k},
    [LT_Q4_K] = {from_q4_k, LT_PARTNER_Q8_K, 32, ints_q4_k},
    [LT_Q5_K] = {from_q5_k, LT_PARTNER_Q8_K, 32, ints_q5_k},
    [LT_Q6_K] = {from_q6_k, LT_PARTNER_Q8_K, 16, ints_q6_k},
    [LT_MXFP4] = {.decode = from_mxfp4},
    [LT_NF4] = {.decode = from_nf4},
};

bool lt_block_decodes(lt_dtype type) {
    LT_ASSERT(type < LT_DTYPE_COUNT);
    return formats[type].decode != NULL;
}

void lt_block_decode(float *dst, lt_dtype type, const void *src, size_t count) {
    size_t bytes;
    const size_t elems = (size_t)lt_dtype_block(type, &bytes);
    LT_ASSERT(lt_block_decodes(type) && count % elems == 0);
    for (size_t block = 0; block < count / elems; block++) {
        formats[type].decode(dst + block * elems, (const unsigned char *)src + block * bytes);
    }
}

lt_partner lt_block_partner(lt_dtype type) {
    LT_ASSERT(type < LT_DTYPE_COUNT);
    return formats[type].partner;
}

void lt_block_unpack(lt_block_ints *dst, lt_dtype type, const void *block) {
    size_t bytes;
    LT_ASSERT(lt_block_partner(type) != LT_PARTNER_NONE);
    dst->n = (int)lt_dtype_block(type, &bytes);
    dst->group = formats[type].group;
    dst->m = 0.0f;
    dst->scale[0] = 1;
    formats[type].ints(dst, block);
}

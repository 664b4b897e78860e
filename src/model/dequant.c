/* dequant.c: one function a format, a table to find it (see dequant.h for the layouts). */
#include "model/dequant.h"

#include <string.h>

#include "base/error.h"
#include "lateen/tensor.h"

#define SMALL 32  /* Elements of a simple block. */
#define SUPER 256 /* Elements of a K block. */

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
    for (int i = 0; i < SUPER; i++) { /* Halves of 128; in each, four bit pairs of 32 bytes. */
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

/* Scale and minimum j of the eight packed in 12 bytes of a Q4_K or Q5_K block. */
static void k_scale_min(const unsigned char *p, int j, float *scale, float *min) {
    const int s = j < 4 ? p[j] & 63 : (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
    const int m = j < 4 ? p[j + 4] & 63 : (p[j + 4] >> 4) | (p[j] >> 6) << 4;
    *scale = (float)s;
    *min = (float)m;
}

/* Q4_K (high NULL) and Q5_K: 64 elements share 32 bytes of nibbles; sub-block j has 32 elements. */
static void from_k(float *dst, const unsigned char *b, const unsigned char *high,
                   const unsigned char *nibbles) {
    const float d = half_at(b), dmin = half_at(b + 2);
    for (int j = 0; j < 8; j++) {
        float scale, min;
        k_scale_min(b + 4, j, &scale, &min);
        scale *= d;
        min *= dmin;
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
    for (
        int i = 0; i < SUPER;
        i++) { /* Halves of 128; in each, quarters of 32: low nibbles of bytes 0..63, then high ones. */
        const int half = i / 128, quarter = i % 128 / 32, at = i % 32;
        const int packed = b[half * 64 + (quarter % 2) * 32 + at];
        const int low = quarter < 2 ? packed & 15 : packed >> 4;
        const int high = b[128 + half * 32 + at] >> (2 * quarter) & 3;
        dst[i] = d * (float)scales[i / 16] * (float)((low | high << 4) - 32);
    }
}

static const struct {
    lt_ggml_type type;
    int elems, bytes;
    void (*decode)(float *dst, const unsigned char *block);
} formats[] = {
    {LT_GGML_F32, 1, 4, from_f32},         {LT_GGML_F16, 1, 2, from_f16},
    {LT_GGML_BF16, 1, 2, from_bf16},       {LT_GGML_F64, 1, 8, from_f64},
    {LT_GGML_Q4_0, SMALL, 18, from_q4_0},  {LT_GGML_Q4_1, SMALL, 20, from_q4_1},
    {LT_GGML_Q5_0, SMALL, 22, from_q5_0},  {LT_GGML_Q5_1, SMALL, 24, from_q5_1},
    {LT_GGML_Q8_0, SMALL, 34, from_q8_0},  {LT_GGML_Q2_K, SUPER, 84, from_q2_k},
    {LT_GGML_Q3_K, SUPER, 110, from_q3_k}, {LT_GGML_Q4_K, SUPER, 144, from_q4_k},
    {LT_GGML_Q5_K, SUPER, 176, from_q5_k}, {LT_GGML_Q6_K, SUPER, 210, from_q6_k},
};

bool lt_dequant_serves(lt_ggml_type type) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (formats[i].type == type) {
            return true;
        }
    }
    return false;
}

void lt_dequant(float *dst, lt_ggml_type type, const unsigned char *src, size_t count) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (formats[i].type == type) {
            const size_t elems = (size_t)formats[i].elems, bytes = (size_t)formats[i].bytes;
            LT_ASSERT(count % elems == 0);
            for (size_t block = 0; block < count / elems; block++) {
                formats[i].decode(dst + block * elems, src + block * bytes);
            }
            return;
        }
    }
    LT_ASSERT(!"a served type");
}

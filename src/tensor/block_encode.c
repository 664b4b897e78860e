/* block_encode.c: encodes F32 in the simple formats, with the arithmetic of ggml's
 * quantize_row_<type>_ref: one pass to find the range of a block of 32, one to round. The K
 * formats, which search for their scales, are in block_encode_k.c.
 *
 * Rounding is floor(x + 1/2) in F32 if values are known to be >= 0: the sum may round up to the
 * next integer, as it does in ggml. */
#include "tensor/block_encode.h"

#include <math.h>
#include <string.h>

#include "base/error.h"

#define SMALL LT_BLOCK_SMALL

static void put_half(unsigned char *p, float x) {
    const uint16_t h = lt_f32_to_f16(x);
    p[0] = (unsigned char)h;
    p[1] = (unsigned char)(h >> 8);
}

/* The element of largest magnitude, with its sign; of equal ones the first. */
static float extreme_of(const float *x) {
    float most = 0.0f, extreme = 0.0f;
    for (int i = 0; i < SMALL; i++) {
        if (most < fabsf(x[i])) {
            most = fabsf(x[i]);
            extreme = x[i];
        }
    }
    return extreme;
}

static float inverse_of(float d) {
    return d != 0.0f ? 1.0f / d : 0.0f;
}

static int at_most(int q, int most) {
    return q < most ? q : most;
}

/* Store q[i], those of the first half as low nibbles and those of the second as high nibbles;
 * returns the fifth bits. */
static uint32_t put_nibbles(unsigned char *dst, const int q[SMALL]) {
    uint32_t high = 0;
    for (int i = 0; i < SMALL / 2; i++) {
        dst[i] = (unsigned char)((q[i] & 15) | (q[i + SMALL / 2] & 15) << 4);
    }
    for (int i = 0; i < SMALL; i++) {
        high |= (uint32_t)(q[i] >> 4 & 1) << i;
    }
    return high;
}

/* d = extreme / -half: the extreme becomes exactly 0; q = x / d + half, up to 2 half - 1. */
static float round_signed(int q[SMALL], const float *x, int half) {
    const float d = extreme_of(x) / (float)-half, inverse = inverse_of(d);
    for (int i = 0; i < SMALL; i++) {
        q[i] = at_most((int)(x[i] * inverse + ((float)half + 0.5f)), 2 * half - 1);
    }
    return d;
}

/* q = (x - min) / d, 0 to most. */
static float round_range(int q[SMALL], float *min, const float *x, int most) {
    float low = x[0], high = x[0];
    for (int i = 1; i < SMALL; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    const float d = (high - low) / (float)most, inverse = inverse_of(d);
    for (int i = 0; i < SMALL; i++) {
        q[i] = at_most((int)((x[i] - low) * inverse + 0.5f), most);
    }
    *min = low;
    return d;
}

static void to_q4_0(unsigned char *b, const float *x) {
    int q[SMALL];
    put_half(b, round_signed(q, x, 8));
    (void)put_nibbles(b + 2, q);
}

static void to_q4_1(unsigned char *b, const float *x) {
    int q[SMALL];
    float min;
    put_half(b, round_range(q, &min, x, 15));
    put_half(b + 2, min);
    (void)put_nibbles(b + 4, q);
}

static void put_u32(unsigned char *p, uint32_t x) {
    for (int i = 0; i < 4; i++) {
        p[i] = (unsigned char)(x >> (8 * i));
    }
}

static void to_q5_0(unsigned char *b, const float *x) {
    int q[SMALL];
    put_half(b, round_signed(q, x, 16));
    put_u32(b + 2, put_nibbles(b + 6, q));
}

static void to_q5_1(unsigned char *b, const float *x) {
    int q[SMALL];
    float min;
    put_half(b, round_range(q, &min, x, 31));
    put_half(b + 2, min);
    put_u32(b + 4, put_nibbles(b + 8, q));
}

static void to_q8_0(unsigned char *b, const float *x) {
    const float d = fabsf(extreme_of(x)) / 127.0f, inverse = inverse_of(d);
    put_half(b, d);
    for (int i = 0; i < SMALL; i++) {
        b[2 + i] = (unsigned char)(int8_t)roundf(x[i] * inverse);
    }
}

/* The number of midpoints between neighbours that x exceeds is the index of the nearest value. */
static int nf4_of(float x) {
    int q = 0;
    for (int i = 0; i < 15; i++) {
        q += x > 0.5f * (lt_nf4_values[i] + lt_nf4_values[i + 1]);
    }
    return q;
}

static void to_nf4(unsigned char *b, const float *x) {
    float most = 0.0f;
    for (int i = 0; i < LT_BLOCK_NF4; i++) {
        most = fmaxf(most, fabsf(x[i]));
    }
    const float by = most > 0.0f ? most : 1.0f;
    memcpy(b, &most, sizeof most);
    for (int i = 0; i < LT_BLOCK_NF4 / 2; i++) {
        b[4 + i] = (unsigned char)(nf4_of(x[2 * i] / by) << 4 | nf4_of(x[2 * i + 1] / by));
    }
}

static void (*const encoders[LT_DTYPE_COUNT])(unsigned char *b, const float *x) = {
    [LT_Q4_0] = to_q4_0,
    [LT_Q4_1] = to_q4_1,
    [LT_Q5_0] = to_q5_0,
    [LT_Q5_1] = to_q5_1,
    [LT_Q8_0] = to_q8_0,
    [LT_Q4_K] = lt_block_encode_q4_k,
    [LT_Q5_K] = lt_block_encode_q5_k,
    [LT_Q6_K] = lt_block_encode_q6_k,
    [LT_NF4] = to_nf4,
};

bool lt_block_encodes(lt_dtype type) {
    LT_ASSERT(type < LT_DTYPE_COUNT);
    return type == LT_F32 || type == LT_F16 || type == LT_BF16 || encoders[type] != NULL;
}

void lt_block_encode(void *dst, lt_dtype type, const float *src, size_t count) {
    size_t bytes;
    const size_t elems = (size_t)lt_dtype_block(type, &bytes);
    LT_ASSERT(lt_block_encodes(type) && count % elems == 0);
    if (elems == 1) {
        lt_convert(dst, type, src, LT_F32, count);
        return;
    }
    for (size_t block = 0; block < count / elems; block++) {
        encoders[type]((unsigned char *)dst + block * bytes, src + block * elems);
    }
}

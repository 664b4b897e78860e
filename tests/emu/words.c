/* words.c: arithmetic that takes one instruction on the device: conversions of 16-bit floats, and
 * the matrix product of a warp. */
#include "emu.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static float float_of(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

float emu_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) { /* Infinity and NaN. */
        return float_of(sign | 0x7f800000u | (rest & 0x3ff) << 13);
    }
    /* Shifted into place, the exponent is 112 too small: a multiplication corrects it, for
     * subnormal numbers too. */
    return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

uint16_t emu_f32_to_f16(float x) {
    const uint32_t u = bits_of(x), sign = u >> 16 & 0x8000;
    const float size = fabsf(x);
    if (!(size == size)) {
        return 0x7fff;
    }
    if (size >= 65520.0f) {
        return (uint16_t)(sign | 0x7c00);
    }
    if (size < 0x1p-14f) { /* Subnormal: a multiple of 2^-24. */
        return (uint16_t)(sign | (uint32_t)rintf(size * 0x1p24f));
    }
    const uint32_t rest = u & 0x7fffffff, odd = rest >> 13 & 1;
    return (uint16_t)(sign | ((rest + 0xfff + odd - (112u << 23)) >> 13));
}

uint16_t emu_f32_to_bf16(float x) {
    const uint32_t u = bits_of(x);
    if (!(x == x)) {
        return 0x7fff;
    }
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* 8-bit floats: 1.4.3 without infinity, and 1.5.2. The nearest code is found by comparing all of
 * them; ties go to the even one. */
float emu_f8_to_f32(uint8_t code, bool e5m2) {
    const int mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, mag = code & 0x7f;
    const int e = mag >> mantissa, m = mag & ((1 << mantissa) - 1);
    const float size = ldexpf((float)(e > 0 ? m + (1 << mantissa) : m),
                              (e > 0 ? e : 1) - bias - mantissa);
    const float x = e5m2 && mag == 0x7c                   ? INFINITY
                    : mag == 0x7f || (e5m2 && mag > 0x7c) ? NAN
                                                          : size;
    return code & 0x80 ? -x : x;
}

/* Beyond the largest number the result is that number. */
uint8_t emu_f32_to_f8(float x, bool e5m2) {
    const int most = e5m2 ? 0x7b : 0x7e;
    const float size = fabsf(x);
    const uint8_t sign = (uint8_t)(bits_of(x) >> 24 & 0x80);
    int low = 0, high = most;
    if (!(x == x)) {
        return sign | 0x7f;
    }
    while (high - low > 1) {
        const int mid = (low + high) / 2;
        if (emu_f8_to_f32((uint8_t)mid, e5m2) <= size) {
            low = mid;
        } else {
            high = mid;
        }
    }
    const float below = size - emu_f8_to_f32((uint8_t)low, e5m2),
                above = emu_f8_to_f32((uint8_t)high, e5m2) - size;
    return (uint8_t)(sign | (above < below || (above == below && low % 2 != 0) ? high : low));
}

static float bf16_to_f32(uint16_t h) {
    return float_of((uint32_t)h << 16);
}

typedef float eight __attribute__((vector_size(32)));

/* Fragments: see common/mma.cuh. Sums are in float, of products that are exact; the tensor cores'
 * own order and truncation are not documented. */
static inline __attribute__((always_inline)) void multiply(void *const lanes[EMU_WARP],
                                                           float (*to_f32)(uint16_t)) {
    float a[16][16], y[16][8];
    union {
        float at[16][8];
        eight row[16];
    } b;
    for (int l = 0; l < EMU_WARP; l++) {
        const emu_mma *const m = lanes[l];
        const int r = l / 4, c = 2 * (l % 4);
        for (int i = 0; i < 4; i++) {
            a[r + i % 2 * 8][c + i / 2 * 8] = to_f32((uint16_t)m->a[i]);
            a[r + i % 2 * 8][c + i / 2 * 8 + 1] = to_f32((uint16_t)(m->a[i] >> 16));
        }
        for (int i = 0; i < 2; i++) {
            b.at[c + 8 * i][r] = to_f32((uint16_t)m->b[i]);
            b.at[c + 8 * i + 1][r] = to_f32((uint16_t)(m->b[i] >> 16));
        }
    }
    for (int row = 0; row < 16; row++) {
        eight sum = {0.0f};
        for (int k = 0; k < 16; k++) {
            sum += a[row][k] * b.row[k];
        }
        memcpy(y[row], &sum, sizeof sum);
    }
    for (int l = 0; l < EMU_WARP; l++) {
        emu_mma *const m = lanes[l];
        for (int i = 0; i < 4; i++) {
            m->d[i] += y[l / 4 + i / 2 * 8][2 * (l % 4) + i % 2];
        }
    }
}

void emu_mma_bf16(void *const lanes[EMU_WARP], unsigned mask) {
    if (mask != ~0u) {
        emu_trap("mma.sync with lanes %08x only", mask);
    }
    multiply(lanes, bf16_to_f32);
}

void emu_mma_f16(void *const lanes[EMU_WARP], unsigned mask) {
    if (mask != ~0u) {
        emu_trap("mma.sync with lanes %08x only", mask);
    }
    multiply(lanes, emu_f16_to_f32);
}

static void multiply_bytes(void *const lanes[EMU_WARP], unsigned mask, bool is_signed) {
    int a[16][32], b[32][8];
    if (mask != ~0u) {
        emu_trap("mma.sync with lanes %08x only", mask);
    }
    for (int l = 0; l < EMU_WARP; l++) {
        const emu_imma *const m = lanes[l];
        for (int i = 0; i < 16; i++) {
            const uint32_t byte = m->a[i / 4] >> 8 * (i % 4) & 0xff;
            a[l / 4 + i / 4 % 2 * 8][l % 4 * 4 + i / 8 * 16 + i % 4] = is_signed ? (int8_t)byte
                                                                                 : (int)byte;
        }
        for (int i = 0; i < 8; i++) {
            b[l % 4 * 4 + i / 4 * 16 + i % 4][l / 4] = (int8_t)(m->b[i / 4] >> 8 * (i % 4));
        }
    }
    for (int l = 0; l < EMU_WARP; l++) {
        emu_imma *const m = lanes[l];
        for (int i = 0; i < 4; i++) {
            for (int k = 0; k < 32; k++) {
                m->d[i] += a[l / 4 + i / 2 * 8][k] * b[k][l % 4 * 2 + i % 2];
            }
        }
    }
}

void emu_mma_u8(void *const lanes[EMU_WARP], unsigned mask) {
    multiply_bytes(lanes, mask, false);
}

void emu_mma_s8(void *const lanes[EMU_WARP], unsigned mask) {
    multiply_bytes(lanes, mask, true);
}

/* block_encode_k.c: encodes F32 in the K formats: 256 elements in groups of 32 (Q4_K, Q5_K) or 16
 * (Q6_K), whose scales are themselves rounded to 6 or 8 bits.
 *
 * The scale of a group is found by search: for each of several trial scales, the elements are
 * rounded, and the scale (and minimum) that best fits these integers by weighted least squares is
 * computed in closed form. The trial with the least error wins. Then all elements are rounded again
 * with the stored scales. The steps, their order and every rounding are those of ggml's
 * quantize_row_<type>_ref without an importance matrix, so that files are equal byte for byte; sums
 * run in element order in F32. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "tensor/block_encode.h"

#define SUPER     LT_BLOCK_SUPER
#define GROUP     32 /* Elements of a group of Q4_K and Q5_K. */
#define FINE      16 /* Elements of a group of Q6_K. */
#define NO_SCALE  1e-15f
#define Q6_TRIALS 9 /* Number of trials on either side of the plain scale. */

static void put_half(unsigned char *p, uint16_t h) {
    p[0] = (unsigned char)h;
    p[1] = (unsigned char)(h >> 8);
}

/* The nearest integer, ties to even; |x| < 2^22 whenever the result is used. */
static int nearest(float x) {
    const float shifted = x + 0x1.8p23f;
    int32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return (bits & 0x7FFFFF) - 0x400000;
}

static int clamp(int x, int low, int high) {
    return x < low ? low : x > high ? high : x;
}

/* A group to be rounded to q in [0, most]; element = scale * q + min. */
typedef struct {
    const float *x;
    float weight[GROUP];
    float low, high, sum_w, sum_wx;
    int most;
} range_fit;

static void range_open(range_fit *f, const float *x, int most) {
    float sum_sq = 0.0f;
    for (int i = 0; i < GROUP; i++) {
        sum_sq += x[i] * x[i];
    }
    const float rms = sqrtf(sum_sq / GROUP);
    for (int i = 0; i < GROUP; i++) {
        f->weight[i] = rms + fabsf(x[i]);
    }
    f->x = x;
    f->most = most;
    f->low = f->high = x[0];
    f->sum_w = f->weight[0];
    f->sum_wx = f->sum_w * x[0];
    for (int i = 1; i < GROUP; i++) {
        f->low = x[i] < f->low ? x[i] : f->low;
        f->high = x[i] > f->high ? x[i] : f->high;
        f->sum_w += f->weight[i];
        f->sum_wx += f->weight[i] * x[i];
    }
    f->low = f->low > 0.0f ? 0.0f : f->low;
}

static float range_error(const range_fit *f, const int q[GROUP], float scale, float min) {
    float error = 0.0f;
    for (int i = 0; i < GROUP; i++) {
        const float diff = scale * (float)q[i] + min - f->x[i];
        error += f->weight[i] * (diff * diff);
    }
    return error;
}

/* Round with the trial's inverse scale and compute the least-squares scale and minimum (<= 0).
 * False: there is no solution. */
static bool range_solve(const range_fit *f, int q[GROUP], float inverse, float *scale, float *min) {
    float sum_q = 0.0f, sum_qq = 0.0f, sum_qx = 0.0f;
    for (int i = 0; i < GROUP; i++) {
        const float w = f->weight[i];
        q[i] = clamp(nearest(inverse * (f->x[i] - f->low)), 0, f->most);
        const float l = (float)q[i];
        sum_q += w * l;
        sum_qq += w * l * l;
        sum_qx += w * l * f->x[i];
    }
    const float det = f->sum_w * sum_qq - sum_q * sum_q;
    if (!(det > 0.0f)) {
        return false;
    }
    *scale = (f->sum_w * sum_qx - f->sum_wx * sum_q) / det;
    *min = (sum_qq * f->sum_wx - sum_q * sum_qx) / det;
    if (*min > 0.0f) {
        *min = 0.0f;
        *scale = sum_qx / sum_qq;
    }
    return true;
}

/* Find the scale of a group, which is returned; *depth = -minimum >= 0; q is rounded with both.
 * The trials are the inverse scales (first + 0.1 t + most) / range for t = 0 to trials. */
static float range_search(const float *x, int q[GROUP], float *depth, int most, float first,
                          int trials) {
    range_fit f;
    int trial_q[GROUP];
    range_open(&f, x, most);
    if (f.high == f.low) {
        memset(q, 0, GROUP * sizeof *q);
        *depth = -f.low;
        return 0.0f;
    }
    const float low = f.low, inverse = (float)most / (f.high - low);
    float scale = 1.0f / inverse, min = low;
    for (int i = 0; i < GROUP; i++) {
        q[i] = clamp(nearest(inverse * (x[i] - low)), 0, most);
    }
    float best = range_error(&f, q, scale, min);
    for (int t = 0; t <= trials; t++) {
        float new_scale, new_min;
        f.low = min; /* A trial starts from the best minimum so far. */
        if (!range_solve(&f, trial_q, (first + 0.1f * (float)t + (float)most) / (f.high - min),
                         &new_scale, &new_min)) {
            continue;
        }
        const float error = range_error(&f, trial_q, new_scale, new_min);
        if (error < best) {
            memcpy(q, trial_q, sizeof trial_q);
            best = error;
            scale = new_scale;
            min = new_min;
        }
    }
    *depth = -min;
    return scale;
}

/* Store d, dmin and the eight packed pairs of 6-bit scales and minima. */
static void put_scales(unsigned char *b, const float scales[8], const float depths[8]) {
    float most_scale = 0.0f, most_depth = 0.0f;
    int s[8], m[8];
    for (int j = 0; j < 8; j++) {
        most_scale = scales[j] > most_scale ? scales[j] : most_scale;
        most_depth = depths[j] > most_depth ? depths[j] : most_depth;
    }
    const float to_s = most_scale > 0.0f ? 63.0f / most_scale : 0.0f;
    const float to_m = most_depth > 0.0f ? 63.0f / most_depth : 0.0f;
    for (int j = 0; j < 8; j++) {
        s[j] = clamp((uint8_t)nearest(to_s * scales[j]), 0, 63);
        m[j] = clamp((uint8_t)nearest(to_m * depths[j]), 0, 63);
    }
    put_half(b, lt_f32_to_f16(most_scale / 63.0f));
    put_half(b + 2, lt_f32_to_f16(most_depth / 63.0f));
    for (int j = 0; j < 4; j++) {
        b[4 + j] = (unsigned char)(s[j] | s[j + 4] >> 4 << 6);
        b[8 + j] = (unsigned char)(m[j] | m[j + 4] >> 4 << 6);
        b[12 + j] = (unsigned char)((s[j + 4] & 15) | (m[j + 4] & 15) << 4);
    }
}

/* Store the scales of all groups, then q, rounded with the stored scales. */
static void round_k(unsigned char *b, int q[SUPER], const float *x, int most, float first,
                    int trials) {
    float scales[8], depths[8];
    lt_block_ints stored;
    for (int j = 0; j < 8; j++) {
        scales[j] = range_search(x + j * GROUP, q + j * GROUP, &depths[j], most, first, trials);
    }
    put_scales(b, scales, depths);
    lt_block_unpack(&stored, LT_Q4_K, b); /* Q5_K has the same head. */
    for (int i = 0; i < SUPER; i++) {
        const float d = stored.d * (float)stored.scale[i / GROUP];
        const float m = stored.m * (float)stored.min[i / GROUP];
        q[i] = d != 0.0f ? clamp(nearest((x[i] + m) / d), 0, most) : q[i];
    }
}

static void put_nibbles(unsigned char *dst, const int q[SUPER]) {
    for (int i = 0; i < SUPER / 2; i++) {
        const int at = i / 32 * 64 + i % 32;
        dst[i] = (unsigned char)((q[at] & 15) | (q[at + 32] & 15) << 4);
    }
}

void lt_block_encode_q4_k(unsigned char *b, const float *x) {
    int q[SUPER];
    memset(b, 0, 144);
    round_k(b, q, x, 15, -1.0f, 20);
    put_nibbles(b + 16, q);
}

void lt_block_encode_q5_k(unsigned char *b, const float *x) {
    int q[SUPER];
    memset(b, 0, 176);
    round_k(b, q, x, 31, -0.5f, 15);
    for (int i = 0; i < SUPER; i++) {
        b[16 + i % 32] = (unsigned char)(b[16 + i % 32] | (q[i] >> 4) << (i / 32));
    }
    put_nibbles(b + 48, q);
}

/* Round x to [-32, 31] with an inverse scale, and compute the sums of least squares weighted by
 * x^2. */
static void fine_round(int q[FINE], const float *x, float inverse, float *sum_qx, float *sum_qq) {
    *sum_qx = *sum_qq = 0.0f;
    for (int i = 0; i < FINE; i++) {
        const float w = x[i] * x[i];
        q[i] = clamp(nearest(inverse * x[i]), -32, 31);
        *sum_qx += w * x[i] * (float)q[i];
        *sum_qq += w * (float)q[i] * (float)q[i];
    }
}

static float fine_search(const float *x, int q[FINE]) {
    float most = 0.0f, extreme = 0.0f, sum_qx, sum_qq;
    for (int i = 0; i < FINE; i++) {
        if (fabsf(x[i]) > most) {
            most = fabsf(x[i]);
            extreme = x[i];
        }
    }
    if (most < NO_SCALE) {
        for (int i = 0; i < FINE; i++) {
            q[i] = -32;
        }
        return 0.0f;
    }
    fine_round(q, x, -32.0f / extreme, &sum_qx, &sum_qq);
    float scale = sum_qq != 0.0f ? sum_qx / sum_qq : 0.0f;
    float best = scale * sum_qx;
    for (int t = -Q6_TRIALS; t <= Q6_TRIALS; t++) {
        int trial[FINE];
        if (t == 0) {
            continue;
        }
        fine_round(trial, x, -(32.0f + 0.1f * (float)t) / extreme, &sum_qx, &sum_qq);
        if (sum_qq > 0.0f && sum_qx * sum_qx > best * sum_qq) {
            memcpy(q, trial, sizeof trial);
            scale = sum_qx / sum_qq;
            best = scale * sum_qx;
        }
    }
    return scale;
}

void lt_block_encode_q6_k(unsigned char *b, const float *x) {
    int q[SUPER];
    float scales[SUPER / FINE], most = 0.0f, extreme = 0.0f;
    memset(b, 0, 210);
    for (int j = 0; j < SUPER / FINE; j++) {
        scales[j] = fine_search(x + j * FINE, q + j * FINE);
        if (fabsf(scales[j]) > most) {
            most = fabsf(scales[j]);
            extreme = scales[j];
        }
    }
    if (most < NO_SCALE) {
        return;
    }
    const float inverse = -128.0f / extreme;
    const uint16_t d = lt_f32_to_f16(1.0f / inverse);
    put_half(b + 208, d);
    for (int j = 0; j < SUPER / FINE; j++) {
        const int8_t s = (int8_t)clamp(nearest(inverse * scales[j]), -128, 127);
        const float step = lt_f16_to_f32(d) * (float)s;
        b[192 + j] = (unsigned char)s;
        for (int i = j * FINE; step != 0.0f && i < (j + 1) * FINE; i++) {
            q[i] = clamp(nearest(x[i] / step), -32, 31);
        }
    }
    for (int i = 0; i < SUPER; i++) { /* Layout: from_q6_k in block_decode.c. */
        const int half = i / 128, quarter = i % 128 / 32, at = i % 32, u = q[i] + 32;
        unsigned char *low = &b[half * 64 + quarter % 2 * 32 + at],
                      *high = &b[128 + half * 32 + at];
        *low = (unsigned char)(*low | (u & 15) << (quarter < 2 ? 0 : 4));
        *high = (unsigned char)(*high | (u >> 4) << (2 * quarter));
    }
}

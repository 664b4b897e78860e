/* block_double.c: converts NF4 whose scales are quantised, too (block.h). */
#include <math.h>
#include <string.h>

#include "tensor/block.h"

#define OF_GROUP  256 /* Number of blocks that share s. */
#define CODES     256
#define CODES_AT  1 /* The codes follow o. */
#define GROUPS_AT (CODES_AT + CODES)
#define STEPS     65535.0f
#define NF4_BYTES 36
#define BYTES     33
#define HALF      (LT_BLOCK_NF4 / 2)
#define DECADES   7

int64_t lt_nf4_scales_count(int64_t n_blocks) {
    return GROUPS_AT + (n_blocks + OF_GROUP - 1) / OF_GROUP;
}

/* Point k of n + 1 from 0.1 to 1, as torch.linspace rounds it: from the nearer end. */
static float point_between(int k, int n) {
    const float step = (1.0f - 0.1f) / (float)n;
    return k < (n + 1) / 2 ? fmaf(step, (float)k, 0.1f) : fmaf(-step, (float)(n - k), 1.0f);
}

/* For each i = 0 .. 6, 2^i equidistant numbers between 10^(i - 7) and 10^(i - 6), and their
 * negatives; also 0 and 1. */
static void fill_codes(float codes[CODES]) {
    static const float powers[DECADES] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
    int at = CODES / 2;
    codes[CODES / 2 - 1] = 0.0f;
    codes[CODES - 1] = 1.0f;
    for (int i = 0; i < DECADES; i++) {
        const int n = 1 << i;
        for (int k = 0; k < n; k++, at++) {
            const float mean = (point_between(k, n) + point_between(k + 1, n)) / 2.0f;
            codes[at] = powers[i] * mean;
            codes[CODES - 2 - at] = -codes[at];
        }
    }
}

/* The index of the number nearest to x in -1 .. 1; of two equally near ones, the smaller. */
static unsigned char nearest(const float codes[CODES], float x) {
    const int step = (int)((x + 1.0f) * 0.5f * STEPS + 0.5f);
    const float value = 2.0f * ((float)step / STEPS) - 1.0f;
    /* codes[low] <= value, except for low 0; codes[high] > value. */
    int low = 0, high = CODES - 1;
    if (value >= codes[high]) {
        return CODES - 1;
    }
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (codes[middle] <= value) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return (unsigned char)(fabsf(value - codes[high]) < fabsf(value - codes[low]) ? high : low);
}

static float scale_of(const unsigned char *nf4, int64_t block) {
    float d;
    memcpy(&d, nf4 + block * NF4_BYTES, sizeof d);
    return d;
}

static float mean_scale(const unsigned char *nf4, int64_t n_blocks) {
    double sum = 0.0;
    for (int64_t i = 0; i < n_blocks; i++) {
        sum += (double)scale_of(nf4, i);
    }
    return (float)(sum / (double)n_blocks);
}

void lt_nf4_double_encode(void *dst, float *scales, const void *src, int64_t n_blocks) {
    const float offset = scales[0] = mean_scale(src, n_blocks);
    fill_codes(scales + CODES_AT);
    for (int64_t first = 0; first < n_blocks; first += OF_GROUP) {
        const int64_t end = n_blocks - first < OF_GROUP ? n_blocks : first + OF_GROUP;
        float most = 0.0f;
        for (int64_t i = first; i < end; i++) {
            most = fmaxf(most, fabsf(scale_of(src, i) - offset));
        }
        scales[GROUPS_AT + first / OF_GROUP] = most;
        for (int64_t i = first; i < end; i++) {
            unsigned char *const to = (unsigned char *)dst + i * BYTES;
            const float x = most > 0.0f ? (scale_of(src, i) - offset) / most : 0.0f;
            to[0] = nearest(scales + CODES_AT, x);
            memcpy(to + 1, (const unsigned char *)src + i * NF4_BYTES + sizeof(float), HALF);
        }
    }
}

/* The scale of a block with this code. */
static float scale_in(const float *scales, int64_t block, unsigned char code) {
    return scales[CODES_AT + code] * scales[GROUPS_AT + block / OF_GROUP] + scales[0];
}

void lt_nf4_double_to_nf4(void *dst, const void *src, const float *scales, int64_t first_block,
                          int64_t n_blocks) {
    for (int64_t b = 0; b < n_blocks; b++) {
        const unsigned char *const block = (const unsigned char *)src + b * BYTES;
        unsigned char *const to = (unsigned char *)dst + b * NF4_BYTES;
        const float d = scale_in(scales, first_block + b, block[0]);
        memcpy(to, &d, sizeof d);
        memcpy(to + sizeof d, block + 1, HALF);
    }
}

void lt_nf4_double_decode(float *dst, const void *src, const float *scales, int64_t first_block,
                          int64_t n_blocks) {
    for (int64_t b = 0; b < n_blocks; b++) {
        const unsigned char *const block = (const unsigned char *)src + b * BYTES;
        const float d = scale_in(scales, first_block + b, block[0]);
        for (int i = 0; i < HALF; i++) {
            dst[b * LT_BLOCK_NF4 + 2 * i] = lt_nf4_values[block[1 + i] >> 4] * d;
            dst[b * LT_BLOCK_NF4 + 2 * i + 1] = lt_nf4_values[block[1 + i] & 15] * d;
        }
    }
}

/* rope.c: the rotary table. Frequencies and angles are rounded to F32 where transformers rounds them: at position 100,000 the difference between an
 * F32 and an F64 frequency is a hundredth of a radian, and the models were trained with the former.
 *
 * Llama 3 scaling (Llama 3.1's model card; transformers' _compute_llama3_parameters): wavelengths above original / low_freq are
 * stretched by factor, those below original / high_freq are kept, between them the two are blended linearly in original / wavelength. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/thread.h"
#include "model/run.h"

static float llama3_scaled(const lt_model_spec *s, float frequency) {
    const float wavelength = (float)(2.0 * 3.14159265358979323846) / frequency;
    const float original = (float)s->rope_original_seq;
    const float low = (float)s->rope_low_freq, high = (float)s->rope_high_freq,
                factor = (float)s->rope_factor;
    if (wavelength > original / low) {
        return frequency / factor;
    }
    if (wavelength < original / high) {
        return frequency;
    }
    const float smooth = (original / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
}

/* A table is made by all threads: 128k positions take one of them 0.3 s. */
#define BLOCK_POSITIONS 64
typedef struct {
    float *table;
    const float *frequency;
    int64_t n, half;
} rope_task;

static void fill_block(void *ctx, size_t block) {
    const rope_task *t = ctx;
    const int64_t from = (int64_t)block * BLOCK_POSITIONS,
                  to = from + BLOCK_POSITIONS < t->n ? from + BLOCK_POSITIONS : t->n;
    for (int64_t position = from; position < to; position++) {
        float *row = t->table + position * t->half * 2;
        for (int64_t i = 0; i < t->half; i++) {
            const float angle = (float)position * t->frequency[i];
            row[2 * i] = (float)cos((double)angle);
            row[2 * i + 1] = (float)sin((double)angle);
        }
    }
}

lt_err lt_rope_table(float *table, const lt_model_spec *s, int64_t n, bool local) {
    const bool own_theta = local && s->rope_theta_local >
                                        0; /* Then sliding layers are not scaled either (gemma3). */
    const double theta = own_theta ? s->rope_theta_local : s->rope_theta;
    const int64_t half = s->head_dim / 2;
    float *frequencies = malloc((size_t)half * sizeof *frequencies);

    if (frequencies == NULL) {
        LT_FAIL(LT_ERR_OOM, "rotary table of %lld frequencies", (long long)half);
    }
    for (int64_t i = 0; i < half; i++) {
        float frequency = 1.0f / (float)pow(theta, (double)((float)(2 * i) / (float)s->head_dim));
        if (!own_theta && s->rope_scaling == LT_ROPE_LINEAR) {
            frequency /= (float)s->rope_factor;
        } else if (!own_theta && s->rope_scaling == LT_ROPE_LLAMA3) {
            frequency = llama3_scaled(s, frequency);
        }
        frequencies[i] = frequency;
    }
    lt_parallel_for((size_t)((n + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS), fill_block,
                    &(rope_task){table, frequencies, n, half});
    free(frequencies);
    return LT_OK;
}

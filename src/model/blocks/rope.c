/* rope.c: the rotary table. Frequencies and angles are rounded to F32 where transformers rounds
 * them: at position 100,000 the difference between an F32 and an F64 frequency is a hundredth of a
 * radian, and the models were trained with the former.
 *
 * With N rotated columns of a head, theta the base, s the factor, O the original context, f_i =
 * theta^(-2i/N), i < N/2 (transformers 5.23, modeling_rope_utils.py):
 *
 *     linear        f_i / s                                              (kaiokendev 2023)
 *     llama3        wavelengths above O / low are stretched by s, those below O / high are kept,
 *                   between them the two are blended linearly in O / wavelength
 *     yarn          f_i (1 - r_i) + f_i / s r_i; r_i rises from 0 to 1 between the dimensions that
 *                   turn beta_fast and beta_slow times in O, which are
 *                   rounded to whole ones unless `truncate` is off     (Peng et al. 2023,
 *                                                                      arXiv:2309.00071)
 *     dynamic       theta' = theta (s n / M - (s - 1))^(N / (N - 2)) for a text of n > M tokens, M
 *                   = max_seq; up to M plain
 *     longrope      f_i / short_i in a text of at most O tokens, f_i / long_i in a longer one
 *                                                                      (Ding et al. 2024,
 *                                                                      arXiv:2402.13753)
 *     proportional  theta^(-2i/D) / s for the first N / 2 of a head's D / 2 pairs, 0 for the others
 *
 * Cosines and sines are multiplied by rope_attention_factor (yarn, longrope), so the attention
 * logits are multiplied by its square.
 *
 * The length n of dynamic and longrope is that of the call in transformers: of all tokens up to the
 * last one that a call appends. A token is rotated by the length of the call that appends it, and
 * the cache keeps it in this form. So there are two tables: rows for tokens that come one at a
 * time, each by its own position (length 0 below), and rows for a call of several tokens that ends
 * beyond the original context. */
#include <math.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/thread.h"
#include "model/blocks/exec.h"

#define PI 3.14159265358979323846

static float llama3_scaled(const lt_model_spec *s, float frequency) {
    const float wavelength = (float)(2.0 * PI) / frequency;
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

/* The dimension that turns `turns` times in the original context. */
static double yarn_dimension(const lt_model_spec *s, double turns) {
    const double n = (double)lt_rope_dim(s);
    return n * log(s->rope_original_seq / (turns * 2 * PI)) / (2 * log(s->rope_theta));
}

void lt_rope_yarn_range(const lt_model_spec *s, double *low, double *high) {
    const double last = (double)lt_rope_dim(s) - 1;
    *low = yarn_dimension(s, s->rope_beta_fast);
    *high = yarn_dimension(s, s->rope_beta_slow);
    if (s->rope_truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = fmax(*low, 0);
    *high = fmin(*high, last);
    *high += *low == *high ? 0.001 : 0; /* Otherwise it would divide by zero. */
}

static float yarn_scaled(const lt_model_spec *s, int64_t i, float period) {
    double low, high;
    lt_rope_yarn_range(s, &low, &high);
    float ramp = ((float)i - (float)low) / (float)(high - low);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    const float kept = 1 - ramp;
    return 1 / ((float)s->rope_factor * period) * (1 - kept) + 1 / period * kept;
}

/* Base of dynamic NTK for a text of `length` tokens. */
static double dynamic_theta(const lt_model_spec *s, int64_t length) {
    const int64_t original = s->max_seq, n = length > original ? length : original;
    const double dim = (double)lt_rope_dim(s);
    const float factor = (float)s->rope_factor,
                stretch = factor * (float)n / (float)original - (float)(s->rope_factor - 1);
    return (double)((float)s->rope_theta * powf(stretch, (float)(dim / (dim - 2))));
}

/* Frequency i of a text of `length` tokens. */
static float frequency_of(const lt_model_spec *s, int64_t i, int64_t length) {
    const int64_t dim = s->rope_scaling == LT_ROPE_PROPORTIONAL ? s->head_dim : lt_rope_dim(s);
    const double theta = s->rope_scaling == LT_ROPE_DYNAMIC ? dynamic_theta(s, length)
                                                            : s->rope_theta;
    const float period = (float)pow(theta, (double)((float)(2 * i) / (float)dim));
    switch (s->rope_scaling) {
    case LT_ROPE_LINEAR:
        return 1 / period / (float)s->rope_factor;
    case LT_ROPE_LLAMA3:
        return llama3_scaled(s, 1 / period);
    case LT_ROPE_YARN:
        return yarn_scaled(s, i, period);
    case LT_ROPE_LONGROPE:
        return 1 /
               (((double)length > s->rope_original_seq ? s->rope_long : s->rope_short)[i] * period);
    case LT_ROPE_PROPORTIONAL:
        return 2 * i < lt_rope_dim(s) ? 1 / period / (float)s->rope_factor : 0;
    default:
        return 1 / period;
    }
}

/* All threads make a table: for 128k positions a single one takes 0.3 s. */
#define BLOCK_POSITIONS 64
typedef struct {
    const lt_model_spec *s;
    float *table;
    float *frequency;   /* The frequencies of every row; NULL: each row has its own, */
    int64_t n, columns; /* those of a text that ends there. */
    float attention_factor;
} rope_task;

static void fill_block(void *ctx, size_t block) {
    const rope_task *t = ctx;
    const int64_t from = (int64_t)block * BLOCK_POSITIONS,
                  to = from + BLOCK_POSITIONS < t->n ? from + BLOCK_POSITIONS : t->n;
    for (int64_t position = from; position < to; position++) {
        float *row = t->table + position * t->columns * 2;
        for (int64_t i = 0; i < t->columns; i++) {
            const float frequency = t->frequency != NULL ? t->frequency[i]
                                                         : frequency_of(t->s, i, position + 1);
            const float angle = (float)position * frequency;
            row[2 * i] = (float)cos((double)angle) * t->attention_factor;
            row[2 * i + 1] = (float)sin((double)angle) * t->attention_factor;
        }
    }
}

int64_t lt_rope_dim(const lt_model_spec *s) {
    return s->rope_dim > 0 ? s->rope_dim : s->head_dim;
}

int64_t lt_rope_columns(const lt_model_spec *s) {
    return (s->rope_scaling == LT_ROPE_PROPORTIONAL ? s->head_dim : lt_rope_dim(s)) / 2;
}

int64_t lt_rope_switch(const lt_model_spec *s) {
    return s->pos != LT_POS_ROPE                 ? 0
           : s->rope_scaling == LT_ROPE_DYNAMIC  ? s->max_seq
           : s->rope_scaling == LT_ROPE_LONGROPE ? (int64_t)s->rope_original_seq
                                                 : 0;
}

lt_err lt_rope_table(float *table, const lt_model_spec *s, int64_t n, bool local, int64_t length) {
    lt_model_spec plain = *s;
    const bool own_theta = local && s->rope_theta_local > 0;
    rope_task t = {s, table, NULL, n, lt_rope_columns(s), 1};

    if (own_theta) { /* Then sliding layers are not scaled either (gemma3). */
        plain.rope_scaling = LT_ROPE_PLAIN;
        plain.rope_theta = s->rope_theta_local;
        t.s = &plain;
    } else if (s->rope_attention_factor > 0) {
        t.attention_factor = (float)s->rope_attention_factor;
    }
    if (length > 0 || own_theta || lt_rope_switch(s) == 0) {
        t.frequency = malloc((size_t)t.columns * sizeof *t.frequency);
        if (t.frequency == NULL) {
            LT_FAIL(LT_ERR_OOM, "rotary table of %lld frequencies", (long long)t.columns);
        }
        for (int64_t i = 0; i < t.columns; i++) {
            t.frequency[i] = frequency_of(t.s, i, length);
        }
    }
    lt_parallel_for((size_t)((n + BLOCK_POSITIONS - 1) / BLOCK_POSITIONS), fill_block, &t);
    free(t.frequency);
    return LT_OK;
}

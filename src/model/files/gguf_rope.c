/* gguf_rope.c: the rotary embedding in GGUF, both ways, as llama.cpp understands it:
 *
 *     rope.dimension_count                             columns of a head that rotate
 *     rope.scaling.type                                none, linear, yarn, longrope; absent: linear
 *     rope.scaling.factor (old: rope.scale_linear)     s of rope.c; absent or 0: 1. Not written for
 *                                                      longrope, whose frequencies llama.cpp would
 *                                                      divide by it once more
 *     rope.scaling.original_context_length             O; absent: the context
 *     rope.scaling.yarn_beta_fast, yarn_beta_slow      absent: 32 and 1
 *     rope.scaling.attn_factor, yarn_log_multiplier    cosines and sines are multiplied by
 *                                                      attn_factor, with yarn also by 1 + 0.1 ln s,
 *                                                      which a multiplier m that is not 0 divides
 *                                                      by 1 + 0.1 m ln s
 *     rope_freqs.weight                                divisors of the frequencies: Llama-3's, for
 *                                                      which the spec keeps the parameters that
 *                                                      give them, or a factor for the pairs that
 *                                                      rotate and 1e30 for others (proportional)
 *     rope_factors_short.weight, rope_factors_long     longrope's
 *
 * GGUF cannot express dynamic, nor whether yarn's range is rounded: it is rounded, except in
 * gpt-oss, whose own yarn is not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "model/files/gguf_rope.h"
#include "model/blocks/exec.h"
#include "model/family.h"

#define LT_STILL 1e30 /* Divisor of a pair that does not rotate. */

typedef struct {
    const lt_gguf *g;
    const char *arch;
} keys;

/* The number under "<arch>.<suffix>"; *out is unchanged if it is absent. */
static lt_err real(const keys *k, const char *suffix, double *out) {
    char key[128];
    lt_err err;
    (void)snprintf(key, sizeof key, "%s.%s", k->arch, suffix);
    err = lt_gguf_get_f64(k->g, key, out);
    if (err != LT_OK && err != LT_ERR_NOT_FOUND) { /* A whole number may stand for it. */
        int64_t whole;
        LT_TRY(lt_gguf_get_i64(k->g, key, &whole));
        *out = (double)whole;
    }
    return LT_OK;
}

/* Share of a frequency that Llama-3's scaling leaves as it is: 1 for short wavelengths, 0 for long
 * ones, which are divided by the whole factor (transformers, modeling_rope_utils.py:
 * _compute_llama3_parameters). */
static double llama3_kept(const lt_model_spec *spec, double inv_freq) {
    const double wavelength = 6.283185307179586 / inv_freq, original = spec->rope_original_seq;
    if (wavelength < original / spec->rope_high_freq) {
        return 1.0;
    }
    if (wavelength > original / spec->rope_low_freq) {
        return 0.0;
    }
    return (original / wavelength - spec->rope_low_freq) /
           (spec->rope_high_freq - spec->rope_low_freq);
}

static double frequency_of(const lt_model_spec *spec, int64_t i) {
    return pow(spec->rope_theta, -(double)i / (double)lt_rope_columns(spec));
}

/* The factor that gives the last pair this divisor. The divisor is an F32, so the factor is exact
 * in 6 digits only. */
static double llama3_factor(const lt_model_spec *spec, double divisor) {
    const double kept = llama3_kept(spec, frequency_of(spec, lt_rope_columns(spec) - 1));
    char digits[32];
    if (kept == 0.0) {
        return divisor;
    }
    (void)snprintf(digits, sizeof digits, "%.6g", (1.0 - kept) / (1.0 / divisor - kept));
    return strtod(digits, NULL);
}

/* Divisor of pair i in rope_freqs.weight. */
static double divisor_of(const lt_model_spec *spec, int64_t i) {
    const double kept = llama3_kept(spec, frequency_of(spec, i));
    if (spec->rope_scaling == LT_ROPE_PROPORTIONAL) {
        return 2 * i < lt_rope_dim(spec) ? spec->rope_factor : LT_STILL;
    }
    return kept == 0.0 ? spec->rope_factor : 1.0 / ((1.0 - kept) / spec->rope_factor + kept);
}

/* The n F32 numbers of a tensor into out; false: there is none. */
static lt_err numbers_of(const lt_gguf *g, const char *name, int64_t n, float *out, bool *found) {
    const lt_gguf_tensor *t = lt_gguf_tensor_find(g, name);
    *found = t != NULL && t->data != NULL;
    if (!*found) {
        return LT_OK;
    }
    if (t->type != LT_GGML_F32 || (int64_t)t->n_elems != n || n < 1 || n > LT_MAX_ROPE_FACTORS) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %s has %llu elements, not the %lld F32 of half a head (at most %d)", g->name,
                name, (unsigned long long)t->n_elems, (long long)n, LT_MAX_ROPE_FACTORS);
    }
    memcpy(out, t->data, (size_t)n * sizeof *out);
    return LT_OK;
}

/* Number of pairs before those that do not rotate; -1: all rotate. */
static int64_t moving_pairs(const float *divisors, int64_t n) {
    int64_t moving = n;
    while (moving > 0 && (double)divisors[moving - 1] >= LT_STILL / 10) {
        moving--;
    }
    return moving < n ? moving : -1;
}

static bool all_equal(const float *divisors, int64_t n) {
    int64_t i = 1;
    while (i < n && divisors[i] == divisors[0]) {
        i++;
    }
    return i == n && (double)divisors[0] < LT_STILL / 10;
}

/* Llama 3.1 and 3.2 differ in the factor alone, which follows from the largest divisor. Files that
 * Lateen writes have the other three parameters. Any other set of divisors is refused. */
static lt_err read_divisors(lt_model_spec *spec, const keys *k) {
    const int64_t n = lt_rope_columns(spec);
    float divisors[LT_MAX_ROPE_FACTORS];
    bool found;
    LT_TRY(numbers_of(k->g, "rope_freqs.weight", n, divisors, &found));
    if (!found) {
        return LT_OK;
    }
    const int64_t moving = moving_pairs(divisors, n);
    /* A proportional table that leaves no pair still is a linear one. */
    if (all_equal(divisors, n)) {
        spec->rope_scaling = LT_ROPE_LINEAR;
        spec->rope_factor = (double)divisors[0];
        return LT_OK;
    }
    if (moving > 0) {
        spec->rope_scaling = LT_ROPE_PROPORTIONAL;
        spec->rope_factor = (double)divisors[0];
        spec->rope_dim = 2 * moving;
    } else {
        spec->rope_scaling = LT_ROPE_LLAMA3;
        spec->rope_low_freq = 1.0;
        spec->rope_high_freq = 4.0;
        spec->rope_original_seq = 8192; /* This and the next two are ours: see gguf_save.c. */
        LT_TRY(real(k, LT_GGUF_ROPE_ORIGINAL, &spec->rope_original_seq));
        LT_TRY(real(k, LT_GGUF_ROPE_LOW, &spec->rope_low_freq));
        LT_TRY(real(k, LT_GGUF_ROPE_HIGH, &spec->rope_high_freq));
        spec->rope_factor = llama3_factor(spec, (double)divisors[n - 1]);
    }
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs((double)divisors[i] / divisor_of(spec, i) - 1.0) < 1e-3)) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: rope_freqs.weight[%lld] = %g is not Llama-3 scaling by %g", k->g->name,
                    (long long)i, (double)divisors[i], spec->rope_factor);
        }
    }
    return LT_OK;
}

/* Short and long factors: both or neither. */
static lt_err read_factors(lt_model_spec *spec, const keys *k) {
    const int64_t n = lt_rope_columns(spec);
    bool has_short, has_long;
    LT_TRY(numbers_of(k->g, "rope_factors_short.weight", n, spec->rope_short, &has_short));
    LT_TRY(numbers_of(k->g, "rope_factors_long.weight", n, spec->rope_long, &has_long));
    if (!has_short && !has_long && spec->rope_scaling != LT_ROPE_LONGROPE) {
        return LT_OK;
    }
    if (!has_short || !has_long) {
        LT_FAIL(LT_ERR_FORMAT, "%s: longrope without rope_factors_%s.weight", k->g->name,
                has_short ? "long" : "short");
    }
    spec->rope_scaling = LT_ROPE_LONGROPE;
    spec->rope_attention_factor = 1;
    return real(k, "rope.scaling.attn_factor", &spec->rope_attention_factor);
}

static double mscale(double factor, double by) {
    return factor <= 1 ? 1 : 0.1 * by * log(factor) + 1;
}

/* Whether files of the family round YaRN's bounds. */
static bool rounds(const lt_model_spec *s) {
    const lt_model_spec *own = &lt_family_get(s->family)->preset;
    return own->rope_scaling != LT_ROPE_YARN || own->rope_truncate;
}

static lt_err read_yarn(lt_model_spec *spec, const keys *k) {
    double attention = 1, multiplier = 0, extrapolation = 1, other = 1;
    spec->rope_beta_fast = 32;
    spec->rope_beta_slow = 1;
    spec->rope_truncate = rounds(spec);
    LT_TRY(real(k, "rope.scaling.yarn_beta_fast", &spec->rope_beta_fast));
    LT_TRY(real(k, "rope.scaling.yarn_beta_slow", &spec->rope_beta_slow));
    LT_TRY(real(k, "rope.scaling.attn_factor", &attention));
    LT_TRY(real(k, "rope.scaling.yarn_log_multiplier", &multiplier));
    LT_TRY(real(k, "rope.scaling.yarn_ext_factor", &extrapolation));
    LT_TRY(real(k, "rope.scaling.yarn_attn_factor", &other));
    if (extrapolation != 1 || other != 1) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: yarn_ext_factor %g and yarn_attn_factor %g are not 1",
                k->g->name, extrapolation, other);
    }
    spec->rope_attention_factor = attention * mscale(spec->rope_factor, 1) /
                                  (multiplier != 0 ? mscale(spec->rope_factor, multiplier) : 1);
    return LT_OK;
}

static lt_err read_scaling(lt_model_spec *spec, const keys *k) {
    char key[128];
    lt_gguf_str kind;
    double factor = 0;
    bool linear = true;
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", k->arch);
    LT_TRY(real(k, "rope.scale_linear", &factor));
    LT_TRY(real(k, "rope.scaling.factor", &factor));
    spec->rope_original_seq = (double)spec->max_seq;
    LT_TRY(real(k, LT_GGUF_ROPE_ORIGINAL, &spec->rope_original_seq));
    spec->rope_factor = factor != 0 ? factor : 1;
    if (lt_gguf_find(k->g, key) != NULL) {
        LT_TRY(lt_gguf_get_str(k->g, key, &kind));
        linear = lt_gguf_str_is(kind, "linear");
        if (lt_gguf_str_is(kind, "yarn")) {
            spec->rope_scaling = LT_ROPE_YARN;
            return read_yarn(spec, k);
        }
        if (lt_gguf_str_is(kind, "longrope")) {
            spec->rope_scaling = LT_ROPE_LONGROPE;
        } else if (!linear && !lt_gguf_str_is(kind, "none")) {
            LT_FAIL(
                LT_ERR_UNSUPPORTED,
                "%s: RoPE scaling '%.*s' is not supported; these are: none, linear, yarn, longrope",
                k->g->name, (int)kind.bytes, kind.data);
        }
    }
    if (linear && spec->rope_factor != 1) {
        spec->rope_scaling = LT_ROPE_LINEAR;
    }
    return LT_OK;
}

lt_err lt_gguf_read_rope(lt_model_spec *spec, const lt_gguf *g, const char *arch) {
    const keys k = {g, arch};
    double dim = (double)spec->head_dim;
    lt_rope_scaling first;

    spec->rope_scaling = LT_ROPE_PLAIN; /* Apertus' preset scales; here its divisors say so. */
    spec->rope_low_freq = spec->rope_high_freq = spec->rope_attention_factor = 0;
    LT_TRY(real(&k, "rope.freq_base", &spec->rope_theta));
    if (spec->rope_theta_local != 0) {
        LT_TRY(real(&k, "rope.freq_base_swa", &spec->rope_theta_local));
    }
    LT_TRY(real(&k, "rope.dimension_count", &dim));
    if (!(dim >= 2 && dim <= (double)spec->head_dim) || fmod(dim, 2) != 0) {
        LT_FAIL(LT_ERR_FORMAT, "%s: rope.dimension_count %g of heads of %lld", g->name, dim,
                (long long)spec->head_dim);
    }
    spec->rope_dim = dim < (double)spec->head_dim ? (int64_t)dim : 0;
    if (spec->rope_dim > 0 && lt_family_get(spec->family)->gguf.pairs) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: %g of %lld columns of a head rotate; %s rotates all",
                g->name, dim, (long long)spec->head_dim, arch);
    }
    LT_TRY(read_scaling(spec, &k));
    first = spec->rope_scaling;
    LT_TRY(read_factors(spec, &k));
    LT_TRY(read_divisors(spec, &k));
    if (first != LT_ROPE_PLAIN && spec->rope_scaling != first) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "%s: RoPE is scaled by metadata and by a tensor", g->name);
    }
    if (spec->rope_scaling == LT_ROPE_PLAIN) {
        spec->rope_factor = 1;
    }
    if (spec->rope_scaling != LT_ROPE_LLAMA3 && spec->rope_scaling != LT_ROPE_YARN &&
        spec->rope_scaling != LT_ROPE_LONGROPE) { /* Which alone have it. */
        spec->rope_original_seq = 0;
    }
    return LT_OK;
}

/* ---- Writing ---- */

const char *lt_gguf_rope_inexpressible(const lt_model_spec *s) {
    double low, high;
    if (s->pos != LT_POS_ROPE) {
        return NULL;
    }
    if (s->rope_scaling == LT_ROPE_DYNAMIC) {
        return "dynamic RoPE";
    }
    if (s->rope_scaling == LT_ROPE_YARN) {
        lt_model_spec exact = *s;
        exact.rope_truncate = false;
        lt_rope_yarn_range(&exact, &low, &high);
        if (s->rope_truncate != rounds(s) && (floor(low) != low || ceil(high) != high)) {
            return s->rope_truncate ? "yarn whose range is rounded"
                                    : "yarn whose range is not rounded";
        }
    }
    if (lt_rope_columns(s) > LT_MAX_ROPE_FACTORS && s->rope_scaling > LT_ROPE_LINEAR) {
        return "more rotary frequencies than such files can hold";
    }
    return NULL;
}

bool lt_gguf_rope_has_other_betas(const lt_model_spec *s) {
    lt_model_spec usual = *s;
    double low[2], high[2];
    usual.rope_beta_fast = 32;
    usual.rope_beta_slow = 1;
    lt_rope_yarn_range(s, &low[0], &high[0]);
    lt_rope_yarn_range(&usual, &low[1], &high[1]);
    return s->rope_scaling == LT_ROPE_YARN && (low[0] != low[1] || high[0] != high[1]);
}

bool lt_gguf_rope_factor_spreads(const lt_model_spec *s) {
    return s->rope_scaling == LT_ROPE_YARN && s->rope_theta_local != 0 &&
           fabs(s->rope_attention_factor / mscale(s->rope_factor, 1) - 1) > 1e-6;
}

static void put_f32(const char *arch, lt_gguf_out *o, const char *suffix, double value) {
    char key[128];
    (void)snprintf(key, sizeof key, "%s.%s", arch, suffix);
    lt_gguf_out_f32(o, key, value);
}

static void put_u32(const char *arch, lt_gguf_out *o, const char *suffix, int64_t value) {
    char key[128];
    (void)snprintf(key, sizeof key, "%s.%s", arch, suffix);
    lt_gguf_out_u32(o, key, value);
}

static void put_type(const char *arch, lt_gguf_out *o, const char *type) {
    char key[128];
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", arch);
    lt_gguf_out_str(o, key, type);
}

void lt_gguf_put_rope(const lt_model_spec *s, const char *arch, lt_gguf_out *o) {
    const lt_rope_scaling kind = s->rope_scaling;
    put_u32(arch, o, "rope.dimension_count", 2 * lt_rope_columns(s));
    put_f32(arch, o, "rope.freq_base", s->rope_theta);
    if (s->rope_theta_local != 0) {
        put_f32(arch, o, "rope.freq_base_swa", s->rope_theta_local);
    }
    if (kind == LT_ROPE_LLAMA3 || kind == LT_ROPE_YARN || kind == LT_ROPE_LONGROPE) {
        put_u32(arch, o, LT_GGUF_ROPE_ORIGINAL, (int64_t)s->rope_original_seq);
    }
    if (kind == LT_ROPE_LLAMA3) {
        put_f32(arch, o, LT_GGUF_ROPE_LOW, s->rope_low_freq);
        put_f32(arch, o, LT_GGUF_ROPE_HIGH, s->rope_high_freq);
    }
    if (kind == LT_ROPE_LINEAR || kind == LT_ROPE_YARN || kind == LT_ROPE_LONGROPE) {
        put_type(arch, o,
                 kind == LT_ROPE_LINEAR ? "linear"
                 : kind == LT_ROPE_YARN ? "yarn"
                                        : "longrope");
    }
    if (kind == LT_ROPE_LINEAR || kind == LT_ROPE_YARN) {
        put_f32(arch, o, "rope.scaling.factor", s->rope_factor);
    }
    if (kind == LT_ROPE_YARN) {
        const double own = mscale(s->rope_factor, 1);
        put_f32(arch, o, "rope.scaling.yarn_beta_fast", s->rope_beta_fast);
        put_f32(arch, o, "rope.scaling.yarn_beta_slow", s->rope_beta_slow);
        if (s->rope_attention_factor != own) {
            put_f32(arch, o, "rope.scaling.attn_factor", s->rope_attention_factor / own);
        }
    }
    if (kind == LT_ROPE_LONGROPE) {
        put_f32(arch, o, "rope.scaling.attn_factor", s->rope_attention_factor);
    }
}

const char *lt_gguf_rope_tensor(const lt_model_spec *s, int which, float *out) {
    const int64_t n = lt_rope_columns(s);
    if (s->rope_scaling == LT_ROPE_LONGROPE && which < 2) {
        memcpy(out, which == 0 ? s->rope_long : s->rope_short, (size_t)n * sizeof *out);
        return which == 0 ? "rope_factors_long.weight" : "rope_factors_short.weight";
    }
    if (which > 0 ||
        (s->rope_scaling != LT_ROPE_LLAMA3 && s->rope_scaling != LT_ROPE_PROPORTIONAL)) {
        return NULL;
    }
    for (int64_t i = 0; i < n; i++) {
        out[i] = (float)divisor_of(s, i);
    }
    return "rope_freqs.weight";
}

/* watermark.c: see watermark.h. */
#include "lateen/watermark.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/option.h"
#include "base/rng.h"

#define GOLDEN       0x9E3779B97F4A7C15u /* splitmix64's step. */
#define BEGIN_STREAM 0x4D41524B426567ull /* "MARKBeg": where a cycle begins. */
#define KEYS_STREAM  0x4D41524B4B6579ull /* "MARKKey": keys of a resampling test. */

typedef struct {
    const char *name;
    lt_watermark_scheme scheme;
} scheme_row;

static const scheme_row schemes[] = {{"green", LT_WATERMARK_GREEN},
                                     {"gumbel", LT_WATERMARK_GUMBEL},
                                     {"exponential", LT_WATERMARK_EXPONENTIAL}};
enum { N_SCHEMES = sizeof schemes / sizeof *schemes };

lt_err lt_watermark_find(lt_watermark_scheme *out, const char *name) {
    const scheme_row *row = lt_name_find(name, schemes, sizeof *schemes, N_SCHEMES);
    char hint[LT_NAME_HINT_BYTES];
    if (row == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "no watermark is named '%.40s'%s", name,
                lt_name_hint(hint, name, schemes, sizeof *schemes, N_SCHEMES));
    }
    *out = row->scheme;
    return LT_OK;
}

lt_watermark lt_watermark_defaults(lt_watermark_scheme scheme) {
    return (lt_watermark){.scheme = scheme,
                          .gamma = 0.25,
                          .delta = 2,
                          .context = scheme == LT_WATERMARK_GUMBEL ? 4 : 1,
                          .length = 256};
}

lt_err lt_watermark_check(const lt_watermark *w) {
    if (w->scheme == LT_WATERMARK_GREEN &&
        !(w->gamma > 0 && w->gamma < 1 && w->delta > 0 && w->delta <= 1000)) {
        LT_FAIL(LT_ERR_ARG,
                "watermark green: gamma %g must lie between 0 and 1, delta %g over 0 and at most "
                "1000",
                w->gamma, w->delta);
    }
    if ((w->scheme == LT_WATERMARK_GREEN || w->scheme == LT_WATERMARK_GUMBEL) &&
        (w->context < 1 || w->context > LT_WATERMARK_CONTEXT)) {
        LT_FAIL(LT_ERR_ARG, "watermark: a context of %lld tokens; 1 to %d are possible",
                (long long)w->context, LT_WATERMARK_CONTEXT);
    }
    if (w->scheme == LT_WATERMARK_EXPONENTIAL &&
        (w->length < 1 || w->length > LT_WATERMARK_LENGTH)) {
        LT_FAIL(LT_ERR_ARG, "watermark exponential: a length of %lld; 1 to %d are possible",
                (long long)w->length, LT_WATERMARK_LENGTH);
    }
    return LT_OK;
}

/* ---- Pseudo-random numbers ---- */

/* The state is mixed before and after, so that the values of consecutive keys are unrelated. */
static uint64_t fold(uint64_t h, uint64_t value) {
    return lt_rng_mix(lt_rng_mix(h) ^ value);
}

uint64_t lt_watermark_key(const char *text, size_t n) {
    uint64_t h = 0;
    for (size_t i = 0; i < n; i++) {
        h = fold(h, (unsigned char)text[i]);
    }
    return h;
}

double lt_watermark_uniform(uint64_t state, int32_t id) {
    const uint64_t x = lt_rng_mix(state + (uint64_t)(uint32_t)id * GOLDEN);
    return ((double)(x >> 11) + 0.5) * 0x1p-53;
}

/* last: points after the context's last token. */
static uint64_t context_state(const lt_watermark *w, const int32_t *last) {
    uint64_t h = w->key;
    for (int64_t i = -w->context; i < 0; i++) {
        h = fold(h, (uint64_t)(uint32_t)last[i]);
    }
    return h;
}

static uint64_t place_state(const lt_watermark *w, int64_t place) {
    return fold(w->key, (uint64_t)(place % w->length));
}

/* Whether an earlier output token followed the same context. */
static bool context_used(const lt_watermark *w, const int32_t *tokens, int64_t n_prompt,
                         int64_t n) {
    const int32_t *now = tokens + n - w->context;
    for (int64_t i = n_prompt > w->context ? n_prompt : w->context; i < n; i++) {
        if (memcmp(tokens + i - w->context, now, (size_t)w->context * sizeof *now) == 0) {
            return true;
        }
    }
    return false;
}

bool lt_watermark_state(const lt_watermark *w, const int32_t *tokens, int64_t n_prompt,
                        int64_t n_output, uint64_t seed, int32_t choice, uint64_t *state) {
    const int64_t n = n_prompt + n_output;
    if (w->scheme == LT_WATERMARK_EXPONENTIAL) {
        lt_rng r = {.seed = seed, .stream = BEGIN_STREAM ^ (uint64_t)choice << 56};
        *state = place_state(w, (int64_t)lt_rng_below(&r, (uint64_t)w->length) + n_output);
        return true;
    }
    if (w->scheme == LT_WATERMARK_NONE || n < w->context ||
        (w->scheme == LT_WATERMARK_GUMBEL && context_used(w, tokens, n_prompt, n))) {
        return false;
    }
    *state = context_state(w, tokens + n);
    return true;
}

/* ---- Detection ---- */

/* P(X >= k), X of Binomial(n, q): the terms of the upper tail, in logarithms. */
static double binomial_tail(int64_t n, double q, int64_t k) {
    double sum = 0;
    for (int64_t i = k; i <= n; i++) {
        const double a = (double)i, b = (double)(n - i);
        sum += exp(lgamma((double)n + 1) - lgamma(a + 1) - lgamma(b + 1) + a * log(q) +
                   b * log1p(-q));
    }
    return fmin(sum, 1);
}

/* P(S >= s) for S of Gamma(n, 1): the probability that fewer than n events of a Poisson process
 * occur by s. */
static double gamma_tail(int64_t n, double s) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += exp((double)i * log(s) - s - lgamma((double)i + 1));
    }
    return fmin(sum, 1);
}

typedef struct {
    uint64_t hash;
    int64_t at;
} seen;

static int by_hash(const void *a, const void *b) {
    const seen *x = a, *y = b;
    return x->hash != y->hash ? (x->hash > y->hash) - (x->hash < y->hash)
                              : (x->at > y->at) - (x->at < y->at);
}

/* Score each context once, with the token that follows it first (GREEN: once with each token). */
static lt_err detect_by_context(const lt_watermark *w, const int32_t *ids, int64_t n,
                                lt_watermark_report *out) {
    const bool green = w->scheme == LT_WATERMARK_GREEN;
    const int64_t n_all = n - w->context;
    seen *all = malloc((size_t)n_all * sizeof *all);
    if (all == NULL) {
        LT_FAIL(LT_ERR_OOM, "a text of %lld tokens", (long long)n);
    }
    for (int64_t i = 0; i < n_all; i++) {
        const uint64_t state = context_state(w, ids + i + w->context);
        all[i] = (seen){green ? fold(state, (uint64_t)(uint32_t)ids[i + w->context]) : state, i};
    }
    qsort(all, (size_t)n_all, sizeof *all, by_hash);
    for (int64_t i = 0; i < n_all; i++) {
        if (i > 0 && all[i].hash == all[i - 1].hash) {
            continue;
        }
        const int64_t at = all[i].at + w->context;
        const double u = lt_watermark_uniform(context_state(w, ids + at), ids[at]);
        out->n_scored++;
        out->statistic += green ? u < w->gamma : -log1p(-u);
    }
    free(all);
    return LT_OK;
}

static double cycle_sum(const lt_watermark *w, const int32_t *ids, int64_t n, int64_t begin) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum -= log1p(-lt_watermark_uniform(place_state(w, begin + i), ids[i]));
    }
    return sum;
}

static double best_begin(const lt_watermark *w, const int32_t *ids, int64_t n, int64_t *begin) {
    double best = -INFINITY;
    for (int64_t i = 0; i < w->length; i++) {
        const double sum = cycle_sum(w, ids, n, i);
        *begin = sum > best ? i : *begin;
        best = sum > best ? sum : best;
    }
    return best;
}

static void detect_by_resampling(const lt_watermark *w, const int32_t *ids, int64_t n,
                                 int64_t resamples, uint64_t seed, lt_watermark_report *out) {
    lt_rng r = {.seed = seed, .stream = KEYS_STREAM};
    double sum = 0, squares = 0;
    int64_t as_good = 0;
    out->n_scored = n;
    out->statistic = best_begin(w, ids, n, &out->begin);
    for (int64_t i = 0; i < resamples; i++) {
        lt_watermark other = *w;
        int64_t begin = 0;
        double x;
        other.key = lt_rng_u64(&r);
        x = best_begin(&other, ids, n, &begin);
        as_good += x >= out->statistic;
        sum += x;
        squares += x * x;
    }
    const double m = (double)resamples, mean = sum / m;
    const double spread = sqrt(fmax(squares / m - mean * mean, 1e-300));
    out->p = (1 + (double)as_good) / (1 + m);
    out->z = resamples > 1 ? (out->statistic - mean) / spread : 0;
}

lt_err lt_watermark_detect(const lt_watermark *w, const int32_t *ids, int64_t n, int64_t resamples,
                           uint64_t seed, lt_watermark_report *out) {
    const int64_t least = w->scheme == LT_WATERMARK_EXPONENTIAL ? 1 : w->context + 1;
    *out = (lt_watermark_report){.begin = -1};
    LT_TRY(lt_watermark_check(w));
    if (n < least) {
        LT_FAIL(LT_ERR_ARG, "watermark: a text of %lld tokens; the test needs at least %lld",
                (long long)n, (long long)least);
    }
    if (w->scheme == LT_WATERMARK_EXPONENTIAL) {
        if (resamples < 1) {
            LT_FAIL(LT_ERR_ARG, "watermark exponential: %lld resamples; 1 or more are needed",
                    (long long)resamples);
        }
        detect_by_resampling(w, ids, n, resamples, seed, out);
        return LT_OK;
    }
    LT_TRY(detect_by_context(w, ids, n, out));
    const double t = (double)out->n_scored;
    if (w->scheme == LT_WATERMARK_GREEN) {
        out->z = (out->statistic - w->gamma * t) / sqrt(t * w->gamma * (1 - w->gamma));
        out->p = binomial_tail(out->n_scored, w->gamma, (int64_t)out->statistic);
    } else {
        out->z = (out->statistic - t) / sqrt(t);
        out->p = gamma_tail(out->n_scored, out->statistic);
    }
    return LT_OK;
}

/* hedge.c: HedgeTune of select.h: how strong a selection may be before it exploits errors of its
 * proxy.
 *
 * Let the m samples of a prompt be sorted by rising proxy. best_of_n, of n distinct samples drawn
 * at random, keeps sample i (from 1) with probability C(i - 1, n - 1) / C(m, n). This gives an
 * unbiased estimate without resampling. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "lateen/select.h"

typedef struct {
    double proxy, truth;
} sample;

static int rising(const void *a, const void *b) {
    const sample *x = a, *y = b;
    return (x->proxy > y->proxy) - (x->proxy < y->proxy);
}

/* weight[i] += share * C(i, n - 1) / C(m, n), for i from 0. Neighbours differ by a ratio, so it
 * starts with the last, n / m. */
static void add_best_of(double *weight, int64_t m, int64_t n, double share) {
    double w = share * (double)n / (double)m;
    for (int64_t i = m - 1; i >= n - 1; i--) {
        weight[i] += w;
        w *= i > 0 ? (double)(i - n + 1) / (double)i : 0;
    }
}

static void weigh_best(double *weight, const sample *s, int64_t m, double n) {
    (void)s;
    add_best_of(weight, m, (int64_t)n, 1);
}

static void weigh_poisson(double *weight, const sample *s, int64_t m, double mu) {
    double p = exp(-mu), left = 1;
    (void)s;
    for (int64_t n = 1; n < m; n++) {
        add_best_of(weight, m, n, p);
        left -= p;
        p *= mu / (double)n;
    }
    add_best_of(weight, m, m, fmax(left, 0));
}

static void weigh_soft(double *weight, const sample *s, int64_t m, double temperature) {
    double sum = 0;
    for (int64_t i = 0; i < m; i++) {
        weight[i] = exp((s[i].proxy - s[m - 1].proxy) / temperature);
        sum += weight[i];
    }
    for (int64_t i = 0; i < m; i++) {
        weight[i] /= sum;
    }
}

typedef struct {
    const char *rule, *parameter;
    bool whole; /* An integer from 1 to m; otherwise a positive number. */
    void (*weigh)(double *weight, const sample *s, int64_t m, double parameter);
} tunable;

static const tunable rows[] = {{"best_of_n", "n", true, weigh_best},
                               {"best_of_poisson", "mu", false, weigh_poisson},
                               {"soft_best_of_n", "temperature", false, weigh_soft}};

static lt_err find(const tunable **out, const lt_select_rule *rule) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].rule, rule->name) == 0) {
            *out = &rows[i];
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_ARG,
            "%s has no parameter to tune: it may be best_of_n, best_of_poisson or "
            "soft_best_of_n",
            rule->name);
}

static lt_err check_samples(const lt_hedge_prompt *p, int64_t at) {
    if (p->m < 1) {
        LT_FAIL(LT_ERR_ARG, "prompt %lld has no samples", (long long)at);
    }
    for (int64_t i = 0; i < p->m; i++) {
        if (!isfinite(p->proxy[i]) || !isfinite(p->truth[i])) {
            LT_FAIL(LT_ERR_NUMERIC, "prompt %lld: sample %lld has proxy %g and truth %g",
                    (long long)at, (long long)i, p->proxy[i], p->truth[i]);
        }
    }
    return LT_OK;
}

static lt_err check_parameter(const tunable *t, const lt_hedge_prompt *p, int64_t at,
                              double parameter) {
    if (!(parameter > 0 && parameter < 1e300) ||
        (t->whole && (parameter != floor(parameter) || parameter > (double)p->m))) {
        LT_FAIL(LT_ERR_ARG, "prompt %lld has %lld samples, and %s is %g: it must be %s",
                (long long)at, (long long)p->m, t->parameter, parameter,
                t->whole ? "a whole number from 1 to them" : "over 0");
    }
    return LT_OK;
}

/* The expected true reward; samples with the same proxy have the mean of their true rewards. */
static double expected(const sample *s, const double *weight, int64_t m) {
    double value = 0;
    for (int64_t i = 0, end; i < m; i = end) {
        double truth = 0, w = 0;
        for (end = i; end < m && s[end].proxy == s[i].proxy; end++) {
            truth += s[end].truth;
            w += weight[end];
        }
        value += w * truth / (double)(end - i);
    }
    return value;
}

/* values (n): of one prompt, one for each parameter. */
static lt_err values_of(const tunable *t, const lt_hedge_prompt *p, int64_t at,
                        const double *parameters, int64_t n, double *values) {
    const size_t m = (size_t)p->m;
    lt_err err = LT_OK;
    sample *s = NULL;
    double *weight = NULL;
    LT_TRY(check_samples(p, at));
    s = malloc(m * sizeof *s);
    weight = malloc(m * sizeof *weight);
    if (s == NULL || weight == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%zu samples", m);
    }
    for (size_t i = 0; i < m; i++) {
        s[i] = (sample){p->proxy[i], p->truth[i]};
    }
    qsort(s, m, sizeof *s, rising);
    for (int64_t k = 0; k < n; k++) {
        LT_TRY_DONE(check_parameter(t, p, at, parameters[k]));
        memset(weight, 0, m * sizeof *weight);
        t->weigh(weight, s, p->m, parameters[k]);
        values[k] = expected(s, weight, p->m);
    }
done:
    free(s);
    free(weight);
    return err;
}

lt_err lt_hedge_value(const lt_select_rule *rule, const lt_hedge_prompt *prompts, int64_t n_prompts,
                      double parameter, double *value) {
    const tunable *t;
    double sum = 0;
    LT_TRY(find(&t, rule));
    if (n_prompts < 1) {
        LT_FAIL(LT_ERR_ARG, "there are no calibration prompts");
    }
    for (int64_t i = 0; i < n_prompts; i++) {
        double one = 0;
        LT_TRY(values_of(t, &prompts[i], i, &parameter, 1, &one));
        sum += one;
    }
    *value = sum / (double)n_prompts;
    return LT_OK;
}

/* ---- The best parameter ---- */

/* values (n_prompts, n_parameters). The mean for parameter k over the drawn prompts; drawn NULL:
 * over all prompts. */
static double mean_of(const double *values, int64_t n_prompts, int64_t n_parameters,
                      const int64_t *drawn, int64_t k) {
    double sum = 0;
    for (int64_t i = 0; i < n_prompts; i++) {
        sum += values[(drawn != NULL ? drawn[i] : i) * n_parameters + k];
    }
    return sum / (double)n_prompts;
}

/* The parameter with the highest mean, the first of equals. */
static int64_t best_of(const double *values, int64_t n_prompts, int64_t n_parameters,
                       const int64_t *drawn, double *value) {
    int64_t best = 0;
    *value = -INFINITY;
    for (int64_t k = 0; k < n_parameters; k++) {
        const double mean = mean_of(values, n_prompts, n_parameters, drawn, k);
        if (mean > *value) {
            *value = mean;
            best = k;
        }
    }
    return best;
}

static int by_index(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* low and high: the 5th and 95th of 100 best parameters of resampled prompts. */
static void bootstrap(const double *values, int64_t n_prompts, int64_t n_parameters,
                      const double *parameters, int64_t resamples, uint64_t seed, int64_t *drawn,
                      int64_t *bests, lt_hedge *out) {
    lt_rng r = {.seed = seed, .stream = 0x626f6f74};
    double value;
    for (int64_t b = 0; b < resamples; b++) {
        for (int64_t i = 0; i < n_prompts; i++) {
            drawn[i] = (int64_t)lt_rng_below(&r, (uint64_t)n_prompts);
        }
        bests[b] = best_of(values, n_prompts, n_parameters, drawn, &value);
    }
    qsort(bests, (size_t)resamples, sizeof *bests, by_index);
    out->low = parameters[bests[(int64_t)(0.05 * (double)(resamples - 1))]];
    out->high = parameters[bests[(int64_t)ceil(0.95 * (double)(resamples - 1))]];
}

lt_err lt_hedge_tune(const lt_select_rule *rule, const lt_hedge_prompt *prompts, int64_t n_prompts,
                     const double *parameters, int64_t n_parameters, int64_t resamples,
                     uint64_t seed, lt_hedge *out, double *means) {
    const tunable *t;
    double *values;
    int64_t *drawn, *bests, best;
    lt_err err = LT_OK;

    LT_TRY(find(&t, rule));
    if (n_prompts < 1 || n_parameters < 1 || resamples < 0) {
        LT_FAIL(LT_ERR_ARG, "%lld prompts, %lld parameters and %lld resamples",
                (long long)n_prompts, (long long)n_parameters, (long long)resamples);
    }
    values = malloc((size_t)(n_prompts * n_parameters) * sizeof *values);
    drawn = malloc((size_t)n_prompts * sizeof *drawn);
    bests = malloc((size_t)(resamples + 1) * sizeof *bests);
    if (values == NULL || drawn == NULL || bests == NULL) {
        err = lt_error_set(LT_ERR_OOM, "%lld prompts and %lld parameters", (long long)n_prompts,
                           (long long)n_parameters);
    }
    for (int64_t i = 0; i < n_prompts && err == LT_OK; i++) {
        err = values_of(t, &prompts[i], i, parameters, n_parameters, &values[i * n_parameters]);
    }
    if (err == LT_OK) {
        best = best_of(values, n_prompts, n_parameters, NULL, &out->value);
        out->parameter = out->low = out->high = parameters[best];
        out->at_edge = best == 0 || best == n_parameters - 1;
        if (resamples > 0) {
            bootstrap(values, n_prompts, n_parameters, parameters, resamples, seed, drawn, bests,
                      out);
        }
        for (int64_t k = 0; k < n_parameters && means != NULL; k++) {
            means[k] = mean_of(values, n_prompts, n_parameters, NULL, k);
        }
    }
    free(values);
    free(drawn);
    free(bests);
    return err;
}

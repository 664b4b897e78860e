/* objective.c: the table of preference objectives over pairs.
 *
 * Every row depends on a pair through two numbers only, c of the chosen and r of the rejected
 * completion, each a sum or a mean over tokens. A row is therefore a function of (c, r); one
 * function forms the numbers and spreads the derivatives over the tokens: every token of a side
 * has the same gradient. b is beta, s is log sigmoid, and e is label smoothing. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "lateen/align.h"

static double sigmoid(double x) {
    return x >= 0 ? 1 / (1 + exp(-x)) : exp(x) / (1 + exp(x));
}

/* log sigmoid(x), exact for large |x|. */
static double log_sigmoid(double x) {
    return x >= 0 ? -log1p(exp(-x)) : x - log1p(exp(x));
}

/* -(1-e) s(z) - e s(-z) with z = b (c - r). e = 0: DPO, Rafailov et al. 2023, arXiv:2305.18290,
 * equation 7. e > 0: conservative DPO, Mitchell 2023; TRL's "sigmoid" reads no e. */
static lt_align_value dpo(double c, double r, const lt_align_options *o) {
    const double z = o->beta * (c - r), e = o->smoothing;
    const double dz = o->beta * (e * sigmoid(z) - (1 - e) * sigmoid(-z));
    return (lt_align_value){-(1 - e) * log_sigmoid(z) - e * log_sigmoid(-z), dz, -dz};
}

/* (-(1-e) s(z) + e s(-z)) / (1 - 2e): unbiased where a label is wrong with probability e. Robust
 * DPO, Chowdhury et al. 2024, arXiv:2403.00409; TRL's "robust". */
static lt_align_value dpo_robust(double c, double r, const lt_align_options *o) {
    const double z = o->beta * (c - r), e = o->smoothing, scale = 1 / (1 - 2 * e);
    const double dz = -o->beta * scale * ((1 - e) * sigmoid(-z) + e * sigmoid(z));
    return (lt_align_value){scale * (-(1 - e) * log_sigmoid(z) + e * log_sigmoid(-z)), dz, -dz};
}

/* (c - r - 1/(2b))^2. Azar et al. 2023, arXiv:2310.12036, equation 17, with sums; b is its tau.
 * TRL's "ipo" is the same function of means. */
static lt_align_value ipo(double c, double r, const lt_align_options *o) {
    const double miss = c - r - 1 / (2 * o->beta);
    return (lt_align_value){miss * miss, 2 * miss, -2 * miss};
}

/* -s(b (c - r) - margin), of means, without a reference. Meng et al. 2024, arXiv:2405.14734,
 * equation 6. TRL's CPO trainer adds cpo_alpha (by default 1) times the loss of SFT. */
static lt_align_value simpo(double c, double r, const lt_align_options *o) {
    const double z = o->beta * (c - r) - o->margin, dz = -o->beta * sigmoid(-z);
    return (lt_align_value){-log_sigmoid(z), dz, -dz};
}

/* log(1 - exp(m)) for m < 0. */
static double log_1m_exp(double m) {
    return m > -0.6931471805599453 ? log(-expm1(m)) : log1p(-exp(m));
}

/* -c - b s(odds), odds = (c - r) - (log(1 - exp c) - log(1 - exp r)), of means. Hong et al. 2024,
 * arXiv:2403.07691, equations 6 and 7. TRL's first term covers the prompt too. */
static lt_align_value orpo(double c, double r, const lt_align_options *o) {
    const double odds = (c - r) - (log_1m_exp(c) - log_1m_exp(r));
    const double dodds = -o->beta * sigmoid(-odds); /* d odds / dc = 1 / (1 - exp c). */
    return (lt_align_value){-c - o->beta * log_sigmoid(odds), -1 - dodds / expm1(c),
                            dodds / expm1(r)};
}

static const lt_align_objective rows[] = {
    {.name = "dpo", .reference = true, .smoothing = true, .value = dpo},
    {.name = "dpo_robust", .reference = true, .smoothing = true, .value = dpo_robust},
    /* TRL's "sigmoid_norm", open-instruct's dpo_norm. */
    {.name = "dpo_norm", .reference = true, .mean = true, .smoothing = true, .value = dpo},
    {.name = "ipo", .reference = true, .value = ipo},
    {.name = "ipo_norm", .reference = true, .mean = true, .value = ipo},
    {.name = "simpo", .mean = true, .margin = true, .value = simpo},
    {.name = "orpo", .mean = true, .value = orpo},
};

const lt_align_objective *lt_align_objectives(size_t *n) {
    *n = sizeof rows / sizeof *rows;
    return rows;
}

lt_err lt_align_find(const lt_align_objective **out, const char *name) {
    char names[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            *out = &rows[i];
            return LT_OK;
        }
        used += (size_t)snprintf(names + used, sizeof names - used, " %s", rows[i].name);
        LT_ASSERT(used < sizeof names);
    }
    LT_FAIL(LT_ERR_NOT_FOUND, "objective \"%s\" does not exist; there are:%s", name, names);
}

static lt_err options_check(const lt_align_objective *row, const lt_align_options *o) {
    if (!(o->beta > 0 && isfinite(o->beta))) {
        LT_FAIL(LT_ERR_ARG, "%s: beta is %g, but must be over 0", row->name, o->beta);
    }
    if (!(o->smoothing >= 0 && o->smoothing < 0.5)) {
        LT_FAIL(LT_ERR_ARG, "%s: smoothing is %g, outside of [0, 0.5)", row->name, o->smoothing);
    }
    if (!(o->margin >= 0 && isfinite(o->margin))) {
        LT_FAIL(LT_ERR_ARG, "%s: margin is %g, but must be at least 0", row->name, o->margin);
    }
    if (o->smoothing > 0 && !row->smoothing) {
        LT_FAIL(LT_ERR_ARG, "%s has no label smoothing, but smoothing is %g", row->name,
                o->smoothing);
    }
    if (o->margin > 0 && !row->margin) {
        LT_FAIL(LT_ERR_ARG, "%s has no margin, but margin is %g", row->name, o->margin);
    }
    return LT_OK;
}

/* The number by which a row knows a completion. */
static lt_err side_statistic(const lt_align_objective *row, const lt_align_side *side,
                             const char *which, double *out) {
    double sum = 0;
    if (side->n < 1) {
        LT_FAIL(LT_ERR_FORMAT, "%s: the %s completion has %lld tokens", row->name, which,
                (long long)side->n);
    }
    if (row->reference && side->ref == NULL) {
        LT_FAIL(LT_ERR_ARG, "%s: the %s completion has no log-probabilities of a reference model",
                row->name, which);
    }
    for (int64_t i = 0; i < side->n; i++) {
        const double ref = row->reference ? (double)side->ref[i] : 0;
        if (!(isfinite(side->logp[i]) && side->logp[i] <= 0 && isfinite(ref) && ref <= 0)) {
            LT_FAIL(LT_ERR_NUMERIC,
                    "%s: token %lld of the %s completion has log-probability %g, reference %g; "
                    "both must be finite and at most 0",
                    row->name, (long long)i, which, (double)side->logp[i], ref);
        }
        sum += (double)side->logp[i] - ref;
    }
    *out = row->mean ? sum / (double)side->n : sum;
    return LT_OK;
}

static void side_spread(const lt_align_objective *row, const lt_align_side *side, double grad) {
    for (int64_t i = 0; side->dlogp != NULL && i < side->n; i++) {
        side->dlogp[i] = row->mean ? grad / (double)side->n : grad;
    }
}

lt_err lt_align_pair(const lt_align_objective *row, const lt_align_options *o,
                     const lt_align_side *chosen, const lt_align_side *rejected, double *loss) {
    double c, r;
    lt_align_value v;
    LT_TRY(options_check(row, o));
    LT_TRY(side_statistic(row, chosen, "chosen", &c));
    LT_TRY(side_statistic(row, rejected, "rejected", &r));
    v = row->value(c, r, o);
    if (!(isfinite(v.loss) && isfinite(v.dchosen) && isfinite(v.drejected))) {
        LT_FAIL(LT_ERR_NUMERIC,
                "%s: the loss is %g where the completions' statistics are %g and %g", row->name,
                v.loss, c, r);
    }
    *loss = v.loss;
    side_spread(row, chosen, v.dchosen);
    side_spread(row, rejected, v.drejected);
    return LT_OK;
}

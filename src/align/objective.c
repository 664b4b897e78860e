/* objective.c: the table of objectives over pairs, scores and single completions.
 *
 * Every objective depends on a completion through one number only, a sum or a mean over its tokens:
 * c for the chosen completion, r for the rejected one, d for a single one. A row of the table is
 * therefore a function of (c, r) or of d. One function computes these numbers and spreads the
 * derivatives over the tokens: every token of a completion has the same gradient. b is beta, s is
 * log sigmoid, and e is label smoothing.
 *
 * QRPO regresses b d on T(q) - b log Z, where q is the quantile of the completion's reward among
 * those of the reference model and T a transformation. Under the reference q is uniform, so Z = E
 * exp(T(q)/b) is known in closed form: this is the method's main idea. Matrenok et al. 2025,
 * arXiv:2507.08068. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/option.h"
#include "lateen/align.h"

#define PI 3.14159265358979323846

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

/* -s(c - r - margin) + center (c + r)^2 of two scores. Bradley and Terry 1952; the margin is that
 * of Llama 2, arXiv:2307.09288, equation 2, the other term that of Eisenstein et al. 2023,
 * arXiv:2312.09244. TRL's reward trainer. */
static lt_align_value reward(double c, double r, const lt_align_options *o) {
    const double z = c - r - o->margin, pull = 2 * o->center * (c + r);
    return (lt_align_value){-log_sigmoid(z) + o->center * (c + r) * (c + r), pull - sigmoid(-z),
                            pull + sigmoid(-z)};
}

/* -c, where c is the log-probability of a step's label, good or bad: cross entropy. Uesato et al.
 * 2022, arXiv:2211.14275; TRL's PRM trainer. */
static lt_align_value prm(double c, double r, const lt_align_options *o) {
    (void)r, (void)o;
    return (lt_align_value){-c, -1, 0};
}

/* 1 - sigmoid(b (d - point)) of a good completion, the mirror image of a bad one. Ethayarajh et al.
 * 2024, arXiv:2402.01306, equation 7. */
static lt_align_value kto(double d, const lt_align_sample *s, const lt_align_options *o) {
    const double sign = s->good ? 1 : -1, weight = s->good ? o->good : o->bad;
    const double z = sign * o->beta * (d - s->point);
    return (lt_align_value){weight * sigmoid(-z),
                            -weight * sign * o->beta * sigmoid(z) * sigmoid(-z), 0};
}

/* KTO at the point 0: APO-zero of D'Oosterlinck et al. 2024, arXiv:2408.06266, as TRL has it for
 * single completions. */
static lt_align_value apo_zero(double d, const lt_align_sample *s, const lt_align_options *o) {
    const lt_align_sample at_zero = {.good = s->good};
    return kto(d, &at_zero, o);
}

static lt_align_value regress(double d, double target, double beta) {
    const double miss = target - beta * d;
    return (lt_align_value){miss * miss, -2 * beta * miss, 0};
}

/* b log Z of T(q) = q, Z = b (exp(1/b) - 1): without the overflow of exp(1/b). */
static double beta_log_z(double b) {
    return b * log(b) + 1 + b * log1p(-exp(-1 / b));
}

static lt_align_value qrpo(double d, const lt_align_sample *s, const lt_align_options *o) {
    return regress(d, s->quantile - beta_log_z(o->beta), o->beta);
}

/* Apertus, arXiv:2509.14233: b is beta over the number of tokens, and at most 0.1. */
static lt_align_value qrpo_norm(double d, const lt_align_sample *s, const lt_align_options *o) {
    const double b = fmin(o->beta / (double)s->side.n, 0.1);
    return regress(d, s->quantile - beta_log_z(b), b);
}

/* T(q) = log q, Z = b / (1 + b); q is at least 1/n. */
static lt_align_value qrpo_log(double d, const lt_align_sample *s, const lt_align_options *o) {
    const double q = fmax(s->quantile, 1 / (double)s->n_refs), b = o->beta;
    return regress(d, log(q) - b * log(b / (1 + b)), b);
}

/* The quantile function of the normal distribution, by Newton's method, started in the middle. q is
 * in (0, 1), and its distance from either end is at least one reward's share of all rewards, so the
 * method converges. */
static double normal_quantile(double q) {
    const double tail = fmin(q, 1 - q), from = sqrt(-2 * log(tail));
    double x = from - (2.30753 + 0.27061 * from) / (1 + from * (0.99229 + 0.04481 * from));
    for (int i = 0; i < 4; i++) { /* x > 0: its upper tail must be `tail`. */
        const double density = exp(-x * x / 2) / sqrt(2 * PI);
        x += (erfc(x / sqrt(2)) / 2 - tail) / density;
    }
    return q < 0.5 ? -x : x;
}

/* T(q) is the normal quantile, log Z = 1/(2 b^2); q is in [1/n, 1 - 1/n]. */
static lt_align_value qrpo_normal(double d, const lt_align_sample *s, const lt_align_options *o) {
    const double least = 1 / (double)s->n_refs, q = fmin(fmax(s->quantile, least), 1 - least);
    return regress(d, normal_quantile(q) - 1 / (2 * o->beta), o->beta);
}

#define PAIR   .given = LT_ALIGN_PAIR, .beta = true
#define SINGLE .given = LT_ALIGN_SINGLE, .beta = true, .reference = true
static const lt_align_objective rows[] = {
    {.name = "dpo", PAIR, .reference = true, .smoothing = true, .value = dpo},
    {.name = "dpo_robust", PAIR, .reference = true, .smoothing = true, .value = dpo_robust},
    /* TRL's "sigmoid_norm", open-instruct's dpo_norm. */
    {.name = "dpo_norm", PAIR, .reference = true, .mean = true, .smoothing = true, .value = dpo},
    {.name = "ipo", PAIR, .reference = true, .value = ipo},
    {.name = "ipo_norm", PAIR, .reference = true, .mean = true, .value = ipo},
    {.name = "simpo", PAIR, .mean = true, .margin = true, .value = simpo},
    {.name = "orpo", PAIR, .mean = true, .value = orpo},
    {.name = "reward", .given = LT_ALIGN_SCORES, .margin = true, .center = true, .value = reward},
    {.name = "kto", SINGLE, .weights = true, .single = kto},
    {.name = "apo_zero", SINGLE, .weights = true, .single = apo_zero},
    {.name = "qrpo", SINGLE, .single = qrpo},
    {.name = "qrpo_norm", SINGLE, .single = qrpo_norm},
    {.name = "qrpo_log", SINGLE, .single = qrpo_log},
    {.name = "qrpo_normal", SINGLE, .single = qrpo_normal},
    {.name = "prm", .given = LT_ALIGN_STEPS, .value = prm},
};

const lt_align_objective *lt_align_objectives(size_t *n) {
    *n = sizeof rows / sizeof *rows;
    return rows;
}

lt_err lt_align_find(const lt_align_objective **out, const char *name) {
    enum { N = sizeof rows / sizeof *rows };
    const lt_align_objective *row = lt_name_find(name, rows, sizeof *rows, N);
    char names[512];
    if (row == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "objective \"%s\" does not exist; there are:%s", name,
                lt_name_list(names, sizeof names, rows, sizeof *rows, N));
    }
    *out = row;
    return LT_OK;
}

static lt_err options_check(const lt_align_objective *row, const lt_align_options *o,
                            lt_align_given given) {
    static const char *const givens[] = {"pairs of completions", "pairs of scores",
                                         "single completions", "steps of completions"};
    const struct {
        const char *name;
        double value;
        bool reads;
    } options[] = {{"smoothing", o->smoothing, row->smoothing},
                   {"margin", o->margin, row->margin},
                   {"center", o->center, row->center},
                   {"good", o->good, row->weights},
                   {"bad", o->bad, row->weights},
                   {"beta", o->beta, row->beta}};
    if (row->given != given) {
        LT_FAIL(LT_ERR_ARG, "%s is an objective over %s, not over %s", row->name,
                givens[row->given], givens[given]);
    }
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (!(options[i].value >= 0 && isfinite(options[i].value))) {
            LT_FAIL(LT_ERR_ARG, "%s: %s is %g, but must be at least 0", row->name, options[i].name,
                    options[i].value);
        }
        if (options[i].value > 0 && !options[i].reads) {
            LT_FAIL(LT_ERR_ARG, "%s has no option %s, but it is %g", row->name, options[i].name,
                    options[i].value);
        }
    }
    if (row->beta && o->beta <= 0) {
        LT_FAIL(LT_ERR_ARG, "%s: beta is %g, but must be over 0", row->name, o->beta);
    }
    if (o->smoothing >= 0.5) {
        LT_FAIL(LT_ERR_ARG, "%s: smoothing is %g, outside of [0, 0.5)", row->name, o->smoothing);
    }
    if (row->weights && o->good <= 0 && o->bad <= 0) {
        LT_FAIL(LT_ERR_ARG, "%s: the weights of good and bad completions are both 0", row->name);
    }
    return LT_OK;
}

/* The statistic by which a row judges a completion. */
static lt_err side_statistic(const lt_align_objective *row, const lt_align_side *side,
                             const char *which, double *out) {
    double sum = 0;
    if (side->n < 1) {
        LT_FAIL(LT_ERR_FORMAT, "%s: the %scompletion has %lld tokens", row->name, which,
                (long long)side->n);
    }
    if (row->reference && side->ref == NULL && side->ref_sum == NULL) {
        LT_FAIL(LT_ERR_ARG, "%s: the %scompletion has no log-probabilities of a reference model",
                row->name, which);
    }
    for (int64_t i = 0; i < side->n; i++) {
        const double ref = row->reference && side->ref != NULL ? (double)side->ref[i] : 0;
        if (!(isfinite(side->logp[i]) && side->logp[i] <= 0 && isfinite(ref) && ref <= 0)) {
            LT_FAIL(LT_ERR_NUMERIC,
                    "%s: token %lld of the %scompletion has log-probability %g, reference %g; "
                    "both must be finite and at most 0",
                    row->name, (long long)i, which, (double)side->logp[i], ref);
        }
        sum += (double)side->logp[i] - ref;
    }
    sum -= row->reference && side->ref_sum != NULL ? *side->ref_sum : 0;
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
    LT_TRY(options_check(row, o, LT_ALIGN_PAIR));
    LT_TRY(side_statistic(row, chosen, "chosen ", &c));
    LT_TRY(side_statistic(row, rejected, "rejected ", &r));
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

lt_err lt_align_scores(const lt_align_objective *row, const lt_align_options *o, double chosen,
                       double rejected, lt_align_value *out) {
    lt_align_value v;
    LT_TRY(options_check(row, o, LT_ALIGN_SCORES));
    v = row->value(chosen, rejected, o);
    if (!(isfinite(chosen) && isfinite(rejected) && isfinite(v.loss) && isfinite(v.dchosen) &&
          isfinite(v.drejected))) {
        LT_FAIL(LT_ERR_NUMERIC, "%s: the loss of the scores %g and %g is %g", row->name, chosen,
                rejected, v.loss);
    }
    *out = v;
    return LT_OK;
}

lt_err lt_align_single(const lt_align_objective *row, const lt_align_options *o,
                       const lt_align_sample *sample, double *loss) {
    const bool ranked = row->given == LT_ALIGN_SINGLE && !row->weights; /* QRPO. */
    const int64_t least = row->single == qrpo_normal ? 2 : 1;
    lt_align_value v;
    double d;
    LT_TRY(options_check(row, o, LT_ALIGN_SINGLE));
    if (row->single == kto && !(sample->point >= 0 && isfinite(sample->point))) {
        LT_FAIL(LT_ERR_ARG, "%s: the reference point is %g, but must be at least 0", row->name,
                sample->point);
    }
    if (ranked && !(sample->quantile >= 0 && sample->quantile <= 1)) {
        LT_FAIL(LT_ERR_ARG, "%s: the quantile is %g, outside of [0, 1]", row->name,
                sample->quantile);
    }
    if (ranked && sample->n_refs < least) {
        LT_FAIL(LT_ERR_ARG, "%s: %lld rewards of the reference model; it needs %lld", row->name,
                (long long)sample->n_refs, (long long)least);
    }
    LT_TRY(side_statistic(row, &sample->side, "", &d));
    v = row->single(d, sample, o);
    if (!(isfinite(v.loss) && isfinite(v.dchosen))) {
        LT_FAIL(LT_ERR_NUMERIC, "%s: the loss is %g where the log-ratio is %g", row->name, v.loss,
                d);
    }
    *loss = v.loss;
    side_spread(row, &sample->side, v.dchosen);
    return LT_OK;
}

lt_err lt_align_steps(const lt_align_objective *row, const lt_align_options *o, const float *logp,
                      int64_t n, double *loss, double *dlogp) {
    double sum = 0;
    LT_TRY(options_check(row, o, LT_ALIGN_STEPS));
    if (n < 1) {
        LT_FAIL(LT_ERR_FORMAT, "%s: the completion has %lld steps", row->name, (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        if (!(isfinite(logp[i]) && logp[i] <= 0)) {
            LT_FAIL(LT_ERR_NUMERIC, "%s: the label of step %lld has log-probability %g", row->name,
                    (long long)i, (double)logp[i]);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const lt_align_value v = row->value((double)logp[i], 0, o);
        sum += v.loss;
        if (dlogp != NULL) {
            dlogp[i] = v.dchosen;
        }
    }
    *loss = sum;
    return LT_OK;
}

static lt_err all_finite(const char *what, const double *x, int64_t n) {
    if (n < 1) {
        LT_FAIL(LT_ERR_FORMAT, "%s: %lld values, but it needs at least 1", what, (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            LT_FAIL(LT_ERR_NUMERIC, "%s: value %lld of %lld is %g", what, (long long)i,
                    (long long)n, x[i]);
        }
    }
    return LT_OK;
}

lt_err lt_align_kto_point(const double *log_ratios, int64_t n, double *point) {
    double sum = 0;
    LT_TRY(all_finite("KTO's reference point", log_ratios, n));
    for (int64_t i = 0; i < n; i++) {
        sum += log_ratios[i];
    }
    *point = fmax(0, sum / (double)n);
    return LT_OK;
}

lt_err lt_align_quantile(double reward_of_it, const double *refs, int64_t n, double *quantile) {
    int64_t below = 0;
    LT_TRY(all_finite("rewards of the reference model", refs, n));
    LT_TRY(all_finite("a reward", &reward_of_it, 1));
    for (int64_t i = 0; i < n; i++) {
        below += refs[i] <= reward_of_it;
    }
    *quantile = (double)below / (double)n;
    return LT_OK;
}

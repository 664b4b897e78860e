/* select.c: see select.h. Every rule is a function from scores to probabilities; the rest (checks,
 * the draw, the divergence) is shared. */
#include "lateen/select.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/option.h"
#include "base/rng.h"

/* Streams of random numbers: how many candidates are drawn does not change which one is kept. */
#define STREAM_DRAWS  0x647261777300ull
#define STREAM_CHOICE 0x63686f69636500ull

/* ---- The rules ---- */

/* The candidates with the highest weight are equally likely, and the others are never kept. */
static void share_best(const double *weight, int64_t n, double *p) {
    double best = -INFINITY;
    int64_t ties = 0;
    for (int64_t i = 0; i < n; i++) {
        ties = weight[i] > best ? 1 : ties + (weight[i] == best);
        best = weight[i] > best ? weight[i] : best;
    }
    for (int64_t i = 0; i < n; i++) {
        p[i] = weight[i] == best ? 1 / (double)ties : 0;
    }
}

static void normalise(double *p, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += p[i];
    }
    for (int64_t i = 0; i < n; i++) {
        p[i] /= sum;
    }
}

static double highest(const double *scores, int64_t n) {
    double best = scores[0];
    for (int64_t i = 1; i < n; i++) {
        best = scores[i] > best ? scores[i] : best;
    }
    return best;
}

static void weigh_best(const double *scores, const int32_t *answers, int64_t n,
                       const lt_select_options *o, double *p) {
    (void)answers, (void)o;
    share_best(scores, n, p);
}

static void weigh_soft(const double *scores, const int32_t *answers, int64_t n,
                       const lt_select_options *o, double *p) {
    const double best = highest(scores, n);
    (void)answers;
    for (int64_t i = 0; i < n; i++) {
        p[i] = exp((scores[i] - best) / o->temperature);
    }
    normalise(p, n);
}

static int falling(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Hill's estimate of the tail index for scores that end at 1: that of 1 / (1 - score), whose tail
 * is heavy if many scores are close to 1. A score of 1 counts as 1e-9 below it. */
static double tail_index(const double *scores, int64_t n, double share) {
    double inverse[LT_SELECT_MOST], sum = 0;
    int64_t k = (int64_t)ceil(share * (double)n);
    k = k >= n ? n - 1 : k;
    if (k < 1) {
        return 0;
    }
    for (int64_t i = 0; i < n; i++) {
        inverse[i] = 1 / fmax(1 - scores[i], 1e-9);
    }
    qsort(inverse, (size_t)n, sizeof *inverse, falling);
    for (int64_t i = 0; i < k; i++) {
        sum += log(inverse[i] / inverse[k]);
    }
    return sum / (double)k;
}

/* alpha 1 is soft_best_of_n; alpha 2 is linear in the score, the pessimism of a chi-square penalty.
 */
static void weigh_tails(const double *scores, const int32_t *answers, int64_t n,
                        const lt_select_options *o, double *p) {
    const double index = tail_index(scores, n, o->tail), a = index / (index + o->half_tail);
    (void)answers;
    if (a < 1e-6) { /* The limit of the power; computing the power itself would lose all digits. */
        weigh_soft(scores, NULL, n, o, p);
        return;
    }
    for (int64_t i = 0; i < n; i++) { /* The scores are at least 0, so no base is negative. */
        p[i] = log1p(a * scores[i] / o->temperature) / a;
    }
    weigh_soft(p, NULL, n, &(lt_select_options){.temperature = 1}, p);
}

static void weigh_first(const double *scores, const int32_t *answers, int64_t n,
                        const lt_select_options *o, double *p) {
    (void)answers;
    for (int64_t i = 0; i < n; i++) {
        if (scores[i] >= o->threshold) {
            memset(p, 0, (size_t)n * sizeof *p);
            p[i] = 1;
            return;
        }
    }
    share_best(scores, n, p);
}

/* The votes of an answer are the sum of the weights of the candidates that give it; without scores
 * each weighs 1. The answers with the most votes are equally likely, and so are the candidates that
 * give the same answer. If no candidate gives an answer, all candidates are equally likely. */
static void weigh_votes(const double *scores, const int32_t *answers, int64_t n,
                        const lt_select_options *o, double *p) {
    double votes[LT_SELECT_MOST], best = -INFINITY;
    int64_t same[LT_SELECT_MOST];
    (void)o;
    for (int64_t i = 0; i < n; i++) {
        votes[i] = 0;
        same[i] = 0;
        for (int64_t k = 0; k < n && answers[i] >= 0; k++) {
            if (answers[k] == answers[i]) {
                votes[i] += scores != NULL ? scores[k] : 1;
                same[i]++;
            }
        }
        best = same[i] > 0 && votes[i] > best ? votes[i] : best;
    }
    for (int64_t i = 0; i < n; i++) {
        p[i] = best == -INFINITY ? 1 : same[i] > 0 && votes[i] == best ? 1 / (double)same[i] : 0;
    }
    normalise(p, n);
}

static const lt_select_rule rules[] = {
    {"best_of_n", 0, false, weigh_best},
    {"soft_best_of_n", LT_SELECT_TEMPERATURE, false, weigh_soft},
    {"best_of_poisson", LT_SELECT_MU, false, weigh_best},
    {"best_of_tails", LT_SELECT_TEMPERATURE | LT_SELECT_TAIL, false, weigh_tails},
    {"rejection", LT_SELECT_THRESHOLD, false, weigh_first},
    {"self_consistency", 0, true, weigh_votes},
};
enum { N_RULES = sizeof rules / sizeof *rules };

lt_err lt_select_find(const lt_select_rule **out, const char *name) {
    const lt_select_rule *rule = lt_name_find(name, rules, sizeof *rules, N_RULES);
    char hint[LT_NAME_HINT_BYTES];
    if (rule == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "no rule of selection is named '%.40s'%s", name,
                lt_name_hint(hint, name, rules, sizeof *rules, N_RULES));
    }
    *out = rule;
    return LT_OK;
}

/* ---- Options ---- */

static const struct {
    const char *name;
    size_t offset;
    unsigned bit;
    double low, high; /* The value is over low, and at most high. */
} parameters[] = {
    {"temperature", offsetof(lt_select_options, temperature), LT_SELECT_TEMPERATURE, 0, 1e300},
    {"mu", offsetof(lt_select_options, mu), LT_SELECT_MU, 0, LT_SELECT_MOST / 2},
    {"threshold", offsetof(lt_select_options, threshold), LT_SELECT_THRESHOLD, -1e300, 1e300},
    {"tail", offsetof(lt_select_options, tail), LT_SELECT_TAIL, 0, 1},
    {"half_tail", offsetof(lt_select_options, half_tail), LT_SELECT_TAIL, 0, 1e300},
};

lt_err lt_select_check(const lt_select_rule *rule, const lt_select_options *o) {
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++) {
        double value;
        memcpy(&value, (const char *)o + parameters[i].offset, sizeof value);
        if ((rule->reads & parameters[i].bit) == 0) {
            if (value != 0) {
                LT_FAIL(LT_ERR_ARG, "%s does not read '%s', which is %g", rule->name,
                        parameters[i].name, value);
            }
        } else if (!(value > parameters[i].low && value <= parameters[i].high)) {
            LT_FAIL(LT_ERR_ARG, "%s needs '%s' over %g and at most %g; it is %g", rule->name,
                    parameters[i].name, parameters[i].low, parameters[i].high, value);
        }
    }
    return LT_OK;
}

/* ---- The draw ---- */

int64_t lt_select_draws(const lt_select_rule *rule, const lt_select_options *o, int64_t n,
                        uint64_t seed) {
    lt_rng r = {.seed = seed, .stream = STREAM_DRAWS};
    double u, p;
    if ((rule->reads & LT_SELECT_MU) == 0) {
        return n;
    }
    u = lt_rng_uniform(&r);
    p = exp(-o->mu);
    for (n = 1; n < LT_SELECT_MOST && u >= p; n++) {
        u -= p;
        p *= o->mu / (double)n;
    }
    return n;
}

/* Draw the index of a candidate with these probabilities. */
static int64_t draw(const double *p, int64_t n, uint64_t seed) {
    lt_rng r = {.seed = seed, .stream = STREAM_CHOICE};
    double u = lt_rng_uniform(&r);
    int64_t last = 0;
    for (int64_t i = 0; i < n; i++) {
        if (p[i] > 0) {
            last = i; /* If the sum of all p rounds to less than 1, u may exceed it. */
            if (u < p[i]) {
                break;
            }
            u -= p[i];
        }
    }
    return last;
}

static lt_err check_scores(const lt_select_rule *rule, const double *scores, int64_t n) {
    const bool unit = (rule->reads & LT_SELECT_TAIL) != 0;
    if (n < 1 || n > LT_SELECT_MOST) {
        LT_FAIL(LT_ERR_FORMAT, "%s has %lld candidates; it needs 1 to %d", rule->name, (long long)n,
                LT_SELECT_MOST);
    }
    for (int64_t i = 0; i < n && scores != NULL; i++) {
        if (!isfinite(scores[i]) || (unit && !(scores[i] >= 0 && scores[i] <= 1))) {
            LT_FAIL(LT_ERR_NUMERIC, "%s: the score of candidate %lld is %g, %s", rule->name,
                    (long long)i, scores[i], unit ? "outside [0, 1]" : "not a finite number");
        }
    }
    return LT_OK;
}

lt_err lt_select(const lt_select_rule *rule, const lt_select_options *o, const double *scores,
                 const int32_t *answers, int64_t n, uint64_t seed, lt_selection *out, double *p) {
    double own[LT_SELECT_MOST], entropy = 0;
    p = p != NULL ? p : own;
    LT_ASSERT(rule->groups ? answers != NULL : scores != NULL);
    LT_TRY(lt_select_check(rule, o));
    LT_TRY(check_scores(rule, scores, n));
    rule->weigh(scores, answers, n, o, p);
    out->chosen = draw(p, n, seed);
    out->probability = p[out->chosen];
    for (int64_t i = 0; i < n; i++) {
        entropy -= p[i] > 0 ? p[i] * log(p[i]) : 0;
    }
    /* The index was drawn with p, while that of a plain sample is uniform. The answer is a function
     * of candidates and index, so on average it is no further away than they are. */
    out->kl = lt_select_kl(rule, o, n);
    if ((rule->reads & LT_SELECT_MU) == 0) {
        out->kl = fmax(0, fmin(out->kl, log((double)n) - entropy));
    }
    return LT_OK;
}

/* ---- Deciding early ---- */

static bool first_accepted(const double *scores, double threshold, const bool *ended, int64_t n) {
    for (int64_t i = 0; i < n && ended[i]; i++) {
        if (scores[i] >= threshold) {
            return true;
        }
    }
    return false;
}

static bool majority_certain(const int32_t *answers, const bool *ended, int64_t n) {
    int64_t first = 0, second = 0, open = 0; /* Votes of the leader and of the second. */
    for (int64_t i = 0; i < n; i++) {
        int64_t votes = 0;
        bool counted = false; /* Each answer is counted at its first occurrence. */
        open += !ended[i];
        for (int64_t k = 0; k < n && ended[i] && answers[i] >= 0; k++) {
            const bool same = ended[k] && answers[k] == answers[i];
            votes += same;
            counted = counted || (same && k < i);
        }
        if (!counted && votes > first) {
            second = first;
            first = votes;
        } else if (!counted && votes > second) {
            second = votes;
        }
    }
    return first - second > open;
}

bool lt_select_decided(const lt_select_rule *rule, const lt_select_options *o, const double *scores,
                       const int32_t *answers, const bool *ended, int64_t n) {
    if (rule->reads & LT_SELECT_THRESHOLD) {
        return first_accepted(scores, o->threshold, ended, n);
    }
    return rule->groups && scores == NULL && majority_certain(answers, ended, n);
}

double lt_select_consensus(const double *weights, const int32_t *answers, int64_t n) {
    double most = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        double votes = 0;
        for (int64_t k = 0; k < n && answers[i] >= 0; k++) {
            votes += answers[k] == answers[i] ? weights[k] : 0;
        }
        most = votes > most ? votes : most;
        all += answers[i] >= 0 ? weights[i] : 0;
    }
    return all > 0 ? most / all : 0;
}

/* ---- Divergence ---- */

/* The density of best_of_poisson over u, the rank of the score in (0, 1), is (1 + mu u) exp(mu (u -
 * 1)); this is its Kullback-Leibler divergence from the uniform one, by Simpson's rule. */
static double poisson_kl(double mu) {
    const int steps = 128 + 16 * (int)mu; /* Even. The density's scale is 1 / mu. */
    double sum = 0;
    for (int i = 0; i <= steps; i++) {
        const double u = (double)i / steps, ln = log1p(mu * u) + mu * (u - 1);
        sum += (i == 0 || i == steps ? 1 : i % 2 == 1 ? 4 : 2) * ln * exp(ln);
    }
    return sum / (3.0 * steps);
}

double lt_select_kl(const lt_select_rule *rule, const lt_select_options *o, int64_t n) {
    return rule->reads & LT_SELECT_MU ? poisson_kl(o->mu) : log((double)n) - 1 + 1 / (double)n;
}

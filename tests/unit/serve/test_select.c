/* Rules of selection: what they keep follows their closed forms, on scores whose distribution is
 * known. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/rng.h"
#include "lateen/select.h"

#define DRAWS 100000

/* A model with three answers, whose rewards rise. */
static const double prob[3] = {0.5, 0.3, 0.2}, reward[3] = {-1, 0.25, 2};

static const lt_select_rule *rule_of(const char *name) {
    const lt_select_rule *r;
    assert_int_equal(lt_select_find(&r, name), LT_OK);
    return r;
}

static int sample(lt_rng *r) {
    const double u = lt_rng_uniform(r);
    return u < prob[0] ? 0 : u < prob[0] + prob[1] ? 1 : 2;
}

/* Chi-square of counts against a distribution; below 13.8 with probability 0.999 at 2 degrees of
 * freedom. */
static double chi_square(const int64_t *counts, const double *law, int n) {
    double x = 0;
    for (int i = 0; i < n; i++) {
        const double expected = law[i] * DRAWS;
        x += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
    }
    return x;
}

static void check_law(const char *name, const lt_select_options *o, int64_t n, const double *law) {
    const lt_select_rule *rule = rule_of(name);
    lt_rng r = {.seed = 7};
    int64_t counts[3] = {0};
    for (int64_t d = 0; d < DRAWS; d++) {
        const int64_t m = lt_select_draws(rule, o, n, (uint64_t)d);
        double scores[LT_SELECT_MOST];
        int which[LT_SELECT_MOST];
        lt_selection s;
        for (int64_t i = 0; i < m; i++) {
            which[i] = sample(&r);
            scores[i] = reward[which[i]];
        }
        assert_int_equal(lt_select(rule, o, scores, NULL, m, (uint64_t)d, &s, NULL), LT_OK);
        counts[which[s.chosen]]++;
    }
    assert_true(chi_square(counts, law, 3) < 13.8);
}

static double divergence(const double *law) {
    double kl = 0;
    for (int i = 0; i < 3; i++) {
        kl += law[i] > 0 ? law[i] * log(law[i] / prob[i]) : 0;
    }
    return kl;
}

/* The best of n is at most answer i with probability F_i^n. */
static void best_of_n(void **state) {
    const double law[3] = {pow(.5, 4), pow(.8, 4) - pow(.5, 4), 1 - pow(.8, 4)};
    const lt_select_options none = {0};
    (void)state;
    check_law("best_of_n", &none, 4, law);
    assert_true(fabs(divergence(law) - .559751) < 1e-6);
    assert_true(fabs(lt_select_kl(rule_of("best_of_n"), &none, 4) - .636294) < 1e-6);
    assert_true(divergence(law) <= lt_select_kl(rule_of("best_of_n"), &none, 4));
}

/* Soft: the distribution over all 3^n sets of candidates, by enumeration. */
static void soft_law(int n, double temperature, double *law) {
    int64_t sets = 1;
    memset(law, 0, 3 * sizeof *law);
    for (int i = 0; i < n; i++) {
        sets *= 3;
    }
    for (int64_t set = 0; set < sets; set++) {
        double p = 1, sum = 0, w[3] = {0};
        int64_t rest = set;
        for (int i = 0; i < n; i++, rest /= 3) {
            p *= prob[rest % 3];
            w[rest % 3] += exp(reward[rest % 3] / temperature);
            sum += exp(reward[rest % 3] / temperature);
        }
        for (int a = 0; a < 3; a++) {
            law[a] += p * w[a] / sum;
        }
    }
}

static void soft_best_of_n(void **state) {
    double law[3], best[3], plain[3];
    (void)state;
    soft_law(5, 0.8, law);
    check_law("soft_best_of_n", &(lt_select_options){.temperature = 0.8}, 5, law);
    soft_law(5, 1e9, plain); /* At a high temperature: as without selection. */
    soft_law(5, 0.02, best); /* At a low temperature: best of n. */
    assert_true(fabs(plain[0] - prob[0]) < 1e-6);
    assert_true(fabs(best[0] - pow(.5, 5)) < 1e-9);
    check_law("soft_best_of_n", &(lt_select_options){.temperature = 0.02}, 5, best);
}

/* If u is the rank, P(u <= x) is x exp(mu (x - 1)). */
static void best_of_poisson(void **state) {
    static const double mus[] = {1, 2, 4, 8, 16};
    static const double kls[] = {.107154, .298724, .673937, 1.213206, 1.837138};
    const double mu = 3, low = .5 * exp(mu * (.5 - 1)), middle = .8 * exp(mu * (.8 - 1));
    const double law[3] = {low, middle - low, 1 - middle};
    (void)state;
    check_law("best_of_poisson", &(lt_select_options){.mu = mu}, 1, law);
    for (int i = 0; i < 5; i++) {
        const lt_select_options o = {.mu = mus[i]};
        assert_true(fabs(lt_select_kl(rule_of("best_of_poisson"), &o, 1) - kls[i]) < 1e-6);
    }
}

/* The number of candidates less one has a Poisson distribution. */
static void draws_are_poisson(void **state) {
    const lt_select_rule *rule = rule_of("best_of_poisson");
    const lt_select_options o = {.mu = 2.5};
    int64_t counts[8] = {0};
    double law[8], p = exp(-o.mu), left = 1, x = 0;
    (void)state;
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        const int64_t n = lt_select_draws(rule, &o, 1, seed);
        assert_true(n >= 1);
        counts[n - 1 < 7 ? n - 1 : 7]++;
    }
    for (int i = 0; i < 7; i++) {
        law[i] = p;
        left -= p;
        p *= o.mu / (i + 1);
    }
    law[7] = left;
    x = chi_square(counts, law, 8);
    assert_true(x < 24.3); /* The 0.999 quantile at 7 degrees of freedom. */
    assert_int_equal(lt_select_draws(rule_of("best_of_n"), &(lt_select_options){0}, 6, 1), 6);
}

/* The first that is good enough: geometric, limited to n, where the best is kept. */
static void rejection(void **state) {
    const lt_select_options o = {.threshold = 0.25};
    /* None of 3 reaches the threshold: answer 0 with .5^3; else the first that does. */
    const double none = pow(.5, 3), law[3] = {none, (1 - none) * .6, (1 - none) * .4};
    (void)state;
    check_law("rejection", &o, 3, law);
}

static void rejection_is_decided_in_order(void **state) {
    const lt_select_rule *rule = rule_of("rejection");
    const lt_select_options o = {.threshold = 1};
    const double scores[4] = {0, 1, 5, 0};
    (void)state;
    assert_false(lt_select_decided(rule, &o, scores, NULL, (bool[]){0, 1, 1, 1}, 4));
    assert_false(lt_select_decided(rule, &o, scores, NULL, (bool[]){1, 0, 1, 1}, 4));
    assert_true(lt_select_decided(rule, &o, scores, NULL, (bool[]){1, 1, 0, 0}, 4));
    assert_false(
        lt_select_decided(rule_of("best_of_n"), &o, scores, NULL, (bool[]){1, 1, 1, 0}, 4));
}

static void ties_share_the_probability(void **state) {
    const double scores[4] = {2, 1, 2, 2};
    double p[4];
    lt_selection s;
    (void)state;
    assert_int_equal(
        lt_select(rule_of("best_of_n"), &(lt_select_options){0}, scores, NULL, 4, 1, &s, p), LT_OK);
    assert_true(p[0] == 1 / 3.0 && p[1] == 0 && p[2] == 1 / 3.0 && s.probability == 1 / 3.0);
    assert_true(fabs(s.kl - log(4 / 3.0)) < 1e-12);
}

static void votes(void **state) {
    const int32_t answers[6] = {3, 1, 1, -1, 3, 2};
    const double scores[6] = {.5, .1, .2, 9, .1, .55};
    const lt_select_rule *rule = rule_of("self_consistency");
    const lt_select_options o = {0};
    const int32_t nobody[2] = {-1, -1};
    double p[6];
    lt_selection s;
    (void)state;
    /* 1 and 3 have two votes each, and their candidates share the probability of the answer. */
    assert_int_equal(lt_select(rule, &o, NULL, answers, 6, 1, &s, p), LT_OK);
    assert_true(p[0] == .25 && p[1] == .25 && p[2] == .25 && p[4] == .25 && p[3] == 0 && p[5] == 0);
    /* Weighted: .6 for 3, .3 for 1, .55 for 2; a candidate without an answer has no vote. */
    assert_int_equal(lt_select(rule, &o, scores, answers, 6, 1, &s, p), LT_OK);
    assert_true(p[0] == .5 && p[4] == .5 && p[1] == 0 && p[5] == 0);
    assert_int_equal(lt_select(rule, &o, NULL, nobody, 2, 1, &s, p), LT_OK);
    assert_true(p[0] == .5 && p[1] == .5);
}

/* A lead that the remaining candidates could make up for is not decisive; one more is. */
static void a_majority_is_certain(void **state) {
    const lt_select_rule *rule = rule_of("self_consistency");
    const lt_select_options o = {0};
    const int32_t answers[6] = {1, 1, 1, 2, 2, -1};
    (void)state;
    assert_false(lt_select_decided(rule, &o, NULL, answers, (bool[]){1, 1, 1, 0, 0, 0}, 6));
    assert_true(lt_select_decided(rule, &o, NULL, answers, (bool[]){1, 1, 1, 0, 0, 1}, 6));
    assert_false(lt_select_decided(rule, &o, NULL, answers, (bool[]){1, 1, 0, 1, 0, 1}, 6));
    assert_false(lt_select_decided(rule, &o, NULL, answers, (bool[]){1, 1, 1, 1, 0, 0}, 6));
    assert_true(lt_select_decided(rule, &o, NULL, answers, (bool[]){1, 1, 1, 1, 0, 1}, 6));
}

/* alpha is between its limits: few scores near 1 give soft best of n, many give linear
 * weights. */
static void tails_of_scores(void **state) {
    const double scores[4] = {.2, .4, .6, .8};
    lt_select_options o = {.temperature = .5, .tail = .5, .half_tail = 1e12};
    double soft[4], p[4], sum = 0;
    lt_selection s;
    (void)state;
    assert_int_equal(lt_select(rule_of("soft_best_of_n"), &(lt_select_options){.temperature = .5},
                               scores, NULL, 4, 1, &s, soft),
                     LT_OK);
    assert_int_equal(lt_select(rule_of("best_of_tails"), &o, scores, NULL, 4, 1, &s, p), LT_OK);
    for (int i = 0; i < 4; i++) {
        assert_true(fabs(p[i] - soft[i]) < 1e-9);
    }
    o.half_tail = 1e-12;
    assert_int_equal(lt_select(rule_of("best_of_tails"), &o, scores, NULL, 4, 1, &s, p), LT_OK);
    for (int i = 0; i < 4; i++) {
        sum += 1 + scores[i] / .5;
    }
    for (int i = 0; i < 4; i++) {
        assert_true(fabs(p[i] - (1 + scores[i] / .5) / sum) < 1e-9);
    }
    /* Between the limits: Hill's index of 1 / (1 - score), of the two highest over the third. */
    o.half_tail = 1;
    assert_int_equal(lt_select(rule_of("best_of_tails"), &o, scores, NULL, 4, 1, &s, p), LT_OK);
    {
        const double index = (log(.6 / .2) + log(.6 / .4)) / 2, a = index / (index + 1);
        const double w3 = pow(1 + a * .8 / .5, 1 / a), w0 = pow(1 + a * .2 / .5, 1 / a);
        assert_true(fabs(p[3] / p[0] - w3 / w0) < 1e-9);
    }
}

/* A quarter of four scores is one: the index is that of the highest over the second. */
static void a_tail_of_one(void **state) {
    const double scores[4] = {.9, .5, .2, 0};
    const lt_select_options o = {.temperature = .5, .tail = .25, .half_tail = 1};
    const double index = log(.5 / .1), a = index / (index + 1);
    lt_selection s;
    double p[4];
    (void)state;
    assert_int_equal(lt_select(rule_of("best_of_tails"), &o, scores, NULL, 4, 1, &s, p), LT_OK);
    for (int i = 0; i < 4; i++) {
        assert_true(fabs(p[i] / p[3] - pow(1 + a * scores[i] / .5, 1 / a)) < 1e-9);
    }
}

static void refused(void **state) {
    const double scores[2] = {0, NAN}, over[2] = {0.5, 1.5};
    lt_selection s;
    const lt_select_rule *r;
    (void)state;
    assert_int_equal(lt_select_find(&r, "best_of_m"), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "best_of_n"));
    r = rule_of("soft_best_of_n");
    assert_int_equal(lt_select_check(r, &(lt_select_options){0}), LT_ERR_ARG);
    assert_int_equal(lt_select_check(r, &(lt_select_options){.temperature = 1, .mu = 1}),
                     LT_ERR_ARG);
    assert_int_equal(lt_select_check(rule_of("best_of_poisson"), &(lt_select_options){.mu = 600}),
                     LT_ERR_ARG);
    assert_int_equal(
        lt_select(rule_of("best_of_n"), &(lt_select_options){0}, scores, NULL, 2, 1, &s, NULL),
        LT_ERR_NUMERIC);
    assert_int_equal(
        lt_select(rule_of("best_of_n"), &(lt_select_options){0}, scores, NULL, 0, 1, &s, NULL),
        LT_ERR_FORMAT);
    assert_int_equal(lt_select(rule_of("best_of_tails"),
                               &(lt_select_options){.temperature = 1, .tail = .5, .half_tail = 1},
                               over, NULL, 2, 1, &s, NULL),
                     LT_ERR_NUMERIC);
    /* Options are checked first, because they are wrong for every request. */
    assert_int_equal(lt_select(rule_of("best_of_n"), &(lt_select_options){.mu = 1}, scores, NULL, 2,
                               1, &s, NULL),
                     LT_ERR_ARG);
}

/* ---- HedgeTune ---- */

static const double few_proxy[6] = {1, 3, 2, 5, 4, 6}, few_truth[6] = {.1, .9, .3, .7, .8, .2};

/* All subsets of n of the six samples, each equally likely. */
static double brute_best(int n) {
    double sum = 0;
    int sets = 0;
    for (int set = 0; set < 64; set++) {
        int best = -1, size = 0;
        for (int i = 0; i < 6; i++) {
            if (set >> i & 1) {
                size++;
                best = best < 0 || few_proxy[i] > few_proxy[best] ? i : best;
            }
        }
        if (size == n) {
            sum += few_truth[best];
            sets++;
        }
    }
    return sum / sets;
}

static void hedge_equals_all_subsets(void **state) {
    const lt_hedge_prompt p = {few_proxy, few_truth, 6};
    double value, mixed = 0, share = exp(-2.0), left = 1;
    (void)state;
    for (int n = 1; n <= 6; n++) {
        assert_int_equal(lt_hedge_value(rule_of("best_of_n"), &p, 1, n, &value), LT_OK);
        assert_true(fabs(value - brute_best(n)) < 1e-12);
    }
    /* One more than Poisson(2), limited to the six that there are. */
    for (int n = 1; n <= 6; n++) {
        mixed += (n < 6 ? share : left) * brute_best(n);
        left -= share;
        share *= 2.0 / n;
    }
    assert_int_equal(lt_hedge_value(rule_of("best_of_poisson"), &p, 1, 2, &value), LT_OK);
    assert_true(fabs(value - mixed) < 1e-12);
}

static void ties_of_the_proxy_share(void **state) {
    const double proxy[3] = {1, 2, 2}, truth[3] = {0, 1, 5};
    const lt_hedge_prompt p = {proxy, truth, 3};
    double value;
    (void)state;
    assert_int_equal(lt_hedge_value(rule_of("best_of_n"), &p, 1, 3, &value), LT_OK);
    assert_true(fabs(value - 3) < 1e-12);
}

/* The example of the research notes: u uniform, the true reward u^12 (1 - u) / C. Best of n has n
 * / (C (n + 12) (n + 13)), which is highest, and equal, at n = 12 and 13. */
static void hedge_finds_the_root(void **state) {
    enum { PROMPTS = 1500, M = 48, N = 40 };
    static double u[PROMPTS][M], truth[PROMPTS][M], parameters[N];
    static lt_hedge_prompt prompts[PROMPTS];
    const double c = pow(12.0 / 13, 12) / 13;
    lt_rng r = {.seed = 3};
    lt_hedge h;
    double value, means[N];
    (void)state;
    for (int i = 0; i < PROMPTS; i++) {
        for (int k = 0; k < M; k++) {
            u[i][k] = lt_rng_uniform(&r);
            truth[i][k] = pow(u[i][k], 12) * (1 - u[i][k]) / c;
        }
        prompts[i] = (lt_hedge_prompt){u[i], truth[i], M};
    }
    for (int k = 0; k < N; k++) {
        parameters[k] = k + 1;
    }
    assert_int_equal(lt_hedge_value(rule_of("best_of_n"), prompts, PROMPTS, 12, &value), LT_OK);
    assert_true(fabs(value - .679389) < .01);
    assert_int_equal(
        lt_hedge_tune(rule_of("best_of_n"), prompts, PROMPTS, parameters, N, 50, 1, &h, means),
        LT_OK);
    assert_true(means[11] == value && means[(int)h.parameter - 1] == h.value);
    assert_true(h.parameter >= 11 && h.parameter <= 14 && !h.at_edge);
    assert_true(h.low <= 12.5 && h.high >= 12 && h.low >= 9 && h.high <= 16);
    for (int k = 0; k < N; k++) {
        parameters[k] = 6 + 0.4 * k;
    }
    assert_int_equal(
        lt_hedge_tune(rule_of("best_of_poisson"), prompts, PROMPTS, parameters, N, 0, 1, &h, NULL),
        LT_OK);
    assert_true(fabs(h.parameter - 12.4) < 1.3 && fabs(h.value - .666931) < .01);
}

/* All six samples, weighted by exp(proxy / temperature); if two have the same proxy, the mean of
 * their true rewards counts for both. */
static void hedge_of_temperatures(void **state) {
    static const double ties_proxy[4] = {1, 2, 2, 0}, ties_truth[4] = {.2, .9, .1, .6};
    const lt_hedge_prompt both[] = {{few_proxy, few_truth, 6}, {ties_proxy, ties_truth, 4}};
    const double temperatures[] = {.1, 1, 7};
    lt_hedge h;
    double means[3], want[3], value;
    (void)state;
    for (int k = 0; k < 3; k++) {
        double sum = 0, all = 0, tied = 0;
        for (int i = 0; i < 6; i++) {
            sum += exp(few_proxy[i] / temperatures[k]);
            all += exp(few_proxy[i] / temperatures[k]) * few_truth[i];
        }
        want[k] = all / sum;
        sum = 1 + exp(1 / temperatures[k]) + 2 * exp(2 / temperatures[k]);
        tied = .6 + .2 * exp(1 / temperatures[k]) + .5 * 2 * exp(2 / temperatures[k]);
        want[k] = (want[k] + tied / sum) / 2;
        assert_int_equal(
            lt_hedge_value(rule_of("soft_best_of_n"), both, 2, temperatures[k], &value), LT_OK);
        assert_true(fabs(value - want[k]) < 1e-12);
    }
    assert_int_equal(
        lt_hedge_tune(rule_of("soft_best_of_n"), both, 2, temperatures, 3, 0, 1, &h, means), LT_OK);
    for (int k = 0; k < 3; k++) {
        assert_true(means[k] <= h.value && fabs(means[k] - want[k]) < 1e-12);
    }
    assert_true(h.low == h.parameter && h.high == h.parameter);
    assert_int_equal(h.at_edge, h.parameter != 1);
    assert_int_equal(
        lt_hedge_tune(rule_of("soft_best_of_n"), both, 2, temperatures + 1, 1, 3, 1, &h, NULL),
        LT_OK); /* A single parameter is the first and the last. */
    assert_true(h.parameter == 1 && h.low == 1 && h.high == 1 && h.at_edge);
    assert_true(fabs(h.value - want[1]) < 1e-12);
}

static void hedge_refuses_bad_options(void **state) {
    const lt_hedge_prompt p = {few_proxy, few_truth, 6};
    double value;
    (void)state;
    assert_int_equal(lt_hedge_value(rule_of("best_of_n"), &p, 1, 7, &value), LT_ERR_ARG);
    assert_int_equal(lt_hedge_value(rule_of("best_of_n"), &p, 1, 2.5, &value), LT_ERR_ARG);
    assert_int_equal(lt_hedge_value(rule_of("rejection"), &p, 1, 2, &value), LT_ERR_ARG);
    assert_int_equal(lt_hedge_value(rule_of("best_of_n"), &p, 0, 2, &value), LT_ERR_ARG);
    const double one = 1;
    lt_hedge h;
    assert_int_equal(lt_hedge_tune(rule_of("best_of_n"), &p, 0, &one, 1, 0, 1, &h, NULL),
                     LT_ERR_ARG);
    assert_string_equal(lt_error_message(), "0 prompts, 1 parameters and 0 resamples");
    assert_int_equal(lt_hedge_tune(rule_of("best_of_n"), &p, 1, &one, 0, 0, 1, &h, NULL),
                     LT_ERR_ARG);
    assert_int_equal(lt_hedge_tune(rule_of("best_of_n"), &p, 1, &one, 1, -1, 1, &h, NULL),
                     LT_ERR_ARG);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(best_of_n),
                                       cmocka_unit_test(soft_best_of_n),
                                       cmocka_unit_test(best_of_poisson),
                                       cmocka_unit_test(draws_are_poisson),
                                       cmocka_unit_test(rejection),
                                       cmocka_unit_test(rejection_is_decided_in_order),
                                       cmocka_unit_test(ties_share_the_probability),
                                       cmocka_unit_test(votes),
                                       cmocka_unit_test(a_majority_is_certain),
                                       cmocka_unit_test(tails_of_scores),
                                       cmocka_unit_test(a_tail_of_one),
                                       cmocka_unit_test(refused),
                                       cmocka_unit_test(hedge_equals_all_subsets),
                                       cmocka_unit_test(ties_of_the_proxy_share),
                                       cmocka_unit_test(hedge_finds_the_root),
                                       cmocka_unit_test(hedge_of_temperatures),
                                       cmocka_unit_test(hedge_refuses_bad_options)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

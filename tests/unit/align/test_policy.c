/* The policy's loss: TRL's own code gives the same losses and gradients (goldens by
 * tools/make_policy_goldens.py); gradients are finite differences; on policy every method is the
 * policy gradient; the parts of a step add up; bad data and options are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "lateen/align.h"

#define GOLDENS    "tests/golden/align/policy.txt"
#define MAX_TOKENS 8
#define MAX_ROWS   8

typedef struct {
    float logp[MAX_TOKENS], old[MAX_TOKENS], ref[MAX_TOKENS], sampler[MAX_TOKENS];
    double dlogp[MAX_TOKENS], want[MAX_TOKENS];
} tokens;

static void close_to(const char *what, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * fmax(1, fabs(want)))) {
        fail_msg("%s: got %.12g, want %.12g", what, got, want);
    }
}

static double next(FILE *f) {
    double x = NAN;
    assert_int_equal(fscanf(f, "%lf", &x), 1);
    return x;
}

static lt_align_rollout rollout_of(tokens *k, int64_t n, double advantage) {
    return (lt_align_rollout){.logp = k->logp,
                              .old = k->old,
                              .ref = k->ref,
                              .sampler = k->sampler,
                              .dlogp = k->dlogp,
                              .n = n,
                              .advantage = advantage};
}

static void options_read(lt_align_policy_options *o, FILE *f) {
    *o = (lt_align_policy_options){.kl_kind = LT_ALIGN_K3};
    o->ratio = (lt_align_ratio)next(f);
    o->surrogate = (lt_align_surrogate)next(f);
    o->reduction = (lt_align_reduction)next(f);
    o->low = next(f);
    o->high = next(f);
    o->dual = next(f);
    o->cap = next(f);
    o->max_tokens = (int64_t)next(f);
    o->kl = next(f);
    o->kl_ratio = next(f) > 0;
    o->correction = (lt_align_correction)next(f);
    o->weight_low = next(f);
    o->weight_high = next(f);
}

static void rollout_read(lt_align_rollout *r, tokens *k, FILE *f) {
    float *const columns[] = {k->logp, k->old, k->ref, k->sampler};
    const int64_t n = (int64_t)next(f);
    assert_in_range((uintmax_t)n, 0, MAX_TOKENS);
    *r = rollout_of(k, n, next(f));
    r->old = next(f) > 0 ? k->old : NULL;
    for (int c = 0; c < 4; c++) {
        for (int64_t t = 0; t < n; t++) {
            columns[c][t] = (float)next(f);
        }
    }
    for (int64_t t = 0; t < n; t++) {
        k->want[t] = next(f);
    }
}

static void trl_agrees(void **state) {
    FILE *f = fopen(GOLDENS, "r");
    char name[32];
    int n_cases = 0;
    (void)state;
    assert_non_null(f);
    for (; fscanf(f, "%31s", name) == 1; n_cases++) {
        lt_align_policy_options o;
        lt_align_rollout r[MAX_ROWS];
        tokens k[MAX_ROWS];
        lt_align_step step;
        double want, loss = NAN;
        int64_t n;
        options_read(&o, f);
        step.completions = (int64_t)next(f);
        step.tokens = (int64_t)next(f);
        n = (int64_t)next(f);
        want = next(f);
        assert_in_range((uintmax_t)n, 1, MAX_ROWS);
        for (int64_t i = 0; i < n; i++) {
            rollout_read(&r[i], &k[i], f);
        }
        if (lt_align_policy(&o, &step, r, n, &loss, NULL) != LT_OK) {
            fail_msg("%s: %s", name, lt_error_message());
        }
        close_to(name, loss, want, 1e-9);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t t = 0; t < r[i].n; t++) {
                close_to(name, k[i].dlogp[t], k[i].want[t], 1e-9);
            }
        }
    }
    fclose(f);
    assert_int_equal(n_cases, 18);
}

/* Exact in binary, with no ratio near a bound of the options below. */
static void tokens_draw(tokens *k, int n, int salt) {
    for (int t = 0; t < n; t++) {
        k->logp[t] = -0.5f - 0.0625f * (float)((7 * t + 5 * salt) % 17);
        k->old[t] = k->logp[t] + 0.125f * (float)((3 * t + salt) % 5 - 2);
        k->ref[t] = -0.25f - 0.0625f * (float)((11 * t + 3 * salt) % 19);
        k->sampler[t] = k->old[t] - 0.0625f * (float)((5 * t + salt) % 3);
    }
}

static double loss_of(const lt_align_policy_options *o, const lt_align_rollout *r, int64_t n,
                      int64_t completions, int64_t n_tokens) {
    const lt_align_step step = {completions, n_tokens};
    double loss = NAN;
    if (lt_align_policy(o, &step, r, n, &loss, NULL) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    return loss;
}

/* Each combination of ratio, reduction, divergence and correction. CISPO is left out: its weight
 * is not differentiated, so its gradient is not the derivative of its loss. */
static void gradients_are_finite_differences(void **state) {
    const float step = 0x1p-12f;
    int n_checked = 0;
    (void)state;
    for (int mix = 0; mix < 2 * 4 * 3 * 2 * 5; mix++) {
        lt_align_policy_options o = {.low = 0.3,
                                     .high = 0.4,
                                     .ratio = (lt_align_ratio)(mix % 2),
                                     .reduction = (lt_align_reduction)(mix / 2 % 4),
                                     .kl_kind = (lt_align_kl_kind)(mix / 8 % 3),
                                     .correction = (lt_align_correction)(mix / 48)};
        tokens k[2];
        lt_align_rollout r[2];
        o.max_tokens = o.reduction == LT_ALIGN_FIXED_LENGTH ? 9 : 0;
        o.kl = 0.25;
        o.kl_ratio = mix / 24 % 2 == 1;
        o.weight_high = o.correction != LT_ALIGN_NO_CORRECTION ? 1.09375 : 0;
        for (int i = 0; i < 2; i++) {
            tokens_draw(&k[i], 5 - i, i + 1);
            r[i] = rollout_of(&k[i], 5 - i, i == 0 ? 0.75 : -1.25);
        }
        for (int i = 0; i < 2; i++) {
            for (int t = 0; t < r[i].n; t++) {
                const float at = k[i].logp[t];
                double grad, up, down;
                (void)loss_of(&o, r, 2, 3, 11);
                grad = k[i].dlogp[t];
                k[i].logp[t] = at + step;
                up = loss_of(&o, r, 2, 3, 11);
                k[i].logp[t] = at - step;
                down = loss_of(&o, r, 2, 3, 11);
                k[i].logp[t] = at;
                close_to("difference", (up - down) / (2 * (double)step), grad, 1e-6);
                n_checked++;
            }
        }
    }
    assert_int_equal(n_checked, 240 * 9);
}

/* As long as the weights have not moved, each ratio is 1 and the gradient is -A times a token's
 * share. */
static void on_policy_is_the_policy_gradient(void **state) {
    static const struct {
        const char *name;
        double share;
    } methods[] = {{"grpo", 1. / (2 * 4)}, {"dr_grpo", 1. / (2 * 16)}, {"dapo", 1. / 10},
                   {"gspo", 1. / (2 * 4)}, {"cispo", 1. / 10},         {"luspo", 1. / 2}};
    (void)state;
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        lt_align_policy_options o;
        lt_align_policy_stats stats = {0};
        const lt_align_step step = {2, 10};
        tokens k;
        lt_align_rollout r;
        double loss;
        assert_int_equal(lt_align_policy_find(&o, NULL, methods[m].name), LT_OK);
        o.max_tokens = o.reduction == LT_ALIGN_FIXED_LENGTH ? 16 : 0;
        tokens_draw(&k, 4, 1);
        r = rollout_of(&k, 4, 1.5);
        for (int alias = 0; alias < 2; alias++) { /* old left out, or the same numbers */
            memcpy(k.old, k.logp, sizeof k.old);
            memcpy(k.sampler, k.logp, sizeof k.sampler);
            r.old = alias ? k.old : NULL;
            assert_int_equal(lt_align_policy(&o, &step, &r, 1, &loss, &stats), LT_OK);
            for (int t = 0; t < 4; t++) {
                close_to(methods[m].name, k.dlogp[t], -1.5 * methods[m].share, 1e-15);
            }
        }
        assert_int_equal(stats.tokens, 8);
        assert_int_equal(
            stats.off_policy + stats.mismatched + stats.clipped_low + stats.clipped_high, 0);
        assert_true(stats.ratio_max == 1);
    }
}

/* The constants of the papers. */
static void published_constants(void **state) {
    static const struct {
        const char *name;
        double low, high, cap;
        lt_align_ratio ratio;
        lt_align_reduction reduction;
    } methods[] = {
        {"grpo", 0.2, 0.2, 0, LT_ALIGN_TOKEN_RATIO, LT_ALIGN_SEQUENCE_MEAN},
        {"dr_grpo", 0.2, 0.2, 0, LT_ALIGN_TOKEN_RATIO, LT_ALIGN_FIXED_LENGTH},
        {"dapo", 0.2, 0.28, 0, LT_ALIGN_TOKEN_RATIO, LT_ALIGN_TOKEN_MEAN},
        {"gspo", 3e-4, 4e-4, 0, LT_ALIGN_SEQUENCE_RATIO, LT_ALIGN_SEQUENCE_MEAN},
        {"cispo", 0, 0, 5, LT_ALIGN_TOKEN_RATIO, LT_ALIGN_TOKEN_MEAN},
        {"luspo", 3e-4, 4e-4, 0, LT_ALIGN_SEQUENCE_RATIO, LT_ALIGN_SEQUENCE_SUM},
    };
    (void)state;
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        lt_align_policy_options o;
        assert_int_equal(lt_align_policy_find(&o, NULL, methods[m].name), LT_OK);
        assert_true(o.low == methods[m].low && o.high == methods[m].high);
        assert_true(o.cap == methods[m].cap && o.dual == 0 && o.kl == 0 && o.max_tokens == 0);
        assert_true(o.ratio == methods[m].ratio && o.reduction == methods[m].reduction);
        assert_int_equal(o.correction, LT_ALIGN_NO_CORRECTION);
        assert_int_equal(o.surrogate, o.cap > 0 ? LT_ALIGN_CISPO : LT_ALIGN_CLIP);
    }
}

/* Two tokens to which the sampler gave other probabilities, and divergences of 1/4 and 1/16 by
 * k1. */
static void mismatch_and_divergence_are_counted(void **state) {
    const float logp[3] = {-1, -1, -1}, old[3] = {-1, -1, -1.25f}, ref[3] = {-1.25f, -1.0625f, -1};
    const float sampler[3] = {-1, -1.5f, -1};
    const lt_align_policy_options o = {.kl = 1, .kl_kind = LT_ALIGN_K1};
    const lt_align_rollout r = {
        .logp = logp, .old = old, .ref = ref, .sampler = sampler, .n = 3, .advantage = 0};
    lt_align_policy_stats stats = {.kl_sum = 1};
    double loss;
    (void)state;
    assert_int_equal(lt_align_policy(&o, &(lt_align_step){1, 3}, &r, 1, &loss, &stats), LT_OK);
    assert_int_equal(stats.mismatched, 2);
    assert_int_equal(stats.off_policy, 1);
    close_to("divergence", stats.kl_sum, 1 + 0.3125, 1e-15);
    close_to("loss", loss, 0.3125 / 3, 1e-15);
}

/* A ratio of exp(1/2), above 1 + high: only a positive advantage is clipped there. */
static void clips_are_counted(void **state) {
    const float logp[2] = {-1, -1}, old[2] = {-1.5f, -0.5f};
    double grad[2], loss;
    lt_align_policy_options o;
    lt_align_policy_stats stats = {0};
    lt_align_rollout r = {.logp = logp, .old = old, .dlogp = grad, .n = 2, .advantage = 1};
    const lt_align_step step = {1, 2};
    (void)state;
    assert_int_equal(lt_align_policy_find(&o, NULL, "dapo"), LT_OK);
    assert_int_equal(lt_align_policy(&o, &step, &r, 1, &loss, &stats), LT_OK);
    close_to("loss", loss, -(1.28 + exp(-0.5)) / 2, 1e-15);
    assert_true(grad[0] == 0);
    close_to("gradient", grad[1], -exp(-0.5) / 2, 1e-15);
    assert_int_equal(stats.clipped_high, 1);
    assert_int_equal(stats.clipped_low, 0);
    r.advantage = -1;
    assert_int_equal(lt_align_policy(&o, &step, &r, 1, &loss, &stats), LT_OK);
    close_to("loss", loss, (exp(0.5) + 0.8) / 2, 1e-15);
    close_to("gradient", grad[0], exp(0.5) / 2, 1e-15);
    assert_true(grad[1] == 0);
    assert_int_equal(stats.clipped_low, 1);
    assert_int_equal(stats.tokens, 4);
    assert_int_equal(stats.off_policy, 4);
    close_to("ratio", stats.ratio_max, exp(0.5), 1e-15);
    /* Which bound was passed, if both are on one side of the ratio. */
    stats = (lt_align_policy_stats){0};
    r.advantage = 1;
    assert_int_equal(lt_align_policy(&(lt_align_policy_options){.low = 0.9, .high = 0.1}, &step, &r,
                                     1, &loss, &stats),
                     LT_OK);
    assert_int_equal(stats.clipped_low, 0);
    assert_int_equal(stats.clipped_high, 1);
    /* A cap below 1 scales every token. */
    assert_int_equal(lt_align_policy(&(lt_align_policy_options){.surrogate = LT_ALIGN_CISPO,
                                                                .cap = 0.5,
                                                                .reduction = LT_ALIGN_TOKEN_MEAN},
                                     &step, &r, 1, &loss, NULL),
                     LT_OK);
    close_to("cap", grad[0], -0.25, 1e-15);
    r.advantage = -1;
    /* A bound of the ratio for negative advantages: TRL's delta. */
    o.dual = 1.5;
    assert_int_equal(lt_align_policy(&o, &step, &r, 1, &loss, NULL), LT_OK);
    close_to("dual", loss, (1.5 + 0.8) / 2, 1e-15);
    assert_true(grad[0] == 0);
}

static void parts_add_up(void **state) {
    (void)state;
    for (int reduction = 0; reduction < LT_ALIGN_REDUCTIONS; reduction++) {
        const lt_align_policy_options o = {.low = 0.2,
                                           .high = 0.2,
                                           .reduction = (lt_align_reduction)reduction,
                                           .max_tokens = reduction == LT_ALIGN_FIXED_LENGTH ? 8
                                                                                            : 0};
        tokens k[3];
        lt_align_rollout r[3];
        double whole, grads[3][MAX_TOKENS] = {{0}};
        for (int i = 0; i < 3; i++) {
            tokens_draw(&k[i], 5 - i, i);
            r[i] = rollout_of(&k[i], 5 - i, i - 0.75);
        }
        whole = loss_of(&o, r, 3, 3, 12);
        for (int i = 0; i < 3; i++) {
            memcpy(grads[i], k[i].dlogp, sizeof k[i].dlogp);
        }
        close_to("loss", loss_of(&o, r, 1, 3, 12) + loss_of(&o, r + 1, 2, 3, 12), whole, 1e-15);
        for (int i = 0; i < 3; i++) {
            assert_memory_equal(grads[i], k[i].dlogp, (size_t)r[i].n * sizeof(double));
        }
    }
}

static void refused(lt_err want, const char *text, const lt_align_policy_options *o,
                    const lt_align_rollout *r, lt_align_step step) {
    double loss = 42;
    lt_align_policy_stats stats = {0};
    assert_int_equal(lt_align_policy(o, &step, r, 1, &loss, &stats), want);
    if (strstr(lt_error_message(), text) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", lt_error_message(), text);
    }
    assert_true(loss == 42 && stats.tokens == 0);
}

static void bad_options_are_refused(void **state) {
    static const struct {
        lt_align_policy_options o;
        const char *says;
    } cases[] = {
        {{.low = -0.1}, "low is -0.1"},
        {{.low = 1.5}, "low is 1.5"},
        {{.high = NAN}, "high is nan"},
        {{.cap = 2}, "cap is 2, but it has no effect here"},
        {{.surrogate = LT_ALIGN_CISPO}, "cap is 0"},
        {{.surrogate = LT_ALIGN_CISPO, .cap = 2, .low = 0.2},
         "low is 0.2, but it has no effect here"},
        {{.dual = 1.1, .high = 0.2}, "dual is 1.1, but must be over 1 + high, which is 1.2"},
        {{.max_tokens = 5}, "max_tokens is 5, but it has no effect here"},
        {{.reduction = LT_ALIGN_FIXED_LENGTH}, "max_tokens is 0"},
        {{.kl_ratio = true}, "kl_ratio is 1, but it has no effect here"},
        {{.weight_high = 2}, "weight_high is 2, but it has no effect here"},
        {{.correction = LT_ALIGN_TOKEN_MASK}, "weight_high is 0"},
        {{.correction = LT_ALIGN_TOKEN_MASK, .weight_low = 2, .weight_high = 2}, "weight_low is 2"},
        {{.reduction = LT_ALIGN_FIXED_LENGTH, .max_tokens = 2},
         "has 3 tokens, but max_tokens is 2"},
    };
    lt_align_policy_options o;
    tokens k;
    lt_align_rollout r;
    (void)state;
    tokens_draw(&k, 3, 1);
    r = rollout_of(&k, 3, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refused(LT_ERR_ARG, cases[i].says, &cases[i].o, &r, (lt_align_step){1, 3});
    }
    assert_int_equal(lt_align_policy_find(&o, NULL, "gpro"), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "\"gpro\" does not exist; there are: grpo dr_grpo"));
}

static void bad_rollouts_are_refused(void **state) {
    const lt_align_policy_options o = {.low = 0.2, .high = 0.2}, kl = {.kl = 1};
    const lt_align_policy_options weighs = {.correction = LT_ALIGN_TOKEN_TRUNCATE,
                                            .weight_high = 2};
    const lt_align_step step = {1, 3};
    tokens k;
    lt_align_rollout r, bad;
    double loss = NAN;
    (void)state;
    tokens_draw(&k, 3, 1);
    r = rollout_of(&k, 3, 1);
    refused(LT_ERR_ARG, "the step has 1 completions with 2 tokens, but 1 with 3", &o, &r,
            (lt_align_step){1, 2});
    bad = r;
    bad.ref = NULL;
    refused(LT_ERR_ARG, "no log-probabilities of the reference", &kl, &bad, step);
    bad = r;
    bad.sampler = NULL;
    refused(LT_ERR_ARG, "no log-probabilities of the sampler", &weighs, &bad, step);
    bad = r;
    bad.advantage = INFINITY;
    refused(LT_ERR_NUMERIC, "advantage is inf", &o, &bad, step);
    k.logp[1] = 0.5f;
    refused(LT_ERR_NUMERIC, "token 1: the log-probability of the model is 0.5", &o, &r, step);
    k.logp[1] = -1;
    k.logp[0] = NAN;
    refused(LT_ERR_NUMERIC, "token 0: the log-probability of the model is nan", &o, &r, step);
    k.logp[0] = -1;
    k.logp[1] = -1e6f;
    k.ref[1] = 0;
    refused(LT_ERR_NUMERIC, "divergence estimator k3",
            &(lt_align_policy_options){.kl = 1, .kl_kind = LT_ALIGN_K3}, &r, step);
    k.logp[1] = 0;
    k.old[1] = -1e6f;
    refused(LT_ERR_NUMERIC, "token 1: the ratio is inf", &o, &r, step);
    bad = (lt_align_rollout){.n = 0, .advantage = 1};
    assert_int_equal(lt_align_policy(&o, &(lt_align_step){1, 0}, &bad, 1, &loss, NULL), LT_OK);
    assert_true(loss == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trl_agrees),
        cmocka_unit_test(gradients_are_finite_differences),
        cmocka_unit_test(on_policy_is_the_policy_gradient),
        cmocka_unit_test(published_constants),
        cmocka_unit_test(mismatch_and_divergence_are_counted),
        cmocka_unit_test(clips_are_counted),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(bad_rollouts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Several proposals of a draft model: each is drawn from its distribution without the ones before
 * it, and whatever it proposes, the token that is taken has the model's own distribution
 * (speculative sampling, Leviathan et al. 2023, with the recursion of Miao et al. 2024). Counts of
 * many seeds are compared with probabilities computed here in double. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "model/infer/sampler.h"

enum { V = 6, N = 60000 };

/* The model's logits, and three draft models': near it, far from it, and blind to half of it. */
static const float model[V] = {1.0F, 0.2F, -0.5F, 1.6F, -1.0F, 0.0F};
static const float drafts[][V] = {{0.9F, 0.3F, -0.4F, 1.5F, -0.8F, 0.1F},
                                  {-1.0F, 1.5F, 1.0F, -2.0F, 0.5F, 0.0F},
                                  {0.0F, -INFINITY, 0.5F, -INFINITY, 0.2F, -INFINITY}};
enum { DRAFTS = sizeof drafts / sizeof *drafts };

static void softmax(double *p, const float *logits, double temperature) {
    double sum = 0;
    for (int i = 0; i < V; i++) {
        p[i] = exp((double)logits[i] / temperature);
        sum += p[i];
    }
    for (int i = 0; i < V; i++) {
        p[i] /= sum;
    }
}

/* Each count within 5 standard deviations of n * p. */
static void expect_counts(const int64_t *counts, int64_t n, const double *p, const char *what) {
    for (int i = 0; i < V; i++) {
        const double want = (double)n * p[i], wide = 5 * sqrt(want * (1 - p[i])) + 1e-9;
        if (fabs((double)counts[i] - want) > wide) {
            fail_msg("%s: token %d was taken %lld times, not %.0f +- %.0f", what, i,
                     (long long)counts[i], want, wide);
        }
    }
}

static void what_is_taken_has_the_models_distribution(void **state) {
    lt_sampler s;
    (void)state;
    assert_int_equal(lt_sampler_open(&s, V), LT_OK);
    for (int d = 0; d < DRAFTS; d++) {
        for (int others = 0; others <= 2; others++) {
            int64_t counts[V] = {0}, accepted = 0;
            double p[V];
            char what[64];
            for (int i = 0; i < N; i++) {
                lt_sampling how = lt_sampling_defaults();
                lt_sampler_args a = {.how = &how, .forced = -1, .n_top = -1};
                float q[V];
                int32_t ids[3];
                lt_pick out;
                how.seed = (uint64_t)i;
                how.temperature = 0.8;
                assert_int_equal(lt_sampler_propose(&s, drafts[d], &a, q, &ids[0]), LT_OK);
                for (int k = 1; k <= others; k++) {
                    assert_int_equal(
                        lt_sampler_propose_other(&s, drafts[d], &a, q, ids, k, &ids[k]), LT_OK);
                }
                a.proposed = q;
                a.proposal = ids[0];
                a.others = ids + 1;
                a.n_others = others;
                assert_int_equal(lt_sampler_pick(&s, model, &a, &out), LT_OK);
                counts[out.id]++;
                for (int k = 0; k <= others; k++) {
                    accepted += out.id == ids[k];
                }
            }
            softmax(p, model, 0.8);
            (void)snprintf(what, sizeof what, "draft %d, %d others", d, others);
            expect_counts(counts, N, p, what);
            if (d == 0) { /* One proposal is accepted as often as p and q overlap. */
                double q[V], overlap = 0;
                softmax(q, drafts[d], 0.8);
                for (int i = 0; i < V; i++) {
                    overlap += fmin(p[i], q[i]);
                }
                assert_true((double)accepted >= N * overlap - 5 * sqrt(N * overlap));
            }
        }
    }
    lt_sampler_close(&s);
}

/* The second proposal: from q without the first. Where q has no more tokens there is none. */
static void others_are_drawn_without_what_is_taken(void **state) {
    lt_sampler s;
    double q[V], rest[V];
    float proposed[V];
    int64_t counts[V] = {0};
    int32_t id;
    (void)state;
    assert_int_equal(lt_sampler_open(&s, V), LT_OK);
    softmax(q, drafts[1], 1.0);
    for (int i = 0; i < V; i++) {
        proposed[i] = (float)q[i];
        rest[i] = i == 1 || i == 4 ? 0.0 : q[i] / (1.0 - q[1] - q[4]);
    }
    for (int i = 0; i < N; i++) {
        lt_sampling how = lt_sampling_defaults();
        const lt_sampler_args a = {.how = &how, .forced = -1, .n_top = -1};
        how.seed = (uint64_t)i;
        assert_int_equal(
            lt_sampler_propose_other(&s, drafts[1], &a, proposed, (const int32_t[]){1, 4}, 2, &id),
            LT_OK);
        assert_in_range(id, 0, V - 1);
        counts[id]++;
    }
    expect_counts(counts, N, rest, "without tokens 1 and 4");
    lt_sampling how = lt_sampling_defaults();
    const lt_sampler_args a = {.how = &how, .forced = -1, .n_top = -1};
    softmax(q, drafts[2], 1.0);
    for (int i = 0; i < V; i++) {
        proposed[i] = (float)q[i];
    }
    assert_int_equal(
        lt_sampler_propose_other(&s, drafts[2], &a, proposed, (const int32_t[]){0, 2, 4}, 3, &id),
        LT_OK);
    assert_int_equal(id, -1);
    /* Without a distribution: the likeliest that is left. */
    assert_int_equal(
        lt_sampler_propose_other(&s, drafts[1], &a, NULL, (const int32_t[]){1}, 1, &id), LT_OK);
    assert_int_equal(id, 2);
    assert_int_equal(
        lt_sampler_propose_other(&s, drafts[1], &a, NULL, (const int32_t[]){1, 2, 4}, 3, &id),
        LT_OK);
    assert_int_equal(id, 5);
    lt_sampler_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_taken_has_the_models_distribution),
        cmocka_unit_test(others_are_drawn_without_what_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Watermarks: the draws of gumbel and exponential keep the distribution over keys, green biases
 * it by its closed form; the statistics of detectors follow their null distributions on texts
 * without a watermark, and detect watermarks; a repeated context is drawn as without a
 * watermark. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "base/rng.h"
#include "lateen/watermark.h"
#include "model/infer/sampler.h"

enum { V = 6, DRAWS = 100000, TEXT = 200, WORDS = 500 };

static const float logits[V] = {1.5f, 0.0f, 0.7f, -1.0f, 2.0f, 0.2f};

static lt_sampler sampler;

static lt_watermark mark(lt_watermark_scheme scheme, uint64_t key) {
    lt_watermark w = lt_watermark_defaults(scheme);
    w.key = lt_rng_mix(key);
    return w;
}

static int32_t pick(lt_sampler *p, const float *x, const lt_sampling *how, const int32_t *tokens,
                    int64_t n_prompt, int64_t n_output) {
    lt_pick out;
    const lt_sampler_args a = {.how = how,
                               .tokens = tokens,
                               .n_prompt = n_prompt,
                               .n_output = n_output,
                               .forced = -1,
                               .n_top = -1};
    assert_int_equal(lt_sampler_pick(p, x, &a, &out), LT_OK);
    return out.id;
}

/* Softmax of the ids that are kept (top_k 0: all). */
static void softmax(int64_t top_k, const double *bias, double *law) {
    double sum = 0;
    for (int i = 0; i < V; i++) {
        int above = 0;
        for (int k = 0; k < V; k++) {
            above += logits[k] > logits[i];
        }
        law[i] = top_k == 0 || above < top_k ? exp((double)logits[i] + (bias ? bias[i] : 0)) : 0;
        sum += law[i];
    }
    for (int i = 0; i < V; i++) {
        law[i] /= sum;
    }
}

/* 25.7 is exceeded with probability 1e-4 at 5 degrees of freedom. */
static void check_counts(const int64_t *counts, const double *law) {
    double x = 0;
    for (int i = 0; i < V; i++) {
        const double expected = law[i] * DRAWS;
        if (law[i] == 0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        x += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
    }
    assert_true(x < 25.7);
}

static void keys_keep_the_distribution(void **state) {
    static const lt_watermark_scheme schemes[] = {LT_WATERMARK_GUMBEL, LT_WATERMARK_EXPONENTIAL};
    const int32_t tokens[] = {3, 1, 4, 1, 5};
    (void)state;
    for (int s = 0; s < 2; s++) {
        for (int64_t top_k = 0; top_k <= 3; top_k += 3) {
            lt_sampling how = lt_sampling_defaults();
            int64_t counts[V] = {0};
            double law[V];
            how.top_k = top_k;
            for (uint64_t key = 0; key < DRAWS; key++) {
                how.watermark = mark(schemes[s], key);
                counts[pick(&sampler, logits, &how, tokens, 5, 0)]++;
            }
            softmax(top_k, NULL, law);
            check_counts(counts, law);
        }
    }
}

static void green_biases_by_its_closed_form(void **state) {
    const int32_t tokens[] = {3, 1};
    lt_sampling how = lt_sampling_defaults();
    int64_t counts[V] = {0}, n_green = 0;
    double bias[V], law[V];
    uint64_t at;
    (void)state;
    how.watermark = mark(LT_WATERMARK_GREEN, 9);
    how.watermark.gamma = 0.5;
    assert_true(lt_watermark_state(&how.watermark, tokens, 2, 0, 0, 0, &at));
    for (int i = 0; i < V; i++) {
        bias[i] = lt_watermark_uniform(at, i) < 0.5 ? 2.0 : 0.0;
        n_green += bias[i] > 0;
    }
    assert_in_range(n_green, 1, V - 1); /* Otherwise the test would prove nothing. */
    for (uint64_t seed = 0; seed < DRAWS; seed++) {
        how.seed = seed;
        counts[pick(&sampler, logits, &how, tokens, 2, 0)]++;
    }
    softmax(0, bias, law);
    check_counts(counts, law);
}

static void a_repeated_context_is_drawn_by_the_seed(void **state) {
    const int32_t tokens[] = {9, 1, 2, 5, 1, 2}; /* The prompt is 9 1 2. */
    lt_watermark w = mark(LT_WATERMARK_GUMBEL, 1);
    uint64_t at = 0, first = 0;
    (void)state;
    w.context = 2;
    assert_true(lt_watermark_state(&w, tokens, 3, 0, 0, 0, &first));
    assert_true(lt_watermark_state(&w, tokens, 3, 1, 0, 0, &at));
    assert_true(at != first);
    assert_false(lt_watermark_state(&w, tokens, 3, 3, 0, 0, &at)); /* 1 2 once more. */
    assert_true(lt_watermark_state(&w, tokens, 6, 0, 0, 0, &at));  /* The prompt may repeat. */
    assert_int_equal(at, first);
    assert_false(lt_watermark_state(&w, tokens, 1, 0, 0, 0, &at)); /* Too short. */
    w.scheme = LT_WATERMARK_GREEN;
    assert_true(lt_watermark_state(&w, tokens, 3, 3, 0, 0, &at));
    assert_int_equal(at, first);
}

static void a_cycle_begins_by_seed_and_choice(void **state) {
    lt_watermark w = mark(LT_WATERMARK_EXPONENTIAL, 1);
    uint64_t a, b, c, again;
    (void)state;
    w.length = 7;
    assert_true(lt_watermark_state(&w, NULL, 0, 2, 5, 0, &a));
    assert_true(lt_watermark_state(&w, NULL, 0, 9, 5, 0, &again)); /* Seven later. */
    assert_true(lt_watermark_state(&w, NULL, 0, 3, 5, 0, &b));
    assert_int_equal(a, again);
    assert_true(a != b);
    for (int32_t choice = 1, differ = 0; choice < 20; choice++) {
        assert_true(lt_watermark_state(&w, NULL, 0, 2, 5, choice, &c));
        differ += c != a;
        assert_true(choice < 19 || differ > 10);
    }
}

/* Texts over a larger vocabulary, with random logits at each place. */
static void write_text(lt_sampler *p, const lt_sampling *how, uint64_t seed, int32_t *ids) {
    lt_rng r = {.seed = seed, .stream = 77};
    float x[WORDS];
    for (int64_t n = 0; n < TEXT; n++) {
        for (int i = 0; i < WORDS; i++) {
            x[i] = (float)lt_rng_normal(&r);
        }
        ids[n] = pick(p, x, how, ids, 0, n);
    }
}

static const lt_watermark_scheme all[] = {LT_WATERMARK_GREEN, LT_WATERMARK_GUMBEL,
                                          LT_WATERMARK_EXPONENTIAL};

static void watermarks_are_detected(void **state) {
    lt_sampler p;
    int32_t ids[TEXT];
    (void)state;
    assert_int_equal(lt_sampler_open(&p, WORDS), LT_OK);
    for (int s = 0; s < 3; s++) {
        lt_sampling how = lt_sampling_defaults();
        lt_watermark_report r;
        how.watermark = mark(all[s], 4);
        how.watermark.length = 64;
        write_text(&p, &how, 1, ids);
        assert_int_equal(lt_watermark_detect(&how.watermark, ids, TEXT, 99, 0, &r), LT_OK);
        assert_true(r.z > 5 && r.p <= (all[s] == LT_WATERMARK_EXPONENTIAL ? 0.01 : 1e-7));
        assert_true(all[s] == LT_WATERMARK_EXPONENTIAL
                        ? r.n_scored == TEXT
                        : r.n_scored <= TEXT - how.watermark.context);
        how.watermark.key++; /* With another key nothing is detected. */
        assert_int_equal(lt_watermark_detect(&how.watermark, ids, TEXT, 99, 0, &r), LT_OK);
        assert_true(fabs(r.z) < 4 && r.p > 1e-4);
    }
    lt_sampler_close(&p);
}

/* Without a watermark p is uniform over keys: the share of texts with p <= a is a (for counts, at
 * most a). */
static void without_a_watermark_p_is_uniform(void **state) {
    enum { TEXTS = 2000 };
    static const double level[3] = {0.05, 0.25, 0.5};
    (void)state;
    for (int s = 0; s < 3; s++) {
        const int n_texts = all[s] == LT_WATERMARK_EXPONENTIAL ? 300 : TEXTS;
        lt_rng r = {.seed = 3, .stream = (uint64_t)s};
        lt_watermark w = mark(all[s], 8);
        int below[3] = {0};
        w.length = 4;
        for (int t = 0; t < n_texts; t++) {
            lt_watermark_report found;
            int32_t ids[40];
            w.key = lt_rng_u64(&r);
            for (int i = 0; i < 40; i++) {
                ids[i] = (int32_t)lt_rng_below(&r, 300);
            }
            assert_int_equal(lt_watermark_detect(&w, ids, 40, 19, (uint64_t)t, &found), LT_OK);
            for (int k = 0; k < 3; k++) {
                below[k] += found.p <= level[k] + 1e-12;
            }
        }
        for (int k = 0; k < 3; k++) {
            const double want = level[k], got = (double)below[k] / n_texts;
            const double error = 4 * sqrt(want * (1 - want) / n_texts);
            assert_true(got < want + error);
            /* A binomial tail is below the level where it jumps. */
            assert_true(got > want - error - (all[s] == LT_WATERMARK_GREEN ? 0.15 : 0));
        }
    }
}

/* What a text repeats counts once; p is the exact tail probability. */
static void statistics_are_the_closed_forms(void **state) {
    lt_watermark w = mark(LT_WATERMARK_GREEN, 2);
    const int32_t ids[] = {1, 2, 1, 2, 1, 2, 3};
    lt_watermark_report r;
    int64_t green = 0;
    double tail = 0;
    (void)state;
    for (int i = 0; i < 3; i++) { /* Pairs 1 2, 2 1, 2 3. */
        static const int32_t pairs[3][2] = {{1, 2}, {2, 1}, {2, 3}};
        uint64_t at;
        assert_true(lt_watermark_state(&w, pairs[i], 1, 0, 0, 0, &at));
        green += lt_watermark_uniform(at, pairs[i][1]) < 0.25;
    }
    assert_int_equal(lt_watermark_detect(&w, ids, 7, 0, 0, &r), LT_OK);
    assert_int_equal(r.n_scored, 3);
    assert_true(r.statistic == (double)green);
    for (int64_t k = green; k <= 3; k++) {
        static const double choose[] = {1, 3, 3, 1};
        tail += choose[k] * pow(0.25, (double)k) * pow(0.75, 3 - (double)k);
    }
    assert_true(fabs(r.p - tail) < 1e-12);
    assert_true(fabs(r.z - ((double)green - 0.75) / sqrt(3 * 0.1875)) < 1e-12);

    w.scheme = LT_WATERMARK_GUMBEL; /* Contexts 1 and 2, each with what follows it first. */
    assert_int_equal(lt_watermark_detect(&w, ids, 7, 0, 0, &r), LT_OK);
    assert_int_equal(r.n_scored, 2);
    assert_true(fabs(r.p - exp(-r.statistic) * (1 + r.statistic)) < 1e-12);

    double sum = 0; /* A cycle of one number: each token is scored at it. */
    uint64_t at;
    w.scheme = LT_WATERMARK_EXPONENTIAL;
    w.length = 1;
    assert_true(lt_watermark_state(&w, NULL, 0, 0, 0, 0, &at));
    for (int i = 0; i < 7; i++) {
        sum -= log(1 - lt_watermark_uniform(at, ids[i]));
    }
    assert_int_equal(lt_watermark_detect(&w, ids, 7, 1, 0, &r), LT_OK);
    assert_true(fabs(r.statistic - sum) < 1e-9 && r.n_scored == 7 && r.begin == 0);
    assert_true(r.z == 0 && (r.p == 0.5 || r.p == 1)); /* One resample has no spread. */
}

/* The values of lateen/watermark.h, and the ends of their ranges. */
static void defaults_and_ranges(void **state) {
    static const struct {
        lt_watermark_scheme scheme;
        double gamma, delta;
        int64_t context, length;
        lt_err err;
    } rows[] = {
        {LT_WATERMARK_GREEN, 0.5, 1000, 1, 0, LT_OK},
        {LT_WATERMARK_GREEN, 0.5, 1001, 1, 0, LT_ERR_ARG},
        {LT_WATERMARK_GREEN, 0.5, 0, 1, 0, LT_ERR_ARG},
        {LT_WATERMARK_GREEN, 0, 1, 1, 0, LT_ERR_ARG},
        {LT_WATERMARK_GREEN, 0.5, 1, 0, 0, LT_ERR_ARG},
        {LT_WATERMARK_GUMBEL, 0, 0, LT_WATERMARK_CONTEXT, 0, LT_OK},
        {LT_WATERMARK_GUMBEL, 0, 0, 0, 0, LT_ERR_ARG},
        {LT_WATERMARK_EXPONENTIAL, 0, 0, 0, 1, LT_OK},
        {LT_WATERMARK_EXPONENTIAL, 0, 0, 0, LT_WATERMARK_LENGTH, LT_OK},
        {LT_WATERMARK_EXPONENTIAL, 0, 0, 0, LT_WATERMARK_LENGTH + 1, LT_ERR_ARG},
        {LT_WATERMARK_EXPONENTIAL, 0, 0, 0, 0, LT_ERR_ARG},
    };
    (void)state;
    for (int i = 0; i < 3; i++) {
        const lt_watermark w = lt_watermark_defaults(all[i]);
        assert_true(w.gamma == 0.25 && w.delta == 2 && w.length == 256 && w.key == 0);
        assert_int_equal(w.context, all[i] == LT_WATERMARK_GUMBEL ? 4 : 1);
        assert_int_equal(lt_watermark_check(&w), LT_OK);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const lt_watermark w = {.scheme = rows[i].scheme,
                                .gamma = rows[i].gamma,
                                .delta = rows[i].delta,
                                .context = rows[i].context,
                                .length = rows[i].length};
        assert_int_equal(lt_watermark_check(&w), rows[i].err);
    }
}

static void faults_are_reported(void **state) {
    lt_watermark w = mark(LT_WATERMARK_GREEN, 2);
    lt_watermark_scheme scheme;
    lt_watermark_report r;
    const int32_t ids[] = {1, 2};
    lt_sampling how = lt_sampling_defaults();
    (void)state;
    assert_int_equal(lt_watermark_find(&scheme, "gumble"), LT_ERR_NOT_FOUND);
    assert_non_null(strstr(lt_error_message(), "gumbel"));
    assert_int_equal(lt_watermark_detect(&w, ids, 1, 0, 0, &r), LT_ERR_ARG);
    w.gamma = 1;
    assert_int_equal(lt_watermark_detect(&w, ids, 2, 0, 0, &r), LT_ERR_ARG);
    w = mark(LT_WATERMARK_GUMBEL, 2);
    w.context = LT_WATERMARK_CONTEXT + 1;
    assert_int_equal(lt_watermark_check(&w), LT_ERR_ARG);
    w = mark(LT_WATERMARK_EXPONENTIAL, 2);
    assert_int_equal(lt_watermark_detect(&w, ids, 2, 0, 0, &r), LT_ERR_ARG);
    how.watermark = w;
    how.temperature = 0;
    assert_int_equal(lt_sampling_check(&how, V), LT_ERR_ARG);
    how.watermark.scheme = LT_WATERMARK_GREEN;
    assert_int_equal(lt_sampling_check(&how, V), LT_OK);
    assert_false(lt_sampler_suits_op(&how, 1));
}

static int open_all(void **state) {
    (void)state;
    return lt_sampler_open(&sampler, V) != LT_OK;
}

static int close_all(void **state) {
    (void)state;
    lt_sampler_close(&sampler);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_keep_the_distribution),
        cmocka_unit_test(green_biases_by_its_closed_form),
        cmocka_unit_test(a_repeated_context_is_drawn_by_the_seed),
        cmocka_unit_test(a_cycle_begins_by_seed_and_choice),
        cmocka_unit_test(watermarks_are_detected),
        cmocka_unit_test(without_a_watermark_p_is_uniform),
        cmocka_unit_test(statistics_are_the_closed_forms),
        cmocka_unit_test(defaults_and_ranges),
        cmocka_unit_test(faults_are_reported),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

/* The sampler against sets and probabilities worked out by hand: top-k, the limits of the
 * nucleus, min-p, temperature, repetition. */
#include "unit/model/golden.h"

#include "model/infer/sampler.h"

#define DRAWS 6000

/* Count how often each of n tokens is drawn in DRAWS draws. */
static void draw(const float *logits, int n, const lt_sampling *how, int *counts) {
    lt_sampler s = {0};
    must(lt_sampler_open(&s, n), "sampler");
    memset(counts, 0, (size_t)n * sizeof *counts);
    for (int choice = 0; choice < DRAWS; choice++) {
        const lt_sampler_args a = {.how = how, .choice = choice, .forced = -1, .n_top = -1};
        lt_pick pick = {.id = -1};
        must(lt_sampler_pick(&s, logits, &a, &pick), "pick");
        assert_true(pick.id >= 0 && pick.id < n);
        counts[pick.id]++;
    }
    lt_sampler_close(&s);
}

/* Expect shares[i] of all draws, which sum to 1, within five standard deviations; a token with
 * share 0 is never drawn. */
static void expect(const char *what, const float *logits, int n, const lt_sampling *how,
                   const double *shares) {
    int counts[64];
    draw(logits, n, how, counts);
    for (int i = 0; i < n; i++) {
        const double want = shares[i] * DRAWS, sd = sqrt(want * (1.0 - shares[i]));
        if (fabs((double)counts[i] - want) > 5.0 * sd) {
            fail_msg("%s: token %d drawn %d times, not %.0f", what, i, counts[i], want);
        }
    }
}

static lt_sampling plain(void) {
    lt_sampling how = lt_sampling_defaults();
    how.seed = 7;
    return how;
}

/* Weights 1 8 2 4 1, of 16. */
static const float eight[] = {0.0f, 2.0794415f, 0.6931472f, 1.3862944f, 0.0f};

static void temperatures(void **state) {
    lt_sampling how = plain();
    int counts[5], again[5];
    (void)state;
    expect("as they are", eight, 5, &how, (double[]){1 / 16., 8 / 16., 2 / 16., 4 / 16., 1 / 16.});
    how.temperature = 0.5; /* Squares: 1 64 4 16 1. */
    expect("half", eight, 5, &how, (double[]){1 / 86., 64 / 86., 4 / 86., 16 / 86., 1 / 86.});
    how.temperature = 2.0; /* Square roots. */
    const double z = 1 + sqrt(8) + sqrt(2) + 2 + 1;
    expect("double", eight, 5, &how, (double[]){1 / z, sqrt(8) / z, sqrt(2) / z, 2 / z, 1 / z});
    how.temperature = 0.0;
    expect("none", eight, 5, &how, (double[]){0, 1, 0, 0, 0});
    how.temperature = 1.0;
    draw(eight, 5, &how, counts);
    draw(eight, 5, &how, again);
    assert_memory_equal(counts, again, sizeof counts);
    how.seed = 8;
    draw(eight, 5, &how, again);
    assert_memory_not_equal(counts, again, sizeof counts);
}

static void top_p_at_its_limits(void **state) {
    static const struct {
        double top_p, shares[5]; /* Of tokens 0 to 4, relative to what is kept. */
    } rows[] = {{0.01, {0, 1, 0, 0, 0}},
                {0.499, {0, 1, 0, 0, 0}},
                {0.501, {0, 8, 0, 4, 0}},
                {0.749, {0, 8, 0, 4, 0}},
                {0.751, {0, 8, 2, 4, 0}},
                {0.874, {0, 8, 2, 4, 0}},
                /* Of equal tokens the one with the lower id comes first. */
                {0.876, {1, 8, 2, 4, 0}},
                {0.937, {1, 8, 2, 4, 0}},
                {0.938, {1, 8, 2, 4, 1}},
                {1.0, {1, 8, 2, 4, 1}}};
    static const float equal[] = {1.0f, 1.0f, 1.0f, 1.0f};
    lt_sampling how = plain();
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        double shares[5], sum = 0.0;
        for (int i = 0; i < 5; i++) {
            sum += rows[r].shares[i];
        }
        for (int i = 0; i < 5; i++) {
            shares[i] = rows[r].shares[i] / sum;
        }
        how.top_p = rows[r].top_p;
        expect("nucleus", eight, 5, &how, shares);
    }
    /* Four equal tokens: the sums are exact, and reaching the share exactly is enough. */
    how.top_p = 0.25;
    expect("a quarter", equal, 4, &how, (double[]){1, 0, 0, 0});
    how.top_p = 0.5;
    expect("half", equal, 4, &how, (double[]){0.5, 0.5, 0, 0});
    how.top_p = 0.75;
    expect("three quarters", equal, 4, &how, (double[]){1 / 3., 1 / 3., 1 / 3., 0});
    how.top_p = 0.7500001;
    expect("more", equal, 4, &how, (double[]){0.25, 0.25, 0.25, 0.25});
    how.top_p = 0.0;
    expect("zero: one stays", equal, 4, &how, (double[]){1, 0, 0, 0});
}

static void cut_by_rank_and_weight(void **state) {
    lt_sampling how = plain();
    (void)state;
    for (int k = 1; k <= 6; k++) {
        static const double all[] = {1, 8, 2, 4, 1};
        static const int order[] = {1, 3, 2, 0, 4};
        double shares[5] = {0}, sum = 0.0;
        for (int i = 0; i < k && i < 5; i++) {
            sum += all[order[i]];
        }
        for (int i = 0; i < k && i < 5; i++) {
            shares[order[i]] = all[order[i]] / sum;
        }
        how.top_k = k;
        expect("top k", eight, 5, &how, shares);
    }
    how.top_k = 0;
    how.min_p = 0.49;
    expect("min p under a half", eight, 5, &how, (double[]){0, 8 / 12., 0, 4 / 12., 0});
    how.min_p = 0.51;
    expect("min p over a half", eight, 5, &how, (double[]){0, 1, 0, 0, 0});
    how.min_p = 1.0;
    expect("min p of one", eight, 5, &how, (double[]){0, 1, 0, 0, 0});
    /* All three cuts: four by rank, then the nucleus of their 15, then by weight. */
    how = plain();
    how.top_k = 4;
    how.top_p = 0.9;
    how.min_p = 0.3;
    expect("all", eight, 5, &how, (double[]){0, 8 / 12., 0, 4 / 12., 0});
    how.min_p = 0.0;
    expect("rank and nucleus", eight, 5, &how, (double[]){0, 8 / 14., 2 / 14., 4 / 14., 0});
}

/* Penalties over a window of prompt and output, as in llama.cpp. Of the tokens 1 1 | 3 2, the last
 * two are 3 2, and the last three 1 3 2. */
static void penalties_of_a_window(void **state) {
    static const int32_t tokens[] = {1, 1, 3, 2};
    static const float equal[] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    static const struct {
        int64_t window;
        double frequency, presence, shares[5]; /* relative; ln 2 halves. */
    } rows[] = {{0, 1, 0, {1, 1, 0.5, 0.5, 1}},    {1, 1, 0, {1, 1, 0.5, 1, 1}},
                {2, 1, 0, {1, 1, 0.5, 0.5, 1}},    {3, 1, 0, {1, 0.5, 0.5, 0.5, 1}},
                {4, 1, 0, {1, 0.25, 0.5, 0.5, 1}}, {100, 1, 0, {1, 0.25, 0.5, 0.5, 1}},
                {4, 0, 1, {1, 0.5, 0.5, 0.5, 1}},  {3, 1, 1, {1, 0.25, 0.25, 0.25, 1}},
                {0, 1, 1, {1, 1, 0.25, 0.25, 1}}};
    lt_sampler s = {0};
    (void)state;
    must(lt_sampler_open(&s, 5), "sampler");
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        lt_sampling how = plain();
        const lt_sampler_args a = {
            .how = &how, .tokens = tokens, .n_prompt = 2, .n_output = 2, .forced = -1, .n_top = -1};
        float p[5];
        double sum = 0.0;
        int32_t id;
        how.penalty_window = rows[r].window;
        how.frequency = rows[r].frequency * log(2.0);
        how.presence = rows[r].presence * log(2.0);
        must(lt_sampler_propose(&s, equal, &a, p, &id), "propose");
        assert_int_equal(lt_sampler_suits_op(&how, 100), rows[r].window == 0);
        for (int i = 0; i < 5; i++) {
            sum += rows[r].shares[i];
        }
        for (int i = 0; i < 5; i++) {
            if (fabs((double)p[i] - rows[r].shares[i] / sum) > 1e-6) {
                fail_msg("row %zu: token %d has %.4f, not %.4f", r, i, (double)p[i],
                         rows[r].shares[i] / sum);
            }
        }
    }
    lt_sampler_close(&s);
}

static int by_value(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The k best of many, for any k: only these are drawn, and each of them is. */
static void top_k_of_many(void **state) {
    enum { N = 64 };
    float logits[N], sorted[N];
    lt_sampling how = plain();
    uint32_t x = 12345;
    (void)state;
    how.temperature = 100.0; /* All about equally likely. */
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < N; i++) {
            x = x * 1664525u + 1013904223u;
            logits[i] = round == 0 ? (float)i : round == 1 ? (float)-i : (float)(x >> 16) * 1e-4f;
        }
        memcpy(sorted, logits, sizeof sorted);
        qsort(sorted, N, sizeof *sorted, by_value);
        for (int k = 1; k < N; k += 9) {
            int counts[N];
            how.top_k = k;
            draw(logits, N, &how, counts);
            for (int i = 0; i < N; i++) {
                assert_int_equal(counts[i] > 0, logits[i] >= sorted[k - 1]);
            }
        }
    }
}

/* The most likely token after n tokens. */
static int32_t best(const float *logits, const int32_t *tokens, int n, double repetition) {
    lt_sampling how = lt_sampling_defaults();
    lt_sampler s = {0};
    lt_pick pick = {.id = -1};
    const lt_sampler_args a = {
        .how = &how, .tokens = tokens, .n_prompt = n, .forced = -1, .n_top = -1};
    how.temperature = 0.0;
    how.repetition = repetition;
    must(lt_sampler_open(&s, 40), "sampler");
    must(lt_sampler_pick(&s, logits, &a, &pick), "pick");
    must(lt_sampler_pick(&s, logits, &a, &pick), "pick again");
    lt_sampler_close(&s);
    return pick.id;
}

static void repetition_penalty(void **state) {
    float logits[40];
    const int32_t tokens[] = {33, 33, 5};
    (void)state;
    for (int i = 0; i < 40; i++) {
        logits[i] = -9.0f;
    }
    logits[33] = 2.0f;
    logits[5] = 1.5f;
    assert_int_equal(best(logits, NULL, 0, 2.0), 33);
    assert_int_equal(best(logits, tokens, 2, 1.0), 33);
    assert_int_equal(best(logits, tokens, 2, 1.3), 33); /* 2 / 1.3 = 1.54. */
    assert_int_equal(best(logits, tokens, 2, 1.4), 5);  /* 2 / 1.4 = 1.43. */
    assert_int_equal(best(logits, tokens, 3, 9.0), 33);
    logits[33] = -1.0f; /* Below 0 it is multiplied. */
    logits[5] = -1.2f;
    assert_int_equal(best(logits, tokens, 2, 1.1), 33);
    assert_int_equal(best(logits, tokens, 2, 1.3), 5);
}

static void nan_and_infinity(void **state) {
    float logits[] = {0.0f, NAN, 0.0f};
    const lt_sampling how = plain();
    lt_sampler s = {0};
    lt_pick pick = {.id = -1};
    lt_sampler_args a = {.how = &how, .forced = -1, .n_top = -1};
    (void)state;
    must(lt_sampler_open(&s, 3), "sampler");
    assert_int_equal(lt_sampler_pick(&s, logits, &a, &pick), LT_ERR_NUMERIC);
    assert_non_null(strstr(lt_error_message(), "token 1 "));
    logits[1] = INFINITY;
    must(lt_sampler_pick(&s, logits, &a, &pick), "infinite");
    assert_int_equal(pick.id, 1);
    logits[0] = logits[1] = logits[2] = -INFINITY;
    assert_int_equal(lt_sampler_pick(&s, logits, &a, &pick), LT_ERR_NUMERIC);
    logits[2] = 3.0f;
    for (a.choice = 0; a.choice < 50; a.choice++) {
        must(lt_sampler_pick(&s, logits, &a, &pick), "one allowed");
        assert_int_equal(pick.id, 2);
    }
    lt_sampler_close(&s);
    lt_sampler_close(&(lt_sampler){0});
}

/* Each option outside its range is refused by its name; two biases of the same id are one. */
static void options(void **state) {
    static const lt_logit_bias outside = {40, 1.0f};
    lt_logit_bias twice[] = {{7, 1.0f}, {3, 2.0f}, {7, 0.5f}};
    lt_sampling how = lt_sampling_defaults();
    (void)state;
    must(lt_sampling_check(&how, 40), "defaults");
    how.top_p = 1.5;
    assert_int_equal(lt_sampling_check(&how, 40), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "top_p 1.5"));
    how = lt_sampling_defaults();
    how.repetition = 0.0;
    assert_int_equal(lt_sampling_check(&how, 40), LT_ERR_ARG);
    how = lt_sampling_defaults();
    how.bias = &outside;
    how.n_bias = 1;
    assert_int_equal(lt_sampling_check(&how, 40), LT_ERR_ARG);
    assert_non_null(strstr(lt_error_message(), "token 40"));
    assert_int_equal(lt_sampling_merge_bias(twice, 3), 2);
    assert_true(twice[0].id == 3 && twice[1].id == 7 && twice[1].bias == 1.5f);
}

/* Every number of a request has its own range; the message states its ends. */
static void ranges_of_requests(void **state) {
#define AT(field) offsetof(lt_sampling, field)
    static const struct {
        const char *name;
        size_t at;
        double low, high, below, above;
    } rows[] = {{"temperature", AT(temperature), 0, 1e6, -0.1, 1.1e6},
                {"top_p", AT(top_p), 0, 1, -0.1, 1.1},
                {"min_p", AT(min_p), 0, 1, -0.1, 1.1},
                {"typical_p", AT(typical_p), 0, 1, -0.1, 1.1},
                {"repetition penalty", AT(repetition), 1e-3, 1e3, 0, 1001},
                {"frequency penalty", AT(frequency), -1e3, 1e3, -1001, 1001},
                {"presence penalty", AT(presence), -1e3, 1e3, -1001, 1001},
                {"DRY multiplier", AT(dry_multiplier), 0, 1e6, -1, 1.1e6},
                {"DRY base", AT(dry_base), 0, 1e3, -1, 1001},
                {"XTC probability", AT(xtc_probability), 0, 1, -0.1, 1.1},
                {"XTC threshold", AT(xtc_threshold), 0, 1, -0.1, 1.1}};
#undef AT
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double bad[] = {rows[i].below, rows[i].above, NAN},
                     good[] = {rows[i].low, rows[i].high};
        lt_sampling how = lt_sampling_defaults();
        double *field = (double *)(void *)((char *)&how + rows[i].at);
        char words[96];
        how.dry_base = 2;
        for (int k = 0; k < 2; k++) {
            *field = good[k];
            must(lt_sampling_check(&how, 40), rows[i].name);
        }
        for (int k = 0; k < 3; k++) {
            *field = bad[k];
            assert_int_equal(lt_sampling_check(&how, 40), LT_ERR_ARG);
            (void)snprintf(words, sizeof words, "%s %g is outside [%g, %g]", rows[i].name, bad[k],
                           rows[i].low, rows[i].high);
            assert_string_equal(lt_error_message(), words);
        }
    }
}

/* The distribution of a draw from probabilities that sum to 1. */
static void distribution(const double *p, int64_t n, const lt_sampling *how, float *q) {
    const lt_sampler_args a = {.how = how, .forced = -1, .n_top = -1};
    float x[8];
    int32_t id;
    lt_sampler s = {0};
    assert_true(n <= 8);
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)log(p[i]);
    }
    must(lt_sampler_open(&s, n), "sampler");
    must(lt_sampler_propose(&s, x, &a, q, &id), "propose");
    lt_sampler_close(&s);
}

/* Typical keeps the four ids of 0.15, whose information is nearest to the entropy, and min-p is
 * relative to them: transformers' TypicalLogitsWarper(0.5) and MinPLogitsWarper(0.5) leave 0.25
 * each. */
static void min_p_is_relative_to_what_is_left(void **state) {
    static const double p[] = {0.4, 0.15, 0.15, 0.15, 0.15};
    lt_sampling how = lt_sampling_defaults();
    float q[5];
    (void)state;
    how.typical_p = 0.5;
    how.min_p = 0.5;
    distribution(p, 5, &how, q);
    for (int i = 0; i < 5; i++) {
        assert_float_equal(q[i], i == 0 ? 0.0 : 0.25, 1e-6);
    }
}

/* A temperature whose reciprocal is no float takes the most likely ids, with all cuts. */
static void the_smallest_temperatures_take_the_best(void **state) {
    static const double p[] = {0.1, 0.3, 0.3, 0.3}, temperatures[] = {1e-38, 1e-40, 1e-310};
    static const double wanted[] = {0, 1.0 / 3, 1.0 / 3, 1.0 / 3};
    (void)state;
    for (int t = 0; t < 3; t++) {
        for (int cuts = 0; cuts < 4; cuts++) {
            lt_sampling how = lt_sampling_defaults();
            float q[4];
            how.temperature = temperatures[t];
            how.top_k = cuts == 1 ? 4 : cuts == 2 ? 3 : 0;
            how.top_p = cuts == 3 ? 0.9 : 1.0;
            distribution(p, 4, &how, q);
            for (int i = 0; i < 4; i++) {
                assert_float_equal(q[i], wanted[i], 1e-6);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(penalties_of_a_window),
        cmocka_unit_test(ranges_of_requests),
        cmocka_unit_test(temperatures),
        cmocka_unit_test(top_p_at_its_limits),
        cmocka_unit_test(cut_by_rank_and_weight),
        cmocka_unit_test(top_k_of_many),
        cmocka_unit_test(repetition_penalty),
        cmocka_unit_test(nan_and_infinity),
        cmocka_unit_test(options),
        cmocka_unit_test(min_p_is_relative_to_what_is_left),
        cmocka_unit_test(the_smallest_temperatures_take_the_best),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Draft tokens: matches against an exhaustive search, the length of drafts against the rate that it
 * maximises. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/rng.h"
#include "serve/draft.h"

/* The end of the longest earlier match of the last tokens, the last of equal ones. */
static int64_t search(const int32_t *t, int64_t n) {
    int64_t best = -1, longest = 1;
    for (int64_t end = 1; end < n; end++) {
        int64_t k = 0;
        while (k < end && k < 16 && t[end - 1 - k] == t[n - 1 - k]) {
            k++;
        }
        if (k >= 2 && k >= longest) {
            longest = k;
            best = end;
        }
    }
    return best;
}

static void matches_are_the_longest(void **state) {
    lt_rng r = {.seed = 1};
    int64_t found = 0;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        int32_t t[80];
        const int64_t n = (int64_t)lt_rng_below(&r, 70);
        const uint64_t ids = 1 + lt_rng_below(&r, 4);
        for (int64_t k = 0; k < n; k++) {
            t[k] = (int32_t)lt_rng_below(&r, ids);
        }
        assert_int_equal(lt_draft_find(t, n), n > 1 ? search(t, n) : -1);
        found += n > 1 && search(t, n) >= 0;
    }
    assert_true(found > 10000);
}

static void matches_are_found_in_another_text(void **state) {
    const int32_t text[] = {5, 1, 2, 3, 4, 1, 2, 9}, tokens[] = {7, 5, 1, 2};
    (void)state;
    assert_int_equal(lt_draft_find_in(text, 8, tokens, 4), 3); /* 5 1 2, not the later 1 2. */
    assert_int_equal(lt_draft_find_in(text, 8, tokens + 2, 2), 7);
    assert_int_equal(lt_draft_find_in(text, 7, tokens + 2, 2), 3); /* Something must follow. */
    assert_int_equal(lt_draft_find_in(text, 8, tokens, 1), -1);
    assert_int_equal(lt_draft_find_in(text, 0, tokens, 4), -1);
}

static void acceptance_is_a_rate(void **state) {
    lt_draft_acceptance l;
    lt_rng r = {.seed = 2};
    double mean = 0;
    (void)state;
    lt_draft_acceptance_begin(&l, -1);
    for (int i = 0; i < 20000; i++) { /* Each is accepted with 0.7 if the one before was. */
        int64_t right = 0;
        while (right < 4 && lt_rng_uniform(&r) < 0.7) {
            right++;
        }
        lt_draft_acceptance_note(&l, 4, right);
        mean += lt_draft_acceptance_rate(&l) / 20000;
    }
    assert_true(fabs(mean - 0.7) < 0.02);
    for (int i = 0; i < 100; i++) {
        lt_draft_acceptance_note(&l, 3, 0);
    }
    assert_true(lt_draft_acceptance_rate(&l) < 0.01);
    for (int i = 0; i < 500; i++) {
        lt_draft_acceptance_note(&l, 0, 0);
    }
    assert_true(lt_draft_acceptance_rate(&l) > 0.5);
}

static void times_are_known_or_between(void **state) {
    static lt_draft_times t;
    (void)state;
    assert_true(lt_draft_times_of(&t, 5) == 0);
    lt_draft_times_note(&t, 2, 0.010);
    assert_true(lt_draft_times_of(&t, 9) == 0.010 && lt_draft_times_of(&t, 1) == 0.010);
    lt_draft_times_note(&t, 6, 0.030);
    assert_true(fabs(lt_draft_times_of(&t, 4) - 0.020) < 1e-12);
    lt_draft_times_note(&t, 2, 1.0); /* One slow step. */
    assert_true(lt_draft_times_of(&t, 2) < 0.0121);
    for (int i = 0; i < 600; i++) {
        lt_draft_times_note(&t, 6, 0.030);
    }
    assert_true(lt_draft_times_of(&t, 2) == 0.030); /* Stale: as the next one. */
}

/* Rates differ by the place in the draft. */
static void acceptance_is_known_by_place(void **state) {
    lt_draft_acceptance l;
    lt_rng r = {.seed = 3};
    double at[2] = {0};
    (void)state;
    lt_draft_acceptance_begin(&l, 0.25);
    assert_true(lt_draft_acceptance_rate(&l) == 0.25 && lt_draft_acceptance_at(&l, 7) == 0.25);
    for (int i = 0; i < 20000; i++) {
        const bool first = lt_rng_uniform(&r) < 0.9;
        lt_draft_acceptance_note(&l, 2, first ? 1 + (lt_rng_uniform(&r) < 0.3) : 0);
        at[0] += lt_draft_acceptance_at(&l, 0) / 20000;
        at[1] += lt_draft_acceptance_at(&l, 1) / 20000;
    }
    assert_true(at[0] > 0.8 && at[0] < 0.9 && at[1] > 0.3 && at[1] < 0.45);
}

static lt_draft_acceptance rated(double rate) {
    lt_draft_acceptance l;
    lt_draft_acceptance_begin(&l, rate);
    return l;
}

/* Tokens a second of one text with k draft tokens that are accepted with 0.8. */
static double rate_of(int64_t k, double seconds) {
    double tokens = 1;
    for (int64_t i = 1; i <= k; i++) {
        tokens += pow(0.8, (double)i);
    }
    return tokens / seconds;
}

/* Steps of 10 ms and 1 ms a row more; calls of the draft model of 2 ms. */
static void the_best_rate_is_taken(void **state) {
    static lt_draft_times t, calls;
    const lt_draft_acceptance good = rated(0.8), bad = rated(0.02);
    lt_draft_text text = {.rates = &good, .most = LT_DRAFT_MOST}, texts[8];
    int64_t want = 0, by_model = 0;
    double saved;
    (void)state;
    assert_true(lt_draft_choose(&t, NULL, 1, &text, 1) == 0);
    assert_int_equal(text.n, 0);
    for (int rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
        lt_draft_times_note(&t, rows, 0.010 + 0.001 * (rows - 1));
        lt_draft_times_note(&calls, rows, 0.002);
    }
    for (int64_t k = 1; k <= LT_DRAFT_MOST; k++) {
        const double a = 0.010 + 0.001 * (double)k, b = 0.010 + 0.001 * (double)want;
        const double c = 0.010 + 0.001 * (double)by_model + 0.002 * (double)by_model;
        want = rate_of(k, a) > rate_of(want, b) ? k : want;
        by_model = rate_of(k, a + 0.002 * (double)k) > rate_of(by_model, c) ? k : by_model;
    }
    assert_true(want > by_model && by_model > 1);
    saved = lt_draft_choose(&t, NULL, 1, &text, 1);
    assert_int_equal(text.n, want);
    assert_true(fabs(saved - (1 - 100 / rate_of(want, 0.010 + 0.001 * (double)want))) < 1e-9);
    text.behind = 2;
    (void)lt_draft_choose(&t, &calls, 1, &text, 1);
    assert_int_equal(text.n, by_model);
    text = (lt_draft_text){.rates = &bad, .most = LT_DRAFT_MOST};
    assert_true(lt_draft_choose(&t, NULL, 1, &text, 1) == 0);
    assert_int_equal(text.n, 0);
    for (int i = 0; i < 8; i++) { /* Each text has as many as its own rate is worth. */
        texts[i] = (lt_draft_text){.rates = i % 2 == 0 ? &good : &bad, .most = i < 2 ? 1 : 8};
    }
    (void)lt_draft_choose(&t, NULL, 8, texts, 8);
    assert_true(texts[0].n == 1 && texts[1].n == 0 && texts[2].n > 1 && texts[3].n == 0);
    assert_true(texts[2].n - texts[4].n <= 1 && texts[4].n - texts[6].n <= 1);
    /* Where each row costs as much as the first, no draft pays. */
    for (int again = 0; again < 40; again++) {
        for (int rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
            lt_draft_times_note(&t, rows, 0.010 * rows);
        }
    }
    assert_true(lt_draft_choose(&t, NULL, 8, texts, 8) == 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(texts[i].n, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches_are_the_longest),
                                       cmocka_unit_test(matches_are_found_in_another_text),
                                       cmocka_unit_test(acceptance_is_a_rate),
                                       cmocka_unit_test(times_are_known_or_between),
                                       cmocka_unit_test(acceptance_is_known_by_place),
                                       cmocka_unit_test(the_best_rate_is_taken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Draft tokens: matches against an exhaustive search, the length of drafts against the rate that it
 * maximises. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
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

static void drafts_follow_the_match(void **state) {
    int32_t t[16] = {7, 1, 2, 3, 4, 9, 1, 2, 3};
    int32_t loop[12] = {5, 6, 5, 6};
    int32_t none[8] = {1, 2, 3, 4};
    (void)state;
    assert_int_equal(lt_draft_find(t, 9), 4);
    lt_draft_write(t, 9, 4, 4);
    assert_true(t[9] == 4 && t[10] == 9 && t[11] == 1 && t[12] == 2);
    assert_int_equal(lt_draft_find(loop, 4), 2);
    lt_draft_write(loop, 4, 2, 5); /* The draft continues itself. */
    assert_true(loop[4] == 5 && loop[5] == 6 && loop[6] == 5 && loop[7] == 6 && loop[8] == 5);
    assert_int_equal(lt_draft_find(none, 4), -1);
}

static void acceptance_is_a_rate(void **state) {
    lt_draft_acceptance l;
    lt_rng r = {.seed = 2};
    double mean = 0;
    (void)state;
    lt_draft_acceptance_begin(&l);
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

/* Steps of 10 ms and 1 ms a row more; rate 0.8; one text: tokens are 1 + sum of 0.8^i. */
static void the_best_rate_is_taken(void **state) {
    static lt_draft_times t;
    lt_draft_acceptance good = {8, 10}, bad = {0.2, 10};
    const lt_draft_acceptance *rates[8];
    double best = 0;
    int64_t want = 0;
    (void)state;
    assert_int_equal(lt_draft_choose(&t, 1, (const lt_draft_acceptance *[]){&good}, 1), 0);
    for (int rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
        lt_draft_times_note(&t, rows, 0.010 + 0.001 * (rows - 1));
    }
    for (int k = 0; k <= LT_DRAFT_MOST; k++) {
        double tokens = 1;
        for (int i = 1; i <= k; i++) {
            tokens += pow(0.8, i);
        }
        if (tokens / (0.010 + 0.001 * k) > best) {
            best = tokens / (0.010 + 0.001 * k);
            want = k;
        }
    }
    assert_true(want > 2);
    assert_int_equal(lt_draft_choose(&t, 1, (const lt_draft_acceptance *[]){&good}, 1), want);
    assert_int_equal(lt_draft_choose(&t, 1, (const lt_draft_acceptance *[]){&bad}, 1), 0);
    /* Where each row costs as much as the first, no draft pays. */
    for (int again = 0; again < 40; again++) {
        for (int rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
            lt_draft_times_note(&t, rows, 0.010 * rows);
        }
    }
    for (int i = 0; i < 8; i++) {
        rates[i] = &good;
    }
    assert_int_equal(lt_draft_choose(&t, 8, rates, 8), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_are_the_longest), cmocka_unit_test(drafts_follow_the_match),
        cmocka_unit_test(acceptance_is_a_rate), cmocka_unit_test(times_are_known_or_between),
        cmocka_unit_test(the_best_rate_is_taken)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

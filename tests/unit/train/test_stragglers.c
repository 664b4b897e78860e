/* Which rank is slow: over windows, compared with the ranks of the same stage. Times are
 * invented. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/watch/stragglers.h"

enum { MOST = 6 };

/* Pass `steps` measured steps, `each_s` apart, in which rank i computes compute_s[i]; returns the
 * number of windows that have ended. */
static int pass(lt_stragglers *s, int n, const double *compute_s, int steps, double each_s) {
    int ended = 0;
    for (int k = 0; k < steps; k++) {
        for (int i = 0; i < n; i++) {
            lt_stragglers_add(s, i, compute_s[i]);
        }
        ended += lt_stragglers_pass(s, each_s);
    }
    return ended;
}

static void which_rank_is_slow(void **state) {
    static const struct {
        int n, peers;
        double compute_s[MOST];
        int slowest;
        double share; /* Share of that rank. */
    } rows[] = {
        {4, 4, {1, 1, 1.2, 1}, 2, 0.2},
        {4, 4, {1, 1, 1.09, 1}, -1, 0},
        {4, 4, {1, 1, 1.11, 1}, 2, 0.11},
        {4, 4, {0.5, 1, 1, 1}, -1, 0}, /* A quick rank makes no other one slow. */
        {2, 2, {1.5, 1}, 0, 0.5},
        {4, 2, {1, 1, 3, 3}, -1, 0}, /* Stages of a pipeline differ by design. */
        {4, 2, {1, 1, 3, 3.6}, 3, 0.2},
        {6, 6, {1, 1.3, 1, 1, 1.5, 1}, 4, 0.5}, /* Two ranks are slow. */
        {4, 1, {1, 2, 3, 4}, -1, 0},            /* No rank has peers. */
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_stragglers s;
        assert_int_equal(lt_stragglers_open(&s, rows[i].n, rows[i].peers, 0.1, 60), LT_OK);
        (void)pass(&s, rows[i].n, rows[i].compute_s, 60, 1.0);
        assert_int_equal(lt_stragglers_slowest(&s), rows[i].slowest);
        if (rows[i].slowest >= 0) {
            assert_float_equal(s.shares[rows[i].slowest], rows[i].share, 1e-9);
            assert_float_equal(s.means[rows[i].slowest], rows[i].compute_s[rows[i].slowest], 1e-9);
        }
        lt_stragglers_close(&s);
    }
}

/* A window is as long as requested, and has at least three steps; news are only changes. */
static void windows(void **state) {
    static const double even[] = {1, 1, 1}, odd[] = {1, 2, 1};
    lt_stragglers s;
    (void)state;
    assert_int_equal(lt_stragglers_open(&s, 3, 3, 0.1, 60), LT_OK);
    assert_int_equal(pass(&s, 3, odd, 59, 1.0), 0);
    assert_int_equal(lt_stragglers_slowest(&s), -1);
    assert_int_equal(pass(&s, 3, odd, 1, 1.0), 1);
    assert_true(s.slow[1] && s.news[1] && !s.news[0]);
    assert_int_equal(pass(&s, 3, odd, 60, 1.0), 1);
    assert_true(s.slow[1] && !s.news[1]);
    assert_int_equal(pass(&s, 3, even, 30, 1.0), 0);
    assert_int_equal(pass(&s, 3, odd, 30, 1.0), 1); /* Half of it is slow: 50 %. */
    assert_true(s.slow[1]);
    assert_float_equal(s.shares[1], 0.5, 1e-9);
    assert_int_equal(pass(&s, 3, even, 60, 1.0), 1);
    assert_true(!s.slow[1] && s.news[1]);
    assert_int_equal(pass(&s, 3, odd, 2, 100.0), 0);
    assert_int_equal(pass(&s, 3, odd, 1, 100.0), 1);
    lt_stragglers_close(&s);
}

static void detection_that_is_off(void **state) {
    static const double odd[] = {1, 2, 1};
    lt_stragglers s;
    (void)state;
    assert_int_equal(lt_stragglers_open(&s, 3, 3, 0.0, 60), LT_OK);
    assert_int_equal(pass(&s, 3, odd, 100, 10.0), 0);
    assert_int_equal(lt_stragglers_slowest(&s), -1);
    lt_stragglers_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(which_rank_is_slow),
                                       cmocka_unit_test(windows),
                                       cmocka_unit_test(detection_that_is_off)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

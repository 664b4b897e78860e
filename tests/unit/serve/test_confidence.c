/* DeepConf's numbers: the quantile against numpy.percentile, the lowest window against a plain sum,
 * and the share of the votes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "lateen/select.h"
#include "serve/api/align/confidence.h"

/* numpy.percentile([12, 7.5, 9, 31, 8], 100 * (1 - eta)) */
static void thresholds(void **state) {
    const double eta[] = {1, 0.9, 0.5, 0.25, 0.1, 1e-12}, want[] = {7.5, 7.7, 9, 12, 23.4, 31};
    (void)state;
    for (int i = 0; i < 6; i++) {
        double x[] = {12, 7.5, 9, 31, 8};
        assert_true(fabs(lt_confidence_threshold(x, 5, eta[i]) - want[i]) < 1e-9);
    }
    assert_true(lt_confidence_threshold((double[]){4}, 1, 0.1) == 4);
}

static void windows(void **state) {
    const float values[] = {3, 1, 2, 6, 5, 1, 1};
    const double now[] = {INFINITY, INFINITY, 2, 3, 13. / 3, 4, 7. / 3};
    lt_confidence c = {0};
    (void)state;
    for (int i = 0; i < 7; i++) {
        lt_event ev = {.n_top = 2};
        ev.top[0].logprob = -values[i] + 0.5F;
        ev.top[1].logprob = -values[i] - 0.5F;
        lt_confidence_add(&c, &ev, 3);
        assert_true(i < 2 ? isinf(lt_confidence_now(&c, 3))
                          : fabs(lt_confidence_now(&c, 3) - now[i]) < 1e-6);
        assert_true(i > 0 || lt_confidence_of(&c) == 3);
    }
    assert_true(fabs(lt_confidence_of(&c) - 2) < 1e-6);
    lt_confidence_free(&c);
}

static void shares(void **state) {
    const double weights[] = {5, 3, 4, 9, 2};
    const int32_t answers[] = {0, 1, 1, -1, 0};
    (void)state;
    assert_true(lt_select_consensus(weights, answers, 5) == 0.5);
    assert_true(lt_select_consensus(weights, answers, 3) == 7. / 12);
    assert_true(lt_select_consensus(weights + 3, answers + 3, 1) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(thresholds), cmocka_unit_test(windows),
                                       cmocka_unit_test(shares)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Measures of progress: moving variance and seq-rep-4 against values worked out by hand and with
 * numpy. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "serve/api/progress.h"

/* alpha 0.5: m and v of 2, 1, 1, 3, by hand: m 2, 1.5, 1.25, 2.125; v 0, 1/8, 3/32, .4296875. */
static void moving_variance(void **state) {
    const double x[] = {2, 1, 1, 3}, m[] = {2, 1.5, 1.25, 2.125}, v[] = {0, .125, .09375, .4296875};
    lt_settling s = {0};
    (void)state;
    for (int i = 0; i < 4; i++) {
        assert_false(lt_settling_add(&s, x[i], 0.5, 1e-6));
        assert_true(fabs(s.mean - m[i]) < 1e-12 && fabs(s.variance - v[i]) < 1e-12);
    }
}

/* An entropy that never changes has settled, but not before there are more than 4 / alpha
 * values. */
static void settles(void **state) {
    lt_settling s = {0};
    (void)state;
    for (int i = 1; i <= 20; i++) {
        assert_false(lt_settling_add(&s, 0.7, 0.2, 1e-9));
    }
    assert_true(lt_settling_add(&s, 0.7, 0.2, 1e-9));
    assert_false(lt_settling_add(&s, 3.7, 0.2, 1e-9));
}

static void repetition(void **state) {
    const uint32_t none[] = {1, 2, 3, 4, 5, 6}, loop[] = {9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2};
    int64_t first;
    (void)state;
    assert_true(lt_repetition(none, 6, &first) == 0 && first == 6);
    assert_true(lt_repetition(none, 3, &first) == 0 && first == 3);
    /* Its n-grams are 9123, 1231, 2312, 3123, and then five that occurred before. */
    assert_true(fabs(lt_repetition(loop, 12, &first) - 5. / 9) < 1e-12);
    assert_int_equal(first, 4);
    assert_true(lt_repetition(loop, 12, NULL) > 0.5);
    assert_true(lt_repetition((uint32_t[]){7, 7, 7, 7, 7}, 5, &first) == 0.5 && first == 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(moving_variance), cmocka_unit_test(settles),
                                       cmocka_unit_test(repetition)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

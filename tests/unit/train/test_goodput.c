/* Where the time of a run goes: every second is counted once, as one kind. The marks are in the
 * past, so that hundreds of seconds pass without waiting. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>

#include <cmocka.h>

#include "base/clock.h"
#include "train/watch/goodput.h"

#define SLOW 60.0 /* Even a busy machine takes less between two lines. */

static void near(double got, double want) {
    if (!(got >= want && got < want + SLOW)) {
        fail_msg("%g s, not %g s or a little more", got, want);
    }
}

static double all_of(const lt_goodput *t) {
    double all = 0.0;
    for (int i = 0; i < LT_GOODPUT_COUNT; i++) {
        all += t->s[i];
    }
    return all;
}

/* The kind of a step, and how many of its 1,000 seconds it waited for data. */
static void steps(void **state) {
    static const struct {
        double wait_s;
        bool productive;
        double stall_s, productive_s, rework_s;
    } rows[] = {{0, true, 0, 1000, 0},
                {300, true, 300, 700, 0},
                {300, false, 300, 0, 700},
                {1e9, true, 1000, 0, 0}}; /* The wait for rows began before the mark. */
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double begin_s = lt_clock_s() - 1000.0;
        lt_goodput t;
        lt_goodput_begin(&t, begin_s, 0.0);
        lt_goodput_step(&t, rows[i].wait_s, rows[i].productive);
        near(t.s[LT_GOODPUT_stall], rows[i].stall_s);
        near(t.s[LT_GOODPUT_productive], rows[i].productive_s);
        near(t.s[LT_GOODPUT_rework], rows[i].rework_s);
        assert_true(fabs(all_of(&t) - (t.mark_s - begin_s)) < 1e-6);
        assert_true(t.mark_s > begin_s + 999.0);
        if (rows[i].wait_s < 1000.0) {
            assert_true(fabs(t.s[LT_GOODPUT_stall] - rows[i].wait_s) < 1e-9);
        }
        lt_goodput_step(&t, 0.0, true); /* From the mark on. */
        near(all_of(&t), 1000.0);
    }
}

static void kinds(void **state) {
    const double begin_s = lt_clock_s() - 500.0;
    lt_goodput t = {.s = {9, 9, 9, 9, 9, 9}};
    (void)state;
    lt_goodput_begin(&t, begin_s, 250.0);
    assert_true(t.s[LT_GOODPUT_restart] == 250.0 && all_of(&t) == 250.0);
    lt_goodput_spend(&t, LT_GOODPUT_restart);
    near(t.s[LT_GOODPUT_restart], 750.0);
    t.mark_s -= 100.0;
    lt_goodput_spend(&t, LT_GOODPUT_evaluation);
    near(t.s[LT_GOODPUT_evaluation], 100.0);
    lt_goodput_spend(&t, LT_GOODPUT_evaluation);
    near(t.s[LT_GOODPUT_evaluation], 100.0);
    near(t.s[LT_GOODPUT_restart], 750.0);
    lt_goodput_begin(&t, begin_s, -5.0); /* A clock that was set back. */
    assert_true(all_of(&t) == 0.0);
    assert_string_equal(lt_goodput_names[LT_GOODPUT_stall], "stall");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(steps), cmocka_unit_test(kinds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* timeline.c with a stopwatch that returns times like CUDA's, in floats of milliseconds: the
 * next span never begins before the end of the last one. For ranks as threads see
 * comm/test_times.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tensor/timeline.h"

#define SPANS  500
#define STEP_S 0.0123456789 /* From one span to the next, without a pause. */

static double now_s, marked_s[2 * SPANS + 1];

static lt_err mark(lt_queue *q, int64_t i) {
    (void)q;
    assert_in_range(i, 0, 2 * SPANS);
    marked_s[i] = now_s;
    return LT_OK;
}

static lt_err between(lt_queue *q, int64_t from, int64_t to, double *seconds) {
    (void)q;
    *seconds = (double)(float)((marked_s[to] - marked_s[from]) * 1e3) * 1e-3;
    return LT_OK;
}

static lt_err nothing(lt_queue *q) {
    (void)q;
    return LT_OK;
}

static lt_err reach(lt_queue *q, int64_t i) {
    (void)q;
    (void)i;
    return LT_OK;
}

/* Every second span is a wait. */
static void run(lt_timeline *t, bool keep) {
    static const lt_backend backend = {
        .mark = mark, .between = between, .sync = nothing, .reach = reach};
    lt_device device = {.backend = &backend};
    lt_open_span span;
    now_s = 7.0;
    lt_timeline_open(t, &device, NULL);
    assert_int_equal(lt_timeline_restart(t, keep), LT_OK);
    for (int i = 0; i < SPANS; i++) {
        const lt_span_kind kind = i % 2 == 0 ? LT_SPAN_FORWARD : LT_SPAN_WAIT;
        assert_int_equal(lt_timeline_begin(t, &span, kind, i, 0), LT_OK);
        now_s += STEP_S;
        assert_int_equal(lt_timeline_end(t, &span), LT_OK);
    }
    assert_int_equal(lt_timeline_settle(t), LT_OK);
}

static void kept(void **state) {
    lt_timeline t;
    (void)state;
    run(&t, true);
    assert_int_equal(t.n, SPANS);
    for (int i = 0; i < SPANS; i++) {
        /* Floats of milliseconds near 6.2 s have steps of 0.5 us. */
        const double from_s = (double)(t.spans[i].from_ns - t.origin_ns) * 1e-9;
        assert_true(fabs(from_s - i * STEP_S) < 0.5e-6);
        assert_true(t.spans[i].from_ns < t.spans[i].to_ns);
        assert_true(i == 0 || t.spans[i].from_ns == t.spans[i - 1].to_ns);
    }
    assert_true(fabs(t.waited_s - SPANS / 2 * STEP_S) < 1e-4);
    lt_timeline_close(&t);
}

/* Only waits are measured, each by itself, because there is no mark 0. */
static void waits_alone(void **state) {
    lt_timeline t;
    (void)state;
    run(&t, false);
    assert_int_equal(t.n, 0);
    assert_true(fabs(t.waited_s - SPANS / 2 * STEP_S) < 1e-6);
    lt_timeline_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kept), cmocka_unit_test(waits_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

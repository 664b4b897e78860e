/* The simulated schedules against their closed forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lateen/plan.h"

static void near(double got, double want, double share) {
    if (!(fabs(got - want) <= share * fabs(want) + 1e-300)) {
        fail_msg("got %.8g, want %.8g within %.2g", got, want, share);
    }
}

static double run(lt_plan_schedule schedule, int stages, int chunks, int64_t micros, double f,
                  double b) {
    const lt_plan_pipeline p = {.stages = stages,
                                .chunks = chunks,
                                .micros = micros,
                                .schedule = schedule,
                                .forward_s = f,
                                .backward_s = b};
    double s = 0;
    if (lt_plan_pipeline_simulate(&p, &s, NULL, 0, NULL) != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
    near(lt_plan_pipeline_closed(&p), s, 0.02);
    return s;
}

/* More shapes than tables are kept, each of them twice with different times. */
static void bubbles_are_the_closed_forms(void **state) {
    (void)state;
    for (int p = 1; p <= 16; p *= 2) {
        for (int64_t m = p; m <= 64; m *= 2) {
            near(run(LT_PLAN_GPIPE, p, 1, m, 1, 2), 3.0 * (double)(m + p - 1), 1e-9);
            near(run(LT_PLAN_ONE_F_ONE_B, p, 1, m, 1, 2), 3.0 * (double)(m + p - 1), 1e-9);
            near(run(LT_PLAN_ONE_F_ONE_B, p, 1, m, 2, 3), 5.0 * (double)(m + p - 1), 1e-9);
            for (int v = 2; v <= 4 && p > 1; v++) {
                near(run(LT_PLAN_INTERLEAVED, p, v, m, 1, 2), 3.0 * (double)m + 3.0 * (p - 1) / v,
                     1e-9);
            }
        }
    }
}

static void zero_bubble_takes_two_thirds(void **state) {
    /* Qi et al. 2023: with Tf = Tb = Tw, ZB-H1 leaves a third of 1F1B's bubble with the memory of
     * 1F1B. */
    (void)state;
    for (int p = 2; p <= 8; p *= 2) {
        const double plain = run(LT_PLAN_ONE_F_ONE_B, p, 1, 4 * p, 1, 2) - 12.0 * p;
        const lt_plan_pipeline z = {.stages = p,
                                    .chunks = 1,
                                    .micros = 4 * p,
                                    .schedule = LT_PLAN_ZERO_BUBBLE,
                                    .forward_s = 1,
                                    .backward_s = 2,
                                    .weight_share = 0.5};
        double s = 0;
        assert_int_equal(lt_plan_pipeline_simulate(&z, &s, NULL, 0, NULL), LT_OK);
        near(s - 12.0 * p, plain / 3.0, 1e-6);
    }
}

/* The time of many micro-batches equals that of simulating all of them (which is done if slots
 * are requested). */
static void long_runs_are_extrapolated(void **state) {
    (void)state;
    for (int schedule = LT_PLAN_GPIPE; schedule <= LT_PLAN_ZERO_BUBBLE; schedule++) {
        const lt_plan_pipeline p = {.stages = 6,
                                    .chunks = schedule == LT_PLAN_INTERLEAVED ? 2 : 1,
                                    .micros = 6000,
                                    .schedule = (lt_plan_schedule)schedule,
                                    .forward_s = 1,
                                    .backward_s = 2.1,
                                    .weight_share = 0.4,
                                    .send_s = 0.1,
                                    .first_extra_s = 0.2,
                                    .last_extra_s = 0.9};
        lt_plan_slot slot;
        size_t n;
        double all = 0, s = 0;
        assert_int_equal(lt_plan_pipeline_simulate(&p, &all, &slot, 1, &n), LT_OK);
        assert_int_equal(lt_plan_pipeline_simulate(&p, &s, NULL, 0, NULL), LT_OK);
        near(s, all, 2e-5);
    }
}

static void slots_keep_the_rules(void **state) {
    enum { STAGES = 4, CHUNKS = 2, MICROS = 8, SLOTS = 2 * STAGES * CHUNKS * MICROS };
    const lt_plan_pipeline p = {.stages = STAGES,
                                .chunks = CHUNKS,
                                .micros = MICROS,
                                .schedule = LT_PLAN_INTERLEAVED,
                                .forward_s = 1,
                                .backward_s = 2,
                                .send_s = 0.1};
    lt_plan_slot *slots = calloc(SLOTS, sizeof *slots);
    double ends[STAGES] = {0}, span = 0;
    size_t n = 0;
    (void)state;
    assert_non_null(slots);
    assert_int_equal(lt_plan_pipeline_simulate(&p, &span, slots, SLOTS, &n), LT_OK);
    assert_int_equal(n, SLOTS);
    /* A stage does one thing at a time; forward passes follow their messages from stage to
     * stage. */
    for (size_t i = 0; i < n; i++) {
        assert_true(slots[i].start_s >= ends[slots[i].stage] - 1e-9);
        ends[slots[i].stage] = slots[i].end_s;
        for (size_t k = 0; k < n; k++) {
            if (slots[i].kind == 'F' && slots[k].kind == 'F' && slots[k].micro == slots[i].micro &&
                slots[k].chunk == slots[i].chunk && slots[k].stage == slots[i].stage + 1) {
                assert_true(slots[k].start_s >= slots[i].end_s + 0.1 - 1e-9);
            }
        }
    }
    free(slots);
}

static void bad_shapes_are_refused(void **state) {
    lt_plan_pipeline p = {.stages = 4,
                          .chunks = 2,
                          .micros = 6,
                          .schedule = LT_PLAN_INTERLEAVED,
                          .forward_s = 1,
                          .backward_s = 2};
    double s = 0;
    (void)state;
    assert_int_equal(lt_plan_pipeline_simulate(&p, &s, NULL, 0, NULL), LT_ERR_ARG);
    p.stages = 0;
    assert_int_equal(lt_plan_pipeline_simulate(&p, &s, NULL, 0, NULL), LT_ERR_ARG);
    p = (lt_plan_pipeline){
        .stages = 100000, .chunks = 1, .micros = 100000, .forward_s = 1, .backward_s = 1};
    assert_int_equal(lt_plan_pipeline_simulate(&p, &s, NULL, 0, NULL), LT_ERR_LIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bubbles_are_the_closed_forms),
                                       cmocka_unit_test(zero_bubble_takes_two_thirds),
                                       cmocka_unit_test(long_runs_are_extrapolated),
                                       cmocka_unit_test(slots_keep_the_rules),
                                       cmocka_unit_test(bad_shapes_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

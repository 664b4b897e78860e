/* Memory against Korthikanti et al. 2022 (activations of four models, with and without sequence
 * parallelism), the example in the ZeRO paper, and GPT-3's optimiser state. */
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

#include "base/error.h"
#include "lateen/plan.h"
#include "parallel/schedule.h"

#define GIB 1073741824.0

static void near(double got, double want, double share) {
    if (!(fabs(got - want) <= share * fabs(want) + 1e-300)) {
        fail_msg("got %.8g, want %.8g within %.2g", got, want, share);
    }
}

static lt_plan_cluster selene(void) {
    lt_plan_cluster c;
    assert_int_equal(lt_plan_cluster_load(&c, "selene"), LT_OK);
    return c;
}

static void activations_are_those_of_korthikanti(void **state) {
    static const struct {
        const char *model;
        int pp, vpp;
        int64_t micro, accum;
        double none, sp_selective; /* GiB on the first stage. */
    } rows[] = {{"gpt-22b", 1, 1, 4, 1, 59.25, 9.56},
                {"gpt3-175b", 8, 3, 1, 64, 66.84, 12.35},
                {"mt-nlg-530b", 35, 3, 1, 280, 114.02, 23.08},
                {"gpt-1t", 64, 1, 1, 512, 131.25, 26.56}};
    const lt_plan_cluster c = selene();
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_plan_model m;
        lt_plan_layout l = {.tp = 8,
                            .pp = rows[i].pp,
                            .vpp = rows[i].vpp,
                            .cp = 1,
                            .ep = 1,
                            .dp = 1,
                            .micro = rows[i].micro,
                            .accum = rows[i].accum,
                            .schedule = rows[i].vpp > 1 ? LT_PLAN_INTERLEAVED : LT_PLAN_ONE_F_ONE_B,
                            .precision = LT_PLAN_BF16};
        assert_int_equal(lt_plan_model_load(&m, rows[i].model), LT_OK);
        near(lt_plan_memory_estimate(&m, &c, &l).activations / GIB, rows[i].none, 0.02);
        l.sp = true;
        l.recompute = LT_PLAN_RECOMPUTE_SELECTIVE;
        near(lt_plan_memory_estimate(&m, &c, &l).activations / GIB, rows[i].sp_selective, 0.02);
    }
}

static void zero_shards_as_in_its_paper(void **state) {
    /* 7.5 B parameters, 64 ranks: 120 GB -> 31.4 -> 16.6 -> 1.9 (Rajbhandari 2020, figure 1). */
    static const double want[] = {120.0, 31.4, 16.6, 1.9};
    const lt_plan_cluster c = selene();
    lt_plan_model m;
    (void)state;
    assert_int_equal(lt_plan_model_load(&m, "llama3-8b"), LT_OK);
    for (int zero = 0; zero <= 3; zero++) {
        const lt_plan_layout l = {.tp = 1,
                                  .pp = 1,
                                  .vpp = 1,
                                  .cp = 1,
                                  .ep = 1,
                                  .dp = 64,
                                  .zero = zero,
                                  .micro = 1,
                                  .accum = 1,
                                  .precision = LT_PLAN_BF16};
        const lt_plan_memory r = lt_plan_memory_estimate(&m, &c, &l);
        near((r.weights + r.gradients + r.optimiser) * 7.5e9 / lt_plan_model_params(&m).total / 1e9,
             want[zero], 0.02);
    }
}

static void gpt3_state_has_sixteen_bytes_per_parameter(void **state) {
    /* 16 bytes per parameter: 2.8 TB for 175 B. */
    const lt_plan_cluster c = selene();
    const lt_plan_layout l = {.tp = 1,
                              .pp = 1,
                              .vpp = 1,
                              .cp = 1,
                              .ep = 1,
                              .dp = 1,
                              .micro = 1,
                              .accum = 1,
                              .precision = LT_PLAN_BF16};
    lt_plan_memory r;
    lt_plan_model m;
    (void)state;
    assert_int_equal(lt_plan_model_load(&m, "gpt3-175b"), LT_OK);
    r = lt_plan_memory_estimate(&m, &c, &l);
    near(r.weights + r.gradients + r.optimiser, 2.8e12, 0.005);
}

static void moments_in_bf16_save_four_bytes(void **state) {
    const lt_plan_cluster c = selene();
    lt_plan_layout l = {.tp = 1,
                        .pp = 1,
                        .vpp = 1,
                        .cp = 1,
                        .ep = 1,
                        .dp = 1,
                        .micro = 1,
                        .accum = 1,
                        .precision = LT_PLAN_BF16};
    lt_plan_memory whole, half;
    lt_plan_model m;
    (void)state;
    assert_int_equal(lt_plan_model_load(&m, "llama3-8b"), LT_OK);
    whole = lt_plan_memory_estimate(&m, &c, &l);
    l.bf16_moments = true;
    half = lt_plan_memory_estimate(&m, &c, &l);
    near(whole.optimiser - half.optimiser, 4.0 * lt_plan_model_params(&m).total, 1e-9);
    near(half.optimiser, 8.0 * lt_plan_model_params(&m).total, 1e-9);
}

static void parts_sum_and_split(void **state) {
    const lt_plan_cluster c = selene();
    lt_plan_layout l = {.tp = 8,
                        .pp = 4,
                        .vpp = 1,
                        .cp = 1,
                        .ep = 1,
                        .dp = 4,
                        .sp = true,
                        .zero = 1,
                        .micro = 1,
                        .accum = 8,
                        .precision = LT_PLAN_BF16};
    lt_plan_model m;
    lt_plan_memory a, b;
    (void)state;
    assert_int_equal(lt_plan_model_load(&m, "llama3-70b"), LT_OK);
    a = lt_plan_memory_estimate(&m, &c, &l);
    near(a.weights + a.gradients + a.optimiser + a.activations + a.logits + a.buffers + a.margin,
         a.total, 1e-12);
    l.recompute = LT_PLAN_RECOMPUTE_FULL;
    b = lt_plan_memory_estimate(&m, &c, &l);
    assert_true(b.activations < 0.5 * a.activations);
    l.cp = 2;
    l.dp = 2;
    assert_true(lt_plan_memory_estimate(&m, &c, &l).activations < 0.55 * b.activations);
}

static void each_tool_shows_its_own_measure(void **state) {
    const lt_plan_cluster c = selene();
    const lt_plan_layout l = {.tp = 8,
                              .pp = 4,
                              .vpp = 1,
                              .cp = 1,
                              .ep = 1,
                              .dp = 4,
                              .zero = 1,
                              .micro = 1,
                              .accum = 8,
                              .precision = LT_PLAN_BF16};
    lt_plan_model m;
    lt_plan_memory r;
    double allocated, reserved, device;
    (void)state;
    assert_int_equal(lt_plan_model_load(&m, "llama3-70b"), LT_OK);
    r = lt_plan_memory_estimate(&m, &c, &l);
    allocated = lt_plan_memory_shown(&r, &l, LT_PLAN_MEMORY_ALLOCATED);
    reserved = lt_plan_memory_shown(&r, &l, LT_PLAN_MEMORY_RESERVED);
    device = lt_plan_memory_shown(&r, &l, LT_PLAN_MEMORY_DEVICE);
    assert_true(allocated < r.total && allocated < reserved && reserved < device);
    near(device - reserved, 2.5e9, 0.2); /* Context and NCCL. */
}

/* The activations of a stage are those of one micro-batch times the number that the schedule
 * holds. */
static void activations_follow_the_schedule(void **state) {
    static const struct {
        lt_plan_schedule plan;
        lt_schedule_kind table;
        int chunks;
    } rows[] = {{LT_PLAN_GPIPE, LT_SCHEDULE_GPIPE, 1},
                {LT_PLAN_ONE_F_ONE_B, LT_SCHEDULE_ONE_F_ONE_B, 1},
                {LT_PLAN_INTERLEAVED, LT_SCHEDULE_INTERLEAVED, 2},
                {LT_PLAN_ZERO_BUBBLE, LT_SCHEDULE_ZB_H1, 1}};
    const lt_plan_cluster c = selene();
    lt_plan_model m;
    (void)state;
    assert_int_equal(lt_plan_model_load(&m, "llama3-8b"), LT_OK);
    m.vocab_size = 64; /* The fullest stage is the one that holds most, or the last. */
    for (int i = 0; i < 4; i++) {
        lt_plan_layout l = {.tp = 1,
                            .pp = 4,
                            .vpp = rows[i].chunks,
                            .cp = 1,
                            .ep = 1,
                            .dp = 1,
                            .micro = 1,
                            .accum = 16,
                            .schedule = rows[i].plan,
                            .precision = LT_PLAN_BF16};
        const double all = lt_plan_memory_estimate(&m, &c, &l).activations;
        lt_schedule t;
        assert_int_equal(
            lt_schedule_open(&t, &(lt_schedule_shape){rows[i].table, 4, rows[i].chunks, 16}),
            LT_OK);
        const double layer = lt_plan_activation_layer_bytes(&m, &l, c.stack.attention);
        near(all / (layer * (double)m.n_layers / 4), (double)t.rows[0].held / rows[i].chunks, 0.01);
        lt_schedule_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(activations_are_those_of_korthikanti),
                                       cmocka_unit_test(zero_shards_as_in_its_paper),
                                       cmocka_unit_test(gpt3_state_has_sixteen_bytes_per_parameter),
                                       cmocka_unit_test(moments_in_bf16_save_four_bytes),
                                       cmocka_unit_test(parts_sum_and_split),
                                       cmocka_unit_test(each_tool_shows_its_own_measure),
                                       cmocka_unit_test(activations_follow_the_schedule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

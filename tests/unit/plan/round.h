/* round.h: a machine with round numbers and a layout of one rank, for tests that compute the
 * planner's results by hand. Include it after cmocka.h. */
#ifndef LT_TEST_PLAN_ROUND_H
#define LT_TEST_PLAN_ROUND_H

#include <math.h>

#include "plan/plan.h"

static inline void near(double got, double want, double share) {
    if (!(fabs(got - want) <= share * fabs(want) + 1e-300)) {
        fail_msg("got %.10g, want %.10g within %.2g", got, want, share);
    }
}

/* 1,000 TFLOP/s in bf16, memory at 1,000 GB/s, 100 multiprocessors, no efficiencies. */
static inline lt_plan_cluster plain(void) {
    const lt_plan_gpu gpu = {.name = "round",
                             .peak_tflops = {[LT_PLAN_BF16] = 1000,
                                             [LT_PLAN_FP8] = 2000,
                                             [LT_PLAN_MXFP8] = 2000,
                                             [LT_PLAN_FP8ROW] = 1500,
                                             [LT_PLAN_NVFP4] = 4000},
                             .memory_bytes = 1e12,
                             .memory_gbps = 1000,
                             .link_gbps = 100,
                             .nic_gbps = 10,
                             .host_time = 1,
                             .sms = 100,
                             .node_gpus = 8,
                             .domain_gpus = 8};
    const lt_plan_stack stack = {.name = "round",
                                 .gemm = 1,
                                 .memory = 1,
                                 .network = 1,
                                 .attention = LT_PLAN_ATTENTION_FLASH2,
                                 .passes = 1,
                                 .dp_overlap = 1,
                                 .cp_balance = 1};
    lt_plan_cluster c;
    lt_plan_cluster_plain(&c, &gpu, &stack, 4096);
    c.latency_us = c.link_latency_us = 0;
    c.link_share = 1;
    return c;
}

static inline lt_plan_layout layout(void) {
    return (lt_plan_layout){.tp = 1,
                            .pp = 1,
                            .vpp = 1,
                            .cp = 1,
                            .ep = 1,
                            .dp = 1,
                            .micro = 1,
                            .accum = 1,
                            .precision = LT_PLAN_BF16};
}

#endif

/* bench.h: time of the bench cases (case.h) on a device, beside the bound that the op's cost
 * formula and the machine's measured rates give:
 *     bound = max(flops / peak flop/s of the type, bytes / copy bandwidth)
 * A case whose bytes fit a cache may pass 100 %: it is then marked "cache". */
#ifndef LT_TESTS_OPS_BENCH_H
#define LT_TESTS_OPS_BENCH_H

#include <stdio.h>

#include "ops/case.h"

typedef struct {
    lt_device *device;
    /* Filters; empty: every op, the chosen implementation, every case. impl "all": every
     * implementation that accepts the case, except the reference. */
    const char *op, *impl, *case_name;
    double copy_gbps, peak_f32_gflops, peak_bf16_gflops;
    bool json; /* One object per line instead of the table. */
} lt_case_bench_options;

/* Runs and prints. The first failure stops it. */
LT_MUST_USE lt_err lt_case_bench_run(const lt_case_bench_options *o, FILE *to);

#endif

/* bench_cpu.c: `lateen bench cpu`: times every CPU op on shapes of real models and compares it with
 * the bound of this machine, from measured bandwidth and FLOP/s and the op's cost formula. The
 * cases are those of optest and of `doctor --ops`. */
#include <stdio.h>

#include "base/error.h"
#include "cli/bench/bench.h"
#include "cli/verb.h"
#include "kernels/cpu/probe.h"
#include "ops/bench.h"

#define BENCH_CPU_OPTIONS(X)                                                                       \
    X(STR, op, "op", "", 0, 0, "name", "only this op")                                             \
    X(STR, case_name, "case", "", 0, 0, "text", "only cases whose name contains this")             \
    X(STR, impl, "impl", "", 0, 0, "name",                                                         \
      "this implementation instead of the chosen one; all: each that accepts the case")            \
    X(BOOL, json, "json", "false", 0, 0, "", "one JSON object a line")

typedef struct {
    BENCH_CPU_OPTIONS(LT_OPTION_FIELD)
} bench_cpu_options;
#define LT_OPTION_STRUCT bench_cpu_options
static const lt_option rows[] = {BENCH_CPU_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("bench cpu", rows);

static lt_err bench(const bench_cpu_options *o) {
    lt_cpu_probe p;
    lt_device cpu = {.backend = lt_backend_cpu()};
    LT_TRY(lt_cpu_probe_run(&p));
    return lt_case_bench_run(&(lt_case_bench_options){.device = &cpu,
                                                      .op = o->op,
                                                      .impl = o->impl,
                                                      .case_name = o->case_name,
                                                      .copy_gbps = p.copy_gbps,
                                                      .peak_f32_gflops = p.peak_f32_gflops,
                                                      .peak_bf16_gflops = p.peak_bf16_gflops,
                                                      .json = o->json},
                             stdout);
}

int lt_bench_cpu(int argc, char **argv) {
    bench_cpu_options o;
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;
    if (!lt_verb_parse(&table, &o, argc, argv,
                       "bench cpu [--op OP] [--case TEXT] [--impl NAME|all] [--json]",
                       "Time every CPU op on shapes of real models: the fastest call of about 0.3 "
                       "s each, and its share of the\n"
                       "bound, max(flops / peak, bytes / copy bandwidth), both measured first. "
                       "\"cache\": the bytes fit the last-level\n"
                       "cache, where more than 100 % is possible. On a shared machine set "
                       "OMP_WAIT_POLICY=passive.",
                       NULL, 0, &n, &status)) {
        return status;
    }
    err = bench(&o);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}

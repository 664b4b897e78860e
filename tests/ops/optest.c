/* optest.c: build/optest: every implementation of every op, judged by one list of cases (case.h).
 *
 *     optest --check [--backend cpu|cuda|ref] [--op X] [--impl NAME] [--case TEXT]   against ref/
 *                                                                                    in F64
 *                                                                                    (check.c)
 *     optest --check --random 10 --seed 1                                      the same with sizes
 *                                                                              at random: of
 *                                                                              products and
 *                                                                              attention, ten times
 *     optest --grad                                                            finite differences
 *                                                                              (grad.c)
 *     optest --golden                                                          values of other
 *                                                                              frameworks
 *                                                                              (golden.c)
 *     optest --bench                                                           time and share of
 *                                                                              the bound (bench.c)
 * --tap prints TAP; the last line is always "N passed, N failed". */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/option.h"
#include "kernels/cpu/probe.h"
#include "ops/bench.h"
#include "ops/optest.h"

#define OPTEST_OPTIONS(X)                                                                          \
    X(BOOL, check, "check", "false", 0, 0, "", "compare every implementation with ref/ in double") \
    X(BOOL, grad, "grad", "false", 0, 0, "", "compare gradients with finite differences")          \
    X(BOOL, golden, "golden", "false", 0, 0, "", "compare ref/ with stored values of PyTorch")     \
    X(BOOL, bench, "bench", "false", 0, 0, "", "time the bench cases")                             \
    X(BOOL, describe_golden, "describe-golden", "false", 0, 0, "",                                 \
      "print the golden cases' inputs as JSON")                                                    \
    X(STR, golden_dir, "golden-dir", "tests/golden/ops", 0, 0, "", "folder of stored values")      \
    X(STR, backend, "backend", "cpu", 0, 1, "", "device to test: cpu, cuda, cuda:N or ref")        \
    X(STR, op, "op", "", 0, 0, "", "only this op")                                                 \
    X(STR, impl, "impl", "", 0, 0, "", "only implementations of this name")                        \
    X(STR, case_name, "case", "", 0, 0, "", "only cases whose name contains this")                 \
    X(F64, mflop, "mflop", "0", 0, 1e9, "",                                                        \
      "check only cases of at most so many million operations; 0: all")                            \
    X(BOOL, core, "core", "false", 0, 0, "",                                                       \
      "check each case in one type, in turn, and with tensors contiguous or strided")              \
    X(I64, random, "random", "0", 0, 1000000, "rounds",                                            \
      "check products and attention with random sizes, so many times; 0: all with their own")      \
    X(I64, seed, "seed", "1", 0, 9e18, "", "which random sizes")                                   \
    X(BOOL, json, "json", "false", 0, 0, "", "bench: one JSON object a line")                      \
    X(BOOL, tap, "tap", "false", 0, 0, "", "TAP output")                                           \
    X(BOOL, verbose, "verbose", "false", 0, 0, "", "print passed cases too")

typedef struct {
    OPTEST_OPTIONS(LT_OPTION_FIELD)
} optest_options;
#define LT_OPTION_STRUCT optest_options
static const lt_option rows[] = {OPTEST_OPTIONS(LT_OPTION_ROW)};
static const lt_option_table table = LT_OPTION_TABLE("optest", rows);

void optest_report(optest *t, bool passed, const char *name, const char *detail) {
    t->n_passed += passed ? 1 : 0;
    t->n_failed += passed ? 0 : 1;
    if (t->tap) {
        printf("%sok %d - %s\n", passed ? "" : "not ", t->n_passed + t->n_failed, name);
    }
    if (!passed || t->verbose) {
        printf("%s%s %s\n    %s\n", t->tap ? "# " : "", passed ? "passed" : "FAILED", name, detail);
    }
    fflush(stdout);
}

bool optest_wants(const optest *t, const lt_op_cases *o, const lt_case *c, int use) {
    return (c->use & use) != 0 && (t->op[0] == '\0' || strcmp(t->op, lt_op_name(o->op)) == 0) &&
           (t->case_name[0] == '\0' || strstr(c->name, t->case_name) != NULL);
}

static lt_device *find_device(const char *name) {
    lt_device *d = NULL;
    if (strcmp(name, "ref") == 0) {
        return lt_world_ref();
    }
    if (lt_device_open_named(&d, name) != LT_OK) {
        fprintf(stderr, "optest: %s\n", lt_error_message());
    }
    return d;
}

static int bench(const optest_options *o, lt_device *device) {
    lt_cpu_probe p;
    if (lt_cpu_probe_run(&p) == LT_OK &&
        lt_case_bench_run(&(lt_case_bench_options){.device = device,
                                                   .op = o->op,
                                                   .impl = o->impl,
                                                   .case_name = o->case_name,
                                                   .copy_gbps = p.copy_gbps,
                                                   .peak_f32_gflops = p.peak_f32_gflops,
                                                   .peak_bf16_gflops = p.peak_bf16_gflops,
                                                   .json = o->json},
                          stdout) == LT_OK) {
        return 0;
    }
    fprintf(stderr, "optest: %s\n", lt_error_message());
    return 1;
}

static int usage(const char *why) {
    fprintf(stderr, "optest: %s\nusage: optest --check|--grad|--golden|--bench [options]\n", why);
    lt_options_help(&table, stderr);
    return 2;
}

int main(int argc, char **argv) {
    static optest_options o;
    bool help = false;
    int n_positional = 0;
    optest t = {0};

    lt_options_default(&table, &o);
    if (lt_options_parse(&table, &o, argc, argv, NULL, 0, &n_positional, &help) != LT_OK) {
        return usage(lt_error_message());
    }
    t = (optest){.device = find_device(o.backend),
                 .op = o.op,
                 .impl = o.impl,
                 .case_name = o.case_name,
                 .mflop = o.mflop,
                 .core = o.core,
                 .rounds = (int)o.random,
                 .seed = (uint64_t)o.seed,
                 .tap = o.tap,
                 .verbose = o.verbose};
    if (help || t.device == NULL) {
        return usage(help ? "help" : "no such backend");
    }
    if (o.describe_golden) {
        optest_describe_golden();
        return 0;
    }
    if (!o.check && !o.grad && !o.golden && !o.bench) {
        return usage("nothing to do");
    }
    if (o.check) {
        optest_check(&t);
    }
    if (o.grad) {
        optest_grad(&t);
    }
    if (o.golden) {
        optest_golden(&t, o.golden_dir);
    }
    if (o.bench) {
        return bench(&o, t.device);
    }
    if (t.n_passed + t.n_failed == 0) {
        fprintf(stderr,
                "optest: nothing ran: no op \"%s\" with an implementation \"%s\" and a case \"%s\" "
                "(empty: any)\n",
                t.op, t.impl, t.case_name);
    }
    if (t.tap) {
        printf("1..%d\n", t.n_passed + t.n_failed);
    }
    printf("%s%d passed, %d failed\n", t.tap ? "# " : "", t.n_passed, t.n_failed);
    return t.n_failed == 0 && t.n_passed > 0 ? 0 : 1;
}

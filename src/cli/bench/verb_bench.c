/* verb_bench.c: `lateen bench kernels`: times the kernels and compares them with the vendor's and
 * with the limits of the machine. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "cli/bench/bench.h"
#include "cli/verb.h"
#include "kernels/cuda/bench/bench.h"
#include "kernels/cuda/inventory.h"

#define BENCH_OPTIONS(X)                                                                           \
    X(STR, op, "op", "", 0, 0, "names",                                                            \
      "only these benches, comma-separated: sgemm, gemm, attention, memory, thesis, decode, "      \
      "quant, fp8; empty: all")                                                                    \
    X(STR, shape, "shape", "", 0, 0, "text", "time only rows whose shape contains one of these")   \
    X(BOOL, ladder, "ladder", "false", 0, 0, "",                                                   \
      "time every rung of a ladder, not only the shipped kernel")                                  \
    X(BOOL, check, "check", "false", 0, 0, "", "only check the kernels, no timings")               \
    X(I64, rounds, "rounds", "15", 1, 101, "rounds",                                               \
      "interleaved timings of each candidate; the median counts")                                  \
    X(F64, sustained, "sustained", "0", 0, 60, "s",                                                \
      "also run the shipped kernels for this long without a pause, and read clocks and power")     \
    X(STR, json, "json", "", 0, 0, "path", "write the rows to this file, for docs/kernels.md")     \
    X(STR, peer, "peer", "", 0, 0, "COMMAND",                                                      \
      "measured in turn with attention: 'python3 bench/peers/attention_torch.py'")                 \
    X(BOOL, compile, "compile", "false", 0, 0, "",                                                 \
      "only compile every shipped kernel and print registers and spills; needs no GPU")            \
    X(STR, only, "only", "", 0, 0, "text", "with --compile: only files whose name contains this")  \
    X(STR, arch, "arch", "", 0, 0, "sm_90a", "with --compile: only for this architecture")         \
    X(BOOL, sample, "sample", "false", 0, 0, "",                                                   \
      "with --compile: only the first specialisation of each kernel file, architecture and set "   \
      "of words")

typedef struct {
    BENCH_OPTIONS(LT_OPTION_FIELD)
} bench_options;
#define LT_OPTION_STRUCT bench_options
static const lt_option rows[] = {BENCH_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_bench_options = LT_OPTION_TABLE("bench", rows);

/* Parts with their own options. */
static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
} parts[] = {{"comm", lt_bench_comm},           {"cpu", lt_bench_cpu},
             {"data", lt_bench_data},           {"engine", lt_bench_engine},
             {"generate", lt_bench_generate},   {"serve", lt_bench_serve},
             {"tokenizer", lt_bench_tokenizer}, {"train", lt_bench_train}};

int lt_verb_bench(int argc, char **argv);
int lt_verb_bench(int argc, char **argv) {
    bench_options o;
    const char *what[1] = {""};
    int n = 0, status = LT_EXIT_DONE;
    lt_err err;
    for (size_t i = 0; argc > 1 && i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(argv[1], parts[i].name) == 0) {
            return parts[i].run(argc - 1, argv + 1);
        }
    }
    if (!lt_verb_parse(
            &lt_verb_bench_options, &o, argc, argv,
            "bench kernels [--op NAMES] [--ladder] [--json PATH] | bench kernels --compile | bench "
            "comm | bench cpu | bench data | bench engine | bench generate | bench serve | bench "
            "tokenizer | "
            "bench train",
            "Check the GPU's kernels, then measure them beside the vendor's, interleaved, on "
            "random inputs.",
            what, 1, &n, &status)) {
        return status;
    }
    if (n != 1 || strcmp(what[0], "kernels") != 0) {
        fprintf(stderr, "lateen: bench needs one of kernels, comm, cpu, data, engine, generate, "
                        "serve, tokenizer and train\n");
        return LT_EXIT_USAGE;
    }
    err = o.compile ? lt_cuda_inventory(stdout, o.only[0] != '\0' ? o.only : NULL,
                                        o.arch[0] != '\0' ? o.arch : NULL, o.sample)
                    : lt_bench_kernels(stdout, &(lt_bench_options){.ops = o.op,
                                                                   .shape = o.shape,
                                                                   .json_path = o.json,
                                                                   .peer = o.peer,
                                                                   .ladder = o.ladder,
                                                                   .check_only = o.check,
                                                                   .rounds = (int)o.rounds,
                                                                   .sustained_s = o.sustained});
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}

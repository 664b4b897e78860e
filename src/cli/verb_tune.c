/* verb_tune.c: `lateen tune sgemm`: find the fastest specialisation of a kernel on this GPU and remember it. */
#include <stdio.h>
#include <string.h>

#include "cli/verb.h"
#include "kernels/cuda/sgemm/sgemm.h"

#define TUNE_OPTIONS(X)                                                                            \
    X(I64, m, "m", "4096", 1, 65536, "rows", "rows of A and C")                                    \
    X(I64, n, "n", "4096", 1, 65536, "columns", "columns of B and C")                              \
    X(I64, k, "k", "4096", 1, 65536, "length", "columns of A, rows of B")                          \
    X(F64, seconds, "seconds", "300", 1, 86400, "s", "stop the first round of runs after this long")

typedef struct {
    TUNE_OPTIONS(LT_OPTION_FIELD)
} tune_options;
#define LT_OPTION_STRUCT tune_options
static const lt_option rows[] = {TUNE_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_tune_options = LT_OPTION_TABLE("tune", rows);

int lt_verb_tune(int argc, char **argv);
int lt_verb_tune(int argc, char **argv) {
    tune_options o;
    const char *what[1] = {""};
    int n = 0, status = LT_EXIT_DONE;
    lt_cuda *gpu = NULL;
    lt_err err;
    if (!lt_verb_parse(&lt_verb_tune_options, &o, argc, argv, "tune sgemm [--m M --n N --k K]",
                       "Try every tile of a kernel on this GPU and remember the fastest for that "
                       "class of shapes.",
                       what, 1, &n, &status)) {
        return status;
    }
    if (n != 1 || strcmp(what[0], "sgemm") != 0) {
        fprintf(stderr, "lateen: tune what? (sgemm)\n");
        return LT_EXIT_USAGE;
    }
    err = lt_cuda_open(&gpu, 0);
    err = err == LT_OK ? lt_sgemm_tune(stdout, gpu, (int)o.m, (int)o.n, (int)o.k, o.seconds) : err;
    lt_cuda_close(gpu);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}

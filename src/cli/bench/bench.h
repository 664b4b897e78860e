/* bench.h: the parts of `lateen bench` that have separate files; verb_bench.c lists them. argv[0]
 * is the part's name. */
#ifndef LT_CLI_BENCH_H
#define LT_CLI_BENCH_H

#include <stdint.h>

int lt_bench_data(int argc, char **argv);
int lt_bench_comm(int argc, char **argv);
int lt_bench_cpu(int argc, char **argv);
int lt_bench_generate(int argc, char **argv);
int lt_bench_tokenizer(int argc, char **argv);
int lt_bench_serve(int argc, char **argv);
int lt_bench_train(int argc, char **argv);
int lt_bench_engine(int argc, char **argv);

/* Sorts n values; their median. */
double lt_bench_median(double *values, int64_t n);

#endif

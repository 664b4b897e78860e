/* bench_median.c: the median of what a bench has measured. */
#include <stdlib.h>

#include "cli/bench/bench.h"

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double lt_bench_median(double *values, int64_t n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

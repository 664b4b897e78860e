/* thread.c: see thread.h. */
#include "base/thread.h"

#include <omp.h>

#include "base/error.h"

int lt_thread_count(void) {
    return omp_get_max_threads();
}

void lt_thread_set_count(int n) {
    LT_ASSERT(n > 0);
    omp_set_num_threads(n);
}

void lt_parallel_for(size_t n, void (*fn)(void *ctx, size_t i), void *ctx) {
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < n; i++) {
        fn(ctx, i);
    }
}

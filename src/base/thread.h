/* thread.h: parallel loops over the OpenMP pool, which oneDNN uses too, so that the two never
 * compete for cores. */
#ifndef LT_BASE_THREAD_H
#define LT_BASE_THREAD_H

#include <stddef.h>

/* Number of threads of a parallel loop: OMP_NUM_THREADS, else the cores that this process may
 * use. */
int lt_thread_count(void);
void lt_thread_set_count(int n);

/* Call fn(ctx, i) for every i in [0, n), each once, in any order, from several threads. */
void lt_parallel_for(size_t n, void (*fn)(void *ctx, size_t i), void *ctx);

#endif

/* early.cuh: programmatic dependent launch for small kernels: while one runs, the next one starts,
 * and waits where it first needs the results of the one before. Such kernels are launched with
 * lt_cuda_run_early. Each calls wait_for_others before it reads or writes memory that other kernels
 * use, so that a kernel ends only after all before it. No-op below sm_90. */
#ifndef LT_EARLY_CUH
#define LT_EARLY_CUH

#include "common/types.cuh"

/* What comes before this call reads only what no kernel under way writes: weights, and what was
 * copied to the device before the first kernel of a step. A launcher that
 * lets a kernel write weights (pack_q) synchronises: where kernels start early, the one before this
 * one waits still, and the one before that may not be done. */
INLINE void wait_for_others(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif

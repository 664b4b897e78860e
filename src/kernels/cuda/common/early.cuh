/* early.cuh: programmatic dependent launch for small kernels: while one runs, the next is brought
 * up, and waits where it first needs what the one before makes. Launched with lt_cuda_run_early;
 * each such kernel calls wait_for_others before it reads or writes what other kernels touch, so
 * that a kernel is over only after all before it. Below sm_90 nothing happens. */
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

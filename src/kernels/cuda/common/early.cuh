/* early.cuh: programmatic dependent launch for small kernels: while one runs, the next one starts,
 * and waits where it first needs the results of the one before. Such kernels are launched with
 * lt_cuda_run_early. Each calls wait_for_others before it reads or writes memory that other
 * kernels use, so that a kernel ends only after all earlier ones. No-op below sm_90. */
#ifndef LT_EARLY_CUH
#define LT_EARLY_CUH

#include "common/types.cuh"

/* Before this call a kernel may read only what no kernel in flight writes: weights, and what was
 * copied to the device before the first kernel of a step. A launcher that lets a kernel write
 * weights (pack_q) synchronises, because the kernel before this one may itself still be waiting
 * for an earlier one. */
INLINE void wait_for_others(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif

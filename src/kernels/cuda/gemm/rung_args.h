/* rung_args.h: arguments of the ladder's rungs (ladder/ladder.cuh). */
#ifndef LT_KERNELS_CUDA_GEMM_RUNG_ARGS_H
#define LT_KERNELS_CUDA_GEMM_RUNG_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    int m, n, k;
    long long lda, ldb, ldc; /* elements from row to row */
    const LT_ELEM(elem) * a, *b;
    LT_ELEM(elem) * c;
} lt_gemm_rung_args;

/* Dynamic shared memory in bytes: stages of 64 k of A's and B's tiles; for the copy engine also an
 * alignment of 1024 and a barrier per stage. */
#define LT_GEMM_RUNG_BYTES(bm, bn, stages) ((stages) * ((bm) + (bn)) * 128)
#define LT_GEMM_RUNG_COPIED_BYTES(bm, bn, stages)                                                  \
    (1024 + LT_GEMM_RUNG_BYTES(bm, bn, stages) + 8 * (stages))

static_assert(sizeof(lt_gemm_rung_args) == 64, "the same on host and device");

#endif

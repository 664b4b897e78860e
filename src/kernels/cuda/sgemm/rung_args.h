/* rung_args.h: arguments of the ladder's kernels. */
#ifndef LT_KERNELS_CUDA_SGEMM_RUNG_ARGS_H
#define LT_KERNELS_CUDA_SGEMM_RUNG_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const float *a, *b;
    float *c;
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
} lt_cuda_sgemm_rung_args;

static_assert(sizeof(lt_cuda_sgemm_rung_args) == 56, "the same on host and device");

#endif

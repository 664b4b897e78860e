/* sgemm_args.h: arguments of sgemm.cu, after the maps of A and B where the copy engine reads them
 * (tile.cuh). */
#ifndef LT_KERNELS_CUDA_SGEMM_SGEMM_ARGS_H
#define LT_KERNELS_CUDA_SGEMM_SGEMM_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    float *c;
    int m, n, k, ldc;
    float alpha, beta;
    const float *a, *b; /* Without the copy engine. */
    int lda, ldb;
    LT_ELEM(float4) * sums; /* With PARTS > 1. */
    int *arrived;
} lt_cuda_sgemm_args;

/* Dynamic shared memory in bytes: stages of 32 k of A's and B's tiles. */
#define LT_SGEMM_K                     32
#define LT_SGEMM_BYTES(bm, bn, stages) ((stages)*LT_SGEMM_K * 4 * ((bm) + (bn)))

static_assert(sizeof(lt_cuda_sgemm_args) == 72, "the same on host and device");

#endif

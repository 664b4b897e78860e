/* sum_args.h: arguments of sum.cu. */
#ifndef LT_KERNELS_CUDA_OPS_SUM_ARGS_H
#define LT_KERNELS_CUDA_OPS_SUM_ARGS_H

#include "kernels/cuda/common/args.h"

#define SUM_MOST 16 /* As LT_SUM_MOST. */

typedef struct {
    void *y;
    const float *part;
    const LT_ELEM(DTYPE) * x[SUM_MOST];
    long long count;
    int n;
} lt_cuda_sum_args;

static_assert(sizeof(lt_cuda_sum_args) == 160, "the same on host and device");

#endif

/* widen_args.h: arguments of widen.cu. */
#ifndef LT_KERNELS_CUDA_OPS_WIDEN_ARGS_H
#define LT_KERNELS_CUDA_OPS_WIDEN_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * y;
    const unsigned char *x;
    const float *scale;
    long long ld, rows;
    int cols;
} lt_cuda_widen_args;

static_assert(sizeof(lt_cuda_widen_args) == 48, "the same on host and device");

#endif

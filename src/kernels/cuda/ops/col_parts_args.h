/* col_parts_args.h: arguments of col_parts.cu. */
#ifndef LT_KERNELS_CUDA_OPS_COL_PARTS_ARGS_H
#define LT_KERNELS_CUDA_OPS_COL_PARTS_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    float *parts;
    const LT_ELEM(DTYPE) * x;
    int rows, cols, share;
    long long ld;
} lt_cuda_col_parts_args;

static_assert(sizeof(lt_cuda_col_parts_args) == 40, "the same on host and device");

#endif

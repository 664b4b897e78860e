/* gather_rows_args.h: arguments of gather_rows.cu. */
#ifndef LT_KERNELS_CUDA_OPS_GATHER_ROWS_ARGS_H
#define LT_KERNELS_CUDA_OPS_GATHER_ROWS_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x;
    const int *index, *start;
    long long ldy, ldx;
    int cols, n;
} lt_cuda_gather_rows_args;

static_assert(sizeof(lt_cuda_gather_rows_args) == 56, "the same on host and device");

#endif

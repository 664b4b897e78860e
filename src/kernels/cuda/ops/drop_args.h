/* drop_args.h: arguments of drop.cu. */
#ifndef LT_KERNELS_CUDA_OPS_DROP_ARGS_H
#define LT_KERNELS_CUDA_OPS_DROP_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x;
    unsigned long long seed, stream, first_row, row_step, blocks;
    long long ld_y, ld_x, starts[2], column;
    int rows, cols, seq, piece;
    unsigned threshold;
    float factor;
} lt_cuda_drop_args;

static_assert(sizeof(lt_cuda_drop_args) == 120, "the same on host and device");

#endif

/* penalty_set_args.h: arguments of penalty_set.cu. */
#ifndef LT_KERNELS_CUDA_OPS_PENALTY_SET_ARGS_H
#define LT_KERNELS_CUDA_OPS_PENALTY_SET_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    int *penalties;
    const int *slots, *starts;
    const LT_ELEM(int2) * edits;
    int width;
    long long ld;
} lt_cuda_penalty_set_args;

static_assert(sizeof(lt_cuda_penalty_set_args) == 48, "the same on host and device");

#endif

/* copy_args.h: arguments of copy.cu. */
#ifndef LT_KERNELS_CUDA_COPY_ARGS_H
#define LT_KERNELS_CUDA_COPY_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(uint4) * dst;
    const LT_ELEM(uint4) * src;
    long long n_vecs;
} lt_cuda_copy_args;

static_assert(sizeof(lt_cuda_copy_args) == 24, "the same on host and device");

#endif

/* random_args.h: arguments of random.cu. */
#ifndef LT_KERNELS_CUDA_RANDOM_ARGS_H
#define LT_KERNELS_CUDA_RANDOM_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * x;
    long long n;
    unsigned long long seed;
    float scale;
} lt_cuda_random_fill_args;

static_assert(sizeof(lt_cuda_random_fill_args) == 32, "the same on host and device");

#endif

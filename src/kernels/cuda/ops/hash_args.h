/* hash_args.h: arguments of hash.cu. */
#ifndef LT_KERNELS_CUDA_OPS_HASH_ARGS_H
#define LT_KERNELS_CUDA_OPS_HASH_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    unsigned long long *out;
    const long long *pieces; /* Rows are ld numbers apart. */
    const unsigned char *x;
    long long ld;
} lt_cuda_hash_args;

static_assert(sizeof(lt_cuda_hash_args) == 32, "the same on host and device");

#endif

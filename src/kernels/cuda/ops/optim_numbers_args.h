/* optim_numbers_args.h: the numbers of a step, as optimisers' kernels take them. */
#ifndef LT_KERNELS_CUDA_OPS_OPTIM_NUMBERS_ARGS_H
#define LT_KERNELS_CUDA_OPS_OPTIM_NUMBERS_ARGS_H

#include "kernels/cuda/common/args.h"

/* The numbers of LT_OPTIM_* (tensor/ops.h), in their order. They come from the host, or are read
 * from device memory so that a recorded graph sees new ones. */
typedef struct {
    float lr, grad_scale, correct1, correct2, alpha, beta3, skip, step;
} lt_optim_numbers;

static_assert(sizeof(lt_optim_numbers) == 32, "the same on host and device");

#endif

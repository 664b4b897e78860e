/* optim_args.h: arguments of optim.cu and muon.cu. */
#ifndef LT_KERNELS_CUDA_OPS_OPTIM_ARGS_H
#define LT_KERNELS_CUDA_OPS_OPTIM_ARGS_H

#include "kernels/cuda/common/args.h"

/* The numbers of LT_OPTIM_* (tensor/ops.h), in their order: from the host, or read from device
 * memory so that a recorded graph sees new ones. */
typedef struct {
    float lr, grad_scale, correct1, correct2, alpha, beta3, skip, step;
} lt_optim_numbers;

/* Where the roundings of BF16 moments come from. */
typedef struct {
    unsigned long long seed;
    long long first; /* Place of element 0 in the model. */
} lt_optim_draws;

static_assert(sizeof(lt_optim_numbers) == 32, "the same on host and device");
static_assert(sizeof(lt_optim_draws) == 16, "the same on host and device");

#endif

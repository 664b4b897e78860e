/* moe_bias_args.h: arguments of moe_bias.cu. */
#ifndef LT_KERNELS_CUDA_OPS_MOE_BIAS_ARGS_H
#define LT_KERNELS_CUDA_OPS_MOE_BIAS_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * bias;
    const int *start;
    long long ldy, ld_bias;
    int cols, experts, n;
} lt_cuda_moe_bias_args;

typedef struct {
    float *dbias;
    const LT_ELEM(DTYPE) * dy;
    const int *start;
    long long ld_dbias, lddy;
    int cols, n;
} lt_cuda_moe_bias_bwd_args;

static_assert(sizeof(lt_cuda_moe_bias_args) == 56, "the same on host and device");
static_assert(sizeof(lt_cuda_moe_bias_bwd_args) == 48, "the same on host and device");

#endif

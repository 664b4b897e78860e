/* act_args.h: arguments of act.cu. */
#ifndef LT_KERNELS_CUDA_OPS_ACT_ARGS_H
#define LT_KERNELS_CUDA_OPS_ACT_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x;
    const float *params;
    long long count;
    int cols;
    long long ldy, ldx;
} lt_cuda_act_fwd_args;

typedef struct {
    LT_ELEM(DTYPE) * dx;
    float *parts;
    const LT_ELEM(DTYPE) * dy, *x;
    const float *params;
    long long count;
    int cols;
    long long lddx, lddy, ldx;
} lt_cuda_act_bwd_args;

typedef struct {
    float *dparams;
    const float *parts, *params;
    int n;
} lt_cuda_act_params_args;

static_assert(sizeof(lt_cuda_act_fwd_args) == 56, "the same on host and device");
static_assert(sizeof(lt_cuda_act_bwd_args) == 80, "the same on host and device");
static_assert(sizeof(lt_cuda_act_params_args) == 32, "the same on host and device");

#endif

/* norm_part_args.h: arguments of norm_part.cu. */
#ifndef LT_KERNELS_CUDA_OPS_NORM_PART_ARGS_H
#define LT_KERNELS_CUDA_OPS_NORM_PART_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x;
    const LT_ELEM(PARAM) * gain;
    float *rstd;
    long long ldy, ldx;
    int cols;
    float eps, gain_offset;
} lt_cuda_norm_part_args;

typedef struct {
    LT_ELEM(DTYPE) * dx;
    const LT_ELEM(DTYPE) * dy, *x;
    const LT_ELEM(PARAM) * gain;
    const float *rstd;
    float *mean, *dgain;
    long long lddx, lddy, ldx;
    int rows, cols, add_dx;
    float gain_offset;
} lt_cuda_norm_part_bwd_args;

static_assert(sizeof(lt_cuda_norm_part_args) == 64, "the same on host and device");
static_assert(sizeof(lt_cuda_norm_part_bwd_args) == 96, "the same on host and device");

#endif

/* norm_args.h: where norm.cu and norm_bwd.cu find rows. */
#ifndef LT_KERNELS_CUDA_OPS_NORM_ARGS_H
#define LT_KERNELS_CUDA_OPS_NORM_ARGS_H

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/view_args.h"

typedef struct {
    lt_cuda_view y, x, add, sum; /* forward */
    lt_cuda_view dx, dy;         /* backward, and x */
    lt_cuda_row_shape n;
} lt_norm_views;

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x, *add;
    LT_ELEM(DTYPE) * sum;
    const LT_ELEM(PARAM) * gain, *bias;
    float *mean, *rstd;
    int rows, cols;
    float eps, gain_offset;
    lt_norm_views at;
} lt_cuda_norm_fwd_args;

typedef struct {
    LT_ELEM(DTYPE) * dx;
    float *parts;
    const LT_ELEM(DTYPE) * dy, *x;
    const LT_ELEM(PARAM) * gain;
    const float *mean, *rstd;
    int rows, cols;
    float gain_offset;
    lt_norm_views at;
} lt_cuda_norm_bwd_args;

static_assert(sizeof(lt_norm_views) == 152, "the same on host and device");
static_assert(sizeof(lt_cuda_norm_fwd_args) == 232, "the same on host and device");
static_assert(sizeof(lt_cuda_norm_bwd_args) == 224, "the same on host and device");

#endif

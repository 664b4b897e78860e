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

static_assert(sizeof(lt_norm_views) == 152, "the same on host and device");

#endif

/* add_any_args.h: arguments of add_any.cu. */
#ifndef LT_KERNELS_CUDA_OPS_ADD_ANY_ARGS_H
#define LT_KERNELS_CUDA_OPS_ADD_ANY_ARGS_H

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/view_args.h"

typedef struct {
    LT_ELEM(Y) * y;
    const LT_ELEM(A) * a;
    const LT_ELEM(B) * b;
    lt_cuda_view vy, va, vb;
    long long step_y, step_a, step_b;
    lt_cuda_row_shape n;
    long long rows;
    int cols;
    float alpha, beta;
} lt_cuda_add_any_args;

static_assert(sizeof(lt_cuda_add_any_args) == 152, "the same on host and device");

#endif

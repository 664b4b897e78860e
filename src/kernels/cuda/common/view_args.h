/* view_args.h: where the rows of a strided tensor begin, in the form that kernels take. */
#ifndef LT_KERNELS_CUDA_COMMON_VIEW_ARGS_H
#define LT_KERNELS_CUDA_COMMON_VIEW_ARGS_H

#include "kernels/cuda/common/args.h"

/* A row is the index (i0, i1, i2) of all dimensions but the last; s are their strides in
 * elements. */
typedef struct {
    long long s[3];
} lt_cuda_view;
/* Sizes of the inner two of these dimensions. */
typedef struct {
    int n1, n2;
} lt_cuda_row_shape;

static_assert(sizeof(lt_cuda_view) == 24, "the same on host and device");
static_assert(sizeof(lt_cuda_row_shape) == 8, "the same on host and device");

#endif

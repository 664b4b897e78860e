/* col_sum_args.h: arguments of col_sum.cu. */
#ifndef LT_KERNELS_CUDA_OPS_COL_SUM_ARGS_H
#define LT_KERNELS_CUDA_OPS_COL_SUM_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    float *dst;
    const float *parts;
    int n_parts, cols;
} lt_cuda_col_sum_args;

typedef struct {
    float *dst, *dst2;
    const float *parts;
    int n_first, n_parts, cols;
} lt_cuda_col_sum_split_args;

typedef struct {
    float *dst, *dst2;
    const float *parts;
    int n_parts, cols;
} lt_cuda_col_sum_pair_args;

static_assert(sizeof(lt_cuda_col_sum_args) == 24, "the same on host and device");
static_assert(sizeof(lt_cuda_col_sum_split_args) == 40, "the same on host and device");
static_assert(sizeof(lt_cuda_col_sum_pair_args) == 32, "the same on host and device");

#endif

/* rearrange_args.h: arguments of rearrange.cu. */
#ifndef LT_KERNELS_CUDA_OPS_REARRANGE_ARGS_H
#define LT_KERNELS_CUDA_OPS_REARRANGE_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    float *dst;
    const float *src;
    int rows, cols;
    long long ld, pitch;
} lt_cuda_transpose_fp32_args;

typedef struct {
    float *dst;
    const float *src;
    int cols;
    long long ld, pitch;
} lt_cuda_copy_rows_fp32_args;

typedef struct {
    float *y;
    const float *bias;
    int cols;
    long long ld;
    int accumulate;
} lt_cuda_bias_rows_fp32_args;

static_assert(sizeof(lt_cuda_transpose_fp32_args) == 40, "the same on host and device");
static_assert(sizeof(lt_cuda_copy_rows_fp32_args) == 40, "the same on host and device");
static_assert(sizeof(lt_cuda_bias_rows_fp32_args) == 40, "the same on host and device");

#endif

/* elementwise_args.h: arguments of elementwise.cu. */
#ifndef LT_KERNELS_CUDA_OPS_ELEMENTWISE_ARGS_H
#define LT_KERNELS_CUDA_OPS_ELEMENTWISE_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * a, *b;
    long long count;
    float alpha, beta;
} lt_cuda_add_args;

typedef struct {
    unsigned *dst;
    long long stride, words;
} lt_cuda_zero_pieces_args;

typedef struct {
    LT_ELEM(DTYPE) * y;
    const float *x;
    long long count;
} lt_cuda_cast_from_fp32_args;

typedef struct {
    float *y;
    const LT_ELEM(DTYPE) * x;
    long long count;
} lt_cuda_cast_to_fp32_args;

static_assert(sizeof(lt_cuda_add_args) == 40, "the same on host and device");
static_assert(sizeof(lt_cuda_zero_pieces_args) == 24, "the same on host and device");
static_assert(sizeof(lt_cuda_cast_from_fp32_args) == 24, "the same on host and device");
static_assert(sizeof(lt_cuda_cast_to_fp32_args) == 24, "the same on host and device");

#endif

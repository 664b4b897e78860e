/* check_args.h: arguments of check.cu. */
#ifndef LT_KERNELS_CUDA_CHECK_ARGS_H
#define LT_KERNELS_CUDA_CHECK_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    double *ref, *bound;
    const LT_ELEM(DTYPE) * a, *b;
    const float *c0;
    int m, n, k;
    long long a_row, a_col, b_row, b_col;
    int ldc;
    float alpha, beta;
} lt_cuda_gemm_ref_args;

typedef struct {
    double *out;
    const LT_ELEM(DTYPE) * x;
    const double *ref, *bound;
    long long rows, cols, ld;
} lt_cuda_diff_args;

typedef struct {
    double *out;
    const LT_ELEM(DTYPE) * x;
    const double *ref;
    long long n;
} lt_cuda_diff_grid_args;

static_assert(sizeof(lt_cuda_gemm_ref_args) == 104, "the same on host and device");
static_assert(sizeof(lt_cuda_diff_args) == 56, "the same on host and device");
static_assert(sizeof(lt_cuda_diff_grid_args) == 32, "the same on host and device");

#endif

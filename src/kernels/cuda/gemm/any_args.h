/* any_args.h: arguments of gemm_any.cu. */
#ifndef LT_KERNELS_CUDA_GEMM_ANY_ARGS_H
#define LT_KERNELS_CUDA_GEMM_ANY_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const LT_ELEM(IN) * a, *b;
    const void *bias;
    LT_ELEM(OUT) * y;
    const int *start;
    long long a_m, a_k, b_k, b_n, b_e, y_m, y_e;
    int m, n, k;
    int bias_type; /* 0 none, 1 F32, 2 BF16, 3 F16. */
    int accumulate;
} lt_gemm_any_args;

static_assert(sizeof(lt_gemm_any_args) == 120, "the same on host and device");

#endif

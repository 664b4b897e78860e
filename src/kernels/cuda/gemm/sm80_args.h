/* sm80_args.h: arguments of gemm_sm80.cu. */
#ifndef LT_KERNELS_CUDA_GEMM_SM80_ARGS_H
#define LT_KERNELS_CUDA_GEMM_SM80_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const LT_ELEM(elem) * a, *b;
    const void *bias;
    LT_ELEM(OUT) * y;
    long long lda, ldb, ldy;
    int m, n, k;
    int bias_type; /* 0 none, 1 f32, 2 bf16, 3 fp16 */
    int accumulate;
} lt_gemm_sm80_args;

static_assert(sizeof(lt_gemm_sm80_args) == 80, "the same on host and device");

#endif

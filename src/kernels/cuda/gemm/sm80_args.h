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

/* Dynamic shared memory of gemm_sm80.cu in bytes: three stages of a tile of A and of B, each of
 * 128 x 32 with rows padded by 8 elements; the larger of both layouts. */
#define LT_GEMM_SM80_BYTES (3 * 2 * (128 * (32 + 8) > 32 * (128 + 8) ? 128 * 40 : 32 * 136) * 2)

static_assert(sizeof(lt_gemm_sm80_args) == 80, "the same on host and device");

#endif

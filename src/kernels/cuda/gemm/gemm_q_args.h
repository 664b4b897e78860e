/* gemm_q_args.h: arguments of gemm_q.cu. */
#ifndef LT_KERNELS_CUDA_GEMM_GEMM_Q_ARGS_H
#define LT_KERNELS_CUDA_GEMM_GEMM_Q_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const LT_ELEM(elem) * x;
    const unsigned char *w;
    const void *bias;
    LT_ELEM(OUT) * y;
    long long ldx, ldy;
    int m, n, k, bias_type, accumulate; /* bias_type: 0 none, 1 f32, 2 bf16, 3 fp16 */
} lt_gemm_q_args;

static_assert(sizeof(lt_gemm_q_args) == 72, "the same on host and device");

#endif

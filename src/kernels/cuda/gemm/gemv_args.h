/* gemv_args.h: arguments of gemv.cu. */
#ifndef LT_KERNELS_CUDA_GEMM_GEMV_ARGS_H
#define LT_KERNELS_CUDA_GEMM_GEMV_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const LT_ELEM(elem) * x, *w;
    const void *bias;
    LT_ELEM(OUT) * y;
    long long ldx, ldw, ldy;
    int n, k, bias_type, accumulate; /* bias_type: 0 none, 1 f32, 2 bf16, 3 fp16 */
} lt_gemv_args;

/* product.w: the first expert's; start (experts + 1). */
typedef struct {
    lt_gemv_args product;
    const int *start;
    long long next_expert;
    int experts;
} lt_gemv_grouped_args;

static_assert(sizeof(lt_gemv_grouped_args) == 96, "the same on host and device");
static_assert(sizeof(lt_gemv_args) == 72, "the same on host and device");

#endif

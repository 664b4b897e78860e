/* few_args.h: arguments of gemm_few.cu and gemm_q_sm90.cu (few_sums.cuh). */
#ifndef LT_KERNELS_CUDA_GEMM_FEW_ARGS_H
#define LT_KERNELS_CUDA_GEMM_FEW_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const void *bias;
    LT_ELEM(OUT) * y;
    long long ldy;
    int m, n, k, bias_type, accumulate; /* bias_type: 0 none, 1 f32, 2 bf16, 3 fp16 */
    LT_ELEM(elem) * act;                /* GATED */
    long long ld_act;
} lt_gemm_few_args;

/* Stages of the rings of gemm_q_sm90.cu. x: 2 at least: the next 64 columns are waited for before
 * the last are given back. */
typedef struct {
    int w_stages, x_stages;
} lt_gemm_q_depths;

static_assert(sizeof(lt_gemm_few_args) == 64, "the same on host and device");
static_assert(sizeof(lt_gemm_q_depths) == 8, "the same on host and device");

#endif

/* ring_args.h: arguments of gemv_ring.cu and gemm_q_ring.cu (beside.cuh). */
#ifndef LT_KERNELS_CUDA_GEMM_RING_ARGS_H
#define LT_KERNELS_CUDA_GEMM_RING_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const LT_ELEM(elem) * x;
    const void *w;
    const void *bias;
    LT_ELEM(OUT) * y;
    long long ldx, ldw, ldy;
    int n, k, bias_type, accumulate; /* bias_type: 0 none, 1 f32, 2 bf16, 3 fp16 */
    const LT_ELEM(elem) * add;       /* NORM */
    LT_ELEM(elem) * sum, *normed;
    const LT_ELEM(PARAM) * gain;
    float *rstd;
    long long ld_add, ld_sum, ld_normed;
    float eps, gain_offset;
    int q_heads, kv_heads, dim; /* TAIL 2 */
    const int *positions, *slots;
    const float *table;
    LT_ELEM(elem) * k_pages, *v_pages;
    LT_ELEM(elem) * act; /* TAIL 1 */
    long long ld_act;
} lt_gemv_ring_args;

static_assert(sizeof(lt_gemv_ring_args) == 216, "the same on host and device");

#endif

/* experts_args.h: what gemv.cu and gemm_q.cu do beside the products of experts (GATED): rows are
 * gathered before it, and a gated activation follows. */
#ifndef LT_KERNELS_CUDA_GEMM_EXPERTS_ARGS_H
#define LT_KERNELS_CUDA_GEMM_EXPERTS_ARGS_H

#include "kernels/cuda/common/args.h"

/* Row i in the order of experts is row slot_row[i] / top_k of the product's x; `gathered` gets a
 * copy. The product's n columns are gates; as many factors are y's next columns, from the matrices
 * `factors`, which follow each other as those of the gates do. act (rows, n). */
typedef struct {
    const int *slot_row;
    const void *factors;
    LT_ELEM(elem) * gathered, *act;
    long long ld_gathered, ld_act;
    int top_k;
} lt_experts_up_args;

static_assert(sizeof(lt_experts_up_args) == 56, "the same on host and device");

#endif

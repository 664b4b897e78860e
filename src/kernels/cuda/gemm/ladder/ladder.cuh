/* ladder.cuh: shared by the first rungs of the GEMM ladder: the arguments and the store of C. C (m,
 * n) = A (m, k) B^T, B stored (n, k): a linear layer. All rows 16-byte aligned; n even. */
#ifndef LT_CUDA_GEMM_LADDER_CUH
#define LT_CUDA_GEMM_LADDER_CUH

#include "common/hopper.cuh"
#include "kernels/cuda/gemm/rung_args.h"

/* Two neighbouring sums, rounded and stored, unless they lie outside. */
INLINE void store_pair(const lt_gemm_rung_args *a, int row, int col, float x, float y) {
    if (row < a->m && col < a->n) {
        *(u32 *)(a->c + row * a->ldc + col) = PACK_ELEM(x, y);
    }
}

#endif

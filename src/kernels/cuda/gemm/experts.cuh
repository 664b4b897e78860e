/* experts.cuh: rows that are gathered while they are multiplied, and the gated activation behind
 * (experts_args.h). -D KIND: 0 GELU (tanh), 2 SiLU. */
#ifndef LT_CUDA_GEMM_EXPERTS_CUH
#define LT_CUDA_GEMM_EXPERTS_CUH

#include "common/act.cuh"
#include "common/hopper.cuh"
#include "kernels/cuda/gemm/experts_args.h"

/* The row of x for row i in the order of experts. */
INLINE const elem *gathered_row(const lt_experts_up_args *up, const elem *x, i64 ldx, int i) {
    return x + up->slot_row[i] / up->top_k * ldx;
}
/* The block copies `rows` rows from row `first` on. k: their width, a multiple of 8. */
INLINE void gather_rows(const lt_experts_up_args *up, const elem *x, i64 ldx, int first, int rows,
                        int k) {
    for (int i = (int)threadIdx.x; i < rows * (k / 8); i += (int)blockDim.x) {
        const int row = first + i / (k / 8), at = i % (k / 8) * 8;
        *(uint4 *)(up->gathered + row * up->ld_gathered +
                   at) = *(const uint4 *)(gathered_row(up, x, ldx, row) + at);
    }
}
/* act = f(gate) factor, of the numbers as y holds them: with the bits of act.cu. */
INLINE void store_gated(const lt_experts_up_args *up, int row, int col, float gate, float factor) {
    const float x = ELEM_F32(FROM_F32(DTYPE, gate)), y = ELEM_F32(FROM_F32(DTYPE, factor));
    up->act[row * up->ld_act + col] = FROM_F32(DTYPE, (KIND == 2 ? silu(x) : gelu_tanh(x)) * y);
}

#endif

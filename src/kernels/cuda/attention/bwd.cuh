/* bwd.cuh: the buffers that the kernels of attention's backward pass share. */
#ifndef LT_CUDA_ATTENTION_BWD_CUH
#define LT_CUDA_ATTENTION_BWD_CUH

#include "attention/mask.cuh"
#include "attention/rows.cuh"

/* Number of (batch, key head) pairs. */
INLINE int pairs_of(const lt_attn_args *a) {
    return a->batch * a->kv_heads;
}

/* Stores a warpgroup's 64 rows of sums times scale from registers, 16 bytes per lane: rows first ..
 * first + 63, below n_rows and of `width` columns, of a (batch, head) that begins at `to`. */
INLINE void store_rows(const float sum[HEAD_DIM / 2], float scale, elem *to, i64 row_ld, int first,
                       int n_rows, int width) {
    const int warp = (int)threadIdx.x % 128 / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + 16 * warp + lane / 4 + 8 * h;
        store_row(sum, h, scale, to + row * row_ld, row < n_rows, width);
    }
}

#endif

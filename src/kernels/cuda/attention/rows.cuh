/* rows.cuh: stores rows of sums from a warpgroup's registers, in the order in which wgmma leaves
 * them, to memory in pieces of 16 bytes. Forward and backward use it. */
#ifndef LT_CUDA_ATTENTION_ROWS_CUH
#define LT_CUDA_ATTENTION_ROWS_CUH

#include "common/hopper.cuh"

/* The four lanes of a quad hold two columns each of a row's columns 8 k .. 8 k + 7, for each k:
 * x[k] for four k. Lane i receives all columns of k = i. */
INLINE uint4 quad_turn(const u32 x[4]) {
    const bool odd = threadIdx.x % 2 == 1, high = threadIdx.x / 2 % 2 == 1;
    const u32 a = __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 1),
              b = __shfl_xor_sync(0xffffffffu, odd ? x[2] : x[3], 1);
    const u32 y[4] = {odd ? a : x[0], odd ? x[1] : a, odd ? b : x[2], odd ? x[3] : b};
    const u32 c = __shfl_xor_sync(0xffffffffu, high ? y[0] : y[2], 2),
              d = __shfl_xor_sync(0xffffffffu, high ? y[1] : y[3], 2);
    return high ? make_uint4(c, d, y[2], y[3]) : make_uint4(y[0], y[1], c, d);
}
/* Store a warpgroup's 64 rows of sums: a thread's row h (of two) times scale, `width` columns
 * starting at `to`. All lanes call it; those whose row does not exist store nothing. */
INLINE void store_row(const float sum[HEAD_DIM / 2], int h, float scale, elem *to, bool there,
                      int width) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i += 4) {
        const int column = 8 * (i + lane % 4);
        u32 x[4];
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float *y = sum + 4 * (i + k) + 2 * h;
            x[k] = PACK_ELEM(y[0] * scale, y[1] * scale);
        }
        const uint4 whole = quad_turn(x);
        if (there && column < width) {
            *(uint4 *)(to + column) = whole;
        }
    }
}

#endif

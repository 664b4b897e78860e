/* col_parts.cu — parts (n, cols) fp32 = sums of `share` rows each of x (rows, cols): the first half
 * of a bias's gradient; col_sum.cu adds the parts.
 *
 * MAP       a block owns 32 * W columns and `share` rows; its 8 warps take every eighth row, 16
 *           bytes a lane, and meet in shared memory.
 * BOUND     2 bytes an element (bf16): reads alone.
 * NUMERICS  f32 in a fixed order of rows; share depends on the shape and the number of SMs only. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/col_parts_args.h"

#define WARPS 8
#define AHEAD 8 /* Rows of a warp. */
/* Blocks per SM, as the launcher divides the rows: there are registers for all loads in flight. */
#define BLOCKS 4

INLINE void add(float *sum, raw piece) {
    float f[W];
    raw_unpack(f, piece);
#pragma unroll
    for (int i = 0; i < W; i++) {
        sum[i] += f[i];
    }
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, BLOCKS)
    col_parts(const lt_cuda_col_parts_args w) {
    __shared__ float sums[WARPS][WARP * W];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP,
              col = (blockIdx.x * WARP + lane) * W;
    const int first = blockIdx.y * w.share, last = min(w.rows, first + w.share);
    float sum[W] = {0.0f};
    int row = first + warp;
    wait_for_others();
    const DTYPE *x = w.x + (col < w.cols ? row * w.ld + col : 0);
    for (; row + (AHEAD - 1) * WARPS < last && col < w.cols;
         row += AHEAD * WARPS, x += AHEAD * WARPS * w.ld) {
        raw held[AHEAD]; /* Start all loads before the first is used. */
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            held[a] = raw_load_once(x + a * WARPS * w.ld);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            add(sum, held[a]);
        }
    }
    for (; row < last && col < w.cols; row += WARPS, x += WARPS * w.ld) {
        add(sum, raw_load_once(x));
    }
#pragma unroll
    for (int i = 0; i < W; i++) {
        sums[warp][lane * W + i] = sum[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < WARP * W; i += WARPS * WARP) {
        const int at = blockIdx.x * WARP * W + i;
        float total = 0.0f;
#pragma unroll
        for (int g = 0; g < WARPS; g++) {
            total += sums[g][i];
        }
        if (at < w.cols) {
            w.parts[(i64)blockIdx.y * w.cols + at] = total;
        }
    }
}

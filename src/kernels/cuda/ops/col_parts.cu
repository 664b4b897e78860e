/* col_parts.cu — parts (n, cols) fp32 = sums of `share` rows each of x (rows, cols): the first half
 * of a bias's gradient; col_sum.cu adds the parts.
 *
 * MAP       a block owns 32 * W columns and `share` rows; its 8 warps take every eighth row, 16
 *           bytes a lane, and meet in shared memory.
 * BOUND     2 bytes an element (bf16): reads alone.
 * NUMERICS  f32 in a fixed order of rows; share depends on the shape and the number of SMs only. */
#include "common/vec.cuh"

#define WARPS  8
#define AHEAD  8 /* Rows of a warp. */
#define BLOCKS 4 /* An SM, as the launcher cuts the rows: registers for all that is on its way. */

INLINE void add(float *sum, raw piece) {
    float f[W];
    raw_unpack(f, piece);
#pragma unroll
    for (int i = 0; i < W; i++) {
        sum[i] += f[i];
    }
}

extern "C" __global__ void __launch_bounds__(WARPS *WARP, BLOCKS)
    col_parts(float *parts, const DTYPE *x, int rows, int cols, int share, i64 ld) {
    __shared__ float sums[WARPS][WARP * W];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP,
              col = (blockIdx.x * WARP + lane) * W;
    const int first = blockIdx.y * share, last = min(rows, first + share);
    float sum[W] = {0.0f};
    int row = first + warp;
    wait_for_others();
    x += col < cols ? row * ld + col : 0;
    for (; row + (AHEAD - 1) * WARPS < last && col < cols;
         row += AHEAD * WARPS, x += AHEAD * WARPS * ld) {
        raw held[AHEAD]; /* All on their way before the first is used. */
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            held[a] = raw_load_once(x + a * WARPS * ld);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            add(sum, held[a]);
        }
    }
    for (; row < last && col < cols; row += WARPS, x += WARPS * ld) {
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
        if (at < cols) {
            parts[(i64)blockIdx.y * cols + at] = total;
        }
    }
}

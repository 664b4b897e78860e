/* col_parts.cu — parts (n, cols) fp32 = sums of `share` rows each of x (rows, cols): the first half of a bias's gradient; col_sum.cu adds the parts.
 *
 * MAP       a block owns 32 * W columns and `share` rows; its 8 warps take every eighth row, 16 bytes a lane, and meet in shared memory.
 * BOUND     2 bytes an element (bf16): reads alone.
 * NUMERICS  f32 in a fixed order of rows; share depends on the shape and the number of SMs only.
 *@spec sm_80 sm_90a: DTYPE=bf16 W=8
 *@spec sm_80 sm_90a: DTYPE=fp32 W=1 */
#include "common/vec.cuh"

#define WARPS 8

extern "C" __global__ void __launch_bounds__(WARPS *WARP) col_parts(float *parts, const DTYPE *x, int rows, int cols, int share, i64 ld) {
    __shared__ float sums[WARPS][WARP * W];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, col = (blockIdx.x * WARP + lane) * W;
    const int first = blockIdx.y * share, last = min(rows, first + share);
    float sum[W] = {0.0f};
    if (col < cols) {
#pragma unroll 4
        for (int row = first + warp; row < last; row += WARPS) {
            float f[W];
            piece_load(f, x + row * ld + col);
#pragma unroll
            for (int i = 0; i < W; i++) {
                sum[i] += f[i];
            }
        }
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

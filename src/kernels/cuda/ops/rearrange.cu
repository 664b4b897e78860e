/* rearrange.cu: what a product needs done to fp32 matrices before it: a transposed copy, a copy
 * whose rows are aligned, and rows that begin as the bias.
 *
 * SHAPES    transpose: dst (cols, rows), rows `pitch` apart, = src (rows, cols), rows ld apart.
 *           copy_rows: dst (rows, cols) = src likewise. bias_rows: y (rows, cols) = bias (+ y).
 * MAP       transpose: tiles of 32 x 32 through shared memory, both sides coalesced. copy_rows: a
 *           block 2048 columns of a row. bias_rows: a thread an element.
 * BOUND     8 bytes an element. */
#include "common/types.cuh"

#define TILE 32

extern "C" __global__ void __launch_bounds__(TILE * 8)
    transpose_fp32(float *dst, const float *src, int rows, int cols, i64 ld, i64 pitch) {
    __shared__ float tile[TILE][TILE + 1];
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE, col0 = blockIdx.x * TILE,
              row0 = blockIdx.y * TILE;
#pragma unroll
    for (int i = y; i < TILE; i += 8) {
        if (row0 + i < rows && col0 + x < cols) {
            tile[i][x] = src[(i64)(row0 + i) * ld + col0 + x];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = y; i < TILE; i += 8) {
        if (col0 + i < cols && row0 + x < rows) {
            dst[(i64)(col0 + i) * pitch + row0 + x] = tile[x][i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    copy_rows_fp32(float *dst, const float *src, int cols, i64 ld, i64 pitch) {
    const float *const from = src + blockIdx.x * ld;
    float *const to = dst + blockIdx.x * pitch;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int col = (blockIdx.y * 8 + i) * 256 + threadIdx.x;
        if (col < cols) {
            to[col] = from[col];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    bias_rows_fp32(float *y, const float *bias, int cols, i64 ld, int accumulate) {
    const int col = blockIdx.y * 256 + threadIdx.x;
    float *const at = y + (i64)blockIdx.x * ld + col;
    if (col < cols) {
        *at = bias[col] + (accumulate ? *at : 0.0f);
    }
}

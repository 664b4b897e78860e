/* rearrange.cu: preparations of fp32 matrices for a product: a transposed copy, a copy with
 * aligned rows, and rows that start with the bias.
 *
 * SHAPES    transpose: dst (cols, rows), rows `pitch` apart, = src (rows, cols), rows ld apart.
 *           copy_rows: dst (rows, cols) = src likewise. bias_rows: y (rows, cols) = bias (+ y).
 * MAP       transpose: tiles of 32 x 32 through shared memory, both sides coalesced. copy_rows:
 *           one block per 2048 columns of a row. bias_rows: one thread per element.
 * BOUND     8 bytes per element. */
#include "common/types.cuh"
#include "kernels/cuda/ops/rearrange_args.h"

#define TILE 32

extern "C" __global__ void __launch_bounds__(TILE * 8)
    transpose_fp32(const lt_cuda_transpose_fp32_args w) {
    __shared__ float tile[TILE][TILE + 1];
    const int x = threadIdx.x % TILE, y = threadIdx.x / TILE, col0 = blockIdx.x * TILE,
              row0 = blockIdx.y * TILE;
#pragma unroll
    for (int i = y; i < TILE; i += 8) {
        if (row0 + i < w.rows && col0 + x < w.cols) {
            tile[i][x] = w.src[(i64)(row0 + i) * w.ld + col0 + x];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = y; i < TILE; i += 8) {
        if (col0 + i < w.cols && row0 + x < w.rows) {
            w.dst[(i64)(col0 + i) * w.pitch + row0 + x] = tile[x][i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    copy_rows_fp32(const lt_cuda_copy_rows_fp32_args w) {
    const float *const from = w.src + blockIdx.x * w.ld;
    float *const to = w.dst + blockIdx.x * w.pitch;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int col = (blockIdx.y * 8 + i) * 256 + threadIdx.x;
        if (col < w.cols) {
            to[col] = from[col];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    bias_rows_fp32(const lt_cuda_bias_rows_fp32_args w) {
    const int col = blockIdx.y * 256 + threadIdx.x;
    float *const at = w.y + (i64)blockIdx.x * w.ld + col;
    if (col < w.cols) {
        *at = w.bias[col] + (w.accumulate ? *at : 0.0f);
    }
}

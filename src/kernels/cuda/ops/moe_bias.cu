/* moe_bias.cu — biases of experts, forward and backward, on rows in expert order (tensor/ops.h).
 *
 * SHAPES    y, dy (rows, N) of DTYPE; bias (E, N) of DTYPE; dbias (E, N) fp32; expert_start (E + 1)
 *           int32, the last of which is the number of rows that count.
 * MAP       forward: TEAM threads per row, W elements per piece; a binary search in expert_start
 *           finds the row's expert. backward: a block takes 32 W columns of one expert, each of
 *           its 8 warps every eighth row, and then adds up the warps.
 * BOUND     y is moved twice, dy once. 16384 x 5760 bf16: 377 MB forward, 0.13 ms at 3 TB/s.
 * NUMERICS  forward: one more rounding, after that of the product. backward: fp32 in a fixed
 *           order. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/moe_bias_args.h"

#define THREADS 256
#define WARPS   (THREADS / WARP)
#ifndef TEAM
#define TEAM THREADS
#endif
#define TEAMS (THREADS / TEAM)
static_assert(TEAM == WARP || TEAM == THREADS, "a row belongs to a warp or to the block");

extern "C" __global__ void __launch_bounds__(THREADS) moe_bias(const lt_cuda_moe_bias_args w) {
    const i64 row = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    wait_for_others();
    if (row >= min(w.n, w.start[w.experts])) {
        return;
    }
    int low = 0, high = w.experts; /* start[low] <= row < start[high]. */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (w.start[middle] <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const DTYPE *const bias = w.bias + low * w.ld_bias;
    DTYPE *const y = w.y + row * w.ldy;
    for (int col = threadIdx.x % TEAM * W; col < w.cols; col += TEAM * W) {
        float f[W], b[W];
        piece_load(f, y + col);
        piece_load(b, bias + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            f[i] += b[i];
        }
        piece_store(y + col, f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    moe_bias_bwd(const lt_cuda_moe_bias_bwd_args w) {
    __shared__ float sums[WARPS][WARP * W];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, expert = blockIdx.y,
              col = (blockIdx.x * WARP + lane) * W;
    wait_for_others();
    const int end = min(w.n, w.start[expert + 1]);
    float sum[W] = {0.0f};
    for (int row = w.start[expert] + warp; row < end && col < w.cols; row += WARPS) {
        float f[W];
        piece_load_stream(f, w.dy + row * w.lddy + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            sum[i] += f[i];
        }
    }
#pragma unroll
    for (int i = 0; i < W; i++) {
        sums[warp][lane * W + i] = sum[i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < WARP * W; i += THREADS) {
        const int at = blockIdx.x * WARP * W + i;
        float total = 0.0f;
#pragma unroll
        for (int g = 0; g < WARPS; g++) {
            total += sums[g][i];
        }
        if (at < w.cols) {
            w.dbias[expert * w.ld_dbias + at] += total;
        }
    }
}

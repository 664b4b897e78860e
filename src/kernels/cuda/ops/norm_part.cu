/* norm_part.cu — RMSNorm of rows whose other columns other ranks hold: each rank computes the
 * mean square of its own columns, the ranks average these, and each continues from the average
 * (tensor/ops.h, lt_norm_part).
 *
 * SHAPES    x, y, dy, dx (rows, C) of DTYPE, rows at any stride; gain (C) of PARAM; dgain (C)
 *           fp32; rstd, mean (rows) fp32.
 * MAP       a block of 256 threads per row; W elements per piece. part_gain: a block takes 32 W
 *           columns; each of its 8 warps takes every eighth row, and the block then adds up the
 *           warps.
 * BOUND     x is read once for its mean square, and then x and y (or x, dy and dx) are moved
 *           once: memory bound.
 * NUMERICS  fp32 in a fixed order. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/norm_part_args.h"

#define THREADS 256
#define WARPS   (THREADS / WARP)

/* rstd[row] = mean(x^2). */
extern "C" __global__ void __launch_bounds__(THREADS) part_measure(const lt_cuda_norm_part_args a) {
    __shared__ float slots[WARPS];
    const DTYPE *x = a.x + (i64)blockIdx.x * a.ldx;
    float sum = 0.0f;
    wait_for_others();
    for (int col = threadIdx.x * W; col < a.cols; col += THREADS * W) {
        float f[W];
        piece_load(f, x + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            sum += f[i] * f[i];
        }
    }
    sum = block_sum(sum, slots, WARPS);
    if (threadIdx.x == 0) {
        a.rstd[blockIdx.x] = sum / (float)a.cols;
    }
}

/* rstd[row] is computed from the mean of squares that is stored there; y = x * rstd * gain. */
extern "C" __global__ void __launch_bounds__(THREADS) part_scale(const lt_cuda_norm_part_args a) {
    const DTYPE *x = a.x + (i64)blockIdx.x * a.ldx;
    DTYPE *y = a.y + (i64)blockIdx.x * a.ldy;
    wait_for_others();
    const float rstd = rsqrtf(a.rstd[blockIdx.x] + a.eps);
    __syncthreads(); /* All threads have read it. */
    if (threadIdx.x == 0) {
        a.rstd[blockIdx.x] = rstd;
    }
    for (int col = threadIdx.x * W; col < a.cols; col += THREADS * W) {
        float f[W], g[W];
        piece_load(f, x + col);
        piece_load_param(g, a.gain + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            f[i] *= rstd * (a.gain_offset + g[i]);
        }
        piece_store(y + col, f);
    }
}

/* mean[row] = mean(gain dy x rstd). */
extern "C" __global__ void __launch_bounds__(THREADS)
    part_measure_bwd(const lt_cuda_norm_part_bwd_args a) {
    __shared__ float slots[WARPS];
    const DTYPE *x = a.x + (i64)blockIdx.x * a.ldx, *dy = a.dy + (i64)blockIdx.x * a.lddy;
    float sum = 0.0f;
    wait_for_others();
    for (int col = threadIdx.x * W; col < a.cols; col += THREADS * W) {
        float f[W], d[W], g[W];
        piece_load(f, x + col);
        piece_load(d, dy + col);
        piece_load_param(g, a.gain + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            sum += (a.gain_offset + g[i]) * d[i] * f[i];
        }
    }
    sum = block_sum(sum, slots, WARPS);
    if (threadIdx.x == 0) {
        a.mean[blockIdx.x] = sum * a.rstd[blockIdx.x] / (float)a.cols;
    }
}

/* dx [+]= rstd (gain dy - x rstd mean); dx may be dy. */
extern "C" __global__ void __launch_bounds__(THREADS)
    part_scale_bwd(const lt_cuda_norm_part_bwd_args a) {
    const DTYPE *x = a.x + (i64)blockIdx.x * a.ldx, *dy = a.dy + (i64)blockIdx.x * a.lddy;
    DTYPE *dx = a.dx + (i64)blockIdx.x * a.lddx;
    wait_for_others();
    const float rstd = a.rstd[blockIdx.x], mean = a.mean[blockIdx.x];
    for (int col = threadIdx.x * W; col < a.cols; col += THREADS * W) {
        float f[W], d[W], g[W], old[W] = {0.0f};
        piece_load(f, x + col);
        piece_load(d, dy + col);
        piece_load_param(g, a.gain + col);
        if (a.add_dx) {
            piece_load(old, dx + col);
        }
#pragma unroll
        for (int i = 0; i < W; i++) {
            f[i] = old[i] + rstd * ((a.gain_offset + g[i]) * d[i] - f[i] * rstd * mean);
        }
        piece_store(dx + col, f);
    }
}

/* dgain += column sums of dy x rstd. */
extern "C" __global__ void __launch_bounds__(THREADS)
    part_gain(const lt_cuda_norm_part_bwd_args a) {
    __shared__ float sums[WARPS][WARP * W];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP,
              col = (blockIdx.x * WARP + lane) * W;
    float sum[W] = {0.0f};
    wait_for_others();
    for (int row = warp; row < a.rows && col < a.cols; row += WARPS) {
        float f[W], d[W];
        const float rstd = a.rstd[row];
        piece_load(f, a.x + (i64)row * a.ldx + col);
        piece_load(d, a.dy + (i64)row * a.lddy + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            sum[i] += d[i] * f[i] * rstd;
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
        if (at < a.cols) {
            a.dgain[at] += total;
        }
    }
}

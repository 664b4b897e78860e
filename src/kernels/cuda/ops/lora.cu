/* lora.cu — adapters of rows that each have their own, in two kernels: u = x A^T, then y += s u B.
 * Formula: tensor/ops.h.
 *
 * SHAPES    x (n, in), a (places, parts, rank, in), u (n, n_u = parts rank) fp32; y (n, out),
 *           b (places, rank, out); place (n) int32. Pieces of W elements; W = 1 takes any width and
 *           alignment.
 * MAP       lora_shrink: a block has 8 warps and belongs to 8 / TEAM numbers of u of one row
 *           (blockIdx.y); TEAM warps share a number, each every TEAM-th piece of 32 W elements.
 *           lora_expand: a thread has W columns of one row and adds its rank products to them.
 * MOVEMENT  x row: L2 ──▶ registers, by each warp; A and B: HBM once a row, or L2 where rows share
 *           an adapter; u: 4 bytes a number, through L2.
 * BOUND     the bytes of the A and B that rows use; with few rows the latency of two launches.
 * MEASURED  not yet.
 * NUMERICS  fp32; a fixed order of sums, which in, rank and W alone decide. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/lora_args.h"

#define THREADS 256
#define WARPS   (THREADS / WARP)
#define COLUMNS (THREADS * W) /* Columns of a block of lora_expand. */

extern "C" __global__ void __launch_bounds__(THREADS)
    lora_shrink(const lt_cuda_lora_shrink_args s) {
    __shared__ float parts[WARPS];
    const int row = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int j = blockIdx.x * (WARPS / TEAM) + warp / TEAM;
    float sum = 0.0f;
    wait_for_others();
    const int place = s.place[row];
    if (place < 0) {
        return;
    }
    if (j < s.n_u) {
        const DTYPE *const x = s.x + row * s.ld_x;
        const DTYPE *const a = s.a + place * s.next_a + j / s.rank * s.part_a + j % s.rank * s.ld_a;
#pragma unroll 4
        for (int k = ((warp % TEAM) * WARP + lane) * W; k < s.in; k += TEAM * WARP * W) {
            float fx[W], fa[W];
            piece_load(fx, x + k);
            piece_load(fa, a + k);
#pragma unroll
            for (int i = 0; i < W; i++) {
                sum += fx[i] * fa[i];
            }
        }
    }
    sum = warp_sum(sum);
    if (TEAM > 1) {
        if (lane == 0) {
            parts[warp] = sum;
        }
        __syncthreads();
        sum = 0.0f;
#pragma unroll
        for (int i = 0; i < TEAM; i++) {
            sum += parts[warp / TEAM * TEAM + i];
        }
    }
    if (j < s.n_u && lane == 0 && warp % TEAM == 0) {
        s.u[(i64)row * s.n_u + j] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    lora_expand(const lt_cuda_lora_expand_args e) {
    const int row = blockIdx.y;
    int part = 0, first = 0, columns = e.columns[0], of_y = e.of_y[0], of_b = e.of_b[0];
    wait_for_others();
    const int place = e.place[row];
    if (place < 0) {
        return;
    }
#pragma unroll
    for (int i = 1; i < LT_LORA_MOST_PARTS; i++) {
        if ((int)blockIdx.x >= e.block[i]) {
            part = i, first = e.block[i], columns = e.columns[i];
            of_y = e.of_y[i], of_b = e.of_b[i];
        }
    }
    const int c = ((int)blockIdx.x - first) * COLUMNS + threadIdx.x * W;
    if (c >= columns) {
        return;
    }
    const float *const u = e.u + (i64)row * e.n_u + part * e.rank;
    const DTYPE *const b = e.b + place * e.next_b + of_b + c;
    DTYPE *const y = e.y + row * e.ld_y + of_y + c;
    float sum[W], fy[W];
#pragma unroll
    for (int i = 0; i < W; i++) {
        sum[i] = 0.0f;
    }
#pragma unroll 8
    for (int r = 0; r < e.rank; r++) {
        float fb[W];
        const float ur = u[r];
        piece_load(fb, b + r * e.ld_b);
#pragma unroll
        for (int i = 0; i < W; i++) {
            sum[i] += ur * fb[i];
        }
    }
    const float scale = e.scale != NULL ? e.scale[row] : 1.0f;
    piece_load(fy, y);
#pragma unroll
    for (int i = 0; i < W; i++) {
        fy[i] += scale * sum[i];
    }
    piece_store(y, fy);
}

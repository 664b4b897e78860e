/* 09_warp_tile.cu — rung 9: a level between block and thread: each warp owns a compact rectangle.
 *
 * IDEA      In rung 7 a warp's lanes lay along 1 or 2 rows of threads, so a warp read a whole row
 *           of B's tile for a few rows of A. As a compact rectangle of 8 x 4 lanes it reads 64 + 32
 *           floats for 64 x 32 sums instead of 16 + 128: fewer distinct words from shared memory
 *           for the same work, and four schedulers that do not wait for the same ones.
 * ZIGZAG    Two lanes that read the same 16 bytes are served together only if they are neighbours
 *           (lane ^ 1 or ^ 2). The lanes are numbered so that bit 0 walks along columns (pairs
 *           share A's words) and bit 1 along rows (pairs share B's).
 * MAP       block 128 x 128, 8 warps as 2 x 4, warp tile 64 x 32, thread 8 x 8 as 2 x 2 quads. */
#include "sgemm/edge.cuh"
#include "kernels/cuda/sgemm/rung_args.h"

#define BM      128
#define BN      128
#define BK      16
#define WM      64 /* Warp tile. */
#define WN      32
#define TM      8
#define TN      8
#define THREADS 256
#define PAD     4

extern "C" __global__ void __launch_bounds__(THREADS, 2) sgemm(const lt_cuda_sgemm_rung_args w) {
    __shared__ alignas(16) float a_tile[BK][BM + PAD], b_tile[BK][BN];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const int lane_n = (lane & 1) | (lane >> 2 & 1) << 1;  /* 0..3 */
    const int lane_m = (lane >> 1 & 1) | (lane >> 3) << 1; /* 0..7 */
    const int row0 = warp / (BN / WN) * WM + lane_m * 4, col0 = warp % (BN / WN) * WN + lane_n * 4;
    const int row_step = WM / 2, col_step = WN / 2; /* From quad to quad. */
    const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
    const bool vec_a = vec_ok(w.a, w.lda), vec_b = vec_ok(w.b, w.ldb), vec_c = vec_ok(w.c, w.ldc);
    float sum[TM][TN] = {{0.0f}};
    for (int k0 = 0; k0 < w.k; k0 += BK) {
#pragma unroll
        for (int v = t; v < BM * BK / 4; v += THREADS) { /* 1. */
            const int row = v / (BK / 4), col = v % (BK / 4) * 4;
            const float4 x4 = edge_load4(w.a, block_row + row, k0 + col, w.m, w.k, w.lda, vec_a);
            a_tile[col + 0][row] = x4.x;
            a_tile[col + 1][row] = x4.y;
            a_tile[col + 2][row] = x4.z;
            a_tile[col + 3][row] = x4.w;
        }
#pragma unroll
        for (int v = t; v < BN * BK / 4; v += THREADS) {
            const int row = v / (BN / 4), col = v % (BN / 4) * 4;
            *(float4 *)&b_tile[row][col] = edge_load4(w.b, k0 + row, block_col + col, w.k, w.n,
                                                      w.ldb, vec_b);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; i++) { /* 2. */
            float x[TM], y[TN];
#pragma unroll
            for (int q = 0; q < 2; q++) {
                *(float4 *)&x[4 * q] = *(const float4 *)&a_tile[i][row0 + q * row_step];
                *(float4 *)&y[4 * q] = *(const float4 *)&b_tile[i][col0 + q * col_step];
            }
#pragma unroll
            for (int r = 0; r < TM; r++) {
#pragma unroll
                for (int q = 0; q < TN; q++) {
                    sum[r][q] += x[r] * y[q];
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < TM; r++) {
#pragma unroll
        for (int q = 0; q < 2; q++) {
            edge_store4(w.c, &sum[r][4 * q], block_row + row0 + r / 4 * row_step + r % 4,
                        block_col + col0 + q * col_step, w.m, w.n, w.ldc, w.alpha, w.beta, vec_c);
        }
    }
}

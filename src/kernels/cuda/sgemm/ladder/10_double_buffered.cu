/* 10_double_buffered.cu — rung 10: the next tile is loaded while this one is multiplied.
 *
 * IDEA      Two tiles of A and B in shared memory. While the warps multiply tile i, the reads of
 *           tile i+1 from memory are in flight into registers; they are written to the other buffer
 *           afterwards. One barrier per tile instead of two, and the memory's latency (500 cycles
 *           and more) hides behind 16 x 64 multiply-adds. The same idea one level down: the
 *           fragments of step i+1 are read from shared memory while step i multiplies.
 * COST      16 registers for the tile in flight and 16 for the second fragments, in a budget of 128
 *           (two blocks an SM). */
#include "sgemm/edge.cuh"
#include "kernels/cuda/sgemm/rung_args.h"

#define BM      128
#define BN      128
#define BK      8
#define WM      64
#define WN      32
#define TM      8
#define TN      8
#define THREADS 256
#define PAD     4

extern "C" __global__ void __launch_bounds__(THREADS, 2) sgemm(const lt_cuda_sgemm_rung_args w) {
    __shared__ alignas(16) float a_tile[2][BK][BM + PAD], b_tile[2][BK][BN];
    const int t = threadIdx.x, warp = t / 32, lane = t % 32;
    const int lane_n = (lane & 1) | (lane >> 2 & 1) << 1, lane_m = (lane >> 1 & 1) | (lane >> 3)
                                                                                         << 1;
    const int row0 = warp / (BN / WN) * WM + lane_m * 4, col0 = warp % (BN / WN) * WN + lane_n * 4;
    const int row_step = WM / 2, col_step = WN / 2;
    const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
    const int a_row = t / (BK / 4), a_col = t % (BK / 4) * 4, b_row = t / (BN / 4),
              b_col = t % (BN / 4) * 4;
    const bool vec_a = vec_ok(w.a, w.lda), vec_b = vec_ok(w.b, w.ldb), vec_c = vec_ok(w.c, w.ldc);
    float sum[TM][TN] = {{0.0f}};
    float x[2][TM], y[2][TN];
    float4 a_next = edge_load4(w.a, block_row + a_row, a_col, w.m, w.k, w.lda, vec_a);
    float4 b_next = edge_load4(w.b, b_row, block_col + b_col, w.k, w.n, w.ldb, vec_b);

    for (int k0 = 0, now = 0; k0 < w.k; k0 += BK, now ^= 1) {
        /* 1. The tile that has arrived goes to the free buffer. */
        a_tile[now][a_col + 0][a_row] = a_next.x;
        a_tile[now][a_col + 1][a_row] = a_next.y;
        a_tile[now][a_col + 2][a_row] = a_next.z;
        a_tile[now][a_col + 3][a_row] = a_next.w;
        *(float4 *)&b_tile[now][b_row][b_col] = b_next;
        /* All threads have passed the previous tile, so its buffer is free. */
        __syncthreads();
        if (k0 + BK < w.k) { /* 2. Request the next tile. */
            a_next = edge_load4(w.a, block_row + a_row, k0 + BK + a_col, w.m, w.k, w.lda, vec_a);
            b_next = edge_load4(w.b, k0 + BK + b_row, block_col + b_col, w.k, w.n, w.ldb, vec_b);
        }
#pragma unroll
        for (int q = 0; q < 2; q++) {
            *(float4 *)&x[0][4 * q] = *(const float4 *)&a_tile[now][0][row0 + q * row_step];
            *(float4 *)&y[0][4 * q] = *(const float4 *)&b_tile[now][0][col0 + q * col_step];
        }
#pragma unroll
        for (int i = 0; i < BK; i++) { /* 3. Multiply step i while step i+1 is read. */
#pragma unroll
            for (int q = 0; q < 2 && i + 1 < BK; q++) {
                *(float4 *)&x[(i + 1) & 1][4 * q] = *(
                    const float4 *)&a_tile[now][i + 1][row0 + q * row_step];
                *(float4 *)&y[(i + 1) & 1][4 * q] = *(
                    const float4 *)&b_tile[now][i + 1][col0 + q * col_step];
            }
#pragma unroll
            for (int r = 0; r < TM; r++) {
#pragma unroll
                for (int q = 0; q < TN; q++) {
                    sum[r][q] += x[i & 1][r] * y[i & 1][q];
                }
            }
        }
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

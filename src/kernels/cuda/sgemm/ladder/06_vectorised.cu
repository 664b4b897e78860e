/* 06_vectorised.cu — rung 6: everything moves 16 bytes at a time, and A is transposed as it enters
 * shared memory.
 *
 * IDEA      One 16-byte instruction instead of four 4-byte ones, from memory, from shared memory
 *           and back to C. A thread needs 8 floats of a COLUMN of A's tile; they are neighbours
 *           only if the tile is stored transposed, so the store turns it.
 * MOVEMENT  A  HBM ──16 B along k──▶ registers ──4 x 4 B──▶ smem [BK][BM] ──16 B along m──▶ FMA
 *           B  HBM ──16 B along n──▶ registers ──16 B────▶ smem [BK][BN] ──16 B along n──▶ FMA
 * COST      The transposing store hits one bank four times (rung 7); so do the reads of B, whose
 *           lanes are 32 bytes apart. */
#include "sgemm/edge.cuh"
#include "kernels/cuda/sgemm/rung_args.h"

#define BM      128
#define BN      128
#define BK      8
#define TM      8
#define TN      8
#define THREADS (BM * BN / (TM * TN))

extern "C" __global__ void __launch_bounds__(THREADS) sgemm(const lt_cuda_sgemm_rung_args w) {
    __shared__ float a_tile[BK][BM], b_tile[BK][BN];
    const int t = threadIdx.x;
    const int row0 = t / (BN / TN) * TM, col0 = t % (BN / TN) * TN;
    const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
    const int a_row = t / (BK / 4), a_col = t % (BK / 4) * 4, b_row = t / (BN / 4),
              b_col = t % (BN / 4) * 4;
    const bool vec_a = vec_ok(w.a, w.lda), vec_b = vec_ok(w.b, w.ldb), vec_c = vec_ok(w.c, w.ldc);
    float sum[TM][TN] = {{0.0f}};
    for (int k0 = 0; k0 < w.k; k0 += BK) {
        /* 1. 256 threads, 1024 floats each. */
        const float4 x4 = edge_load4(w.a, block_row + a_row, k0 + a_col, w.m, w.k, w.lda, vec_a);
        a_tile[a_col + 0][a_row] = x4.x;
        a_tile[a_col + 1][a_row] = x4.y;
        a_tile[a_col + 2][a_row] = x4.z;
        a_tile[a_col + 3][a_row] = x4.w;
        *(float4 *)&b_tile[b_row][b_col] = edge_load4(w.b, k0 + b_row, block_col + b_col, w.k, w.n,
                                                      w.ldb, vec_b);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; i++) { /* 2. */
            float x[TM], y[TN];
#pragma unroll
            for (int r = 0; r < TM; r += 4) {
                *(float4 *)&x[r] = *(const float4 *)&a_tile[i][row0 + r];
            }
#pragma unroll
            for (int q = 0; q < TN; q += 4) {
                *(float4 *)&y[q] = *(const float4 *)&b_tile[i][col0 + q];
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
        for (int q = 0; q < TN; q += 4) {
            edge_store4(w.c, &sum[r][q], block_row + row0 + r, block_col + col0 + q, w.m, w.n,
                        w.ldc, w.alpha, w.beta, vec_c);
        }
    }
}

/* 07_conflict_free.cu — rung 7: no two lanes access different words of one bank at once. Rung 8
 * is this file with tuned constants.
 *
 * IDEA      Shared memory has 32 banks of 4 bytes; lanes that access different words of a bank
 *           wait for each other. (a) The transposing store of A put the lanes of a warp on few
 *           banks: rows of A's tile are padded by 4 floats, which spreads them. (b) A thread's
 *           columns come as quads BN / (TN / 4) apart instead of TN neighbours: the lanes of a
 *           warp then read neighbouring 16-byte words of B, all banks once. The same for its
 *           rows.
 * TUNED     BM, BN, BK, TM, TN are -D constants: `lateen tune sgemm` tries combinations; the table
 *           of the ladder shows the winner. */
#include "sgemm/edge.cuh"
#include "kernels/cuda/sgemm/rung_args.h"

#define THREADS (BM * BN / (TM * TN))
#define PAD     4
static_assert(BM * BK % (4 * THREADS) == 0 && BN * BK % (4 * THREADS) == 0,
              "every thread loads whole vectors");
static_assert(TM % 4 == 0 && TN % 4 == 0, "tiles of quads");

extern "C" __global__ void __launch_bounds__(THREADS) sgemm(const lt_cuda_sgemm_rung_args w) {
    __shared__ alignas(16) float a_tile[BK][BM + PAD], b_tile[BK][BN];
    const int t = threadIdx.x;
    const int row0 = t / (BN / TN) * 4, col0 = t % (BN / TN) * 4; /* Place of the first quad. */
    const int row_step = 4 * BM / TM, col_step = 4 * BN / TN;     /* From quad to quad. */
    const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
    const bool vec_a = vec_ok(w.a, w.lda), vec_b = vec_ok(w.b, w.ldb), vec_c = vec_ok(w.c, w.ldc);
    float sum[TM][TN] = {{0.0f}};
    for (int k0 = 0; k0 < w.k; k0 += BK) {
#pragma unroll
        for (int v = t; v < BM * BK / 4; v += THREADS) { /* 1. A, transposed. */
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
            for (int r = 0; r < TM / 4; r++) {
                *(float4 *)&x[4 * r] = *(const float4 *)&a_tile[i][row0 + r * row_step];
            }
#pragma unroll
            for (int q = 0; q < TN / 4; q++) {
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
        for (int q = 0; q < TN / 4; q++) {
            edge_store4(w.c, &sum[r][4 * q], block_row + row0 + r / 4 * row_step + r % 4,
                        block_col + col0 + q * col_step, w.m, w.n, w.ldc, w.alpha, w.beta, vec_c);
        }
    }
}

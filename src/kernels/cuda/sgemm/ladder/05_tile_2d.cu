/* 05_tile_2d.cu — rung 5: a thread computes a square of 8 x 8 elements.
 *
 * IDEA      An outer product: 8 floats of A and 8 of B give 64 multiply-adds, one read per 4
 *           products. Arithmetic grows with the area of the thread's tile, reads only with its
 *           edge. The price is registers: 64 sums and 16 operands.
 * MAP       block 128 x 128 of C, 256 threads as 16 x 16, K in steps of 8. */
#include "sgemm/edge.cuh"
#include "kernels/cuda/sgemm/rung_args.h"

#define BM      128
#define BN      128
#define BK      8
#define TM      8
#define TN      8
#define THREADS (BM * BN / (TM * TN))

extern "C" __global__ void __launch_bounds__(THREADS) sgemm(const lt_cuda_sgemm_rung_args w) {
    __shared__ float a_tile[BM][BK], b_tile[BK][BN];
    const int t = threadIdx.x;
    const int row0 = t / (BN / TN) * TM, col0 = t % (BN / TN) * TN;
    const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
    float sum[TM][TN] = {{0.0f}};
    for (int k0 = 0; k0 < w.k; k0 += BK) {
#pragma unroll
        /* 1. Each thread copies four floats of each matrix. */
        for (int i = t; i < BM * BK; i += THREADS) {
            a_tile[i / BK][i % BK] = edge_load(w.a, block_row + i / BK, k0 + i % BK, w.m, w.k,
                                               w.lda);
            b_tile[i / BN][i % BN] = edge_load(w.b, k0 + i / BN, block_col + i % BN, w.k, w.n,
                                               w.ldb);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; i++) { /* 2. Outer product of a column of A and a row of B. */
            float x[TM], y[TN];
#pragma unroll
            for (int r = 0; r < TM; r++) {
                x[r] = a_tile[row0 + r][i];
            }
#pragma unroll
            for (int q = 0; q < TN; q++) {
                y[q] = b_tile[i][col0 + q];
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
        for (int q = 0; q < TN; q++) {
            edge_store(w.c, sum[r][q], block_row + row0 + r, block_col + col0 + q, w.m, w.n, w.ldc,
                       w.alpha, w.beta);
        }
    }
}

/* 04_tile_1d.cu — rung 4: a thread computes a column of 8 elements.
 *
 * IDEA      A value of B that is in a register can serve 8 rows of A. A thread now holds TM = 8
 *           sums; for each k it reads 1 float of B and 8 of A (the A reads are broadcasts: all
 *           lanes of a warp read the same word) and does 8 multiply-adds: 9 reads for 8 products
 *           instead of 16.
 * MAP       block 64 x 64 of C, 512 threads, K in steps of 8; warp w: rows 8 (w / 2) .., lanes
 *           along the columns. */
#include "sgemm/edge.cuh"
#include "kernels/cuda/sgemm/rung_args.h"

#define BM 64
#define BN 64
#define BK 8
#define TM 8

extern "C" __global__ void __launch_bounds__(BM *BN / TM) sgemm(const lt_cuda_sgemm_rung_args w) {
    __shared__ float a_tile[BM][BK], b_tile[BK][BN];
    const int t = threadIdx.x;
    const int col = t % BN, row0 = t / BN * TM; /* Place of this thread's sums in the tile. */
    const int block_row = blockIdx.y * BM, block_col = blockIdx.x * BN;
    float sum[TM] = {0.0f};
    for (int k0 = 0; k0 < w.k; k0 += BK) {
        /* 512 threads, 512 floats each. */
        a_tile[t / BK][t % BK] = edge_load(w.a, block_row + t / BK, k0 + t % BK, w.m, w.k, w.lda);
        b_tile[t / BN][t % BN] = edge_load(w.b, k0 + t / BN, block_col + t % BN, w.k, w.n, w.ldb);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; i++) {
            const float held = b_tile[i][col]; /* Read once, used TM times. */
#pragma unroll
            for (int r = 0; r < TM; r++) {
                sum[r] += a_tile[row0 + r][i] * held;
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < TM; r++) {
        edge_store(w.c, sum[r], block_row + row0 + r, block_col + col, w.m, w.n, w.ldc, w.alpha,
                   w.beta);
    }
}

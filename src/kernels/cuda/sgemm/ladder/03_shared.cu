/* 03_shared.cu — rung 3: a block keeps a tile of A and of B in shared memory.
 *
 * IDEA      The 1024 threads of a block compute a 32 x 32 tile of C. They share its inputs: a 32 x
 *           32 tile of A and of B is read once from memory and used 32 times by each thread.
 *           Traffic from L2 falls 32-fold.
 * MOVEMENT  A, B  HBM ──4 B──▶ registers ──▶ smem [32][32] ──2 reads a product──▶ FMA
 * BOUND     Now shared memory: two 4-byte reads a multiply-add; an SM reads 32 words a clock and
 *           could do 128 multiply-adds. */
#include "sgemm/edge.cuh"

#define TILE 32

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    sgemm(const float *a, const float *b, float *c, int m, int n, int k, int lda, int ldb, int ldc,
          float alpha, float beta) {
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int k0 = 0; k0 < k; k0 += TILE) {
        /* 1. Zeros beyond the edge add nothing. */
        a_tile[y][x] = edge_load(a, row, k0 + x, m, k, lda);
        b_tile[y][x] = edge_load(b, k0 + y, col, k, n, ldb);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++) { /* 2. 32 products from 64 floats. */
            sum += a_tile[y][i] * b_tile[i][x];
        }
        __syncthreads(); /* Before the tiles are overwritten. */
    }
    edge_store(c, sum, row, col, m, n, ldc, alpha, beta);
}

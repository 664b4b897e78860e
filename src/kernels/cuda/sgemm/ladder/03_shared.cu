/* 03_shared.cu — rung 3: a block keeps a tile of A and of B in shared memory.
 *
 * IDEA      The 1024 threads of a block compute a 32 x 32 tile of C. They share its inputs: a 32 x
 *           32 tile of A and of B is read once from memory and used 32 times by each thread.
 *           Traffic from L2 falls 32-fold.
 * MOVEMENT  A, B  HBM ──4 B──▶ registers ──▶ smem [32][32] ──2 reads a product──▶ FMA
 * BOUND     Now shared memory is the limit: two 4-byte reads per multiply-add; an SM reads 32
 *           words per clock and could do 128 multiply-adds. */
#include "sgemm/edge.cuh"
#include "kernels/cuda/sgemm/rung_args.h"

#define TILE 32

extern "C" __global__ void __launch_bounds__(TILE *TILE) sgemm(const lt_cuda_sgemm_rung_args w) {
    __shared__ float a_tile[TILE][TILE], b_tile[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y, col = blockIdx.x * TILE + x;
    float sum = 0.0f;
    for (int k0 = 0; k0 < w.k; k0 += TILE) {
        /* 1. Zeros beyond the edge add nothing. */
        a_tile[y][x] = edge_load(w.a, row, k0 + x, w.m, w.k, w.lda);
        b_tile[y][x] = edge_load(w.b, k0 + y, col, w.k, w.n, w.ldb);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILE; i++) { /* 2. 32 products from 64 floats. */
            sum += a_tile[y][i] * b_tile[i][x];
        }
        __syncthreads(); /* Before the tiles are overwritten. */
    }
    edge_store(w.c, sum, row, col, w.m, w.n, w.ldc, w.alpha, w.beta);
}

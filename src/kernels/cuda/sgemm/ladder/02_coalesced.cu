/* 02_coalesced.cu — rung 2: the lanes of a warp walk along a ROW of C.
 *
 * IDEA      Swap the roles of threadIdx.x and .y. A warp now reads 32 neighbouring floats of B (one
 *           128-byte line), one float of A that all lanes share (a broadcast), and writes one line
 *           of C. Nothing else changes: memory is read in lines, so the order of the lanes decides
 *           how many lines are read.
 * BOUND     Still 8 bytes from L1 for each multiply-add. */
#include "sgemm/edge.cuh"
#include "kernels/cuda/sgemm/rung_args.h"

extern "C" __global__ void __launch_bounds__(1024) sgemm(const lt_cuda_sgemm_rung_args w) {
    const int row = blockIdx.y * 32 + threadIdx.y, col = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (row < w.m && col < w.n) {
        for (int i = 0; i < w.k; i++) {
            sum += w.a[(i64)row * w.lda + i] * w.b[(i64)i * w.ldb + col];
        }
        edge_store(w.c, sum, row, col, w.m, w.n, w.ldc, w.alpha, w.beta);
    }
}

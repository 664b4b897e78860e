/* 02_coalesced.cu — rung 2: the lanes of a warp walk along a ROW of C.
 *
 * IDEA      Swap the roles of threadIdx.x and .y. A warp now reads 32 neighbouring floats of B (one
 *           128-byte line), one float of A that all lanes share (a broadcast), and writes one line
 *           of C. Nothing else changes: memory is read in lines, so who stands beside whom decides
 *           how many lines are read.
 * BOUND     Still 8 bytes from L1 for each multiply-add a thread does. */
#include "sgemm/edge.cuh"

extern "C" __global__ void __launch_bounds__(1024)
    sgemm(const float *a, const float *b, float *c, int m, int n, int k, int lda, int ldb, int ldc,
          float alpha, float beta) {
    const int row = blockIdx.y * 32 + threadIdx.y, col = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (row < m && col < n) {
        for (int i = 0; i < k; i++) {
            sum += a[(i64)row * lda + i] * b[(i64)i * ldb + col];
        }
        edge_store(c, sum, row, col, m, n, ldc, alpha, beta);
    }
}

/* 01_naive.cu — C = alpha A B + beta C, rung 1: one thread per element of C.
 *
 * SHAPES    a (m, k), b (k, n), c (m, n), row-major, rows lda, ldb, ldc apart; any sizes.
 * MAP       block of 32 x 32 threads; threadIdx.x walks down the ROWS of C.
 * MOVEMENT  A, B  HBM ──4 B, a lane a row──▶ register ──FMA──▶ C  HBM
 * BOUND     2 m n k flop over 66.9 TFLOP/s (132 SMs x 128 FMA x 1.98 GHz): 4096^3 in 2.05 ms. Far
 *           from it: neighbouring lanes read addresses lda apart, so each 4-byte read of A and
 *           write of C costs a 32-byte sector of its own, and every product reads two floats from
 *           memory. */
#include "sgemm/edge.cuh"
#include "kernels/cuda/sgemm/rung_args.h"

extern "C" __global__ void __launch_bounds__(1024) sgemm(const lt_cuda_sgemm_rung_args w) {
    const int row = blockIdx.y * 32 + threadIdx.x, col = blockIdx.x * 32 + threadIdx.y;
    float sum = 0.0f;
    if (row < w.m && col < w.n) {
        for (int i = 0; i < w.k; i++) {
            sum += w.a[(i64)row * w.lda + i] * w.b[(i64)i * w.ldb + col];
        }
        edge_store(w.c, sum, row, col, w.m, w.n, w.ldc, w.alpha, w.beta);
    }
}

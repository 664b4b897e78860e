/* gemm_any.cu: y = op(A) op(B) (+ bias) (+ y) for whatever the faster kernels refuse: any types,
 * strides and sizes; and the same for the experts of a layer.
 *
 * SHAPES    A (m, k) with strides a_m, a_k; B (k, n) with strides b_k, b_n; y (m, n) with rows
 *           y_m apart. IN, OUT: fp32, bf16 or fp16. GROUPED 1: expert e = blockIdx.z owns rows
 *           [start[e], start[e + 1]) of A and y, and B at b + e * b_e. GROUPED 2: expert e owns
 *           those values of k, and y at y + e * y_e. start is in device memory; the host does not
 *           know it.
 * MAP       16 x 16 threads compute a tile of 64 x 64, each of them 4 x 4 sums. M_FAST, N_FAST:
 *           consecutive threads read along m (or n) where that is contiguous.
 * BOUND     fp32 FMA; about a third of what sgemm.cu reaches.
 * NUMERICS  f32 sums in order of k; one rounding at the store. Bit-identical run to run. */
#include "common/product.cuh"
#include "kernels/cuda/gemm/any_args.h"

#define TILE    64
#define STEP    16
#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_any(const __grid_constant__ lt_gemm_any_args w) {
    __shared__ float a_tile[STEP][TILE + 1], b_tile[STEP][TILE + 1];
    const int tid = (int)threadIdx.x, e = (int)blockIdx.z;
    const int from = GROUPED ? w.start[e] : 0, to = GROUPED ? w.start[e + 1] : 0;
    const int m_begin = GROUPED == 1 ? from : 0, m_end = GROUPED == 1 ? to : w.m;
    const int k_begin = GROUPED == 2 ? from : 0, k_end = GROUPED == 2 ? to : w.k;
    const int row0 = m_begin + (int)blockIdx.y * TILE, col0 = (int)blockIdx.x * TILE;
    const IN *const b = w.b + (GROUPED == 1 ? e * w.b_e : 0);
    OUT *const y = w.y + (GROUPED == 2 ? e * w.y_e : 0);
    float acc[4][4] = {{0.0f}};

    if (row0 >= m_end) {
        return;
    }
    for (int k0 = k_begin; k0 < k_end; k0 += STEP) {
#pragma unroll
        for (int i = tid; i < TILE * STEP; i += THREADS) {
            const int m = M_FAST ? i % TILE : i / STEP, ka = M_FAST ? i / TILE : i % STEP;
            const int n = N_FAST ? i % TILE : i / STEP, kb = N_FAST ? i / TILE : i % STEP;
            a_tile[ka][m] = row0 + m < m_end && k0 + ka < k_end
                                ? TO_F32(IN, w.a[(row0 + m) * w.a_m + (k0 + ka) * w.a_k])
                                : 0.0f;
            b_tile[kb][n] = col0 + n < w.n && k0 + kb < k_end
                                ? TO_F32(IN, b[(k0 + kb) * w.b_k + (col0 + n) * w.b_n])
                                : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < STEP; k++) {
            float x[4], z[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = a_tile[k][tid / 16 + 16 * i];
                z[i] = b_tile[k][tid % 16 + 16 * i];
            }
#pragma unroll
            for (int i = 0; i < 16; i++) {
                acc[i / 4][i % 4] += x[i / 4] * z[i % 4];
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int row = row0 + tid / 16 + 16 * (i / 4), col = col0 + tid % 16 + 16 * (i % 4);
        if (row < m_end && col < w.n) {
            product_store(y + row * w.y_m + col, acc[i / 4][i % 4],
                          bias_at(w.bias, w.bias_type, col), w.accumulate);
        }
    }
}

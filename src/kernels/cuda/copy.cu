/* copy.cu — dst = src: measures the bandwidth that memory-bound kernels are compared with.
 *
 * SHAPES    n_vecs vectors of 16 bytes; any n_vecs.
 * MAP       grid-stride; in each turn a thread moves UNROLL vectors, all loads before the first
 *           store.
 * MOVEMENT  HBM ──16 B/thread × UNROLL──▶ registers ──▶ HBM
 * BOUND     bytes = 2 · 16 · n_vecs. By definition, other kernels are compared with the bandwidth
 *           that this measures. */
#include "common/types.cuh"
#include "kernels/cuda/copy_args.h"

static_assert(UNROLL >= 1 && UNROLL <= 8, "vectors in flight a thread");

extern "C" __global__ void __launch_bounds__(512) copy(const lt_cuda_copy_args w) {
    const i64 turn = (i64)gridDim.x * blockDim.x * UNROLL;
    for (i64 start = (i64)blockIdx.x * blockDim.x * UNROLL + threadIdx.x; start < w.n_vecs;
         start += turn) {
        uint4 held[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const i64 i = start + (i64)u * blockDim.x;
            if (i < w.n_vecs) {
                held[u] = __ldcs(&w.src[i]);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const i64 i = start + (i64)u * blockDim.x;
            if (i < w.n_vecs) {
                __stcs(&w.dst[i], held[u]);
            }
        }
    }
}

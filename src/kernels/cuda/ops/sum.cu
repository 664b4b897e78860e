/* sum.cu — y = part + x[0] + ... + x[n - 1], element by element.
 *
 * SHAPES    (count) each, contiguous; x of DTYPE, part fp32 or absent. OUT32=1: y is fp32, else of
 *           DTYPE. Pieces of W elements, 16 bytes of DTYPE; W = 1 takes any count and alignment.
 * MAP       one piece per thread.
 * MOVEMENT  x[k] HBM ──16 B/thread──▶ registers, added as they arrive ──▶ y HBM.
 * BOUND     2 (n + 1) bytes per element (bf16); y may be part or any x, because a thread reads
 *           all that it needs before it writes.
 * NUMERICS  fp32, in the order of k, rounded at the store. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/sum_args.h"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS) sum(const lt_cuda_sum_args a) {
    const i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W;
    float y[W], x[W];
    wait_for_others();
    if (at >= a.count) {
        return;
    }
    if (a.part) {
        piece_load_f32(y, a.part + at);
    } else {
        piece_load_stream(y, a.x[0] + at);
    }
    for (int k = a.part ? 0 : 1; k < a.n; k++) {
        piece_load_stream(x, a.x[k] + at);
#pragma unroll
        for (int i = 0; i < W; i++) {
            y[i] += x[i];
        }
    }
#if OUT32
    piece_store_f32((float *)a.y + at, y);
#else
    piece_store((DTYPE *)a.y + at, y);
#endif
}

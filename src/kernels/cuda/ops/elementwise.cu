/* elementwise.cu — y = alpha a + beta b, and conversions between types.
 *
 * SHAPES    n elements, contiguous; DTYPE of a, b and y for add; cast: SRC to DTYPE.
 * BOUND     add: 6 bytes per element (bf16), 4 without b. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/elementwise_args.h"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS) add(const lt_cuda_add_args w) {
    const i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W;
    float x[W], z[W];
    if (at >= w.count) {
        return;
    }
    piece_load_stream(x, w.a + at);
    if (w.b) {
        piece_load_stream(z, w.b + at);
    }
#pragma unroll
    for (int i = 0; i < W; i++) {
        x[i] = w.alpha * x[i] + (w.b ? w.beta * z[i] : 0.0f);
    }
    piece_store(w.y + at, x);
}

/* Hash of pieces of memory, in words of 4 bytes; blockIdx.y is the piece. */
extern "C" __global__ void __launch_bounds__(THREADS)
    zero_pieces(const lt_cuda_zero_pieces_args w) {
    u32 *const dst = w.dst + blockIdx.y * w.stride;
    wait_for_others();
    for (i64 i = blockIdx.x * THREADS + threadIdx.x; i < w.words; i += gridDim.x * THREADS) {
        dst[i] = 0u;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    cast_from_fp32(const lt_cuda_cast_from_fp32_args w) {
    const i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W;
    float f[W];
    if (at < w.count) {
        piece_load_f32(f, w.x + at);
        piece_store(w.y + at, f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    cast_to_fp32(const lt_cuda_cast_to_fp32_args w) {
    const i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W;
    float f[W];
    if (at < w.count) {
        piece_load_stream(f, w.x + at);
        piece_store_f32(w.y + at, f);
    }
}

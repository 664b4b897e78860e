/* elementwise.cu — y = alpha a + beta b, and conversions between types.
 *
 * SHAPES    n elements, contiguous; DTYPE of a, b and y for add; cast: SRC to DTYPE.
 * BOUND     add 6 bytes an element (bf16), 4 without b. */
#include "common/vec.cuh"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    add(DTYPE *y, const DTYPE *a, const DTYPE *b, i64 count, float alpha, float beta) {
    const i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W;
    float x[W], z[W];
    if (at >= count) {
        return;
    }
    piece_load_stream(x, a + at);
    if (b) {
        piece_load_stream(z, b + at);
    }
#pragma unroll
    for (int i = 0; i < W; i++) {
        x[i] = alpha * x[i] + (b ? beta * z[i] : 0.0f);
    }
    piece_store(y + at, x);
}

/* blockIdx.y: the piece; words of 4 bytes. */
extern "C" __global__ void __launch_bounds__(THREADS) zero_pieces(u32 *dst, i64 stride, i64 words) {
    dst += blockIdx.y * stride;
    wait_for_others();
    for (i64 i = blockIdx.x * THREADS + threadIdx.x; i < words; i += gridDim.x * THREADS) {
        dst[i] = 0u;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    cast_from_fp32(DTYPE *y, const float *x, i64 count) {
    const i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W;
    float f[W];
    if (at < count) {
        piece_load_f32(f, x + at);
        piece_store(y + at, f);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    cast_to_fp32(float *y, const DTYPE *x, i64 count) {
    const i64 at = ((i64)blockIdx.x * THREADS + threadIdx.x) * W;
    float f[W];
    if (at < count) {
        piece_load_stream(f, x + at);
        piece_store_f32(y + at, f);
    }
}

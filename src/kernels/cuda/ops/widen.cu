/* widen.cu: y = code * scale: converts a matrix of 8-bit floats to DTYPE, exactly, because scales
 * are powers of two. For products on GPUs without 8-bit tensor cores, and of shapes that
 * gemm_sm90.cu does not take.
 *
 * SHAPES    x (R, C) of E5M2 or not, rows ld apart; y (R, C) contiguous; scale by KIND: 1 tensor, 2
 *           row, 3 block (scaled.cu).
 * BOUND     3 bytes per element of BF16. One thread computes one element, since the product after
 *           it is slower. */
#include "common/fp8.cuh"
#include "kernels/cuda/ops/widen_args.h"

extern "C" __global__ void __launch_bounds__(256) widen(const lt_cuda_widen_args w) {
    const i64 at = (i64)blockIdx.x * 256 + threadIdx.x, r = at / w.cols;
    const int c = (int)(at % w.cols), across = (w.cols + SCALE_SPAN - 1) / SCALE_SPAN;
    if (r < w.rows) {
        const float s = w.scale[KIND == 1   ? 0
                                : KIND == 2 ? (i64)(c / SCALE_SPAN) * w.rows + r
                                            : r / SCALE_SPAN * across + c / SCALE_SPAN];
        w.y[at] = FROM_F32(DTYPE, f8_value(w.x[r * w.ld + c], E5M2) * s);
    }
}

/* widen.cu: y = code * scale, a matrix of 8-bit floats in DTYPE again, exactly: scales are powers
 * of two. For products on GPUs without 8-bit tensor cores, and of shapes that gemm_sm90.cu does not
 * take.
 *
 * SHAPES    x (R, C) of E5M2 or not, rows ld apart; y (R, C) contiguous; scale by KIND: 1 tensor, 2
 *           row, 3 block (scaled.cu).
 * BOUND     3 bytes an element of BF16. One thread, one element: a matrix that is multiplied
 *           afterwards by slower means. */
#include "common/fp8.cuh"

extern "C" __global__ void __launch_bounds__(256)
    widen(DTYPE *y, const u8 *x, const float *scale, i64 ld, i64 rows, int cols) {
    const i64 at = (i64)blockIdx.x * 256 + threadIdx.x, r = at / cols;
    const int c = (int)(at % cols), across = (cols + SCALE_SPAN - 1) / SCALE_SPAN;
    if (r < rows) {
        const float s = scale[KIND == 1   ? 0
                              : KIND == 2 ? (i64)(c / SCALE_SPAN) * rows + r
                                          : r / SCALE_SPAN * across + c / SCALE_SPAN];
        y[at] = FROM_F32(DTYPE, f8_value(x[r * ld + c], E5M2) * s);
    }
}

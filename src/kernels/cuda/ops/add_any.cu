/* add_any.cu — y = alpha a + beta b for any mixture of types and strides (elementwise.cu has the
 * fast ones); with b absent also any conversion.
 *
 * SHAPES    up to four dimensions: rows by views, columns `step` elements apart. Y, A, B: fp32,
 *           bf16, fp16.
 * MAP       a thread an element.
 * NUMERICS  one product or two and a sum in f32, one rounding; alpha = 1 leaves a exactly as it is. */
#define DTYPE fp32
#define W     1
#include "common/vec.cuh"

extern "C" __global__ void __launch_bounds__(256)
    add_any(Y *y, const A *a, const B *b, lt_cuda_view vy, lt_cuda_view va, lt_cuda_view vb,
            i64 step_y, i64 step_a, i64 step_b, lt_cuda_row_shape n, i64 rows, int cols,
            float alpha, float beta) {
    const i64 item = (i64)blockIdx.x * 256 + threadIdx.x, row = item / cols, col = item % cols;
    if (row < rows) {
        float x = alpha * TO_F32(A, a[row_at(va, row, n) + col * step_a]);
        if (b) {
            x += beta * TO_F32(B, b[row_at(vb, row, n) + col * step_b]);
        }
        y[row_at(vy, row, n) + col * step_y] = FROM_F32(Y, x);
    }
}

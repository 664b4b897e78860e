/* add_any.cu — y = alpha a + beta b for any mixture of types and strides (elementwise.cu has
 * the fast cases); without b also any conversion.
 *
 * SHAPES    up to four dimensions: rows by views, columns `step` elements apart. Y, A, B: fp32,
 *           bf16, fp16.
 * MAP       one thread per element.
 * NUMERICS  one product or two and a sum in f32, one rounding; alpha = 1 leaves a exactly as it
 *           is. */
#define DTYPE fp32
#define W     1
#include "common/vec.cuh"
#include "kernels/cuda/ops/add_any_args.h"

extern "C" __global__ void __launch_bounds__(256)
    add_any(const __grid_constant__ lt_cuda_add_any_args w) {
    const i64 item = (i64)blockIdx.x * 256 + threadIdx.x, row = item / w.cols, col = item % w.cols;
    if (row < w.rows) {
        float x = w.alpha * TO_F32(A, w.a[row_at(w.va, row, w.n) + col * w.step_a]);
        if (w.b) {
            x += w.beta * TO_F32(B, w.b[row_at(w.vb, row, w.n) + col * w.step_b]);
        }
        w.y[row_at(w.vy, row, w.n) + col * w.step_y] = FROM_F32(Y, x);
    }
}

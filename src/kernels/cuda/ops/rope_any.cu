/* rope_any.cu — rotary embedding for heads that rope.cu refuses: any width, part of the head, any
 * alignment.
 *
 * SHAPES    as rope.cu; the first 2 * half columns rotate, the rest are copied; table rows ld
 *           apart, (cos, sin) pairs `step` apart.
 * MAP       a thread a pair of columns (i, i + half), or a copied column. x and y may be the same.
 * BOUND     4 bytes an element (bf16), 2 bytes an access: half the copy speed. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/rope_args.h"

extern "C" __global__ void __launch_bounds__(256)
    rope_any(DTYPE *y, const DTYPE *x, const int *positions, const float *table, i64 ld, i64 step,
             i64 count, int half, int width, const __grid_constant__ lt_rope_views at, float sign) {
    const i64 item = (i64)blockIdx.x * 256 + threadIdx.x;
    if (item >= count) {
        return;
    }
    const i64 head = item / (width - half);
    const int i = (int)(item % (width - half));
    x += row_at(at.x, head, at.n), y += row_at(at.y, head, at.n);
    if (i >= half) {
        y[half + i] = x[half + i];
        return;
    }
    const float *const t = table + positions[head / at.n.n1] * ld + i * step;
    const float a = TO_F32(DTYPE, x[i]), b = TO_F32(DTYPE, x[i + half]), c = t[0], s = sign * t[1];
    y[i] = FROM_F32(DTYPE, a * c - b * s);
    y[i + half] = FROM_F32(DTYPE, b * c + a * s);
}

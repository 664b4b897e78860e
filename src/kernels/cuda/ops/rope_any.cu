/* rope_any.cu — rotary embedding for heads that rope.cu refuses: any width, rotation of part of
 * the head, any alignment.
 *
 * SHAPES    as rope.cu; the first 2 * half columns rotate, the rest are copied; table rows ld
 *           apart, (cos, sin) pairs `step` apart.
 * MAP       one thread per pair of columns (i, i + half), or per copied column. x and y may be
 *           the same.
 * BOUND     4 bytes per element (bf16), 2 bytes per access: half the copy speed. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/rope_args.h"

extern "C" __global__ void __launch_bounds__(256) rope_any(const lt_cuda_rope_any_args w) {
    const i64 item = (i64)blockIdx.x * 256 + threadIdx.x;
    if (item >= w.count) {
        return;
    }
    const i64 head = item / (w.width - w.half);
    const int i = (int)(item % (w.width - w.half));
    const DTYPE *const x = w.x + row_at(w.at.x, head, w.at.n);
    DTYPE *const y = w.y + row_at(w.at.y, head, w.at.n);
    if (i >= w.half) {
        y[w.half + i] = x[w.half + i];
        return;
    }
    const float *const t = w.table + w.positions[head / w.at.n.n1] * w.ld + i * w.step;
    const float a = TO_F32(DTYPE, x[i]), b = TO_F32(DTYPE, x[i + w.half]), c = t[0],
                s = w.sign * t[1];
    y[i] = FROM_F32(DTYPE, a * c - b * s);
    y[i + w.half] = FROM_F32(DTYPE, b * c + a * s);
}

/* merge.cu: joins the results of two calls of attention, each over a part of the keys (ops.h,
 * attention_merge).
 *
 * SHAPES    out (B, T, H, D) F32 and part (B, T, H, D) in DTYPE, rows of D neighbours.
 * MAP       one warp per row of a head; its lanes walk over the columns.
 * BOUND     12 bytes an element (out twice, part once). */
#include "common/vec.cuh"
#include "kernels/cuda/attention/merge_args.h"

#define WARPS    8
#define INFINITE __int_as_float(0x7f800000)

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    attention_merge(const __grid_constant__ lt_attn_merge_args a) {
    const i64 row = (i64)blockIdx.x * WARPS + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row >= a.rows) {
        return;
    }
    const int h = (int)(row % a.heads);
    const i64 bt = row / a.heads, b = bt / a.tokens, t = bt % a.tokens;
    float *const lse = a.lse + b * a.lse_b + h * a.lse_h + t;
    const float before = a.first ? -INFINITE : *lse,
                part = a.part_lse[b * a.part_lse_b + h * a.part_lse_h + t],
                sink = a.sinks != 0 ? a.sinks[h] : -INFINITE;
    const float max = fmaxf(fmaxf(before, part), sink);
    const bool empty = max == -INFINITE;
    const float kept = empty ? 0.0f : expf(before - max), joined = empty ? 0.0f : expf(part - max),
                sum = empty ? 1.0f : kept + joined + expf(sink - max);
    const float keep = kept / sum, join = joined / sum;
    float *const out = a.out + b * a.out_b + t * a.out_t + h * a.out_h;
    const DTYPE *const x = a.part + b * a.part_b + t * a.part_t + h * a.part_h;
    for (int d = lane; d < a.dim; d += 32) {
        const float y = join * TO_F32(DTYPE, x[d]);
        out[d] = a.first ? y : keep * out[d] + y;
    }
    __syncwarp(); /* All lanes have read lse. */
    if (lane == 0) {
        *lse = empty ? -INFINITE : max + logf(sum);
    }
}

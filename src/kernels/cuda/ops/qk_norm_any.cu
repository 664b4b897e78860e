/* qk_norm_any.cu — norm and rotation of heads that qk_norm.cu refuses: any width, rotation of
 * part of the head, any alignment.
 *
 * SHAPES    as in qk_norm.cu; the first 2 * half columns rotate, the others are only normalised;
 *           table rows ld apart, (cos, sin) pairs `step` apart.
 * MAP       one warp per head; lane l has columns l, l + 32, .. Backward, the sums of the gain's
 *           gradient are in shared memory, one row per warp.
 * BOUND     as qk_norm.cu, but with 2 bytes per access and two reads of x: half the copy speed.
 * NUMERICS  fp32; backward, a head's dot product and dx in double, because narrow heads cancel
 *           there. */
#define W 1
#include "common/vec.cuh"
#include "kernels/cuda/ops/qk_norm_args.h"

#define THREADS 256
#define WARPS   (THREADS / WARP)

INLINE float value(const DTYPE *p, int i) {
    return TO_F32(DTYPE, p[i]);
}
INLINE float weight(const PARAM *gain, int i, float offset) {
    return offset + TO_F32(PARAM, gain[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    qk_norm_fwd(const lt_cuda_qk_norm_fwd_args call) {
    const int lane = threadIdx.x % WARP, at = blockIdx.x * WARPS + threadIdx.x / WARP,
              row = at / call.n.heads, head = at % call.n.heads;
    wait_for_others();
    if (row >= call.n.rows) {
        return;
    }
    const PARAM *const gain = head < call.n.n_q ? call.q_gain : call.k_gain;
    const float *const angles = call.table + call.positions[row] * call.part.ld;
    float squares = 0.0f;
    const DTYPE *const x = call.x + row * call.n.x.row + head * call.n.x.head;
    DTYPE *const y = call.y + row * call.n.y.row + head * call.n.y.head;
    for (int i = lane; i < call.part.width; i += WARP) {
        squares += value(x, i) * value(x, i);
    }
    const float scale = rsqrtf(warp_sum(squares) / call.part.width + call.eps);
    if (lane == 0 && call.rstd) {
        call.rstd[at] = scale;
    }
    for (int i = lane; i < call.part.half; i += WARP) {
        const float a = value(x, i) * (scale * weight(gain, i, call.gain_offset));
        const float b = value(x, i + call.part.half) *
                        (scale * weight(gain, i + call.part.half, call.gain_offset));
        const float c = angles[i * call.part.step], s = angles[i * call.part.step + 1];
        y[i] = FROM_F32(DTYPE, a * c - b * s);
        y[i + call.part.half] = FROM_F32(DTYPE, b * c + a * s);
    }
    for (int i = 2 * call.part.half + lane; i < call.part.width; i += WARP) {
        y[i] = FROM_F32(DTYPE, value(x, i) * (scale * weight(gain, i, call.gain_offset)));
    }
}

/* Column i of dy, rotated back. */
INLINE float rotated_back(const DTYPE *dy, const float *angles, lt_qk_part part, int i) {
    if (i >= 2 * part.half) {
        return value(dy, i);
    }
    const int pair = i < part.half ? i : i - part.half;
    const float c = angles[pair * part.step], s = angles[pair * part.step + 1];
    return i < part.half ? value(dy, i) * c + value(dy, i + part.half) * s
                         : value(dy, i) * c - value(dy, pair) * s;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    qk_norm_bwd(const lt_cuda_qk_norm_bwd_args call) {
    extern __shared__ float room[]; /* [WARPS][sums, the head's du][width] */
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, width = call.part.width;
    const bool is_q = (int)blockIdx.x < call.n.q_blocks;
    const int blocks = is_q ? call.n.q_blocks : (int)gridDim.x - call.n.q_blocks,
              each = is_q ? call.n.n_q : call.n.heads - call.n.n_q;
    const PARAM *const gain = is_q ? call.q_gain : call.k_gain;
    float *const sums = room + LT_QK_NORM_ANY_FLOATS(warp, width), *const du = sums + width;
    wait_for_others();
    for (int i = lane; i < width; i += WARP) {
        sums[i] = 0.0f;
    }
    for (int at = ((int)blockIdx.x - (is_q ? 0 : call.n.q_blocks)) * WARPS + warp;
         at < call.n.rows * each; at += blocks * WARPS) {
        const int row = at / each, head = at % each + (is_q ? 0 : call.n.n_q);
        const DTYPE *const from = call.x + row * call.n.x.row + head * call.n.x.head,
                           *const d_from = call.dy + row * call.n.y.row + head * call.n.y.head;
        DTYPE *const to = call.dx + row * call.n.dx.row + head * call.n.dx.head;
        const float *const angles = call.table + call.positions[row] * call.part.ld;
        const float scale = call.rstd[(i64)row * call.n.heads + head];
        double dot = 0.0;
        __syncwarp();
        /* dx may be dy: all of it is read before any is written. */
        for (int i = lane; i < width; i += WARP) {
            du[i] = rotated_back(d_from, angles, call.part, i);
        }
        __syncwarp();
        for (int i = lane; i < width; i += WARP) {
            const float hat = value(from, i) * scale;
            sums[i] += du[i] * hat;
            dot += (double)du[i] * weight(gain, i, call.gain_offset) * value(from, i) * scale;
        }
#pragma unroll
        for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
            dot += __shfl_xor_sync(ALL_LANES, dot, lanes);
        }
        dot /= width;
        for (int i = lane; i < width; i += WARP) {
            const double g = (double)du[i] * weight(gain, i, call.gain_offset);
            to[i] = FROM_F32(DTYPE, (float)(scale * (g - (double)value(from, i) * scale * dot)));
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += THREADS) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            sum += room[w * 2 * width + i];
        }
        call.parts[(i64)blockIdx.x * width + i] = sum;
    }
}

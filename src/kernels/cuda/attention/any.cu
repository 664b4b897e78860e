/* any.cu: attention, forward and backward, for whatever the fast kernels refuse: any head width,
 * any lt_attn_plain_strides, any GPU.
 *
 * SHAPES    as in ops.h; q, k, v, out and their gradients (B, T or S, heads, D) of DTYPE,
 *           lt_attn_plain_strides of their own, last stride 1; D <= 32 * COLS.
 * MAP       a warp a row: a query (forward, dQ) or a key (dK, dV). The row's partners are taken 32
 *           at a time: lane j computes the whole dot product with partner j (the row itself is in
 *           shared memory), then all lanes add partner after partner, COLS columns each.
 * MASKS     plain.cuh.
 * BOUND     fp32 FMA from L1: a few TFLOP/s. This kernel is for correctness; training runs on the
 *           kernels of sm_90 and sm_80, and in fp32 on tiled.cu.
 * NUMERICS  f32, exp and tanh of CUDA's library; sums in order of keys (dQ), of heads and queries
 *           (dK, dV): bit-identical run to run. One rounding. */
#include "attention/plain.cuh"

#define WARPS   4
#define THREADS (WARPS * WARP)

INLINE float dot(const float *mine, const DTYPE *row, int dim) {
    float sum = 0.0f;
    for (int d = 0; d < dim; d++) {
        sum += mine[d] * TO_F32(DTYPE, row[d]);
    }
    return sum;
}
INLINE void row_copy(float *to, const DTYPE *from, int dim, int lane) {
    for (int d = lane; d < dim; d += WARP) {
        to[d] = TO_F32(DTYPE, from[d]);
    }
}
/* sum[c] += factor of partner j (in lane j) * row j [lane + 32 c], for ascending j. */
INLINE void add_rows(float sum[COLS], float factor, const DTYPE *rows, i64 step, int n, int dim,
                     int lane) {
    for (int j = 0; j < n; j++) {
        const float f = __shfl_sync(ALL_LANES, factor, j);
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            if (lane + WARP * c < dim) {
                sum[c] += f * TO_F32(DTYPE, rows[j * step + lane + WARP * c]);
            }
        }
    }
}
INLINE void row_store(DTYPE *to, const float sum[COLS], float scale, int dim, int lane) {
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        if (lane + WARP * c < dim) {
            to[lane + WARP * c] = FROM_F32(DTYPE, sum[c] * scale);
        }
    }
}

/* Rows (b, h, t), one per warp. */
extern "C" __global__ void __launch_bounds__(THREADS, 8)
    attn_any_fwd(const __grid_constant__ lt_attn_plain_args w) {
    __shared__ float q_row[WARPS][WARP * COLS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const i64 row = (i64)blockIdx.x * WARPS + warp;
    if (row >= (i64)w.batch * w.heads * w.q_tokens) {
        return;
    }
    const int t = (int)(row % w.q_tokens), h = (int)(row / w.q_tokens % w.heads),
              b = (int)(row / w.q_tokens / w.heads);
    const int g = h / (w.heads / w.kv_heads), n_keys = keys_of(&w, b);
    const span see = visible(&w, b, t, n_keys);
    const DTYPE *const k = w.k + b * w.sk.b + g * w.sk.h, *const v = w.v + b * w.sv.b + g * w.sv.h;
    float top = w.sinks ? w.sinks[h] : -INFINITE, sum = w.sinks ? 1.0f : 0.0f, out[COLS] = {0.0f},
          slope;

    row_copy(q_row[warp], w.q + b * w.sq.b + t * w.sq.t + h * w.sq.h, w.dim, lane);
    __syncwarp();
    for (int s0 = see.from; s0 < see.to; s0 += WARP) {
        const int s = s0 + lane, n = min(WARP, see.to - s0);
        const float x = lane < n ? logit(&w, dot(q_row[warp], k + s * w.sk.t, w.dim), h, s, see.pos,
                                         &slope)
                                 : -INFINITE;
        const float most = fmaxf(top, warp_max(x)),
                    keep = most > -INFINITE ? expf(top - most) : 1.0f;
        const float p = x > -INFINITE ? expf(x - most) : 0.0f;
        sum = sum * keep + warp_sum(p);
        top = most;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            out[c] *= keep;
        }
        add_rows(out, p, v + s0 * w.sv.t, w.sv.t, n, w.dim, lane);
    }
    row_store(w.out + b * w.so.b + t * w.so.t + h * w.so.h, out, sum > 0.0f ? 1.0f / sum : 0.0f,
              w.dim, lane);
    if (lane == 0 && w.lse) {
        w.lse[row] = sum > 0.0f ? top + logf(sum) : -INFINITE;
    }
}

/* delta and dQ, with rows as in the forward pass. */
extern "C" __global__ void __launch_bounds__(THREADS, 8)
    attn_any_dq(const __grid_constant__ lt_attn_plain_args w) {
    __shared__ float q_row[WARPS][WARP * COLS], do_row[WARPS][WARP * COLS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const i64 row = (i64)blockIdx.x * WARPS + warp;
    if (row >= (i64)w.batch * w.heads * w.q_tokens) {
        return;
    }
    const int t = (int)(row % w.q_tokens), h = (int)(row / w.q_tokens % w.heads),
              b = (int)(row / w.q_tokens / w.heads);
    const int g = h / (w.heads / w.kv_heads), n_keys = keys_of(&w, b);
    const span see = visible(&w, b, t, n_keys);
    const DTYPE *const k = w.k + b * w.sk.b + g * w.sk.h, *const v = w.v + b * w.sv.b + g * w.sv.h;
    const DTYPE *const o = w.out + b * w.so.b + t * w.so.t + h * w.so.h;
    const float lse = w.lse[row];
    float dq[COLS] = {0.0f}, delta = 0.0f;

    row_copy(q_row[warp], w.q + b * w.sq.b + t * w.sq.t + h * w.sq.h, w.dim, lane);
    row_copy(do_row[warp], w.d_out + b * w.sdo.b + t * w.sdo.t + h * w.sdo.h, w.dim, lane);
    __syncwarp();
    for (int d = lane; d < w.dim; d += WARP) {
        delta += do_row[warp][d] * TO_F32(DTYPE, o[d]);
    }
    delta = warp_sum(delta);
    if (lane == 0) {
        w.delta[row] = delta;
    }
    for (int s0 = see.from; s0 < see.to; s0 += WARP) {
        const int s = s0 + lane, n = min(WARP, see.to - s0);
        float p = 0.0f, draw = 0.0f;
        if (lane < n) {
            pair(&w, dot(q_row[warp], k + s * w.sk.t, w.dim),
                 dot(do_row[warp], v + s * w.sv.t, w.dim), lse, delta, h, s, see.pos, &p, &draw);
        }
        add_rows(dq, draw, k + s0 * w.sk.t, w.sk.t, n, w.dim, lane);
    }
    row_store(w.dq + b * w.sdq.b + t * w.sdq.t + h * w.sdq.h, dq, w.scale, w.dim, lane);
}

/* dK and dV, after every delta: keys (b, g, s), one per warp. */
extern "C" __global__ void __launch_bounds__(THREADS, 8)
    attn_any_dkv(const __grid_constant__ lt_attn_plain_args w) {
    __shared__ float k_row[WARPS][WARP * COLS], v_row[WARPS][WARP * COLS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const i64 row = (i64)blockIdx.x * WARPS + warp;
    if (row >= (i64)w.batch * w.kv_heads * w.kv_tokens) {
        return;
    }
    const int s = (int)(row % w.kv_tokens), g = (int)(row / w.kv_tokens % w.kv_heads),
              b = (int)(row / w.kv_tokens / w.kv_heads);
    const int group = w.heads / w.kv_heads, n_keys = keys_of(&w, b);
    const int first = w.causal ? max(0, s - (n_keys - w.q_tokens)) : 0;
    float dk[COLS] = {0.0f}, dv[COLS] = {0.0f};

    row_copy(k_row[warp], w.k + b * w.sk.b + s * w.sk.t + g * w.sk.h, w.dim, lane);
    row_copy(v_row[warp], w.v + b * w.sv.b + s * w.sv.t + g * w.sv.h, w.dim, lane);
    __syncwarp();
    for (int h = g * group; h < (g + 1) * group && s < n_keys; h++) {
        const DTYPE *const q = w.q + b * w.sq.b + h * w.sq.h, *const d_out = w.d_out + b * w.sdo.b +
                                                                             h * w.sdo.h;
        const i64 stats = ((i64)b * w.heads + h) * w.q_tokens;
        for (int t0 = first; t0 < w.q_tokens; t0 += WARP) {
            const int t = t0 + lane, n = min(WARP, w.q_tokens - t0);
            float p = 0.0f, draw = 0.0f;
            bool sees = false;
            span see = {0, 0, 0};
            if (lane < n) {
                see = visible(&w, b, t, n_keys);
                sees = s >= see.from && s < see.to;
            }
            if (!__any_sync(ALL_LANES, sees)) {
                continue;
            }
            if (sees) {
                pair(&w, dot(k_row[warp], q + t * w.sq.t, w.dim),
                     dot(v_row[warp], d_out + t * w.sdo.t, w.dim), w.lse[stats + t],
                     w.delta[stats + t], h, s, see.pos, &p, &draw);
            }
            add_rows(dk, draw, q + t0 * w.sq.t, w.sq.t, n, w.dim, lane);
            add_rows(dv, p, d_out + t0 * w.sdo.t, w.sdo.t, n, w.dim, lane);
        }
    }
    row_store(w.dk + b * w.sdk.b + s * w.sdk.t + g * w.sdk.h, dk, w.scale, w.dim, lane);
    row_store(w.dv + b * w.sdv.b + s * w.sdv.t + g * w.sdv.h, dv, 1.0f, w.dim, lane);
}

/* dsinks[h] -= sum over (b, t) of exp(sink - lse) delta; one block per head. */
extern "C" __global__ void __launch_bounds__(THREADS, 8)
    attn_any_sinks(const __grid_constant__ lt_attn_plain_args w) {
    __shared__ float slots[WARPS];
    const int h = blockIdx.x;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < w.batch * w.q_tokens; i += THREADS) {
        const i64 row = (i64)(i / w.q_tokens * w.heads + h) * w.q_tokens + i % w.q_tokens;
        sum += expf(w.sinks[h] - w.lse[row]) * w.delta[row];
    }
    sum = block_sum(sum, slots, WARPS);
    if (threadIdx.x == 0) {
        w.dsinks[h] -= sum;
    }
}

/* bwd_edges.cu: the work before and after attention's backward kernel: delta and the scales of the
 * fixed-point dQ; the gradient of the sinks.
 *
 * SHAPES    q, k, v, o, dO as in bwd_sm90.cu; D a multiple of 8 up to HEAD_DIM.
 * MAP       HEAD_DIM / 8 lanes a row, 16 bytes each.
 *           attn_bwd_bounds: largest |K| and |V row| of each (batch, key head) by atomic maximum
 *           (order-free). attn_bwd_delta: delta, lse in log2 units.
 *           attn_bwd_prepare: these and unit; clears the row's share of dq_acc and its pieces'
 *           counts. attn_bwd_sinks: a block a head: dsinks[h] += -sum over rows of exp(sink - lse)
 *           delta, in fixed order.
 * BOUND     memory: prepare reads 4 D bytes a row and clears 4 D.
 * NUMERICS  f32; fixed order. unit = 1.5 2^30 / bound; a bound that is not finite makes the row
 *           NaN. */
#include "attention/bwd.cuh"
#include "common/hopper.cuh"

#define LANES (HEAD_DIM / 8) /* threads per row, with 16 bytes each */
#define ROWS  (256 / LANES)  /* rows per block of 256 threads */
static_assert(HEAD_DIM == 64 || HEAD_DIM == 128 || HEAD_DIM == 256,
              "as bwd_sm90.cu and, all wider heads, bwd_wide_sm90.cu");

/* Sum and maximum over the LANES lanes of a row. Compared as bits of a non-negative float, NaN is
 * the largest. */
INLINE float row_add(float x) {
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, i);
    }
    return x;
}
INLINE u32 row_max(u32 x) {
#pragma unroll
    for (int i = LANES / 2; i > 0; i /= 2) {
        x = max(x, __shfl_xor_sync(0xffffffffu, x, i));
    }
    return x;
}
INLINE void load8(float x[8], const elem *row, int lane, int width) {
    const uint4 v = lane * 8 < width ? *(const uint4 *)(row + lane * 8) : make_uint4(0, 0, 0, 0);
    x[0] = elem_lo(v.x), x[1] = elem_hi(v.x), x[2] = elem_lo(v.y), x[3] = elem_hi(v.y);
    x[4] = elem_lo(v.z), x[5] = elem_hi(v.z), x[6] = elem_lo(v.w), x[7] = elem_hi(v.w);
}

extern "C" __global__ void __launch_bounds__(256)
    attn_bwd_bounds(const __grid_constant__ lt_attn_bwd_bounds_args e) {
    const int lane = (int)threadIdx.x % LANES, pair = (int)blockIdx.y, b = pair / e.w.a.kv_heads,
              g = pair % e.w.a.kv_heads;
    u32 k_max = 0, v_max = 0;

    for (int s0 = (int)blockIdx.x * ROWS; s0 < e.w.a.kv_tokens; s0 += (int)gridDim.x * ROWS) {
        /* The last row may be read again, which does not change a maximum. */
        const int s = min_i(s0 + (int)threadIdx.x / LANES, e.w.a.kv_tokens - 1);
        float x[8], y[8], sum = 0.0f;
        load8(x, e.k + b * e.sk.batch + g * e.sk.head + s * e.sk.token, lane, e.w.width);
        load8(y, e.v + b * e.sv.batch + g * e.sv.head + s * e.sv.token, lane, e.w.width);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            k_max = max(k_max, __float_as_uint(fabsf(x[i])));
            sum += y[i] * y[i];
        }
        v_max = max(v_max, __float_as_uint(fabsf(row_add(sum))));
    }
    k_max = row_max(k_max);
    if (lane == 0) {
        atomicMax(e.w.bounds + 2 * pair, k_max);
        atomicMax(e.w.bounds + 2 * pair + 1, v_max);
    }
}

/* Log-sum-exp in units of log2, and delta, of row t of a (batch, query head), to which these LANES
 * lanes belong; returns |dO row|^2. */
INLINE float delta_make(const lt_attn_bwd_args *w, const elem *o, const elem *d_o,
                        lt_attn_strides so, lt_attn_strides sd, int pair, int t) {
    const int lane = (int)threadIdx.x % LANES, b = pair / w->a.q_heads, h = pair % w->a.q_heads;
    const i64 row = (i64)pair * w->padded + t;
    float x[8], y[8], delta = 0.0f, norm = 0.0f, lse = -INFINITE;

    load8(x, o + b * so.batch + h * so.head + t * so.token, lane, t < w->a.q_tokens ? w->width : 0);
    load8(y, d_o + b * sd.batch + h * sd.head + t * sd.token, lane,
          t < w->a.q_tokens ? w->width : 0);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        delta += x[i] * y[i];
        norm += y[i] * y[i];
    }
    delta = row_add(delta);
    if (lane == 0) {
        if (t < w->a.q_tokens) {
            lse = w->a.lse[(i64)pair * w->a.q_tokens + t] * LOG2E;
        }
        w->lse2[row] = lse == -INFINITE ? INFINITE : lse;
        w->delta[row] = delta;
    }
    return row_add(norm);
}
extern "C" __global__ void __launch_bounds__(256)
    attn_bwd_delta(const __grid_constant__ lt_attn_bwd_delta_args e) {
    /* padded is a multiple of ROWS. */
    (void)delta_make(&e.w, e.o, e.d_o, e.so, e.sd, (int)blockIdx.y,
                     (int)blockIdx.x * ROWS + (int)threadIdx.x / LANES);
}

extern "C" __global__ void __launch_bounds__(256)
    attn_bwd_prepare(const __grid_constant__ lt_attn_bwd_delta_args e) {
    const int lane = (int)threadIdx.x % LANES, pair = (int)blockIdx.y, b = pair / e.w.a.q_heads,
              h = pair % e.w.a.q_heads;
    const int t = (int)blockIdx.x * ROWS + (int)threadIdx.x / LANES,
              kv = b * e.w.a.kv_heads + h / (e.w.a.q_heads / e.w.a.kv_heads);
    const i64 row = (i64)pair * e.w.padded + t;
    int4 *clear = (int4 *)((int *)e.w.dq_acc + row * HEAD_DIM);

    if (kv < e.w.places) {
        clear[lane] = make_int4(0, 0, 0, 0);
        clear[lane + LANES] = make_int4(0, 0, 0, 0);
    }
    const float norm = delta_make(&e.w, e.o, e.d_o, e.so, e.sd, pair, t);
    if (lane == 0) {
        if (t % 64 < HEAD_DIM / 64) { /* Each piece has its own row here. */
            ((int4 *)e.w.added)[row / 64 * (HEAD_DIM / 64) + t % 64] = make_int4(0, 0, 0, 0);
        }
        const float k_max = __uint_as_float(e.w.bounds[2 * kv]),
                    v_max = __uint_as_float(e.w.bounds[2 * kv + 1]);
        const float bound = 2.0f * sqrtf(norm) * sqrtf(v_max) * k_max;
        e.w.unit[row] = bound < 3e38f ? 1610612736.0f / fmaxf(bound, 1e-28f)
                                      : __int_as_float(0x7fffffff);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    attn_bwd_sinks(const __grid_constant__ lt_attn_bwd_sinks_args e) {
    __shared__ float part[256];
    const int h = (int)blockIdx.x, tid = (int)threadIdx.x, n = e.w.a.batch * e.w.a.q_tokens;
    const float sink = e.w.a.sinks[h] * LOG2E;
    float sum = 0.0f;

    for (int i = tid; i < n; i += 256) {
        const i64 row = (i64)(i / e.w.a.q_tokens * e.w.a.q_heads + h) * e.w.padded +
                        i % e.w.a.q_tokens;
        sum -= exp2_fast(sink - e.w.lse2[row]) * e.w.delta[row];
    }
    part[tid] = sum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (tid < half) {
            part[tid] += part[tid + half];
        }
    }
    if (tid == 0) {
        e.dsinks[h] += part[0];
    }
}

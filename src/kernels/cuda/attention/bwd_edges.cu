/* bwd_edges.cu: what stands before and after attention's backward kernel: delta, scales of the fixed-point dQ, and dQ's conversion.
 *
 * SHAPES    q, k, v, o, dO as in fwd_sm90.cu, D even, <= 256.
 * MAP       attn_bwd_bounds: a warp a key row, largest |K| and |V row| of each (batch, key head) by atomic maximum (order-free).
 *           attn_bwd_prepare: a warp a query row: delta, log2-units lse, unit; clears the row's share of dq_acc.
 *           attn_bwd_finish: 128 threads a 64 x 64 piece of dQ, in the order the warpgroups left it.
 *           attn_bwd_sinks: a block a head: dsinks[h] += -sum over rows of exp(sink - lse) delta, in fixed order.
 * BOUND     memory: prepare reads 4 D bytes a row and clears 4 D, finish reads 4 D and writes 2 D.
 * NUMERICS  f32; fixed order. unit = 1.5 2^30 / bound; a bound that is not finite makes the row NaN. */
#include "attention/bwd.cuh"
#include "common/hopper.cuh"

/* Strides in elements of (token, head, batch); D elements are contiguous. */
typedef struct {
    i64 token, head, batch;
} strides;

INLINE float warp_add(float x) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, i);
    }
    return x;
}
INLINE float warp_max(float x) { /* A NaN wins: as bits of a non-negative float it is the largest. */
    u32 b = __float_as_uint(x);
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        const u32 other = __shfl_xor_sync(0xffffffffu, b, i);
        b = other > b ? other : b;
    }
    return __uint_as_float(b);
}

extern "C" __global__ void __launch_bounds__(256)
attn_bwd_bounds(const __grid_constant__ bwd_args w, const elem *k, const elem *v, strides sk, strides sv, int width) {
    const int lane = (int)threadIdx.x % 32, pair = (int)blockIdx.y, b = pair / w.a.kv_heads, g = pair % w.a.kv_heads;
    u32 k_max = 0;
    float v_max = 0.0f;

    for (int s = (int)(blockIdx.x * 8 + threadIdx.x / 32); s < w.a.kv_tokens; s += (int)gridDim.x * 8) {
        const u32 *kr = (const u32 *)(k + b * sk.batch + g * sk.head + s * sk.token);
        const u32 *vr = (const u32 *)(v + b * sv.batch + g * sv.head + s * sv.token);
        float sum = 0.0f;
        for (int i = lane; i < width / 2; i += 32) {
            const float x = elem_lo(vr[i]), y = elem_hi(vr[i]);
            const u32 lo = __float_as_uint(fabsf(elem_lo(kr[i]))), hi = __float_as_uint(fabsf(elem_hi(kr[i])));
            sum += x * x + y * y;
            k_max = max(k_max, max(lo, hi));
        }
        sum = warp_add(sum);
        v_max = sum == sum ? fmaxf(v_max, sum) : sum;
    }
    k_max = __float_as_uint(warp_max(__uint_as_float(k_max)));
    if (lane == 0) {
        atomicMax(w.bounds + 2 * pair, k_max);
        atomicMax(w.bounds + 2 * pair + 1, __float_as_uint(fabsf(v_max)));
    }
}

extern "C" __global__ void __launch_bounds__(256)
attn_bwd_prepare(const __grid_constant__ bwd_args w, const elem *o, const elem *d_o, strides so, strides sd, int width, int padded_width) {
    const int lane = (int)threadIdx.x % 32, pair = (int)blockIdx.y, b = pair / w.a.q_heads, h = pair % w.a.q_heads;
    const int t = (int)(blockIdx.x * 8 + threadIdx.x / 32), kv = b * w.a.kv_heads + h / (w.a.q_heads / w.a.kv_heads);
    const i64 row = (i64)pair * w.padded + t;
    int4 *clear = (int4 *)(w.dq_acc + row * padded_width);
    float delta = 0.0f, norm = 0.0f, lse = INFINITE;

    if (t >= w.padded) {
        return;
    }
    for (int i = lane; i < padded_width / 4; i += 32) {
        clear[i] = make_int4(0, 0, 0, 0);
    }
    if (t < w.a.q_tokens) {
        const u32 *x = (const u32 *)(o + b * so.batch + h * so.head + t * so.token);
        const u32 *y = (const u32 *)(d_o + b * sd.batch + h * sd.head + t * sd.token);
        for (int i = lane; i < width / 2; i += 32) {
            const float y0 = elem_lo(y[i]), y1 = elem_hi(y[i]);
            delta += elem_lo(x[i]) * y0 + elem_hi(x[i]) * y1;
            norm += y0 * y0 + y1 * y1;
        }
        delta = warp_add(delta);
        norm = warp_add(norm);
        lse = w.a.lse[(i64)pair * w.a.q_tokens + t] * LOG2E;
        lse = lse == -INFINITE ? INFINITE : lse;
    }
    if (lane == 0) {
        const float k_max = __uint_as_float(w.bounds[2 * kv]), v_max = __uint_as_float(w.bounds[2 * kv + 1]);
        const float bound = 2.0f * sqrtf(norm) * sqrtf(v_max) * k_max;
        w.lse2[row] = lse;
        w.delta[row] = delta;
        w.unit[row] = bound < 3e38f ? 1610612736.0f / fmaxf(bound, 1e-28f) : __int_as_float(0x7fffffff);
    }
}

extern "C" __global__ void __launch_bounds__(128)
attn_bwd_finish(const __grid_constant__ bwd_args w, elem *dq, strides s, int width, int padded_width) {
    const int tid = (int)threadIdx.x, lane = tid % 32, pair = (int)blockIdx.z, b = pair / w.a.q_heads, h = pair % w.a.q_heads;
    const i64 row0 = (i64)pair * w.padded + (i64)blockIdx.x * 64;
    const int4 *src = (const int4 *)(w.dq_acc + (row0 / 64 * (padded_width / 64) + blockIdx.y) * 4096);
    const int t = (int)blockIdx.x * 64 + 16 * (tid / 32) + lane / 4;
    const float low = w.a.scale / w.unit[(i64)pair * w.padded + t], high = w.a.scale / w.unit[(i64)pair * w.padded + t + 8];
    elem *dst = dq + b * s.batch + h * s.head + t * s.token;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int4 x = src[i * 128 + tid];
        const int d = (int)blockIdx.y * 64 + 8 * i + lane % 4 * 2;
        if (d < width && t < w.a.q_tokens) {
            *(u32 *)(dst + d) = PACK_ELEM((float)x.x * low, (float)x.y * low);
        }
        if (d < width && t + 8 < w.a.q_tokens) {
            *(u32 *)(dst + 8 * s.token + d) = PACK_ELEM((float)x.z * high, (float)x.w * high);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
attn_bwd_sinks(const __grid_constant__ bwd_args w, float *dsinks) {
    __shared__ float part[256];
    const int h = (int)blockIdx.x, tid = (int)threadIdx.x, n = w.a.batch * w.a.q_tokens;
    const float sink = w.a.sinks[h] * LOG2E;
    float sum = 0.0f;

    for (int i = tid; i < n; i += 256) {
        const i64 row = (i64)(i / w.a.q_tokens * w.a.q_heads + h) * w.padded + i % w.a.q_tokens;
        sum -= exp2_fast(sink - w.lse2[row]) * w.delta[row];
    }
    part[tid] = sum;
    for (int half = 128; half > 0; half /= 2) {
        __syncthreads();
        if (tid < half) {
            part[tid] += part[tid + half];
        }
    }
    if (tid == 0) {
        dsinks[h] += part[0];
    }
}

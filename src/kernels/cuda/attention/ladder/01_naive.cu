/* 01_naive.cu: attention by the formula: a block a query, all its scores at once, everything read
 * from global memory. It is also the oracle of the checks.
 *
 * SHAPES    q, o, dO, dq (B, T, H, D), k, v, dk, dv (B, S, G, D), contiguous; S * 8 + 1024 bytes of
 *           shared memory.
 * MAP       a block of 128 threads a (token, head, sequence); a thread takes every 128th key, then
 *           every 128th column of D.
 * MOVEMENT  K and V of a head are read once for each query: T times more than needed. Scores live
 *           in shared memory.
 * BOUND     L2 bandwidth: 4 S D bytes a query.
 * NUMERICS  REAL (double as oracle, float as rung) throughout; dk and dv by atomic adds: the only
 *           kernel here whose sums have no fixed order. attn_naive_bwd computes the row's
 *           probabilities anew from q, k and lse.
 * LADDER    rung 1. Next: the last, ../fwd_sm90.cu and ../bwd_sm90.cu. */
#include "attention/mask.cuh"
#include "kernels/cuda/attention/ladder/naive_args.h"

#ifndef REAL
#define REAL double
#endif
#define THREADS 128
static_assert(THREADS * sizeof(REAL) == LT_ATTN_NAIVE_BYTES(0, sizeof(REAL)), "room");

INLINE REAL block_reduce(REAL x, REAL *room, bool largest) {
    const int tid = (int)threadIdx.x;
    room[tid] = x;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (tid < half) {
            room[tid] = largest ? max(room[tid], room[tid + half]) : room[tid] + room[tid + half];
        }
    }
    __syncthreads();
    x = room[0];
    __syncthreads();
    return x;
}

typedef struct {
    int t, h, b, g, n_keys, position;
    key_range see;
} row_pos;
INLINE row_pos row_of(const lt_attn_args *a) {
    row_pos r;
    r.t = (int)blockIdx.x, r.h = (int)blockIdx.y, r.b = (int)blockIdx.z;
    r.g = r.h / (a->q_heads / a->kv_heads);
    r.n_keys = keys_of(a, r.b);
    r.position = r.n_keys - a->q_tokens + r.t;
    r.see = range_of(a, r.b, r.n_keys, r.t);
    return r;
}
INLINE i64 q_row(const lt_attn_args *a, const row_pos *r, int width) {
    return ((i64)(r->b * a->q_tokens + r->t) * a->q_heads + r->h) * width;
}
INLINE i64 k_row(const lt_attn_args *a, const row_pos *r, int s, int width) {
    return ((i64)(r->b * a->kv_tokens + s) * a->kv_heads + r->g) * width;
}
INLINE REAL dot(const elem *x, const elem *y, int width) {
    REAL sum = 0;
    for (int d = 0; d < width; d++) {
        sum += (REAL)ELEM_F32(x[d]) * (REAL)ELEM_F32(y[d]);
    }
    return sum;
}
/* Logit of a key's score; *slope: its derivative by the scaled score (softcap). */
INLINE REAL logit(const lt_attn_args *a, const row_pos *r, REAL score, int s, REAL *slope) {
    REAL x = score * (REAL)a->scale;
    *slope = 1;
    if (SOFTCAP) {
        const REAL t = tanh(x / (REAL)a->softcap);
        x = (REAL)a->softcap * t;
        *slope = 1 - t * t;
    }
    return ALIBI ? x + (REAL)a->alibi[r->h] * (REAL)(s - r->position) : x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attn_naive_fwd(const __grid_constant__ lt_attn_naive_fwd_args w) {
    extern __shared__ __align__(16) REAL scores[];
    REAL *room = scores + w.a.kv_tokens, top = (REAL)-INFINITE, sum = 0, slope;
    const row_pos r = row_of(&w.a);
    const bool none = r.see.hi < r.see.lo;
    const int tid = (int)threadIdx.x;

    for (int s = r.see.lo + tid; s <= r.see.hi; s += THREADS) { /* 1. Scores and their maximum. */
        scores[s] = logit(
            &w.a, &r,
            dot(w.q + q_row(&w.a, &r, w.width), w.k + k_row(&w.a, &r, s, w.width), w.width), s,
            &slope);
        top = max(top, scores[s]);
    }
    top = block_reduce(top, room, true);
    if (SINKS) {
        top = max(top, (REAL)w.a.sinks[r.h]);
    }
    for (int s = r.see.lo + tid; s <= r.see.hi; s += THREADS) { /* 2. Exponentials and their sum. */
        scores[s] = exp(scores[s] - top);
        sum += scores[s];
    }
    sum = block_reduce(sum, room, false);
    if (SINKS && !none) {
        sum += exp((REAL)w.a.sinks[r.h] - top);
    }
    for (int d = tid; d < w.width; d += THREADS) { /* 3. The weighted sum of V. */
        REAL x = 0;
        for (int s = r.see.lo; s <= r.see.hi; s++) {
            x += scores[s] * (REAL)ELEM_F32(w.v[k_row(&w.a, &r, s, w.width) + d]);
        }
        x = none ? 0 : x / sum;
        if (w.o != 0) {
            w.o[q_row(&w.a, &r, w.width) + d] = FROM_F32(DTYPE, (float)x);
        }
        if (w.exact != 0) {
            w.exact[q_row(&w.a, &r, w.width) + d] = x;
        }
    }
    if (tid == 0) {
        w.lse[(i64)(r.b * w.a.q_heads + r.h) * w.a.q_tokens + r.t] = none ? (REAL)-INFINITE
                                                                          : top + log(sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attn_naive_bwd(const __grid_constant__ lt_attn_naive_bwd_args w) {
    extern __shared__ __align__(16) REAL slopes[];
    REAL *room = slopes + w.a.kv_tokens, delta = 0;
    const row_pos r = row_of(&w.a);
    const i64 row = q_row(&w.a, &r, w.width);
    const REAL l = w.lse[(i64)(r.b * w.a.q_heads + r.h) * w.a.q_tokens + r.t];
    const int tid = (int)threadIdx.x;

    for (int d = tid; d < w.width; d += THREADS) { /* 1. delta = dO . O */
        delta += (REAL)ELEM_F32(w.d_o[row + d]) * w.o[row + d];
    }
    delta = block_reduce(delta, room, false);
    /* 2. dS of each key; its share of dK and dV. */
    for (int s = r.see.lo + tid; s <= r.see.hi; s += THREADS) {
        const i64 key = k_row(&w.a, &r, s, w.width);
        REAL slope;
        const REAL p = exp(logit(&w.a, &r, dot(w.q + row, w.k + key, w.width), s, &slope) - l);
        slopes[s] = p * (dot(w.d_o + row, w.v + key, w.width) - delta) * slope * (REAL)w.a.scale;
        for (int d = 0; d < w.width; d++) {
            atomicAdd(w.dv + key + d, p * (REAL)ELEM_F32(w.d_o[row + d]));
            atomicAdd(w.dk + key + d, slopes[s] * (REAL)ELEM_F32(w.q[row + d]));
        }
    }
    __syncthreads();
    for (int d = tid; d < w.width; d += THREADS) { /* 3. dQ = dS K */
        REAL x = 0;
        for (int s = r.see.lo; s <= r.see.hi; s++) {
            x += slopes[s] * (REAL)ELEM_F32(w.k[k_row(&w.a, &r, s, w.width) + d]);
        }
        w.dq[row + d] = x;
    }
}

/* any_paged.cu: attention over a paged cache for what decode.cu refuses (fp32, other types of
 * cache, any head width); and writing that cache.
 *
 * SHAPES    as ops.h: q, out (R, H, D) of QTYPE, views; pages (n, page, G, D) of keys of CTYPE or,
 *           CODES 2 and 3, in blocks (coded.cuh; CTYPE is u8), and of values by VTYPE and VCODES;
 *           D <= 32 * COLS.
 * MAP       paged_any: a warp a (row, head), keys 32 at a time as any.cu; the row's sequence is
 *           found in q_start by bisection. kv_write_any: a thread an element, or a block, of K, V.
 * NUMERICS  f32; keys in order: a row's bits do not depend on the rest of the batch. */
#ifndef CODES
#define CODES 0
#endif
#ifndef VCODES
#define VCODES CODES
#define VTYPE  CTYPE
#endif
#include "attention/coded.cuh"
#include "common/early.cuh"
#include "common/reduce.cuh"
#include "kernels/cuda/attention/any_paged_args.h"

#define WARPS    4
#define THREADS  (WARPS * WARP)
#define INFINITE __int_as_float(0x7f800000)

/* Numbers that a thread writes. */
#define AT_ONCE (CODES >= CODES_Q8 || VCODES >= CODES_Q8 ? CODED_BLOCK : 1)
#if CODES >= CODES_Q8
#define KEY(pages, at) coded_at(pages, at, CODES)
#else
#define KEY(pages, at) TO_F32(CTYPE, (pages)[at])
#endif
#if VCODES >= CODES_Q8
#define VALUE(pages, at) coded_at(pages, at, VCODES)
#else
#define VALUE(pages, at) TO_F32(VTYPE, (pages)[at])
#endif

INLINE i64 slot_of(const lt_attn_any_paged_args *w, int b, int s) {
    return (i64)w->table[b * w->table_ld + s / w->page] * w->page + s % w->page;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    paged_any(const __grid_constant__ lt_attn_any_paged_args w) {
    __shared__ float q_rows[WARPS][WARP * COLS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const i64 item = (i64)blockIdx.x * WARPS + warp;
    if (item >= (i64)w.rows * w.heads) {
        return;
    }
    const int r = (int)(item / w.heads), h = (int)(item % w.heads), g = h / (w.heads / w.kv_heads);
    int b = 0, high = w.sequences - 1;
    while (b < high) { /* Find the last sequence that begins at or before r. */
        const int mid = (b + high + 1) / 2;
        if (w.q_start[mid] <= r) {
            b = mid;
        } else {
            high = mid - 1;
        }
    }
    if (r >= w.q_start[w.sequences] || r < w.q_start[b]) {
        return; /* The row belongs to no sequence. */
    }
    const int pos = w.kv_len[b] - w.q_start[b + 1] + r, to = min(w.kv_len[b], pos + 1);
    const int from = w.window > 0 ? (int)max((i64)0, pos - w.window + 1) : 0;
    const i64 step = (i64)w.kv_heads * w.dim;
    float *const q = q_rows[warp];
    float top = w.sinks ? w.sinks[h] : -INFINITE, sum = w.sinks ? 1.0f : 0.0f, out[COLS] = {0.0f};

    for (int d = lane; d < w.dim; d += WARP) {
        q[d] = TO_F32(QTYPE, w.q[r * w.q_r + h * w.q_h + d]);
    }
    __syncwarp();
    for (int s0 = from / WARP * WARP; s0 < to; s0 += WARP) {
        const int s = s0 + lane;
        const i64 at = (s < to ? slot_of(&w, b, s) : 0) * step + g * w.dim;
        float x = -INFINITE;
        if (s >= from && s < to) {
            x = 0.0f;
            for (int d = 0; d < w.dim; d++) {
                x += q[d] * KEY(w.k, at + d);
            }
            x *= w.scale;
            if (w.softcap > 0.0f) {
                x = w.softcap * tanhf(x / w.softcap);
            }
            if (w.alibi) {
                x += w.alibi[h] * (float)(s - pos);
            }
        }
        const float most = fmaxf(top, warp_max(x)),
                    keep = most > -INFINITE ? expf(top - most) : 1.0f;
        const float p = x > -INFINITE ? expf(x - most) : 0.0f;
        sum = sum * keep + warp_sum(p);
        top = most;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            out[c] *= keep;
        }
        for (int j = 0; j < min(WARP, to - s0); j++) {
            const float f = __shfl_sync(ALL_LANES, p, j);
            const i64 row = __shfl_sync(ALL_LANES, at, j);
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                /* Keys that are not seen may hold any bits, also NaN. */
                if (f != 0.0f && lane + WARP * c < w.dim) {
                    out[c] += f * VALUE(w.v, row + lane + WARP * c);
                }
            }
        }
    }
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        if (lane + WARP * c < w.dim) {
            w.out[r * w.o_r + h * w.o_h + lane + WARP * c] = FROM_F32(
                QTYPE, sum > 0.0f ? out[c] / sum : 0.0f);
        }
    }
}

INLINE void load_numbers(float x[AT_ONCE], const QTYPE *from) {
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        x[i] = TO_F32(QTYPE, from[i]);
    }
}
#if CODES >= CODES_Q8
#define PUT_KEYS(pages, to, x) coded_block(pages + CODED_SIZE(CODES, to), x, CODES)
#else
#define PUT_KEYS(pages, to, x)                                                                     \
    for (int i = 0; i < AT_ONCE; i++) {                                                            \
        (pages)[to + i] = FROM_F32(CTYPE, x[i]);                                                   \
    }
#endif
#if VCODES >= CODES_Q8
#define PUT_VALUES(pages, to, x) coded_block(pages + CODED_SIZE(VCODES, to), x, VCODES)
#else
#define PUT_VALUES(pages, to, x)                                                                   \
    for (int i = 0; i < AT_ONCE; i++) {                                                            \
        (pages)[to + i] = FROM_F32(VTYPE, x[i]);                                                   \
    }
#endif

extern "C" __global__ void __launch_bounds__(256) kv_write_any(const lt_cuda_kv_write_any_args a) {
    const i64 item = (i64)blockIdx.x * 256 + threadIdx.x;
    wait_for_others();
    if (item >= a.count) {
        return;
    }
    const int pieces = a.dim / AT_ONCE, d = (int)(item % pieces) * AT_ONCE,
              g = (int)(item / pieces % a.heads);
    const i64 r = item / pieces / a.heads, slot = a.slots[r];
    if (slot >= 0) {
        const i64 to = (slot * a.heads + g) * a.dim + d;
        float x[AT_ONCE];
        load_numbers(x, a.k + r * a.k_r + g * a.k_h + d);
        PUT_KEYS(a.k_pages, to, x);
        load_numbers(x, a.v + r * a.v_r + g * a.v_h + d);
        PUT_VALUES(a.v_pages, to, x);
    }
}

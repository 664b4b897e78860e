/* qk_norm.cu — RMSNorm of each head of q and k and its rotation in one pass, forward and backward.
 *
 * SHAPES    x, y, dy, dx (rows, H, D) of DTYPE, heads of wider rows; the first n_q heads have
 *           q_gain (D), the others k_gain, of PARAM; positions (rows) int32; table (P, D/2, 2) fp32
 *           cos, sin; rstd (rows, H) fp32; parts (blocks, D) fp32. Whole heads rotate; D = LANES *
 *           2 W. Else: qk_norm_any.cu.
 * MAP       LANES threads per head; a thread holds W elements of the first half and the W of the
 *           second half that rotate with them. Forward: HEADS heads per thread. Backward:
 *           resident blocks, the first q_blocks of which visit q's heads and the others k's, so
 *           that a thread keeps one gain and the sums of one gain's gradient; col_sum.cu adds the
 *           blocks' sums in order.
 * MOVEMENT  forward   x ──2 x 16 B──▶ registers ─sum of squares─▶ shuffle ─▶ norm ─▶
 *                         rotate with table[position] (L2: H heads share it) ──▶ y
 *           backward  x, dy ──cp.async, DEPTH turns ahead──▶ smem ─▶ rotate back ─▶ sum ─▶
 *                         shuffle ─▶ dx
 *           A thread reads the 16 bytes that it copied itself, so that the ring needs no barrier;
 *           rstd and position are loaded a turn ahead.
 * BOUND     bytes per element (bf16): 4, backward 6; separate kernels for norm and rotation took
 *           8 and 10.
 * NUMERICS  fp32, sums in a fixed order (the kind of GPU decides the number of blocks); one
 *           rounding at the store, none between norm and rotation.
 * REFS      Su et al. 2021, arXiv:2104.09864; Henry et al. 2020, arXiv:2010.04245 (QK-norm). */
#include "common/ptx.cuh"
#include "kernels/cuda/ops/qk_norm_args.h"
#include "ops/rope.cuh"

#define THREADS 256
#define GROUPS  (THREADS / LANES) /* Heads that a block works on at once. */
#define HEADS   2                 /* Heads per thread in the forward pass. */
#define DEPTH   LT_QK_NORM_DEPTH  /* Turns in the ring of the backward pass. */
static_assert(LANES <= WARP && (LANES & (LANES - 1)) == 0, "a head belongs to part of a warp");
static_assert(DEPTH * 4 * THREADS * sizeof(uint4) == LT_QK_NORM_BYTES(THREADS), "the ring");
static_assert(LT_QK_NORM_BYTES(THREADS) >= THREADS / WARP * D * 4,
              "the ring holds the warps' sums at the end");

INLINE float head_sum(float x) {
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, lanes);
    }
    return x;
}
INLINE void gain_load(float *g, const PARAM *gain, float offset) {
    piece_load_param(g, gain);
#pragma unroll
    for (int i = 0; i < W; i++) {
        g[i] += offset;
    }
}
extern "C" __global__ void __launch_bounds__(THREADS)
    qk_norm_fwd(const lt_cuda_qk_norm_fwd_args call) {
    const int lane = threadIdx.x % LANES, count = call.n.rows * call.n.heads,
              first = blockIdx.x * GROUPS * HEADS + threadIdx.x / LANES;
    uint4 low[HEADS], high[HEADS];
    int row[HEADS], head[HEADS];
    wait_for_others();
#pragma unroll
    /* Past the end the last head is read again, because all lanes take part in the shuffles. */
    for (int k = 0; k < HEADS; k++) {
        const u32 at = min(first + k * GROUPS, count - 1);
        row[k] = at / (u32)call.n.heads, head[k] = at % (u32)call.n.heads;
        const DTYPE *from = call.x + row[k] * call.n.x.row + head[k] * call.n.x.head + lane * W;
        low[k] = __ldcs((const uint4 *)from), high[k] = __ldcs((const uint4 *)(from + D / 2));
    }
#pragma unroll
    for (int k = 0; k < HEADS; k++) {
        const PARAM *const gain = (head[k] < call.n.n_q ? call.q_gain : call.k_gain) + lane * W;
        const bool live = first + k * GROUPS < count;
        float a[W], b[W], g[W], squares = 0.0f;
        UNPACK(DTYPE, a, low[k]);
        UNPACK(DTYPE, b, high[k]);
#pragma unroll
        for (int i = 0; i < W; i++) {
            squares += a[i] * a[i] + b[i] * b[i];
        }
        const float scale = rsqrtf(head_sum(squares) * (1.0f / D) + call.eps);
        if (live && lane == 0 && call.rstd) {
            call.rstd[first + k * GROUPS] = scale;
        }
        gain_load(g, gain, call.gain_offset);
#pragma unroll
        for (int i = 0; i < W; i++) {
            a[i] *= scale * g[i];
        }
        gain_load(g, gain + D / 2, call.gain_offset);
#pragma unroll
        for (int i = 0; i < W; i++) {
            b[i] *= scale * g[i];
        }
        rotate(a, b, call.table, call.positions[row[k]], lane, 1.0f);
        if (live) {
            DTYPE *const to = call.y + row[k] * call.n.y.row + head[k] * call.n.y.head + lane * W;
            piece_store(to, a);
            piece_store(to + D / 2, b);
        }
    }
}

/* ---- Backward ---- */

/* The heads of one kind: there are `count` of them, and the i-th is head first + i % each of row
 * i / each. */
typedef struct {
    int count, each, first;
} walk;

INLINE i64 head_begin(lt_qk_steps s, walk w, u32 i) {
    return (i64)(i / (u32)w.each) * s.row + (i64)(w.first + i % (u32)w.each) * s.head;
}
/* Request x and dy of head i; zeros past the end. */
INLINE void turn_fetch(uint4 *slot, const DTYPE *x, const DTYPE *dy, const lt_qk_shape *n, walk w,
                       int i, int lane) {
    const int there = i < w.count ? 4 : 0;
    const DTYPE *const from = x + (there ? head_begin(n->x, w, i) + lane * W : 0),
                       *const d_from = dy + (there ? head_begin(n->y, w, i) + lane * W : 0);
    cp_async_16_or_zero(smem_addr(slot), from, there);
    cp_async_16_or_zero(smem_addr(slot + THREADS), from + D / 2, there);
    cp_async_16_or_zero(smem_addr(slot + 2 * THREADS), d_from, there);
    cp_async_16_or_zero(smem_addr(slot + 3 * THREADS), d_from + D / 2, there);
    cp_async_commit();
}

/* Store the block's sums over its heads in its row of parts: groups of a warp are added by
 * shuffles, then the warps in order. */
INLINE void parts_store(float *parts, float *room, float *da, float *db, int lane) {
#pragma unroll
    for (int i = 0; i < W; i++) {
#pragma unroll
        for (int lanes = LANES; lanes < WARP; lanes *= 2) {
            da[i] += __shfl_xor_sync(ALL_LANES, da[i], lanes);
            db[i] += __shfl_xor_sync(ALL_LANES, db[i], lanes);
        }
    }
    __syncthreads(); /* The ring is free. */
    if (threadIdx.x % WARP < LANES) {
        float *const to = room + threadIdx.x / WARP * D + lane * W;
        piece_store_f32(to, da);
        piece_store_f32(to + D / 2, db);
    }
    __syncthreads();
    for (int col = threadIdx.x; col < D; col += THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < THREADS / WARP; w++) {
            sum += room[w * D + col];
        }
        parts[(i64)blockIdx.x * D + col] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    qk_norm_bwd(const lt_cuda_qk_norm_bwd_args call) {
    /* [DEPTH][x low, x high, dy low, dy high][THREADS] */
    extern __shared__ __align__(16) uint4 ring[];
    const bool is_q = (int)blockIdx.x < call.n.q_blocks;
    const int lane = threadIdx.x % LANES,
              blocks = is_q ? call.n.q_blocks : (int)gridDim.x - call.n.q_blocks;
    const int step = blocks * GROUPS,
              base = ((int)blockIdx.x - (is_q ? 0 : call.n.q_blocks)) * GROUPS;
    const walk w = {call.n.rows * (is_q ? call.n.n_q : call.n.heads - call.n.n_q),
                    is_q ? call.n.n_q : call.n.heads - call.n.n_q, is_q ? 0 : call.n.n_q};
    const PARAM *const gain = (is_q ? call.q_gain : call.k_gain) + lane * W;
    float ga[W], gb[W], sum_a[W] = {0.0f}, sum_b[W] = {0.0f}, next_scale = 0.0f;
    int mine = base + threadIdx.x / LANES, slot = 0, next_position = 0;
    wait_for_others();
    for (int d = 0; d < DEPTH; d++) {
        turn_fetch(ring + d * 4 * THREADS + threadIdx.x, call.x, call.dy, &call.n, w,
                   mine + d * step, lane);
    }
    gain_load(ga, gain, call.gain_offset);
    gain_load(gb, gain + D / 2, call.gain_offset);
    if (mine < w.count) {
        next_scale =
            call.rstd[(u32)mine / (u32)w.each * call.n.heads + w.first + (u32)mine % (u32)w.each];
        next_position = call.positions[(u32)mine / (u32)w.each];
    }
    for (int at = base; at < w.count; at += step, mine += step) {
        uint4 *const here = ring + slot * 4 * THREADS + threadIdx.x;
        const float scale = next_scale; /* Past the end it is 0, and x and dy are zeros. */
        const int position = next_position, next = mine + step;
        float a[W], b[W], da[W], db[W], dot = 0.0f;
        next_scale = 0.0f;
        if (next < w.count) {
            next_scale = call.rstd[(u32)next / (u32)w.each * call.n.heads + w.first +
                                   (u32)next % (u32)w.each];
            next_position = call.positions[(u32)next / (u32)w.each];
        }
        cp_async_wait(DEPTH - 1);
        UNPACK(DTYPE, a, here[0]);
        UNPACK(DTYPE, b, here[THREADS]);
        UNPACK(DTYPE, da, here[2 * THREADS]);
        UNPACK(DTYPE, db, here[3 * THREADS]);
        /* The slot is free. */
        turn_fetch(here, call.x, call.dy, &call.n, w, mine + DEPTH * step, lane);
        rotate(da, db, call.table, position, lane, -1.0f);
#pragma unroll
        for (int i = 0; i < W; i++) {
            a[i] *= scale, b[i] *= scale;
            sum_a[i] += da[i] * a[i], sum_b[i] += db[i] * b[i];
            da[i] *= ga[i], db[i] *= gb[i];
            dot += da[i] * a[i] + db[i] * b[i];
        }
        dot = head_sum(dot) * (1.0f / D);
        if (mine < w.count) {
            DTYPE *const to = call.dx + head_begin(call.n.dx, w, mine) + lane * W;
#pragma unroll
            for (int i = 0; i < W; i++) {
                da[i] = scale * (da[i] - a[i] * dot), db[i] = scale * (db[i] - b[i] * dot);
            }
            piece_store(to, da);
            piece_store(to + D / 2, db);
        }
        slot = slot + 1 < DEPTH ? slot + 1 : 0;
    }
    cp_async_wait(0);
    parts_store(call.parts, (float *)ring, sum_a, sum_b, lane);
}

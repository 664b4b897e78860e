/* bwd_dq_sm90.cu: dQ of attention alone, together with delta = sum over D of dO O, on Hopper;
 * afterwards bwd_sm90.cu with DQ=0 makes dK and dV. Bit-identical run to run.
 *
 * SHAPES    as bwd_sm90.cu. A tile is 128 queries of one query head, of which two consumers own 64
 *           each.
 * MAP       persistent blocks that draw tiles from a counter; warpgroup 0 copies, two more compute
 *           and do not wait for each other.
 * MOVEMENT  O of a tile comes through V's ring, as if it were the first keys: with dO it gives
 *           delta. Then, for each 128 keys and a consumer's 64 queries:
 *     S = Q K^T (smem, smem) ─ exp2(S - lse) ─▶ P ─┐
 *     dP = dO V^T (smem, smem) ──────────── P (dP - delta) ─▶ dS 16-bit registers
 *     dQ += dS K (registers, smem)
 *     dQ leaves from registers. exp2 runs under dP, everything under the other consumer's products.
 * WHY       S and dP are computed twice, here and for dK and dV: 7 products instead of 5. In return
 *           dQ never leaves the registers: there are no sums in memory to clear, add to and convert
 *           (12 D bytes a row), no bounds of K and V (4 D bytes a key), and no kernel before or
 *           after. That pays where a query sees few keys (backward.c).
 * BOUND     6 T S D H flop (half if causal) at 4096 a clock an SM. Shared memory gives 16 KB in 192
 *           clocks, and could give 24 KB.
 * MEASURED  docs/speed/attention.md.
 * NUMERICS  S, dP, P, delta in f32; dS rounded to 16 bits; dQ summed in f32, rounded once, at the
 *           store. Fixed order. */
#include "attention/bwd.cuh"
#include "common/hopper.cuh"
#include "common/ring.cuh"
#include "common/wgmma.cuh"

#define CONSUMERS 2
#define BM        128
#define BN        128
#define THREADS   384
#if HEAD_DIM == 64
#define STAGES  4
#define Q_SLOTS 2
#else
#define STAGES  2
#define Q_SLOTS 1
#endif
#define COLUMNS  (HEAD_DIM / 64)
#define Q_BYTES  (64 * HEAD_DIM * 2) /* rows of Q or of dO of one consumer */
#define KV_BYTES (BN * HEAD_DIM * 2)
#define BAR_OWN  1 /* one consumer */
static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "wider heads: bwd_wide_sm90.cu");
static_assert(BN == BM, "O of a tile fills a stage of V's ring");

#define TILE_BOX 64
#define STEP_BOX BN
#include "attention/products.cuh"

typedef struct {
    int b, head, token, n_keys; /* token: the tile's first */
    int j_begin, j_end;         /* key blocks */
} tile_pos;

/* Addresses in shared memory. */
typedef struct {
    /* q: Q and then dO, for each slot and consumer */
    u32 q, k, v;
    u32 q_full, q_empty;                  /* one per slot and consumer */
    u32 k_full, k_empty, v_full, v_empty; /* one per stage */
    /* one per slot and consumer, 32 bytes: position of the tile whose Q arrives; b -1 at the end */
    u32 tile;
} smem_map;

/* The tiles of a head are adjacent, the longest first. */
INLINE int tile_count(const lt_attn_bwd_args *w) {
    return w->padded / BM * w->a.batch * w->a.q_heads;
}
INLINE tile_pos tile_locate(int t, const lt_attn_bwd_args *w) {
    const lt_attn_args *a = &w->a;
    const int rows = w->padded / BM, pair = t / rows;
    tile_pos p;
    p.b = pair / a->q_heads;
    p.head = pair % a->q_heads;
    p.token = (rows - 1 - t % rows) * BM;
    p.n_keys = keys_of(a, p.b);
    const key_range low = range_of(a, p.b, p.n_keys, p.token),
                    high = range_of(a, p.b, p.n_keys, p.token + BM - 1);
    p.j_begin = low.lo / BN;
    p.j_end = high.hi < low.lo ? p.j_begin : high.hi / BN + 1;
    return p;
}
#define TILE_BYTES 32
INLINE void tile_put(u32 at, const tile_pos *p) {
    st_shared_v4_s32(at, p->b, p->head, p->token, p->n_keys);
    st_shared_v2_s32(at + 16, p->j_begin, p->j_end);
}
INLINE tile_pos tile_get(u32 at) {
    const uint4 x = ld_shared_v4(at);
    tile_pos p;
    p.b = warp_uniform((int)x.x), p.head = warp_uniform((int)x.y), p.token = warp_uniform((int)x.z),
    p.n_keys = warp_uniform((int)x.w);
    p.j_begin = warp_uniform(ld_shared_s32(at + 16)),
    p.j_end = warp_uniform(ld_shared_s32(at + 20));
    return p;
}

INLINE void load_block(const void *map, u32 ring, u32 full, u32 empty, ring_pos *r, int b, int head,
                       int j) {
    const u32 bar = full + 8 * r->slot, dst = ring + r->slot * KV_BYTES;
    mbarrier_wait(empty + 8 * r->slot, r->phase);
    mbarrier_expect(bar, KV_BYTES);
    for (int c = 0; c < COLUMNS; c++) {
        tma_load_4d(dst + c * BN * 128, map, bar, c * 64, head, j * BN, b);
    }
    ring_step(r, STAGES);
}

/* 1. One thread feeds the block: O of a tile and the last of K, then Q and dO, then V and K in the
 * order of use, with the last keys first. */
INLINE void produce(const void *map_q, const void *map_k, const void *map_v, const void *map_o,
                    const void *map_do, const lt_attn_bwd_args *w, const smem_map *s) {
    const lt_attn_args *a = &w->a;
    /* A new slot is empty, so a wait for "phase 1" returns immediately. */
    ring_pos rk = {0, 1}, rv = {0, 1}, at = {0, 1};
    int t = (int)blockIdx.x;

    while (t < tile_count(w)) {
        /* Drawn long before it is needed. */
        const int next = (int)(gridDim.x + atomicAdd(a->counter, 1));
        const tile_pos p = tile_locate(t, w);
        const int kv_head = p.head / (a->q_heads / a->kv_heads);
        load_block(map_o, s->v, s->v_full, s->v_empty, &rv, p.b, p.head, p.token / BM);
        if (p.j_begin < p.j_end) {
            load_block(map_k, s->k, s->k_full, s->k_empty, &rk, p.b, kv_head, p.j_end - 1);
        }
        for (int n = 0; n < CONSUMERS; n++) {
            const int i = at.slot * CONSUMERS + n;
            const u32 q = s->q + i * (2 * Q_BYTES), bar = s->q_full + 8 * i;
            mbarrier_wait(s->q_empty + 8 * i, at.phase);
            tile_put(s->tile + TILE_BYTES * i, &p);
            mbarrier_expect(bar, 2 * Q_BYTES);
            for (int c = 0; c < COLUMNS; c++) {
                tma_load_4d(q + c * 8192, map_q, bar, c * 64, p.head, p.token + n * 64, p.b);
                tma_load_4d(q + Q_BYTES + c * 8192, map_do, bar, c * 64, p.head, p.token + n * 64,
                            p.b);
            }
        }
        ring_step(&at, Q_SLOTS);
        for (int j = p.j_end - 1; j >= p.j_begin; j--) {
            load_block(map_v, s->v, s->v_full, s->v_empty, &rv, p.b, kv_head, j);
            if (j > p.j_begin) {
                load_block(map_k, s->k, s->k_full, s->k_empty, &rk, p.b, kv_head, j - 1);
            }
        }
        t = next;
    }
    for (int n = 0; n < CONSUMERS; n++) {
        const int i = at.slot * CONSUMERS + n;
        mbarrier_wait(s->q_empty + 8 * i, at.phase);
        st_shared_s32(s->tile + TILE_BYTES * i, -1);
        mbarrier_arrive(s->q_full + 8 * i);
    }
    draws_end(a);
}

/* The two rows of which the thread holds a part. */
typedef struct {
    key_range see[2];
    /* log-sum-exp in units of log2; +inf in rows that see nothing or do not exist */
    float lse2[2], delta[2];
    float slope[2];
    int position[2];
} row_state;

INLINE float pair_dot(u32 x, u32 y, float sum) {
    return sum + elem_lo(x) * elem_lo(y) + elem_hi(x) * elem_hi(y);
}
/* 2. The thread's two rows: log-sum-exp, and delta from a consumer's rows of O and dO. The four
 * lanes of a row take 16 bytes in turn. For bwd_sm90.cu they are also stored. */
INLINE void rows_start(row_state *r, const lt_attn_bwd_args *w, const tile_pos *p, u32 o, u32 d_o,
                       int consumer) {
    const int tid = (int)threadIdx.x % 128, lane = tid % 32;
    const i64 pair = p->b * w->a.q_heads + p->head;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 16 * (tid / 32) + lane / 4 + 8 * h, token = p->token + 64 * consumer + row;
        float delta = 0.0f, lse = -INFINITE;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 32; i++) {
            const u32 at = row * 128 + ((i % 2 * 4 + lane % 4) ^ (row % 8)) * 16;
            const uint4 x = ld_shared_v4(o + i / 2 * (BN * 128) + at),
                        y = ld_shared_v4(d_o + i / 2 * 8192 + at);
            delta = pair_dot(x.x, y.x, delta);
            delta = pair_dot(x.y, y.y, delta);
            delta = pair_dot(x.z, y.z, delta);
            delta = pair_dot(x.w, y.w, delta);
        }
        delta += __shfl_xor_sync(0xffffffffu, delta, 1);
        delta += __shfl_xor_sync(0xffffffffu, delta, 2);
        if (token < w->a.q_tokens) {
            lse = w->a.lse[pair * w->a.q_tokens + token] * LOG2E;
        }
        lse = lse == -INFINITE ? INFINITE : lse;
        if (lane % 4 == 0) {
            w->lse2[pair * w->padded + token] = lse;
            w->delta[pair * w->padded + token] = delta;
        }
        r->lse2[h] = lse;
        r->delta[h] = delta;
        r->see[h] = range_of(&w->a, p->b, p->n_keys, token);
        r->position[h] = p->n_keys - w->a.q_tokens + token;
        r->slope[h] = ALIBI ? w->a.alibi[p->head] * LOG2E : 0.0f;
    }
}

/* 3. s becomes P, with SOFTCAP times the cap's slope. */
INLINE void probabilities(float s[BN / 2], const row_state *r, const lt_attn_args *a, int col0,
                          bool mask) {
    const float scale2 = a->scale * LOG2E;
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const int h = i / 2 % 2, col = col0 + i / 4 * 8 + i % 2;
        float x = s[i], bend = 1.0f;
        if (SOFTCAP) {
            const float tanh = tanh_of(__fdividef(x * a->scale, a->softcap));
            x = a->softcap * LOG2E * tanh - r->lse2[h];
            bend = 1.0f - tanh * tanh;
        } else {
            x = x * scale2 - r->lse2[h];
        }
        if (ALIBI) {
            x += r->slope[h] * (float)(col - r->position[h]);
        }
        x = exp2_fast(x);
        if (mask) {
            x = col < r->see[h].lo || col > r->see[h].hi ? 0.0f : x;
        }
        s[i] = SOFTCAP ? x * bend : x;
    }
}

/* 4. One consumer's 64 rows of a tile against all key blocks of the tile. */
INLINE void walk(float dq[HEAD_DIM / 2], const row_state *r, const lt_attn_bwd_args *w,
                 const smem_map *m, const tile_pos *p, ring_pos *rk, ring_pos *rv, u32 q,
                 int consumer) {
    const int tid = (int)threadIdx.x % 128, col = tid % 4 * 2, first = p->token + 64 * consumer;
    const key_range top = range_of(&w->a, p->b, p->n_keys, first),
                    low = range_of(&w->a, p->b, p->n_keys, first + 63);

    for (int j = p->j_end - 1; j >= p->j_begin; j--) {
        float s[BN / 2], dp[BN / 2];
        u32 ds[BN / 4];
        const u32 k = m->k + rk->slot * KV_BYTES;
        mbarrier_wait(m->k_full + 8 * rk->slot, rk->phase);
        mbarrier_wait(m->v_full + 8 * rv->slot, rv->phase);
        wgmma_fence();
        issue_scores(s, q, k);
        issue_scores(dp, q + Q_BYTES, m->v + rv->slot * KV_BYTES);
        wgmma_wait(1);
        wgmma_pin(s, BN / 2);
        if (j * BN < low.lo || j * BN + BN - 1 > top.hi) {
            probabilities(s, r, &w->a, j * BN + col, true);
        } else {
            probabilities(s, r, &w->a, j * BN + col, false);
        }
        wgmma_wait(0);
        wgmma_pin(dp, BN / 2);
        if (tid == 0) {
            mbarrier_arrive(m->v_empty + 8 * rv->slot);
        }
#pragma unroll
        for (int i = 0; i < BN / 4; i++) {
            ds[i] = PACK_ELEM(s[2 * i] * (dp[2 * i] - r->delta[i % 2]),
                              s[2 * i + 1] * (dp[2 * i + 1] - r->delta[i % 2]));
        }
        wgmma_fence();
        issue_sums(dq, ds, k);
        /* No product may be in flight across iterations of the loop, or ptxas would serialise the
         * products. */
        wgmma_wait(0);
        wgmma_pin(dq, HEAD_DIM / 2);
        if (tid == 0) {
            mbarrier_arrive(m->k_empty + 8 * rk->slot);
        }
        ring_step(rk, STAGES);
        ring_step(rv, STAGES);
    }
}

INLINE void consume(const lt_attn_bwd_args *w, const smem_map *m, int consumer) {
    ring_pos rk = {0, 0}, rv = {0, 0}, at = {0, 0};

    for (;; ring_step(&at, Q_SLOTS)) {
        const int i = at.slot * CONSUMERS + consumer;
        const u32 q = m->q + i * (2 * Q_BYTES);
        float dq[HEAD_DIM / 2] = {0.0f};
        row_state r;
        mbarrier_wait(m->q_full + 8 * i, at.phase);
        const tile_pos p = tile_get(m->tile + TILE_BYTES * i);
        if (p.b < 0) {
            break;
        }
        mbarrier_wait(m->v_full + 8 * rv.slot, rv.phase);
        rows_start(&r, w, &p, m->v + rv.slot * KV_BYTES + consumer * 8192, q + Q_BYTES, consumer);
        named_barrier_sync(BAR_OWN + consumer, 128); /* All warps have read O. */
        if (threadIdx.x % 128 == 0) {
            mbarrier_arrive(m->v_empty + 8 * rv.slot);
        }
        ring_step(&rv, STAGES);
        if (p.j_begin < p.j_end) {
            walk(dq, &r, w, m, &p, &rk, &rv, q, consumer);
        }
        named_barrier_sync(BAR_OWN + consumer, 128); /* All warps have read the tile's position. */
        if (threadIdx.x % 128 == 0) {
            mbarrier_arrive(m->q_empty + 8 * i);
        }
        store_rows(dq, w->a.scale,
                   (elem *)w->dq + p.b * w->dq_strides.batch + p.head * w->dq_strides.head,
                   w->dq_strides.token, p.token + 64 * consumer, w->a.q_tokens, w->width);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attn_bwd_dq_sm90(
    const __grid_constant__ tensor_map map_q, const __grid_constant__ tensor_map map_k,
    const __grid_constant__ tensor_map map_v, const __grid_constant__ tensor_map map_o,
    const __grid_constant__ tensor_map map_do, const __grid_constant__ lt_attn_bwd_args args) {
    extern __shared__ __align__(1024) u8 smem[];
    const int group = warp_uniform((int)threadIdx.x / 128);
    smem_map m;
    static_assert(Q_SLOTS * CONSUMERS * 2 * Q_BYTES + 2 * STAGES * KV_BYTES == LT_ATTN_BWD_DQ_RINGS,
                  "q, dO, k, v");
    static_assert(16 * Q_SLOTS * CONSUMERS + 32 * STAGES + TILE_BYTES - 1 +
                          TILE_BYTES * Q_SLOTS * CONSUMERS <=
                      LT_ATTN_BWD_DQ_PLACES,
                  "barriers, tiles");
    m.q = (smem_addr(smem) + 1023) & ~1023u;
    m.k = m.q + Q_SLOTS * CONSUMERS * 2 * Q_BYTES;
    m.v = m.k + STAGES * KV_BYTES;
    m.q_full = m.v + STAGES * KV_BYTES;
    m.q_empty = m.q_full + 8 * Q_SLOTS * CONSUMERS;
    m.k_full = m.q_empty + 8 * Q_SLOTS * CONSUMERS;
    m.k_empty = m.k_full + 8 * STAGES;
    m.v_full = m.k_empty + 8 * STAGES;
    m.v_empty = m.v_full + 8 * STAGES;
    m.tile = (m.v_empty + 8 * STAGES + TILE_BYTES - 1) & ~(TILE_BYTES - 1u);

    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_SLOTS * CONSUMERS; i++) {
            mbarrier_init(m.q_full + 8 * i, 1);
            mbarrier_init(m.q_empty + 8 * i, 1);
        }
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(m.k_full + 8 * s, 1);
            mbarrier_init(m.v_full + 8 * s, 1);
            mbarrier_init(m.k_empty + 8 * s, CONSUMERS);
            mbarrier_init(m.v_empty + 8 * s, CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (group == 0) {
        regs_shrink(40);
        if (threadIdx.x == 0) {
            produce(&map_q, &map_k, &map_v, &map_o, &map_do, &args, &m);
        }
    } else {
        regs_grow(232);
        consume(&args, &m, group - 1);
    }
}

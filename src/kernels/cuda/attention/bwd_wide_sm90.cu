/* bwd_wide_sm90.cu: dQ (OF=0), or dK and dV (OF=1), of attention with heads of 192 and 256 columns
 * on Hopper. Bit-identical run to run.
 *
 * SHAPES    as fwd_sm90.cu, 128 < D <= HEAD_DIM = 192 or 256.
 * MAP       OF=0: a tile is 128 queries of a query head, of which two consumers own 64 each; keys
 *           come by in steps of 64. OF=1: a tile is 64 keys of a key head; consumer 0 owns their
 *           dV, consumer 1 their dK; the queries of all query heads of the group come by in steps
 *           of 64. Persistent blocks draw tiles from a counter; warpgroup 0 copies.
 * MOVEMENT  A, C rows of the tile, resident; B, E of a step.
 *     OF=0: A, C, B, E are Q, dO, K, V; each consumer, of its queries:
 *         S = Q K^T (smem, smem) ── exp2(S - lse) ─▶ P
 *         dP = dO V^T (smem, smem) ─ P (dP - delta) ─▶ dS ─▶ dQ += dS K (registers, smem)
 *         K has two stages, V one: it is free again before the exponentials.
 *     OF=1: K, V, Q, dO, two stages each:
 *         consumer 0   S^T = K Q^T (smem, smem) ─ exp2(S - lse) ─▶ P ──────────────────▶ dV += P dO
 *                                                                  │ smem
 *         consumer 1   dP^T = V dO^T (smem, smem) ────────── P (dP - delta) ─▶ dS ─▶ dK += dS Q
 *         Left operands of dV and dK are registers, right ones smem. P goes through one of two
 *         places in smem, thread by thread; with SOFTCAP it is P times the cap's slope.
 *         Consumer 0 issues S of the next step before dV of this one: exponentials run under dV.
 *         Consumer 1 issues dK before dP of the next step, so that Q's place, for which the step
 *         after the next waits, is free sooner.
 * WHY       dK and dV of 64 keys are 256 registers a thread at 256 columns: two consumers hold one
 *           each. So there are seven products instead of five, but nothing is added to memory.
 * BOUND     14 T S D H flop (half if causal) at 4096 a clock an SM. A step reads 384 KB of shared
 *           memory in dQ's 3072 clocks, and 288 KB in the 2048 of dK and dV, where this is the
 *           limit.
 * NUMERICS  S, dP, P in f32; P or dS rounded to 16 bits as operand; sums in f32, rounded once, at
 *           the store. Fixed order. */
#include "attention/bwd.cuh"
#include "common/hopper.cuh"
#include "common/ring.cuh"
#include "common/wgmma.cuh"

#define CONSUMERS  2
#define ROWS       (OF == 0 ? 128 : 64) /* rows of a tile */
#define STEP       64
#define BN         ROWS /* constants of bwd_tiles.cuh: tiles of keys, steps of queries */
#define BM         STEP
#define CLUSTER    1
#define TILE_KEYS  BN
#define THREADS    384
#define COLUMNS    (HEAD_DIM / 64)
#define BY_KEYS    (OF == 1)
#define B_STAGES   2
#define E_STAGES   (BY_KEYS ? 2 : 1)
#define SIDE       (ROWS * HEAD_DIM * 2)
#define STEP_SIDE  (STEP * HEAD_DIM * 2)
#define PLACE      (STEP * STEP * 4) /* of P, passed to consumer 1 */
#define BAR_OWN    1                 /* and 2: named barriers */
#define BAR_FILLED 3                 /* and 4: a place was filled */
#define BAR_FREE   5                 /* and 6: a place is free */
static_assert(HEAD_DIM == 192 || HEAD_DIM == 256, "narrower heads: bwd_sm90.cu");

#define LONGEST_FIRST 1
#include "attention/bwd_tiles.cuh"
#define TILE_BOX ROWS
#define STEP_BOX STEP
#include "attention/products.cuh"

typedef struct {
    /* a: A and then C; lse, delta: of the queries of a step, beside B and E (BY_KEYS) */
    u32 a, b, e, lse, delta;
    u32 hand;                                                    /* two places (BY_KEYS) */
    u32 rows_full, rows_empty, b_full, b_empty, e_full, e_empty; /* rows: of A and of C */
    u32 tile;
} smem_map;

#if BY_KEYS
#define tile_total  tile_count
#define tile_choose tile_locate
#else
/* Rows are queries: kv_head is the query head, and n_heads is 1. Heads are in sections; each begins
 * with the longest tiles (last rows). */
INLINE int tile_total(const lt_attn_bwd_args *w) {
    return w->padded / ROWS * w->a.batch * w->a.q_heads;
}
INLINE tile_pos tile_choose(const lt_attn_bwd_args *w, int t) {
    const lt_attn_args *a = &w->a;
    const int rows = w->padded / ROWS;
    const turn at = turn_of(a, t, a->batch * a->q_heads, rows);
    tile_pos p;
    p.pair = at.pair;
    p.b = p.pair / a->q_heads;
    p.kv_head = p.pair % a->q_heads;
    p.key = (rows - 1 - at.nth) * ROWS;
    p.n_keys = keys_of(a, p.b);
    p.n_heads = 1;
    const key_range low = range_of(a, p.b, p.n_keys, p.key),
                    high = range_of(a, p.b, p.n_keys, p.key + ROWS - 1);
    p.m_begin = low.lo / STEP;
    p.m_end = high.hi < low.lo ? p.m_begin : high.hi / STEP + 1;
    p.i = p.m_begin;
    p.head = 0;
    return p;
}
#endif

INLINE void load_side(u32 to, const void *map, u32 bar, int head, int row, int b, const int rows) {
    for (int c = 0; c < COLUMNS; c++) {
        tma_load_4d(to + c * rows * 128, map, bar, c * 64, head, row, b);
    }
}

/* 1. One thread loads a tile's rows once, then the steps one by one. */
INLINE void produce(const void *map_a, const void *map_c, const void *map_b, const void *map_e,
                    const lt_attn_bwd_args *w, const smem_map *m, const tile_pos *p, ring_pos *rb,
                    ring_pos *re, u32 *n_tiles) {
    const int group = w->a.q_heads / w->a.kv_heads;
    for (u32 c = 0; c < 2; c++) {
        mbarrier_wait(m->rows_empty + 8 * c, (*n_tiles & 1u) ^ 1u);
        if (c == 0) {
            tile_put(m->tile + (*n_tiles & 1u) * TILE_BYTES, p);
        }
        mbarrier_expect(m->rows_full + 8 * c, SIDE);
        load_side(m->a + c * SIDE, c == 0 ? map_a : map_c, m->rows_full + 8 * c, p->kv_head, p->key,
                  p->b, ROWS);
    }
    ++*n_tiles;
    int h = p->head, i = p->i;
    for (int n = p->n_heads * (p->m_end - p->m_begin); n > 0;
         n--, step_next(p, &h, &i), ring_step(rb, B_STAGES), ring_step(re, E_STAGES)) {
        const int head = BY_KEYS ? p->kv_head * p->n_heads + h : p->kv_head / group;
        const i64 row = (i64)(p->b * w->a.q_heads + head) * w->padded + i * STEP;
        const u32 b_bar = m->b_full + 8 * rb->slot, e_bar = m->e_full + 8 * re->slot;
        mbarrier_wait(m->b_empty + 8 * rb->slot, rb->phase);
        mbarrier_expect(b_bar, STEP_SIDE + (BY_KEYS ? STEP * 4 : 0));
        load_side(m->b + rb->slot * STEP_SIDE, map_b, b_bar, head, i * STEP, p->b, STEP);
        if (BY_KEYS) {
            bulk_load(m->lse + rb->slot * STEP * 4, w->lse2 + row, STEP * 4, b_bar);
        }
        mbarrier_wait(m->e_empty + 8 * re->slot, re->phase);
        mbarrier_expect(e_bar, STEP_SIDE + (BY_KEYS ? STEP * 4 : 0));
        load_side(m->e + re->slot * STEP_SIDE, map_e, e_bar, head, i * STEP, p->b, STEP);
        if (BY_KEYS) {
            bulk_load(m->delta + re->slot * STEP * 4, w->delta + row, STEP * 4, e_bar);
        }
    }
}

/* State of a thread's two rows; OF=0 only. */
typedef struct {
    float lse2[2], delta[2];
} row_state;

/* Where a step's log-sum-exps are, and where P (with SOFTCAP times the cap's slope) is written for
 * consumer 1; BY_KEYS only. */
typedef struct {
    u32 lse, hand;
} step_state;

/* 2. s becomes P; with OF=0 and SOFTCAP times the cap's slope. first: the consumer's first row;
 * other: the step's first. */
INLINE void probabilities(float s[STEP / 2], const row_state *r, const step_state *step,
                          const lt_attn_bwd_args *w, const tile_pos *p, int first, int other,
                          bool mask, float slope) {
    const int lane = (int)threadIdx.x % 32,
              row0 = first + 16 * ((int)threadIdx.x % 128 / 32) + lane / 4,
              col0 = other + lane % 4 * 2, shift = p->n_keys - w->a.q_tokens;
    const float scale2 = w->a.scale * LOG2E;
#pragma unroll
    for (int i = 0; i < STEP / 8; i++) {
        float l[2], bent[4];
        if (BY_KEYS) {
            ld_shared_v2(step->lse + (8 * i + lane % 4 * 2) * 4, &l[0], &l[1]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = row0 + e / 2 * 8, col = col0 + 8 * i + e % 2, k = BY_KEYS ? row : col,
                      t = BY_KEYS ? col : row;
            const float less = BY_KEYS ? l[e % 2] : r->lse2[e / 2];
            float x = s[4 * i + e], bend = 1.0f;
            if (SOFTCAP) {
                const float tanh = tanh_of(__fdividef(x * w->a.scale, w->a.softcap));
                x = w->a.softcap * LOG2E * tanh - less;
                bend = 1.0f - tanh * tanh;
            } else {
                x = x * scale2 - less;
            }
            if (ALIBI) {
                x += slope * (float)(k - shift - t);
            }
            x = exp2_fast(x);
            if (mask) {
                const key_range see = range_of(&w->a, p->b, p->n_keys, t);
                x = k < see.lo || k > see.hi ? 0.0f : x;
            }
            bent[e] = x * bend;
            s[4 * i + e] = BY_KEYS ? x : bent[e];
        }
        if (BY_KEYS) {
            st_shared_v4_s32(step->hand + i * 2048, __float_as_int(bent[0]),
                             __float_as_int(bent[1]), __float_as_int(bent[2]),
                             __float_as_int(bent[3]));
        }
    }
}

/* The mask that a step needs, and its slope. */
INLINE void step_probabilities(float s[STEP / 2], const row_state *r, const step_state *step,
                               const lt_attn_bwd_args *w, const tile_pos *p, int first, int head,
                               int other) {
    const int t0 = BY_KEYS ? other : first, k0 = BY_KEYS ? first : other;
    const key_range low = range_of(&w->a, p->b, p->n_keys, t0),
                    high = range_of(&w->a, p->b, p->n_keys, t0 + 63);
    const float slope =
        ALIBI ? w->a.alibi[BY_KEYS ? p->kv_head * p->n_heads + head : p->kv_head] * LOG2E : 0.0f;
    if (k0 + 63 > low.hi || k0 < high.lo) {
        probabilities(s, r, step, w, p, first, other, true, slope);
    } else {
        probabilities(s, r, step, w, p, first, other, false, slope);
    }
}
INLINE void release(u32 bar) { /* For a warpgroup whose products have read the place. */
    if (threadIdx.x % 128 == 0) {
        mbarrier_arrive(bar);
    }
}

#if BY_KEYS
/* 3. Consumer 0: P, for both consumers, and dV. */
INLINE void walk_values(float sum[HEAD_DIM / 2], const lt_attn_bwd_args *w, const smem_map *m,
                        const tile_pos *p, ring_pos *rb, ring_pos *re, u32 *handed) {
    const u32 tid = threadIdx.x % 128;
    int head = p->head, i = p->i;
    float s[STEP / 2];
    u32 x[STEP / 4];

    mbarrier_wait(m->b_full + 8 * rb->slot, rb->phase);
    wgmma_fence();
    issue_scores(s, m->a, m->b + rb->slot * STEP_SIDE);
    wgmma_wait(0);
    wgmma_pin(s, STEP / 2);
    for (int steps = p->n_heads * (p->m_end - p->m_begin), n = 0; n < steps;
         n++, step_next(p, &head, &i)) {
        const u32 place = (*handed)++ & 1u, b_empty = m->b_empty + 8 * rb->slot;
        const step_state step = {m->lse + rb->slot * STEP * 4, m->hand + place * PLACE + tid * 16};
        named_barrier_sync(BAR_FREE + (int)place, 256);
        step_probabilities(s, 0, &step, w, p, p->key, head, i * STEP);
        named_barrier_arrive(BAR_FILLED + (int)place, 256);
        wgmma_wait(0);
        wgmma_pin(sum, HEAD_DIM / 2);
        if (n > 0) {
            release(m->e_empty + 8 * (re->slot ^ 1));
        }
#pragma unroll
        for (int j = 0; j < STEP / 4; j++) {
            x[j] = PACK_ELEM(s[2 * j], s[2 * j + 1]);
        }
        ring_step(rb, B_STAGES);
        if (n + 1 < steps) {
            mbarrier_wait(m->b_full + 8 * rb->slot, rb->phase);
            wgmma_fence();
            issue_scores(s, m->a, m->b + rb->slot * STEP_SIDE);
        }
        mbarrier_wait(m->e_full + 8 * re->slot, re->phase);
        wgmma_fence();
        issue_sums(sum, x, m->e + re->slot * STEP_SIDE);
        /* The log-sum-exps are still needed: consumer 1 also releases the place, after P. */
        release(b_empty);
        wgmma_wait(1);
        wgmma_pin(s, STEP / 2);
        if (n + 2 == steps) {
            release(m->rows_empty);
        }
        ring_step(re, E_STAGES);
    }
    wgmma_wait(0);
    wgmma_pin(sum, HEAD_DIM / 2);
    release(m->e_empty + 8 * (re->slot ^ 1));
}

/* 4. Consumer 1: dS and dK. */
INLINE void walk_keys(float sum[HEAD_DIM / 2], const smem_map *m, const tile_pos *p, ring_pos *rb,
                      ring_pos *re, u32 *handed) {
    const u32 tid = threadIdx.x % 128;
    float dp[STEP / 2];
    u32 x[STEP / 4];

    mbarrier_wait(m->e_full + 8 * re->slot, re->phase);
    wgmma_fence();
    issue_scores(dp, m->a + SIDE, m->e + re->slot * STEP_SIDE);
    wgmma_wait(0);
    wgmma_pin(dp, STEP / 2);
    for (int steps = p->n_heads * (p->m_end - p->m_begin), n = 0; n < steps; n++) {
        const u32 place = (*handed)++ & 1u, hand = m->hand + place * PLACE + tid * 16,
                  delta = m->delta + (re->slot * STEP + tid % 4 * 2) * 4,
                  e_empty = m->e_empty + 8 * re->slot;
        named_barrier_sync(BAR_FILLED + (int)place, 256);
#pragma unroll
        for (int j = 0; j < STEP / 8; j++) {
            const uint4 bits = ld_shared_v4(hand + j * 2048);
            float d[2];
            ld_shared_v2(delta + j * 32, &d[0], &d[1]);
            dp[4 * j] = __uint_as_float(bits.x) * (dp[4 * j] - d[0]);
            dp[4 * j + 1] = __uint_as_float(bits.y) * (dp[4 * j + 1] - d[1]);
            dp[4 * j + 2] = __uint_as_float(bits.z) * (dp[4 * j + 2] - d[0]);
            dp[4 * j + 3] = __uint_as_float(bits.w) * (dp[4 * j + 3] - d[1]);
        }
        named_barrier_arrive(BAR_FREE + (int)place, 256);
#pragma unroll
        for (int j = 0; j < STEP / 4; j++) {
            x[j] = PACK_ELEM(dp[2 * j], dp[2 * j + 1]);
        }
        ring_step(re, E_STAGES);
        mbarrier_wait(m->b_full + 8 * rb->slot, rb->phase);
        wgmma_fence();
        issue_sums(sum, x, m->b + rb->slot * STEP_SIDE);
        if (n + 1 < steps) {
            mbarrier_wait(m->e_full + 8 * re->slot, re->phase);
            wgmma_fence();
            issue_scores(dp, m->a + SIDE, m->e + re->slot * STEP_SIDE);
            wgmma_wait(1);
        } else {
            wgmma_wait(0);
        }
        wgmma_pin(sum, HEAD_DIM / 2);
        release(m->b_empty + 8 * rb->slot);
        release(e_empty); /* Only here, after dK, have all warps read the deltas. */
        ring_step(rb, B_STAGES);
        wgmma_wait(0);
        wgmma_pin(dp, STEP / 2);
        if (n + 2 == steps) {
            release(m->rows_empty + 8);
        }
    }
}
#else
/* 3. One consumer's 64 queries of a tile against all steps. */
INLINE void walk_queries(float sum[HEAD_DIM / 2], const row_state *r, const lt_attn_bwd_args *w,
                         const smem_map *m, const tile_pos *p, ring_pos *rb, ring_pos *re,
                         int consumer) {
    const int first = p->key + 64 * consumer;
    const u32 a = m->a + consumer * 8192;

    for (int i = p->m_begin; i < p->m_end; i++) {
        const u32 b = m->b + rb->slot * STEP_SIDE, e = m->e + re->slot * STEP_SIDE;
        float s[STEP / 2], dp[STEP / 2];
        u32 x[STEP / 4];
        mbarrier_wait(m->b_full + 8 * rb->slot, rb->phase);
        wgmma_fence();
        issue_scores(s, a, b);
        mbarrier_wait(m->e_full + 8 * re->slot, re->phase);
        wgmma_fence();
        issue_scores(dp, a + SIDE, e);
        wgmma_wait(1);
        wgmma_pin(s, STEP / 2);
        step_probabilities(s, r, 0, w, p, first, 0, i * STEP);
        wgmma_wait(0);
        wgmma_pin(dp, STEP / 2);
        release(m->e_empty + 8 * re->slot);
#pragma unroll
        for (int j = 0; j < STEP / 4; j++) {
            x[j] = PACK_ELEM(s[2 * j] * (dp[2 * j] - r->delta[j % 2]),
                             s[2 * j + 1] * (dp[2 * j + 1] - r->delta[j % 2]));
        }
        wgmma_fence();
        issue_sums(sum, x, b);
        wgmma_wait(0);
        wgmma_pin(sum, HEAD_DIM / 2);
        release(m->b_empty + 8 * rb->slot);
        ring_step(rb, B_STAGES);
        ring_step(re, E_STAGES);
    }
}
#endif

INLINE void consume(const lt_attn_bwd_args *w, const smem_map *m, int consumer) {
    ring_pos rb = {0, 0}, re = {0, 0};
#if BY_KEYS
    u32 handed = 0;
    if (consumer == 1) {
        named_barrier_arrive(BAR_FREE, 256);
        named_barrier_arrive(BAR_FREE + 1, 256);
    }
#endif
    for (u32 n = 0;; n++) {
        const u32 tile = m->tile + (n & 1u) * TILE_BYTES;
        float sum[HEAD_DIM / 2] = {0.0f};
        for (int c = BY_KEYS ? consumer : 0; c < (BY_KEYS ? consumer + 1 : 2); c++) {
            mbarrier_wait(m->rows_full + 8 * c, n & 1u);
        }
        if (warp_uniform(ld_shared_s32(tile)) < 0) {
            break;
        }
        const tile_pos p = tile_get(tile);
        const int steps = p.n_heads * (p.m_end - p.m_begin),
                  first = p.key + (BY_KEYS ? 0 : 64 * consumer);
        wgmma_pin(sum, HEAD_DIM / 2);
#if BY_KEYS
        if (steps > 0 && consumer == 0) {
            walk_values(sum, w, m, &p, &rb, &re, &handed);
        } else if (steps > 0) {
            walk_keys(sum, m, &p, &rb, &re, &handed);
        }
        if (steps < 2) { /* Otherwise the reader of the last scores has done it. */
            named_barrier_sync(BAR_OWN + consumer, 128);
            release(m->rows_empty + 8 * consumer);
        }
        elem *const to = (elem *)(consumer == 0 ? w->dv : w->dk);
        const lt_attn_strides *at = consumer == 0 ? &w->dv_strides : &w->dk_strides;
        store_rows(sum, consumer == 0 ? 1.0f : w->a.scale,
                   to + p.b * at->batch + p.kv_head * at->head, at->token, first, w->a.kv_tokens,
                   w->width);
#else
        row_state r;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const i64 row = (i64)p.pair * w->padded + first + 16 * ((int)threadIdx.x % 128 / 32) +
                            (int)threadIdx.x % 32 / 4 + 8 * h;
            r.lse2[h] = w->lse2[row];
            r.delta[h] = w->delta[row];
        }
        if (steps > 0) {
            walk_queries(sum, &r, w, m, &p, &rb, &re, consumer);
        }
        /* All warps have read the tile's position, even if it has no products. */
        named_barrier_sync(BAR_OWN + consumer, 128);
        release(m->rows_empty);
        release(m->rows_empty + 8);
        store_rows(sum, w->a.scale,
                   (elem *)w->dq + p.b * w->dq_strides.batch + p.kv_head * w->dq_strides.head,
                   w->dq_strides.token, first, w->a.q_tokens, w->width);
#endif
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attn_bwd_wide_sm90(const __grid_constant__ tensor_map map_a,
                       const __grid_constant__ tensor_map map_c,
                       const __grid_constant__ tensor_map map_b,
                       const __grid_constant__ tensor_map map_e,
                       const __grid_constant__ lt_attn_bwd_args args) {
    extern __shared__ __align__(1024) u8 smem[];
    const int group = warp_uniform((int)threadIdx.x / 128);
    smem_map m;
    static_assert(1024 + 2 * SIDE + (B_STAGES + E_STAGES) * STEP_SIDE + 2 * BY_KEYS * PLACE +
                          2 * B_STAGES * STEP * 4 + LT_ATTN_BWD_WIDE_PLACES ==
                      LT_ATTN_BWD_WIDE_BYTES(HEAD_DIM, BY_KEYS),
                  "sides, places of P, rows");
    static_assert(32 + 16 * (B_STAGES + E_STAGES) + 15 + 2 * TILE_BYTES <= LT_ATTN_BWD_WIDE_PLACES,
                  "barriers, tiles");
    m.a = (smem_addr(smem) + 1023) & ~1023u;
    m.b = m.a + 2 * SIDE;
    m.e = m.b + B_STAGES * STEP_SIDE;
    m.hand = m.e + E_STAGES * STEP_SIDE;
    m.lse = m.hand + (BY_KEYS ? 2 * PLACE : 0);
    m.delta = m.lse + B_STAGES * STEP * 4;
    m.rows_full = m.delta + B_STAGES * STEP * 4;
    m.rows_empty = m.rows_full + 16;
    m.b_full = m.rows_empty + 16;
    m.b_empty = m.b_full + 8 * B_STAGES;
    m.e_full = m.b_empty + 8 * B_STAGES;
    m.e_empty = m.e_full + 8 * E_STAGES;
    m.tile = (m.e_empty + 8 * E_STAGES + 15) & ~15u;

    if (threadIdx.x == 0) {
        for (int c = 0; c < 2; c++) {
            mbarrier_init(m.rows_full + 8 * c, 1);
            mbarrier_init(m.rows_empty + 8 * c, BY_KEYS ? 1 : CONSUMERS);
        }
        for (int s = 0; s < B_STAGES; s++) {
            mbarrier_init(m.b_full + 8 * s, 1);
            mbarrier_init(m.b_empty + 8 * s, CONSUMERS);
        }
        for (int s = 0; s < E_STAGES; s++) {
            mbarrier_init(m.e_full + 8 * s, 1);
            mbarrier_init(m.e_empty + 8 * s, CONSUMERS);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (group == 0) {
        regs_shrink(40);
        if (threadIdx.x == 0) {
            /* A new slot is empty, so a wait for "phase 1" returns immediately. */
            ring_pos rb = {0, 1}, re = {0, 1};
            u32 n_tiles = 0;
            for (int t = (int)blockIdx.x; t < tile_total(&args);
                 t = (int)(gridDim.x + atomicAdd(args.a.counter, 1))) {
                const tile_pos p = tile_choose(&args, t);
                produce(&map_a, &map_c, &map_b, &map_e, &args, &m, &p, &rb, &re, &n_tiles);
            }
            draws_end(&args.a);
            for (int c = 0; c < 2; c++) {
                mbarrier_wait(m.rows_empty + 8 * c, (n_tiles & 1u) ^ 1u);
                st_shared_s32(m.tile + (n_tiles & 1u) * TILE_BYTES, -1);
                mbarrier_arrive(m.rows_full + 8 * c);
            }
        }
    } else {
        regs_grow(232);
        consume(&args, &m, group - 1);
    }
}

/* bwd_wide_sm90.cu: dQ, dK or dV of attention with heads of 192 and 256 columns on Hopper, each by a launch of its own. Bit-identical run to run.
 *
 * SHAPES    as fwd_sm90.cu, 128 < D <= HEAD_DIM = 192 or 256.
 * MAP       a tile is 128 rows, of which two consumers own 64 each: queries of a query head (OF=0: dQ) or keys of a key head (OF=1: dK, OF=2: dV). The other side comes by in steps of
 *           64: keys, or the queries of all query heads of the group. Persistent blocks draw tiles from a counter; warpgroup 0 copies.
 * MOVEMENT  A, C rows of the tile, resident; B, E of a step. OF=0: A, C, B, E are Q, dO, K, V; else K, V, Q, dO:
 *     S = A B^T (smem, smem) ─ exp2(S - lse) ─▶ P ─────────────────── OF=2: dV += P E (registers, smem)
 *     dP = C E^T (smem, smem) ──────────────── P (dP - delta) ─▶ dS ── else: dQ or dK += dS B (registers, smem)
 *     B has two stages, E one (OF=2: two): it is free again before the exponentials.
 * WHY       dK and dV of 64 keys are 256 registers a thread at 256 columns. So eight products are made for five; nothing is added to memory.
 * BOUND     16 T S D H flop (half if causal) at 4096 a clock an SM; a step's shared memory, 384 KB for dK, is as busy as the tensor cores (3072 clocks).
 * NUMERICS  S, dP, P in f32; P or dS rounded to 16 bits as operand; sums in f32, rounded once, at the store. Fixed order.
 *@spec sm_90a: HEAD_DIM=256 OF=0 CAUSAL=0
 *@spec sm_90a: HEAD_DIM=256 OF=1 CAUSAL=0
 *@spec sm_90a: HEAD_DIM=256 OF=2 CAUSAL=0
 *@spec sm_90a: HEAD_DIM=256 OF=0 CAUSAL=1
 *@spec sm_90a: HEAD_DIM=256 OF=1 CAUSAL=1
 *@spec sm_90a: HEAD_DIM=256 OF=2 CAUSAL=1
 *@spec sm_90a: HEAD_DIM=192 OF=0 CAUSAL=1
 *@spec sm_90a: HEAD_DIM=192 OF=1 CAUSAL=1
 *@spec sm_90a: HEAD_DIM=192 OF=2 CAUSAL=1
 *@spec sm_90a: HEAD_DIM=256 OF=0 CAUSAL=1 WINDOW=1 DOC=1
 *@spec sm_90a: HEAD_DIM=256 OF=1 CAUSAL=1 WINDOW=1 DOC=1
 *@spec sm_90a: HEAD_DIM=256 OF=1 CAUSAL=1 SOFTCAP=1 ALIBI=1
 *@spec sm_90a: HEAD_DIM=256 OF=2 CAUSAL=1 DTYPE=fp16 */
#include "attention/bwd.cuh"
#include "common/hopper.cuh"
#include "common/ring.cuh"
#include "common/wgmma.cuh"

#define CONSUMERS 2
#define ROWS      128 /* of a tile */
#define STEP      64
#define BN        ROWS /* bwd_tiles.cuh's words: tiles of keys, steps of queries */
#define BM        STEP
#define CLUSTER   1
#define TILE_KEYS BN
#define THREADS   384
#define COLUMNS   (HEAD_DIM / 64)
#define BY_KEYS   (OF != 0)
#define B_STAGES  2
#define E_STAGES  (OF == 2 ? 2 : 1)
#define ROW_SIDES (OF == 2 ? 1 : 2) /* A, and C */
#define SIDE      (ROWS * HEAD_DIM * 2)
#define STEP_SIDE (STEP * HEAD_DIM * 2)
#define BAR_OWN   1
static_assert(HEAD_DIM == 192 || HEAD_DIM == 256, "narrower heads: bwd_sm90.cu");

#define LONGEST_FIRST 1
#include "attention/bwd_tiles.cuh"

WGMMA_SS(mma_s, STEP, 0, 0)
WGMMA_RS(mma_sum, HEAD_DIM, 1)

typedef struct {
    u32 a, b, e, lse, delta; /* a: A, behind it C; lse, delta: of a step's queries, a stage each (BY_KEYS) */
    u32 rows_full, rows_empty, b_full, b_empty, e_full, e_empty;
    u32 tile;
} smem_map;

#if BY_KEYS
#define tile_total  tile_count
#define tile_choose tile_locate
#else
/* Rows are queries: kv_head is the query head, and n_heads 1. Sections of heads, in each the longest tiles (last rows) first. */
INLINE int tile_total(const bwd_args *w) {
    return w->padded / ROWS * w->a.batch * w->a.q_heads;
}
INLINE tile_pos tile_choose(const bwd_args *w, int t) {
    const attn_args *a = &w->a;
    const int rows = w->padded / ROWS, first = t / (a->section * rows) * a->section, inside = t % (a->section * rows), width = min_i(a->section, a->batch * a->q_heads - first);
    tile_pos p;
    p.pair = first + inside % width;
    p.b = p.pair / a->q_heads;
    p.kv_head = p.pair % a->q_heads;
    p.key = (rows - 1 - inside / width) * ROWS;
    p.n_keys = keys_of(a, p.b);
    p.n_heads = 1;
    const key_range low = range_of(a, p.b, p.n_keys, p.key), high = range_of(a, p.b, p.n_keys, p.key + ROWS - 1);
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

/* 1. One thread: a tile's rows once, then step by step. */
INLINE void produce(const void *map_a, const void *map_c, const void *map_b, const void *map_e, const bwd_args *w, const smem_map *m, const tile_pos *p,
                    ring_pos *rb, ring_pos *re, u32 *n_tiles) {
    const int group = w->a.q_heads / w->a.kv_heads;
    mbarrier_wait(m->rows_empty, (*n_tiles & 1u) ^ 1u);
    tile_put(m->tile + (*n_tiles & 1u) * TILE_BYTES, p);
    ++*n_tiles;
    mbarrier_expect(m->rows_full, ROW_SIDES * SIDE);
    load_side(m->a, map_a, m->rows_full, p->kv_head, p->key, p->b, ROWS);
    if (ROW_SIDES == 2) {
        load_side(m->a + SIDE, map_c, m->rows_full, p->kv_head, p->key, p->b, ROWS);
    }
    int h = p->head, i = p->i;
    for (int n = p->n_heads * (p->m_end - p->m_begin); n > 0; n--, step_next(p, &h, &i), ring_step(rb, B_STAGES), ring_step(re, E_STAGES)) {
        const int head = BY_KEYS ? p->kv_head * p->n_heads + h : p->kv_head / group;
        const i64 row = (i64)(p->b * w->a.q_heads + head) * w->padded + i * STEP;
        const u32 b_bar = m->b_full + 8 * rb->slot, e_bar = m->e_full + 8 * re->slot;
        mbarrier_wait(m->b_empty + 8 * rb->slot, rb->phase);
        mbarrier_expect(b_bar, STEP_SIDE + (BY_KEYS ? 2 * STEP * 4 : 0));
        load_side(m->b + rb->slot * STEP_SIDE, map_b, b_bar, head, i * STEP, p->b, STEP);
        if (BY_KEYS) {
            bulk_load(m->lse + rb->slot * STEP * 4, w->lse2 + row, STEP * 4, b_bar);
            bulk_load(m->delta + rb->slot * STEP * 4, w->delta + row, STEP * 4, b_bar);
        }
        mbarrier_wait(m->e_empty + 8 * re->slot, re->phase);
        mbarrier_expect(e_bar, STEP_SIDE);
        load_side(m->e + re->slot * STEP_SIDE, map_e, e_bar, head, i * STEP, p->b, STEP);
    }
}

/* 64 rows x STEP: s = rows other^T. Issue only. */
INLINE void issue_scores(float s[STEP / 2], u32 rows, u32 other) {
    const u64 a = wgmma_desc(rows, 16), b = wgmma_desc(other, 16);
    mma_s_set(s, a, b);
#pragma unroll
    for (int i = 1; i < HEAD_DIM / 16; i++) {
        mma_s(s, DESC_ADD(a, i / 4 * (ROWS * 128) + i % 4 * 32), DESC_ADD(b, i / 4 * (STEP * 128) + i % 4 * 32), 1);
    }
    wgmma_commit();
}
/* sum (64 rows, D) += x (64 rows, STEP) other (STEP, D). */
INLINE void issue_sums(float sum[HEAD_DIM / 2], const u32 x[STEP / 4], u32 other) {
    const u64 b = wgmma_desc(other, STEP * 128);
#pragma unroll
    for (int i = 0; i < STEP / 16; i++) {
        mma_sum(sum, x + 4 * i, DESC_ADD(b, i * 2048), 1);
    }
    wgmma_commit();
}

/* Of a thread's two rows; OF=0 only. */
typedef struct {
    float lse2[2], delta[2];
} row_state;

/* 2. x := P, with SOFTCAP times the cap's slope where dS is wanted. first: the consumer's first row; other: of the step. */
INLINE void probabilities(float s[STEP / 2], const row_state *r, const bwd_args *w, const tile_pos *p, int first, int other, u32 lse, bool mask, float slope) {
    const int lane = (int)threadIdx.x % 32, row0 = first + 16 * ((int)threadIdx.x % 128 / 32) + lane / 4, col0 = other + lane % 4 * 2, shift = p->n_keys - w->a.q_tokens;
    const float scale2 = w->a.scale * LOG2E;
#pragma unroll
    for (int i = 0; i < STEP / 8; i++) {
        float l[2];
        if (BY_KEYS) {
            ld_shared_v2(lse + (8 * i + lane % 4 * 2) * 4, &l[0], &l[1]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = row0 + e / 2 * 8, col = col0 + 8 * i + e % 2, k = BY_KEYS ? row : col, t = BY_KEYS ? col : row;
            const float less = BY_KEYS ? l[e % 2] : r->lse2[e / 2];
            float x = s[4 * i + e], bend = 1.0f;
            if (SOFTCAP) {
                const float tanh = tanh_of(__fdividef(x * w->a.scale, w->a.softcap));
                x = w->a.softcap * LOG2E * tanh - less;
                bend = OF == 2 ? 1.0f : 1.0f - tanh * tanh;
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
            s[4 * i + e] = x * bend;
        }
    }
}

/* 3. One consumer's 64 rows of a tile against all steps. */
INLINE void walk(float sum[HEAD_DIM / 2], const row_state *r, const bwd_args *w, const smem_map *m, const tile_pos *p, ring_pos *rb, ring_pos *re, int consumer) {
    const int tid = (int)threadIdx.x % 128, first = p->key + 64 * consumer;
    const u32 a = m->a + consumer * 8192;
    int head = p->head, i = p->i;

    for (int n = p->n_heads * (p->m_end - p->m_begin); n > 0; n--, step_next(p, &head, &i)) {
        const u32 b = m->b + rb->slot * STEP_SIDE, e = m->e + re->slot * STEP_SIDE;
        const int other = i * STEP, t0 = BY_KEYS ? other : first, k0 = BY_KEYS ? first : other;
        const key_range low = range_of(&w->a, p->b, p->n_keys, t0), high = range_of(&w->a, p->b, p->n_keys, t0 + 63);
        const bool mask = k0 + 63 > low.hi || k0 < high.lo;
        const float slope = ALIBI ? w->a.alibi[BY_KEYS ? p->kv_head * p->n_heads + head : p->kv_head] * LOG2E : 0.0f;
        float s[STEP / 2], dp[STEP / 2];
        u32 x[STEP / 4];
        mbarrier_wait(m->b_full + 8 * rb->slot, rb->phase);
        wgmma_fence();
        issue_scores(s, a, b);
        mbarrier_wait(m->e_full + 8 * re->slot, re->phase);
        if (OF != 2) {
            wgmma_fence();
            issue_scores(dp, a + SIDE, e);
            wgmma_wait(1);
        } else {
            wgmma_wait(0);
        }
        wgmma_pin(s, STEP / 2);
        if (mask) {
            probabilities(s, r, w, p, first, other, m->lse + rb->slot * STEP * 4, true, slope);
        } else {
            probabilities(s, r, w, p, first, other, m->lse + rb->slot * STEP * 4, false, slope);
        }
        if (OF != 2) {
            wgmma_wait(0);
            wgmma_pin(dp, STEP / 2);
            if (tid == 0) {
                mbarrier_arrive(m->e_empty + 8 * re->slot);
            }
#pragma unroll
            for (int j = 0; j < STEP / 4; j++) {
                float d[2] = {r->delta[j % 2], r->delta[j % 2]};
                if (BY_KEYS) {
                    ld_shared_v2(m->delta + (rb->slot * STEP + j / 2 * 8 + tid % 4 * 2) * 4, &d[0], &d[1]);
                }
                x[j] = PACK_ELEM(s[2 * j] * (dp[2 * j] - d[0]), s[2 * j + 1] * (dp[2 * j + 1] - d[1]));
            }
        } else {
#pragma unroll
            for (int j = 0; j < STEP / 4; j++) {
                x[j] = PACK_ELEM(s[2 * j], s[2 * j + 1]);
            }
        }
        wgmma_fence(); /* Behind it all warps have read what came with the queries. */
        issue_sums(sum, x, OF == 2 ? e : b);
        wgmma_wait(0);
        wgmma_pin(sum, HEAD_DIM / 2);
        if (tid == 0) {
            mbarrier_arrive(m->b_empty + 8 * rb->slot);
            if (OF == 2) {
                mbarrier_arrive(m->e_empty + 8 * re->slot);
            }
        }
        ring_step(rb, B_STAGES);
        ring_step(re, E_STAGES);
    }
}

INLINE void consume(const bwd_args *w, const smem_map *m, int consumer) {
    ring_pos rb = {0, 0}, re = {0, 0};

    for (u32 n = 0;; n++) {
        const u32 tile = m->tile + (n & 1u) * TILE_BYTES;
        float sum[HEAD_DIM / 2] = {0.0f};
        row_state r = {{0.0f, 0.0f}, {0.0f, 0.0f}};
        mbarrier_wait(m->rows_full, n & 1u);
        if (warp_uniform(ld_shared_s32(tile)) < 0) {
            break;
        }
        const tile_pos p = tile_get(tile);
        const int first = p.key + 64 * consumer;
        if (!BY_KEYS) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const i64 row = (i64)p.pair * w->padded + first + 16 * ((int)threadIdx.x % 128 / 32) + (int)threadIdx.x % 32 / 4 + 8 * h;
                r.lse2[h] = w->lse2[row];
                r.delta[h] = w->delta[row];
            }
        }
        wgmma_pin(sum, HEAD_DIM / 2);
        if (p.m_begin < p.m_end) {
            walk(sum, &r, w, m, &p, &rb, &re, consumer);
        }
        named_barrier_sync(BAR_OWN + consumer, 128); /* All warps know where the tile lies, also where it has no products. */
        if (threadIdx.x % 128 == 0) {
            mbarrier_arrive(m->rows_empty);
        }
        elem *const to = (elem *)(OF == 0 ? w->dq : OF == 1 ? w->dk : w->dv);
        const strides at = OF == 0 ? w->dq_strides : OF == 1 ? w->dk_strides : w->dv_strides;
        store_rows(sum, OF == 2 ? 1.0f : w->a.scale, to + p.b * at.batch + p.kv_head * at.head, at.token, first, BY_KEYS ? w->a.kv_tokens : w->a.q_tokens, w->width);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attn_bwd_wide_sm90(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_c, const __grid_constant__ tensor_map map_b,
                   const __grid_constant__ tensor_map map_e, const __grid_constant__ bwd_args args) {
    extern __shared__ __align__(1024) u8 smem[];
    const int group = warp_uniform((int)threadIdx.x / 128);
    smem_map m;
    m.a = (smem_addr(smem) + 1023) & ~1023u;
    m.b = m.a + ROW_SIDES * SIDE;
    m.e = m.b + B_STAGES * STEP_SIDE;
    m.lse = m.e + E_STAGES * STEP_SIDE;
    m.delta = m.lse + B_STAGES * STEP * 4;
    m.rows_full = m.delta + B_STAGES * STEP * 4;
    m.rows_empty = m.rows_full + 8;
    m.b_full = m.rows_empty + 8;
    m.b_empty = m.b_full + 8 * B_STAGES;
    m.e_full = m.b_empty + 8 * B_STAGES;
    m.e_empty = m.e_full + 8 * E_STAGES;
    m.tile = (m.e_empty + 8 * E_STAGES + 15) & ~15u;

    if (threadIdx.x == 0) {
        mbarrier_init(m.rows_full, 1);
        mbarrier_init(m.rows_empty, CONSUMERS);
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
            ring_pos rb = {0, 1}, re = {0, 1}; /* What is fresh is empty: a wait for "phase 1" passes at once. */
            u32 n_tiles = 0;
            for (int t = (int)blockIdx.x; t < tile_total(&args); t = (int)(gridDim.x + atomicAdd(args.a.counter, 1))) {
                const tile_pos p = tile_choose(&args, t);
                produce(&map_a, &map_c, &map_b, &map_e, &args, &m, &p, &rb, &re, &n_tiles);
            }
            draws_end(&args.a);
            mbarrier_wait(m.rows_empty, (n_tiles & 1u) ^ 1u);
            st_shared_s32(m.tile + (n_tiles & 1u) * TILE_BYTES, -1);
            mbarrier_arrive(m.rows_full);
        }
    } else {
        regs_grow(232);
        consume(&args, &m, group - 1);
    }
}

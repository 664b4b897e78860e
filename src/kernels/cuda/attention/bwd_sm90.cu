/* bwd_sm90.cu: dQ, dK, dV of attention from Q, K, V, dO and the forward's log-sum-exp, on Hopper;
 * bit-identical run to run. DQ=0: dK and dV only, after bwd_dq_sm90.cu.
 *
 * SHAPES    as fwd_sm90.cu, D <= HEAD_DIM = 64 or 128.
 * MAP       a block makes tiles of BN keys of one key head, one after another (see
 *           bwd_tiles.cuh), and walks over the queries that see them, BM a step, of every query
 *           head of the group. Two consumer warpgroups own half of the keys each, whose dK and dV
 *           take 128 registers a thread: twice 64 keys at 64 columns; once 64 keys at 128 columns,
 *           where two blocks form a pair. A tile of 256 keys halves the number of partial sums of
 *           dQ. In warpgroup 0 one warp copies: K, V and the first queries of the next tile come
 *           while dK and dV of this one are stored. Another warp adds to dQ. The other two, and at
 *           the end the consumers' warps, convert complete sums to dQ (bwd_finish.cuh). dK and dV
 *           stay in registers; memory sums dQ.
 * MOVEMENT  per step, for each 64 keys of a consumer and BM queries (all five products on wgmma):
 *     S^T = K Q^T (smem, smem) ─ exp2(S - lse) ─▶ P^T registers ──▶ dV += P^T dO (registers, smem)
 *     dP^T = V dO^T (smem, smem) ─ P (dP - delta) ─▶ dS^T registers ──▶ dK += dS^T Q (regs, smem)
 *                            └─stmatrix.trans──▶ smem, both consumers' ──▶ dQ = dS K (smem, smem),
 *                                 64 x 64 pieces, one a step a block (WINDOW, DOC: two), in turn
 *     dQ ─ fixed point ─▶ smem ─ bulk add ─▶ HBM (L2), int32
 *     Each piece of other work runs under a product already queued: exp2 under dP, the barrier of
 *     both consumers' dS under dV, and the store of dQ under dK. With several blocks of 64 keys,
 *     the sums of one run under the scores of the next. Separate code at a mask's edge leaves out
 *     blocks that no query sees.
 * CLUSTER   two blocks own 256 keys of 128 columns and walk over the same queries. Each copies a
 *           column of Q and dO to both, makes S, dP, dK, dV of its 128 keys, and 64 columns of dQ
 *           over all 256, for which it also holds these columns of the other's K. dS goes to the
 *           other block by a copy into its shared memory, so dQ is made one step later:
 *               consumer   dS n ─▶ own place n % 2 ─ bulk copy ─▶ the other block's
 *                          ds_full[n % 2]: two consumers here, two copies from there
 *               consumer n % 2, in step n + 1: dQ n ─▶ the one place for dQ
 *                          ds_empty[n % 2]: dQ n is made, here and there
 *           The columns of K that dQ does not need, V and the first queries of the next tile come
 *           when the last step's dV is made, and the rest of K when its dQ is made. A block has
 *           every other 64 of the 256 keys, and a consumer skips a step of which no query sees its
 *           keys, so both blocks have as much work along the diagonal. WINDOW and DOC, whose
 *           queries see few keys, use one block.
 * DETERMINISM   many blocks add to one dQ, in any order. Integer sums do not depend on the order.
 *               So
 *           each row of dQ is summed in units of bound / (1.5 2^30), where no partial sum can
 *           exceed bound = 2 |dO row| max|V row| max|K| (|dS| <= P 2 |dO||V|, P sums to 1). For
 *           random data a unit is 1e-5 of a bf16 rounding. One number in four is kept in eight
 *           units; its lowest bits count the additions (bwd_finish.cuh). No order and no semaphores
 *           are needed; blocks may begin anywhere, so as not to add to the same rows at once.
 * DQ=0      without dS and dQ in shared memory, consumers do not wait for each other, K and V of
 * the
 *           next tile come under this one, dV is issued before the wait for dP, and dK and dV leave
 *           from registers.
 * BOUND     10 T S D H flop (half if causal). Shared memory is as busy as the tensor cores (D =
 *           128: about 370 KB a step of 2560 clocks at 128 bytes each; D = 64: 340 KB).
 * MEASURED  docs/speed/attention.md.
 * NUMERICS  S, dP, P, dS in f32; P and dS are 16-bit operands; dK, dV round once, at the store.
 * REFS      Dao 2023 (arXiv:2307.08691), Shah et al. 2024 (2407.08608); fixed-point sums are
 *           ours. */
#include "attention/bwd.cuh"
#include "attention/draw.cuh"
#include "common/wgmma.cuh"

#ifndef DQ
#define DQ 1
#endif
#if DQ && HEAD_DIM == 64
#define BN 256
#else
#define BN 128
#endif
#if DQ || HEAD_DIM == 128
#define BM 64
#else
#define BM 128
#endif
#define TILE_KEYS (BN * CLUSTER)
#define CONSUMERS 2
/* of 64 keys per consumer: alternating, so that both have as much work along the diagonal */
#define BLOCKS    (BN / 64 / CONSUMERS)
#define THREADS   384
#define COLUMNS   (HEAD_DIM / 64)
#define STAGES    (DQ ? 2 : HEAD_DIM == 64 ? 4 : 3)
#define KV_SLOTS  (2 - DQ)
#define KV_BYTES  (BN * HEAD_DIM * 2)
#define Q_BYTES   (BM * HEAD_DIM * 2)
#define ROW_BYTES (BM * 4)                  /* bytes of a step's log-sum-exps or deltas */
#define DS_BYTES  (DQ * TILE_KEYS * BM * 2) /* CLUSTER: the own keys, then the other block's */
#define DQ_BYTES  (DQ * 64 * 64 * 4)
/* P stays in f32 until dS is made, and is rounded only then; with DQ=0 that was slower
 * (docs/speed/attention.md). */
#define P_KEPT (DQ && !SOFTCAP)
/* pieces of 64 x 64 of a step's dQ that a block makes: one by the consumers in turn, or one each */
#define PIECES     (COLUMNS / CLUSTER)
#define KEY_BOX    (CLUSTER > 1 ? 64 : BN) /* keys per copy */
#define KEY_STRIDE (64 * CLUSTER)          /* distance from a block's 64 keys to its next */
/* dK and dV are stored through the memory of dS and dQ. */
#define STAGED   (DQ && CLUSTER == 1)
#define BAR_BOTH 1 /* both consumers: all of a step's dS is there */
/* one piece: the same; the consumer whose turn it is waits, and the other one arrives */
#define BAR_TURN 8
#define BAR_OWN  2 /* one consumer */
#define BAR_GONE 4 /* one consumer and the adding warp: its place for dQ may be written, */
#define BAR_MADE 6 /* and has been written */
static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "wider heads: bwd_wide_sm90.cu");
static_assert(CLUSTER == 1 || (CLUSTER == 2 && DQ && HEAD_DIM == 128),
              "two blocks make a column of dQ each");

#define LONGEST_FIRST DQ
/* tiles drawn at a time: a long one and a short one, or one */
#define DRAWN (CAUSAL && !WINDOW && !DQ ? 2 : 1)
#include "attention/bwd_finish.cuh"
#include "attention/bwd_tiles.cuh"
#define TILE_BOX BN
#define STEP_BOX BM
#include "attention/products.cuh"
#include "attention/bwd_slopes.cuh"

WGMMA_SS(mma_dq, 64, 0, 1)

typedef struct {
    u32 kv, q, d_o, ds, dq, lse, delta, unit;                  /* kv: K and then V */
    u32 kv_full, kv_empty, q_full, do_full, q_empty, do_empty; /* DQ=0: q_empty is for both */
    /* CLUSTER: K from which dQ is made; kv_full is for the rest of K and V, but their end of use is
     * told by do_empty of a tile's last step */
    u32 k_full, k_empty;
    u32 tile; /* two: see tile_put */
    /* CLUSTER: the other block's K of the 64 columns from which dQ is made; two places for dS */
    u32 other_k, ds_full, ds_empty;
    u32 drawn; /* see draw.cuh */
    u32 count; /* 16 bytes: 1, 0, 0, 0 */
} smem_map;
/* State of a warpgroup across the tiles of its block. */
typedef struct {
    ring_pos r;
    u32 n_tiles, n_steps; /* so far */
} run_pos;

/* BM rows of Q or dO; in a cluster each block copies one column to both blocks. */
INLINE void load_queries(u32 to, const void *map, u32 bar, int head, int token, int b) {
#if CLUSTER > 1
    const int c = (int)cluster_cta_rank();
    tma_load_4d_multicast(to + c * BM * 128, map, bar, c * 64, head, token, b, (1 << CLUSTER) - 1);
#else
    for (int c = 0; c < COLUMNS; c++) {
        tma_load_4d(to + c * BM * 128, map, bar, c * 64, head, token, b);
    }
#endif
}

/* CLUSTER: K of 64 columns of both blocks' keys, from which dQ is made. */
INLINE void load_dq_keys(const smem_map *m, const void *map_k, const tile_pos *p, u32 n_tiles) {
    const int rank = (int)cluster_cta_rank();
    mbarrier_wait(m->k_empty, (n_tiles & 1u) ^ 1u);
    mbarrier_expect(m->k_full, 2 * BN * 128);
    for (int i = 0; i < BN / KEY_BOX; i++) {
        tma_load_4d(m->kv + rank * BN * 128 + i * KEY_BOX * 128, map_k, m->k_full, rank * 64,
                    p->kv_head, p->key + i * KEY_STRIDE, p->b);
        tma_load_4d(m->other_k + i * KEY_BOX * 128, map_k, m->k_full, rank * 64, p->kv_head,
                    p->key + (1 - 2 * rank) * KEY_BOX + i * KEY_STRIDE, p->b);
    }
}
/* 1. One thread: K and V once, then Q with its log-sum-exps and dO with its deltas, step by
 * step. */
INLINE void produce(const void *map_q, const void *map_k, const void *map_v, const void *map_do,
                    const lt_attn_bwd_args *w, const smem_map *m, const tile_pos *p, run_pos *run) {
    ring_pos r = run->r;
    const u32 slot = run->n_tiles % KV_SLOTS, k = m->kv + slot * (2 * KV_BYTES),
              full = m->kv_full + 8 * slot;

    mbarrier_wait(m->kv_empty + 8 * slot, (run->n_tiles / KV_SLOTS & 1u) ^ 1u);
    if (CLUSTER > 1) { /* dV of the last step is made, and so are S and dP; dQ may not be. */
        /* the place of that step, filled after the first queries (STAGES is 2) */
        ring_pos last = r;
        ring_step(&last, STAGES);
        mbarrier_wait(m->do_empty + 8 * last.slot, last.phase);
    }
    tile_put(m->tile + (run->n_tiles & 1u) * TILE_BYTES, p);
    mbarrier_expect(full, 2 * KV_BYTES - (CLUSTER - 1) * BN * 128);
    for (int j = 0; j < COLUMNS * (BN / KEY_BOX); j++) {
        const int c = j % COLUMNS, i = j / COLUMNS, key = p->key + i * KEY_STRIDE;
        const u32 at = k + c * BN * 128 + i * KEY_BOX * 128;
        if (CLUSTER > 1 && c == (int)cluster_cta_rank()) {
            tma_prefetch_4d(map_k, c * 64, p->kv_head, key, p->b);
        } else {
            tma_load_4d(at, map_k, full, c * 64, p->kv_head, key, p->b);
        }
        tma_load_4d(at + KV_BYTES, map_v, full, c * 64, p->kv_head, key, p->b);
    }
    const int steps = p->n_heads * (p->m_end - p->m_begin);
    for (int n = 0, h = p->head, i = p->i;; n++, step_next(p, &h, &i), ring_step(&r, STAGES)) {
        /* After the first queries, whose place is free earlier. */
        if (CLUSTER > 1 && n == min_i(1, steps)) {
            load_dq_keys(m, map_k, p, run->n_tiles);
        }
        if (n == steps) {
            break;
        }
        const int head = p->kv_head * p->n_heads + h;
        const i64 row = (i64)(p->b * w->a.q_heads + head) * w->padded + i * BM;
        const u32 q_bar = m->q_full + 8 * r.slot, do_bar = m->do_full + 8 * r.slot;
        mbarrier_wait(m->q_empty + 8 * r.slot, r.phase);
        mbarrier_expect(q_bar, Q_BYTES + ROW_BYTES);
        load_queries(m->q + r.slot * Q_BYTES, map_q, q_bar, head, i * BM, p->b);
        bulk_load(m->lse + r.slot * ROW_BYTES, w->lse2 + row, ROW_BYTES, q_bar);
        if (DQ) {
            mbarrier_wait(m->do_empty + 8 * r.slot, r.phase);
        }
        mbarrier_expect(do_bar, Q_BYTES + (1 + DQ) * ROW_BYTES);
        load_queries(m->d_o + r.slot * Q_BYTES, map_do, do_bar, head, i * BM, p->b);
        bulk_load(m->delta + r.slot * ROW_BYTES, w->delta + row, ROW_BYTES, do_bar);
        if (DQ) {
            bulk_load(m->unit + r.slot * ROW_BYTES, w->unit + row, ROW_BYTES, do_bar);
        }
    }
    run->n_tiles++;
    run->r = r;
}

/* dq (64 queries, 64 of D) = dS (64 queries, TILE_KEYS) K (TILE_KEYS, 64 of D); keys from BN on are
 * the other block's. */
INLINE void issue_dq(float dq[32], u32 ds, u32 k, u32 other_k) {
    const u64 a = wgmma_desc(ds, 16), b = wgmma_desc(k, 16), other = wgmma_desc(other_k, 16);
    mma_dq_set(dq, a, b);
#pragma unroll
    for (int i = 1; i < TILE_KEYS / 16; i++) {
        mma_dq(dq, DESC_ADD(a, i / 4 * (BM * 128) + i % 4 * 32),
               i < BN / 16 ? DESC_ADD(b, i * 2048) : DESC_ADD(other, (i - BN / 16) * 2048), 1);
    }
    wgmma_commit();
}

/* 4. The 64 columns of dQ that this consumer makes. */
INLINE int dq_column(int consumer) {
    return CLUSTER > 1 ? (int)cluster_cta_rank() : PIECES == 1 ? 0 : consumer;
}
/* Leave a 64 x 64 piece of dQ as integers, in register order, for the adding warp. The first of
 * each 16 bytes also counts the adds (bwd_finish.cuh). */
INLINE void leave_dq(const float dq[32], const float unit[2], u32 places, int consumer) {
    const u32 mine = places + (CLUSTER > 1 ? 0 : consumer) * DQ_BYTES +
                     (int)threadIdx.x % 128 / 32 * 4096 + (int)threadIdx.x % 32 * 16;

    named_barrier_sync(BAR_GONE + consumer, 160);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        st_shared_v4_s32(mine + i * 512, __float2int_rn(dq[4 * i] * (unit[0] / ADDS)) * ADDS + 1,
                         __float2int_rn(dq[4 * i + 1] * unit[0]),
                         __float2int_rn(dq[4 * i + 2] * unit[1]),
                         __float2int_rn(dq[4 * i + 3] * unit[1]));
    }
    fence_proxy_async();
    named_barrier_arrive(BAR_MADE + consumer, 160);
}
/* One warp adds the consumers' pieces of dQ to memory, as integers, so that the order does not
 * matter. In a cluster there is a single place, which the consumers use in turn. */
INLINE void add_dq(const lt_attn_bwd_args *w, const smem_map *m) {
    const bool one = threadIdx.x % 32 == 0;
    const int first_column = CLUSTER > 1 ? (int)cluster_cta_rank() : 0;
    u32 n_steps = 0;

    if (CLUSTER > 1) {
        named_barrier_arrive(BAR_GONE, 160);
    }
    for (u32 n = 0;; n++) {
        const u32 tile = m->tile + (n & 1u) * TILE_BYTES;
        mbarrier_wait(m->kv_full, n & 1u);
        if (warp_uniform(ld_shared_s32(tile)) < 0) {
            break;
        }
        const tile_pos p = tile_get(tile);
        const int place = p.pair % w->places * p.n_heads;
        if (one) {
            /* This warp reads nothing more of the tile. */
            mbarrier_arrive(m->kv_empty);
            place_await(w, p.pair);
        }
        __syncwarp();
        for (int steps = p.n_heads * (p.m_end - p.m_begin), head = p.head, i = p.i; steps > 0;
             steps--, n_steps++, step_next(&p, &head, &i)) {
            const i64 rows = (i64)(p.pair * p.n_heads + head) * (w->padded / 64) + i;
            for (int piece = 0; piece < PIECES; piece++) {
                const int c = PIECES == 1 ? (int)(n_steps % 2) : piece;
                named_barrier_sync(BAR_MADE + c, 160);
                if (one) {
                    bulk_add_s32(sums_of(w, place + head, i, first_column + piece),
                                 m->dq + (CLUSTER > 1 ? 0 : c) * DQ_BYTES, DQ_BYTES);
                    bulk_add_s32(w->added + (rows * COLUMNS + first_column + piece) * 4, m->count,
                                 16);
                    tma_store_commit();
                }
            }
            for (int piece = 0; piece < PIECES; piece++) {
                const int c = PIECES == 1 ? (int)(n_steps % 2) : piece;
                if (one && piece < PIECES - 1) {
                    tma_store_wait_read(1);
                } else if (one) {
                    tma_store_wait_read(0);
                }
                __syncwarp();
                named_barrier_arrive(BAR_GONE + (CLUSTER > 1 ? 1 - c : c), 160);
            }
        }
    }
    if (one) {
        tma_store_wait(0);
    }
}

/* 5. Store dK or dV of this consumer's keys through 16 KB of shared memory. */
INLINE void store_sums(const float sum[BLOCKS][HEAD_DIM / 2], float scale, u32 stage,
                       const void *map, const tile_pos *p, int consumer) {
    const int tid = (int)threadIdx.x % 128, warp = tid / 32, lane = tid % 32, r8 = lane % 8;
#pragma unroll
    for (int i = 0; i < BLOCKS * HEAD_DIM / 16; i++) {
        const float *x = sum[i / (HEAD_DIM / 16)] + i % (HEAD_DIM / 16) * 8;
        stmatrix_x4(stage + i / 4 * 8192 + (16 * warp + lane / 8 % 2 * 8 + r8) * 128 +
                        ((i % 4 * 2 + lane / 16) ^ r8) * 16,
                    PACK_ELEM(x[0] * scale, x[1] * scale), PACK_ELEM(x[2] * scale, x[3] * scale),
                    PACK_ELEM(x[4] * scale, x[5] * scale), PACK_ELEM(x[6] * scale, x[7] * scale));
    }
    fence_proxy_async();
    named_barrier_sync(BAR_OWN + consumer, 128);
    if (tid == 0) {
        for (int c = 0; c < BLOCKS * COLUMNS; c++) { /* boxes of 64 x 64 */
            tma_store_4d(map, stage + c * 8192, c % COLUMNS * 64, p->kv_head,
                         p->key + 64 * (CONSUMERS * (c / COLUMNS) + consumer), p->b);
        }
        tma_store_commit();
    }
}

typedef struct {
    int head, i; /* query head of the group, step of BM queries */
    ring_pos r;
} step_pos;

INLINE void probabilities_step(float s[BM / 2], u32 probs[BM / 4], const lt_attn_bwd_args *w,
                               const smem_map *m, const tile_pos *p, const step_pos *at,
                               int first_key, bool mask) {
    const int tid = (int)threadIdx.x % 128, token = at->i * BM;
    const int key = first_key + 16 * (tid / 32) + tid % 32 / 4;
    const u32 lse = m->lse + at->r.slot * ROW_BYTES;
    const float slope = ALIBI ? w->a.alibi[p->kv_head * p->n_heads + at->head] * LOG2E : 0.0f;

    if (P_KEPT) {
        probabilities_kept(s, lse, w, p, key, token + tid % 4 * 2, mask, slope);
    } else if (mask) {
        probabilities(s, probs, lse, w, p, key, token + tid % 4 * 2, true, slope);
    } else {
        probabilities(s, probs, lse, w, p, key, token + tid % 4 * 2, false, slope);
    }
}

/* Signal the block that fills this block's places; in a cluster also the other block. */
INLINE void arrive_all(u32 bar) {
    mbarrier_arrive(bar);
    if (CLUSTER > 1) {
        mbarrier_arrive_remote(bar, cluster_cta_rank() ^ 1u);
    }
}

/* CLUSTER: this consumer no longer reads the K from which dQ is made. */
INLINE void dq_keys_release(const smem_map *m, int consumer) {
    named_barrier_sync(BAR_OWN + consumer, 128);
    if (threadIdx.x % 128 == 0) {
        mbarrier_arrive(m->k_empty);
    }
}
#if DQ
/* CLUSTER: one thread: dS of a consumer's 64 keys at step n is complete. This block is told, and
 * the other one gets a copy. */
INLINE void slopes_pass(const smem_map *m, u32 my_ds, u32 n) {
    const u32 full = m->ds_full + 8 * (n % 2);
    const int other = (int)cluster_cta_rank() ^ 1;
    mbarrier_expect(full, BM * 128);
    bulk_send(remote_address(my_ds + BN * BM * 2, other), my_ds, BM * 128,
              remote_address(full, other));
}
/* CLUSTER: wait for dS of both blocks at step n; dQ is made from it, so that both may write to that
 * place again. */
INLINE void slopes_await(const smem_map *m, u32 n) {
    mbarrier_wait(m->ds_full + 8 * (n % 2), n / 2 & 1u);
}
INLINE void slopes_release(const smem_map *m, u32 n) {
    if (threadIdx.x % 128 == 0) {
        arrive_all(m->ds_empty + 8 * (n % 2));
    }
}

/* This consumer's dS at step n is whole: tells who makes dQ of it, and fetches units if that is
 * this one. Behind it all warps have read what came with the queries: it has a barrier, or products
 * follow, which warps of a consumer begin together. */
INLINE void slopes_tell(const smem_map *m, u32 ds, const step_pos *at, u32 n, float unit[2],
                        bool turn, const bool edge, int consumer) {
    const int tid = (int)threadIdx.x % 128;
    const u32 units = m->unit + at->r.slot * ROW_BYTES + (16 * (tid / 32) + tid % 32 / 4) * 4;

    if (CLUSTER > 1 ? n % 2 == (u32)consumer : turn) {
        unit[0] = ld_shared_f32(units), unit[1] = ld_shared_f32(units + 32);
    }
    if (CLUSTER > 1) {
        named_barrier_sync(BAR_OWN + consumer, 128);
        if (tid == 0) {
            slopes_pass(m, ds + consumer * (BM * 128), n);
        }
    } else if (turn) {
        named_barrier_sync(PIECES == 1 ? BAR_TURN + consumer : BAR_BOTH, 256);
    } else {
        named_barrier_arrive(BAR_TURN + 1 - consumer, 256);
        if (edge) {
            named_barrier_sync(BAR_OWN + consumer, 128);
        }
    }
}

/* 2-4. Step n of all tiles: BM queries and this consumer's blocks of keys. At an edge (constant)
 * blocks may be skipped, so that none may be under way when the next begins; elsewhere a block's
 * sums run under the next one's scores, the last one's under the barrier and dQ. `turn`: this
 * consumer makes dQ, of this step or, in a cluster, where dS takes its time, of the one before;
 * unit: of that step's rows. */
INLINE void walk_step(float dk[BLOCKS][HEAD_DIM / 2], float dv[BLOCKS][HEAD_DIM / 2],
                      const lt_attn_bwd_args *w, const smem_map *m, const tile_pos *p,
                      const step_pos *at, u32 k, u32 n, float unit[2], bool turn, const bool edge,
                      bool mask, int consumer) {
    const int tid = (int)threadIdx.x % 128;
    const u32 q = m->q + at->r.slot * Q_BYTES, d_o = m->d_o + at->r.slot * Q_BYTES,
              ds = m->ds + n % 2 * DS_BYTES;
    u32 probs[BM / 4], dsr[BM / 4];

    if (edge) {
        mbarrier_wait(m->do_full + 8 * at->r.slot, at->r.phase);
    }
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        const int block = CONSUMERS * i + consumer, key = p->key + KEY_STRIDE * block;
        const u32 my_k = k + block * 8192, my_ds = ds + block * (BM * 128);
        float s[BM / 2], dp[BM / 2];
        if (edge && !any_seen(w, p, at->i * BM, key, 64)) {
            no_slopes(my_ds);
            continue;
        }
        wgmma_fence();
        issue_scores(s, my_k, q);
        if (!edge && i == 0) {
            mbarrier_wait(m->do_full + 8 * at->r.slot, at->r.phase);
        } else if (!edge) {
            wgmma_wait(1); /* The previous product then frees its registers. */
        }
        wgmma_fence();
        issue_scores(dp, my_k + KV_BYTES, d_o);
        wgmma_wait(1);
        wgmma_pin(s, BM / 2);
        probabilities_step(s, probs, w, m, p, at, key, mask);
        wgmma_wait(0);
        wgmma_pin(dp, BM / 2);
        if (CLUSTER > 1) {
            mbarrier_wait(m->ds_empty + 8 * (n % 2), (n / 2 & 1u) ^ 1u);
        }
        slopes(s, probs, dp, dsr, m->delta + at->r.slot * ROW_BYTES, my_ds);
        wgmma_fence();
        issue_sums(dv[i], probs, d_o);
        if (edge || i < BLOCKS - 1) {
            issue_sums(dk[i], dsr, q);
        }
        if (edge) {
            wgmma_wait(0);
            wgmma_pin(dk[i], HEAD_DIM / 2);
            wgmma_pin(dv[i], HEAD_DIM / 2);
        }
    }
    fence_proxy_async();
    slopes_tell(m, ds, at, n, unit, turn, edge, consumer);
    if (turn) {
        float dq[32];
        if (CLUSTER > 1) {
            slopes_await(m, n - 1);
        }
        wgmma_fence();
        issue_dq(dq, CLUSTER > 1 ? m->ds + (n - 1) % 2 * DS_BYTES : ds,
                 k + dq_column(consumer) * (BN * 128), m->other_k);
        if (!edge) {
            issue_sums(dk[BLOCKS - 1], dsr, q);
            wgmma_wait(2);
        }
        if (tid == 0) {
            arrive_all(m->do_empty + 8 * at->r.slot);
        }
        if (edge) {
            wgmma_wait(0);
        } else {
            wgmma_wait(1);
        }
        wgmma_pin(dq, 32);
        if (CLUSTER > 1) {
            slopes_release(m, n - 1);
        }
        leave_dq(dq, unit, m->dq, consumer);
    } else {
        if (!edge) {
            wgmma_fence();
            issue_sums(dk[BLOCKS - 1], dsr, q);
            wgmma_wait(1);
        }
        if (tid == 0) {
            arrive_all(m->do_empty + 8 * at->r.slot);
        }
    }
    wgmma_wait(0);
}
/* CLUSTER: dQ of step n alone; last: of a tile's last step (constant). */
INLINE void make_dq(const smem_map *m, u32 k, u32 n, const float unit[2], const bool last,
                    int consumer) {
    float dq[32];
    slopes_await(m, n);
    wgmma_fence();
    issue_dq(dq, m->ds + n % 2 * DS_BYTES, k + dq_column(consumer) * (BN * 128), m->other_k);
    wgmma_wait(0);
    wgmma_pin(dq, 32);
    slopes_release(m, n);
    if (last) {
        dq_keys_release(m, consumer);
    }
    leave_dq(dq, unit, m->dq, consumer);
}
/* CLUSTER: a step n whose queries see none of this consumer's keys. */
INLINE void walk_past(const smem_map *m, const step_pos *at, u32 k, u32 n, float unit[2], bool turn,
                      int consumer) {
    const u32 ds = m->ds + n % 2 * DS_BYTES;
    mbarrier_wait(m->do_full + 8 * at->r.slot, at->r.phase);
    mbarrier_wait(m->ds_empty + 8 * (n % 2), (n / 2 & 1u) ^ 1u);
    no_slopes(ds + consumer * (BM * 128));
    fence_proxy_async();
    slopes_tell(m, ds, at, n, unit, turn, true, consumer);
    if (threadIdx.x % 128 == 0) {
        arrive_all(m->do_empty + 8 * at->r.slot);
    }
    if (turn) {
        make_dq(m, k, n - 1, unit, false, consumer);
    }
}
#else
/* 2-3. BM queries and this consumer's 64 keys, without dQ. */
INLINE void walk_step(float dk[HEAD_DIM / 2], float dv[HEAD_DIM / 2], const lt_attn_bwd_args *w,
                      const smem_map *m, const tile_pos *p, const step_pos *at, u32 k,
                      int consumer) {
    const int key = p->key + 64 * consumer;
    const u32 q = m->q + at->r.slot * Q_BYTES, d_o = m->d_o + at->r.slot * Q_BYTES,
              my_k = k + consumer * 8192;
    float s[BM / 2], dp[BM / 2];
    u32 probs[BM / 4], dsr[BM / 4];

    mbarrier_wait(m->do_full + 8 * at->r.slot, at->r.phase);
    wgmma_fence();
    issue_scores(s, my_k, q);
    issue_scores(dp, my_k + KV_BYTES, d_o);
    wgmma_wait(1);
    wgmma_pin(s, BM / 2);
    probabilities_step(s, probs, w, m, p, at, key, !all_seen(w, p, at->i * BM, key, 64));
    wgmma_fence();
    issue_sums(dv, probs, d_o);
    wgmma_wait(1);
    wgmma_pin(dp, BM / 2);
    slopes(s, probs, dp, dsr, m->delta + at->r.slot * ROW_BYTES, 0);
    wgmma_fence(); /* Here all warps have also read the numbers that came with the queries. */
    issue_sums(dk, dsr, q);
    wgmma_wait(0);
}
#endif

/* Walk over all queries that see this consumer's keys. */
INLINE void walk(float dk[BLOCKS][HEAD_DIM / 2], float dv[BLOCKS][HEAD_DIM / 2],
                 const lt_attn_bwd_args *w, const smem_map *m, const tile_pos *p, run_pos *run,
                 u32 k, int consumer) {
    const u32 begin = run->n_steps, end = begin + (u32)(p->n_heads * (p->m_end - p->m_begin));
    step_pos at = {p->head, p->i, run->r};
    float unit[2];

    for (u32 n = begin; n < end; n++) {
        mbarrier_wait(m->q_full + 8 * at.r.slot, at.r.phase);
#if DQ
        const bool inside = all_seen(w, p, at.i * BM, p->key + KEY_STRIDE * consumer,
                                     64 * (CONSUMERS * (BLOCKS - 1) + 1)),
                   mine = n % 2 == (u32)consumer;
        const bool turn = CLUSTER > 1 ? !mine && n > begin : PIECES > 1 || mine;
        if (CLUSTER > 1 && CAUSAL && !inside &&
            !any_seen(w, p, at.i * BM, p->key + KEY_STRIDE * consumer, 64)) {
            walk_past(m, &at, k, n, unit, turn, consumer);
        } else if (BLOCKS > 1 && !inside) {
            walk_step(dk, dv, w, m, p, &at, k, n, unit, turn, true, true, consumer);
        } else {
            walk_step(dk, dv, w, m, p, &at, k, n, unit, turn, false, !inside, consumer);
        }
#else
        if (BM == 64 && CAUSAL && !any_seen(w, p, at.i * BM, p->key + 64 * consumer, 64)) {
            /* The place is released after all warps have seen it filled: otherwise a later warp
             * might find it filled a second time, and wait forever for the first filling. */
            mbarrier_wait(m->do_full + 8 * at.r.slot, at.r.phase);
            named_barrier_sync(BAR_OWN + consumer, 128);
        } else {
            walk_step(dk[0], dv[0], w, m, p, &at, k, consumer);
        }
#endif
        if (threadIdx.x % 128 == 0) {
            arrive_all(m->q_empty + 8 * at.r.slot);
        }
        ring_step(&at.r, STAGES);
        step_next(p, &at.head, &at.i);
    }
#if CLUSTER > 1
    if ((end - 1) % 2 == (u32)consumer) {
        make_dq(m, k, end - 1, unit, true, consumer);
    }
#endif
    run->n_steps = end;
    run->r = at.r;
}

INLINE void consume(const void *map_dk, const void *map_dv, const lt_attn_bwd_args *w,
                    const smem_map *m, int consumer) {
    run_pos run = {{0, 0}, 0, 0};

    for (;; run.n_tiles++) {
        const u32 tile = m->tile + (run.n_tiles & 1u) * TILE_BYTES, slot = run.n_tiles % KV_SLOTS;
        float dk[BLOCKS][HEAD_DIM / 2] = {{0.0f}}, dv[BLOCKS][HEAD_DIM / 2] = {{0.0f}};
        /* dK and dV of the previous tile have been stored from the memory of dS and dQ. */
        if (STAGED) {
            if (threadIdx.x % 128 == 0) {
                tma_store_wait_read(0);
            }
            named_barrier_sync(BAR_BOTH, 256);
        }
        mbarrier_wait(m->kv_full + 8 * slot, run.n_tiles / KV_SLOTS & 1u);
        if (warp_uniform(ld_shared_s32(tile)) < 0) {
            break;
        }
        if (STAGED && threadIdx.x % 128 < 32) {
            /* Arrive for the adding warp: nothing is there yet. */
            named_barrier_arrive(BAR_GONE + consumer, 160);
        }
        {
            const tile_pos p = tile_get(tile);
            if (CLUSTER > 1) {
                named_barrier_sync(BAR_OWN + consumer, 128);
                if (threadIdx.x % 128 == 0) {
                    mbarrier_arrive(m->kv_empty); /* All warps know that K and V have arrived. */
                }
                mbarrier_wait(m->k_full, run.n_tiles & 1u);
            }
            wgmma_pin(dk[0], BLOCKS * HEAD_DIM / 2);
            wgmma_pin(dv[0], BLOCKS * HEAD_DIM / 2);
            if (p.m_begin < p.m_end) {
                walk(dk, dv, w, m, &p, &run, m->kv + slot * (2 * KV_BYTES), consumer);
            }
        }
        wgmma_pin(dk[0], BLOCKS * HEAD_DIM / 2);
        wgmma_pin(dv[0], BLOCKS * HEAD_DIM / 2);
        /* Read again, so that it occupies no registers during the walk. */
        const tile_pos p = tile_get(tile);
        if (CLUSTER == 1) {
            if (!STAGED) {
                /* All warps have read the tile's position, even if it has no products. */
                named_barrier_sync(BAR_OWN + consumer, 128);
            }
            if (threadIdx.x % 128 == 0) {
                mbarrier_arrive(m->kv_empty + 8 * slot);
            }
        } else if (p.m_begin == p.m_end || (run.n_steps - 1) % 2 != (u32)consumer) {
            /* The other consumer releases them with its last dQ. */
            dq_keys_release(m, consumer);
        }
        if (STAGED) {
            named_barrier_sync(BAR_GONE + consumer, 160);
            named_barrier_sync(BAR_BOTH, 256); /* Both consumers have read dS for the last time. */
            store_sums(dv, 1.0f, m->ds + consumer * DS_BYTES, map_dv, &p, consumer);
            store_sums(dk, w->a.scale, m->dq + consumer * DQ_BYTES, map_dk, &p, consumer);
        } else {
            const int first = p.key + KEY_STRIDE * consumer;
            store_rows(dv[0], 1.0f,
                       (elem *)w->dv + p.b * w->dv_strides.batch + p.kv_head * w->dv_strides.head,
                       w->dv_strides.token, first, w->a.kv_tokens, w->width);
            store_rows(dk[0], w->a.scale,
                       (elem *)w->dk + p.b * w->dk_strides.batch + p.kv_head * w->dk_strides.head,
                       w->dk_strides.token, first, w->a.kv_tokens, w->width);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) attn_bwd_sm90(
    const __grid_constant__ tensor_map map_q, const __grid_constant__ tensor_map map_k,
    const __grid_constant__ tensor_map map_v, const __grid_constant__ tensor_map map_do,
    const __grid_constant__ tensor_map map_dk, const __grid_constant__ tensor_map map_dv,
    const __grid_constant__ lt_attn_bwd_args args) {
    extern __shared__ __align__(1024) u8 smem[];
    const int group = warp_uniform((int)threadIdx.x / 128);
    smem_map m;
    static_assert(KV_SLOTS * 2 * KV_BYTES + STAGES * (2 * Q_BYTES + (2 + DQ) * ROW_BYTES) +
                          2 * DS_BYTES + CONSUMERS * DQ_BYTES + LT_ATTN_BWD_PLACES +
                          LT_ATTN_BWD_ZEROES ==
                      LT_ATTN_BWD_BYTES(HEAD_DIM, BN, BM, CLUSTER, STAGES, DQ),
                  "k, v, q, dO, dS, dQ, rows");
    static_assert(16 * KV_SLOTS + 32 * STAGES + 48 + 15 + 2 * TILE_BYTES + DRAW_BYTES + 15 + 16 <=
                      LT_ATTN_BWD_PLACES,
                  "barriers, tiles");
    m.kv = smem_addr(smem); /* Aligned as declared: no memory is left for padding. */
    m.q = m.kv + KV_SLOTS * 2 * KV_BYTES;
    m.d_o = m.q + STAGES * Q_BYTES;
    m.ds = m.d_o + STAGES * Q_BYTES;
    m.dq = m.ds + 2 * DS_BYTES;
    /* CLUSTER: dQ has a single place, and the memory of the second is used for this. */
    m.other_k = m.dq + DQ_BYTES;
    m.lse = m.dq + CONSUMERS * DQ_BYTES;
    m.delta = m.lse + STAGES * ROW_BYTES;
    m.unit = m.delta + STAGES * ROW_BYTES;
    m.kv_full = m.unit + DQ * STAGES * ROW_BYTES;
    m.kv_empty = m.kv_full + 8 * KV_SLOTS;
    m.q_full = m.kv_empty + 8 * KV_SLOTS;
    m.do_full = m.q_full + 8 * STAGES;
    m.q_empty = m.do_full + 8 * STAGES;
    m.do_empty = m.q_empty + 8 * STAGES;
    m.ds_full = m.do_empty + 8 * STAGES;
    m.ds_empty = m.ds_full + 16;
    m.k_full = m.ds_empty + 16;
    m.k_empty = m.k_full + 8;
    m.tile = (m.k_empty + 8 + 15) & ~15u;
    m.drawn = m.tile + 2 * TILE_BYTES;
    m.count = (m.drawn + DRAW_BYTES + 15) & ~15u;

    if (threadIdx.x == 0) {
        for (int s = 0; s < KV_SLOTS; s++) {
            mbarrier_init(m.kv_full + 8 * s, 1);
            mbarrier_init(m.kv_empty + 8 * s, CONSUMERS + DQ); /* and the adding warp */
        }
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(m.q_full + 8 * s, 1);
            mbarrier_init(m.do_full + 8 * s, 1);
            mbarrier_init(m.q_empty + 8 * s, CONSUMERS * CLUSTER);
            mbarrier_init(m.do_empty + 8 * s, CONSUMERS * CLUSTER);
        }
        for (int i = 0; i < 2 && CLUSTER > 1; i++) {
            mbarrier_init(m.ds_full + 8 * i, CONSUMERS);
            /* from each block, the consumer that makes dQ from it */
            mbarrier_init(m.ds_empty + 8 * i, CLUSTER);
        }
        if (CLUSTER > 1) {
            mbarrier_init(m.k_full, 1);
            mbarrier_init(m.k_empty, CONSUMERS);
        }
        draws_init(m.drawn);
        if (DQ) {
            st_shared_v4_s32(m.count, 1, 0, 0, 0); /* Followed by ZEROES bytes. */
            for (u32 i = 0; i < ZEROES; i += 16) {
                st_shared_v4_s32(m.count + 16 + i, 0, 0, 0, 0);
            }
            fence_proxy_async();
        }
        mbarrier_init_fence();
    }
    if (CLUSTER > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
    if (group == 0) {
        regs_shrink(40);
        if (threadIdx.x == 0) {
            /* A new slot is empty, so a wait for "phase 1" returns immediately. */
            run_pos run = {{0, 1}, 0, 0};
            ring_pos drawn = draws_begin();
            /* DQ: the first tile is drawn, too, so that no tile waits for a block that has no SM
             * yet. */
            int t = DQ ? draw(&args.a, m.drawn, &drawn, 0) : (int)blockIdx.x;
            while (t * DRAWN < tile_count(&args)) {
                /* Rows are short, so the next tile is drawn long before it is needed. */
                const int next = DQ ? 0 : draw(&args.a, m.drawn, &drawn, (int)gridDim.x);
                for (int i = t * DRAWN; i < min_i(t * DRAWN + DRAWN, tile_count(&args)); i++) {
                    const tile_pos p = tile_locate(&args, i);
                    produce(&map_q, &map_k, &map_v, &map_do, &args, &m, &p, &run);
                }
                t = DQ ? draw(&args.a, m.drawn, &drawn, 0) : next;
            }
            draws_end(&args.a);
            const u32 slot = run.n_tiles % KV_SLOTS;
            mbarrier_wait(m.kv_empty + 8 * slot, (run.n_tiles / KV_SLOTS & 1u) ^ 1u);
            st_shared_s32(m.tile + (run.n_tiles & 1u) * TILE_BYTES, -1);
            mbarrier_arrive(m.kv_full + 8 * slot);
        } else if (DQ && threadIdx.x / 32 == 1) {
            add_dq(&args, &m);
        } else if (DQ && threadIdx.x / 32 >= 2) {
            finish_dq(&args, m.count + 16);
        }
    } else {
        regs_grow(232);
        consume(&map_dk, &map_dv, &args, &m, group - 1);
        if (threadIdx.x % 32 == 0) {
            tma_store_wait_read(0);
        }
        if (DQ) {
            finish_dq(&args, m.count + 16);
        }
    }
    if (CLUSTER > 1) {
        __syncwarp();
        /* No block leaves while its neighbour may still write to its shared memory. */
        cluster_sync();
    }
}

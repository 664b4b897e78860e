/* fwd_sm90.cu — O = softmax(mask(scale * Q K^T)) V and its log-sum-exp, forward, on Hopper.
 *
 * SHAPES    q, o (B, T, H, D), k, v (B, S, G, D), any strides of 16 bytes; D <= HEAD_DIM (64, 128,
 *           192, 256), the rest read as zero; any T, S. PAGED: q, o (rows, H, D), sequences of
 *           different lengths one after another; k, v pages (n, PAGED, G, D). PAGED divides BN, or
 *           BN divides PAGED.
 * MAP       persistent blocks that draw tiles from a counter; warpgroup 0 copies, CONSUMERS more
 *           compute, each 64 rows of the block's BM. A row is (token, head of its group): HEADS
 *           query heads that read the same key head share one tile, so that short queries still
 *           fill it.
 *           CLUSTER=2: blocks in pairs make tiles one below the other; each copies half of a block
 *           of keys to both. With a causal mask, the upper tile also walks over the blocks of the
 *           diagonal that only the lower one sees.
 * MOVEMENT
 *     Q 64 rows a consumer ──TMA──▶ smem ─┐ (up to 128 columns, two consumers: ──ldmatrix──▶
 *                                         │ registers)
 *     K block (BN, D) ──TMA ring──▶ smem ─┴─wgmma─▶ S (64, BN) f32 registers
 *         ─ mask, exp2, row sums ─▶ P 16-bit registers ─┐
 *     V block (BN, D) ──TMA ring──▶ smem ─────────wgmma─┴─▶ O (64, D) f32
 *     O / sum ──stmatrix──▶ smem ──TMA──▶ HBM; O_DIRECT, where shared memory has no place for it:
 *     registers ──▶ HBM
 *     Two overlaps: within a consumer, S of the next block is issued before this block's P V, and
 *     its maxima are found under that product. And consumers take turns (named barriers), so that
 *     the exponentials of one run under the products of the other: after its own P V, whose place
 *     in the ring is then free for copies sooner.
 * BOUND     4 T S D H flop (half if causal) at 4096 flop a clock an SM; T S H exponentials at 16 a
 *           clock an SM: at D = 64 both take the same time, at 128 exponentials are half.
 * MEASURED  docs/speed/attention.md.
 * NUMERICS  scores and sums in f32, P rounded to 16 bits, O in f32, one rounding at the store.
 *           Online softmax: O and the sum are scaled to a new maximum only when it is 2^8 above
 *           theirs, so that most blocks leave O alone; P is 2^8 at most, which 16 bits of either
 *           type hold with the same relative rounding. Fixed order: bit-identical run to run. A row
 *           that sees no key: 0, lse -inf.
 * LADDER    ladder/01_naive.cu; this file is the last rung.
 * REFS      Dao et al. 2022 (arXiv:2205.14135), 2023 (2307.08691), Shah et al. 2024
 *           (2407.08608). */
#include "attention/draw.cuh"
#include "attention/rows.cuh"
#include "common/hopper.cuh"
#include "common/mma.cuh"
#include "common/ring.cuh"
#include "common/wgmma.cuh"

#define BM      (64 * CONSUMERS)
#define THREADS (128 * (1 + CONSUMERS))
/* tokens of the tiles that a cluster processes at a time */
#define UNIT      (BM / HEADS * CLUSTER)
#define Q_BYTES   (64 * HEAD_DIM * 2) /* of one consumer */
#define KV_BYTES  (BN * HEAD_DIM * 2)
#define COLUMNS   (HEAD_DIM / 64) /* columns of 128 bytes */
#define BAR_STORE 1
#define BAR_TURN  4
/* Q stays in registers if there is room: this saves a fifth of the shared memory reads, and frees
 * its place at once. */
#define Q_HELD (HEAD_DIM <= 128 && CONSUMERS == 2 && !ALIBI)
/* scores are turned into logits before the maximum is taken */
#define LOG2_UNITS (SOFTCAP || ALIBI)
static_assert(HEAD_DIM % 64 == 0 && HEAD_DIM <= 256, "head width is padded to 64, 128, 192 or 256");
static_assert(BN % 16 == 0 && BN <= 256, "key block");
static_assert(64 % HEADS == 0, "packed heads divide 64 rows");
static_assert(CLUSTER == 1 ||
                  (CLUSTER == 2 && BN % 16 == 0 && HEADS == 1 && !WINDOW && !DOC && !PAGED),
              "tiles of a cluster go through the same blocks of keys");
#if PAGED
#define BOX (PAGED < BN ? PAGED : BN) /* Keys per copy. */
static_assert(BN % BOX == 0 && PAGED % BOX == 0 && BOX % 8 == 0,
              "a block of keys is of whole boxes, a box of one page");
static_assert(HEADS == 1 && !DOC, "rows of sequences of their own length");
#endif

#define TILE_BOX 64
#define STEP_BOX BN
#include "attention/products.cuh"

WGMMA_RS(mma_held, BN, 0)

typedef struct {
    int b, head, kv_head; /* head: the first of the HEADS */
    int token;            /* the tile's first */
    int row;              /* PAGED: row of the sequence's first token in q and o */
    int n_keys;
    int j_begin, j_end; /* key blocks */
} tile_pos;

#if PAGED
/* Sequences with enough tokens, and the number of tiles before each; made in shared memory by the
 * block's first warp. */
typedef struct {
    int seq, before;
} stop;
INLINE int stops_make(const lt_attn_args *a, stop *stops) {
    const int lane = (int)threadIdx.x % 32;
    int n = 0, before = 0;
    for (int b0 = 0; b0 < a->batch; b0 += 32) {
        const int tokens = b0 + lane < a->batch ? tokens_of(a, b0 + lane) : 0,
                  tiles = tokens >= a->q_least ? div_up(tokens, BM) * a->q_heads : 0;
        int sum = tiles;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, sum, d);
            sum += lane >= d ? other : 0;
        }
        const u32 tall = __ballot_sync(0xffffffffu, tiles > 0);
        if (tiles > 0) {
            stop *const mine = stops + n + __popc(tall & ((1u << lane) - 1));
            mine->seq = b0 + lane;
            mine->before = before + sum - tiles;
        }
        n += __popc(tall);
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    if (lane == 0) {
        stops[n].seq = -1;
        stops[n].before = before;
    }
    return n;
}
/* The last sequence that begins at or before the tile. */
INLINE const stop *stop_of(const stop *stops, int n, int tile) {
    int low = 0;
    while (n - low > 1) {
        const int mid = (low + n) / 2;
        if (stops[mid].before <= tile) {
            low = mid;
        } else {
            n = mid;
        }
    }
    return stops + low;
}
#else
typedef struct {
    int unused;
} stop;
#endif
typedef struct {
    const stop *stops;
    int n;
} route;

INLINE int tile_count(const lt_attn_args *a, const route *w) {
#if PAGED
    return w->stops[w->n].before;
#else
    (void)w;
    return div_up(a->q_tokens, UNIT) * a->batch * (a->q_heads / HEADS);
#endif
}
/* Tiles in order of falling length (causal: last rows first) inside sections of (batch, head) pairs
 * whose K and V fit the L2 (or, where these are short, that occupy the GPU once: long tiles wait
 * for memory, short ones do not, so both must run at a time); PAGED: of heads of a sequence, one
 * after the other. */
INLINE tile_pos tile_locate(int t, const lt_attn_args *a, const route *w) {
    const int heads = a->q_heads / HEADS;
    key_range low, high;
    tile_pos p;
#if PAGED
    const stop *at = stop_of(w->stops, w->n, t);
    const int pairs = heads, rows = div_up(tokens_of(a, at->seq), BM);
    t -= at->before;
#else
    const int pairs = a->batch * heads, rows = div_up(a->q_tokens, UNIT);
#endif
    const turn whose = turn_of(a, t, pairs, rows);
    const int pair = whose.pair, row = rows - 1 - whose.nth;
#if PAGED
    p.b = at->seq;
    p.row = a->q_start[p.b];
#else
    p.b = pair / heads;
    p.row = 0;
#endif
    p.head = pair % heads * HEADS;
    p.kv_head = p.head / (a->q_heads / a->kv_heads);
    p.n_keys = keys_of(a, p.b);
    low = range_of(a, p.b, p.n_keys, row * UNIT);
    high = range_of(a, p.b, p.n_keys, row * UNIT + UNIT - 1);
    p.token = row * UNIT + (CLUSTER > 1 ? (int)cluster_cta_rank() * BM : 0);
    p.j_begin = low.lo / BN;
    p.j_end = high.hi < low.lo ? p.j_begin : high.hi / BN + 1;
    return p;
}

/* A place of a ring has been read: signal all blocks that copy to it. */
INLINE void release(u32 empty, int tid) {
    if (CLUSTER > 1 && tid < CLUSTER) {
        mbarrier_arrive_remote(empty, (u32)tid);
    }
    if (CLUSTER == 1 && tid == 0) {
        mbarrier_arrive(empty);
    }
}

/* Addresses in shared memory. */
typedef struct {
    u32 q, k, v, o;
    /* one per slot and consumer; with two slots, a tile's Q and first keys are copied while the
     * previous tile is computed */
    u32 q_full, q_empty;
    u32 k_full, k_empty, v_full, v_empty; /* one a stage */
    u32 drawn;                            /* see draw.cuh */
    /* one per slot and consumer, 32 bytes: position of the tile whose Q arrives; b -1 at the end */
    u32 tile;
} smem_map;

INLINE void load_block(const void *map, const lt_attn_args *a, u32 ring, u32 full, u32 empty,
                       ring_pos *r, const tile_pos *p, int j) {
    const u32 bar = full + 8 * r->slot, dst = ring + r->slot * KV_BYTES;
    mbarrier_wait(empty + 8 * r->slot, r->phase);
    mbarrier_expect(bar, KV_BYTES);
#if PAGED
    /* After the last key its page is read again, which gives finite numbers that are masked. */
    for (int key = j * BN, to = 0; to < BN * 128; key += BOX, to += BOX * 128) {
        const int page = a->table[p->b * a->table_ld + min_i(key, p->n_keys - 1) / PAGED];
        for (int c = 0; c < COLUMNS; c++) {
            tma_load_4d(dst + c * BN * 128 + to, map, bar, c * 64, p->kv_head, key % PAGED, page);
        }
    }
#else
    (void)a;
    for (int c = 0; c < COLUMNS; c++) {
#if CLUSTER > 1
        const int part = (int)cluster_cta_rank() * (BN / CLUSTER);
        tma_load_4d_multicast(dst + (c * BN + part) * 128, map, bar, c * 64, p->kv_head,
                              j * BN + part, p->b, (1 << CLUSTER) - 1);
#else
        tma_load_4d(dst + c * BN * 128, map, bar, c * 64, p->kv_head, j * BN, p->b);
#endif
    }
#endif
    ring_step(r, STAGES);
}

/* The producer locates a tile while the consumers compute the previous one. */
#define TILE_BYTES 32
INLINE void tile_put(u32 at, const tile_pos *p) {
    st_shared_v4_s32(at, p->b, p->head, p->token, p->n_keys);
    st_shared_v4_s32(at + 16, p->j_begin, p->j_end, p->row, p->kv_head);
}
INLINE tile_pos tile_get(u32 at) {
    const uint4 x = ld_shared_v4(at), y = ld_shared_v4(at + 16);
    tile_pos p;
    p.b = warp_uniform((int)x.x), p.head = warp_uniform((int)x.y), p.token = warp_uniform((int)x.z),
    p.n_keys = warp_uniform((int)x.w);
    p.j_begin = warp_uniform((int)y.x), p.j_end = warp_uniform((int)y.y),
    p.row = warp_uniform((int)y.z), p.kv_head = warp_uniform((int)y.w);
    return p;
}

/* 1. One thread feeds the block: K of the last key block first, then Q, then K and V in the order
 * of use. */
INLINE void produce(const void *map_q, const void *map_k, const void *map_v, const lt_attn_args *a,
                    const smem_map *s, const route *way) {
    ring_pos rk = {0, 1}, rv = {0, 1};
    ring_pos at = {0, 1}, drawn = draws_begin();
    int t = (int)blockIdx.x / CLUSTER;

    while (t < tile_count(a, way)) {
        const tile_pos p = tile_locate(t, a, way);
        if (p.j_begin < p.j_end) {
            load_block(map_k, a, s->k, s->k_full, s->k_empty, &rk, &p, p.j_end - 1);
        }
        for (int w = 0; w < CONSUMERS; w++) {
            const int i = at.slot * CONSUMERS + w;
            mbarrier_wait(s->q_empty + 8 * i, at.phase);
            tile_put(s->tile + TILE_BYTES * i, &p);
            mbarrier_expect(s->q_full + 8 * i, Q_BYTES);
            for (int c = 0; c < COLUMNS; c++) {
                tma_load_4d(s->q + i * Q_BYTES + c * 8192, map_q, s->q_full + 8 * i, c * 64, p.head,
                            p.row + p.token + w * (64 / HEADS), PAGED ? 0 : p.b);
            }
        }
        ring_step(&at, Q_SLOTS);
        for (int j = p.j_end - 1; j >= p.j_begin; j--) {
            if (j > p.j_begin) {
                load_block(map_k, a, s->k, s->k_full, s->k_empty, &rk, &p, j - 1);
            }
            load_block(map_v, a, s->v, s->v_full, s->v_empty, &rv, &p, j);
        }
        t = draw(a, s->drawn, &drawn, (int)gridDim.x / CLUSTER);
    }
    for (int w = 0; w < CONSUMERS; w++) {
        const int i = at.slot * CONSUMERS + w;
        mbarrier_wait(s->q_empty + 8 * i, at.phase);
        st_shared_s32(s->tile + TILE_BYTES * i, -1);
        mbarrier_arrive(s->q_full + 8 * i);
    }
    draws_end(a);
}

/* Q_HELD: a warp's 16 rows of Q as left operands of the products. */
INLINE void hold_query(u32 held[HEAD_DIM / 4], u32 q) {
    const int tid = (int)threadIdx.x % 128, row = 16 * (tid / 32) + tid % 16;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
        ldmatrix_x4(held + 4 * i,
                    q + i / 4 * 8192 + row * 128 + ((i % 4 * 2 + tid % 32 / 16) ^ row % 8) * 16);
    }
}
/* Only issues S = Q K^T. */
INLINE void issue_keys(float s[BN / 2], const u32 held[HEAD_DIM / 4], u32 q, u32 k) {
#if Q_HELD
    const u64 b = wgmma_desc(k, 16);
    (void)q;
    mma_held_set(s, held, b);
#pragma unroll
    for (int i = 1; i < HEAD_DIM / 16; i++) {
        mma_held(s, held + 4 * i, DESC_ADD(b, i / 4 * (BN * 128) + i % 4 * 32), 1);
    }
    wgmma_commit();
#else
    (void)held;
    issue_scores(s, q, k);
#endif
}

/* The two rows of which the thread holds a part. */
typedef struct {
    key_range see[2];
    /* max: the number to which P is relative, in units of the scores; sum: of this thread's columns
     * only */
    float max[2], sum[2];
    float leap;            /* P is rescaled to a new maximum only if that is this much larger */
    float slope[2], scale; /* log2 units per unit of score */
    int position[2];
} row_state;

INLINE void mask_block(float s[BN / 2], const row_state *r, int col0) {
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const int h = i / 2 % 2, col = col0 + i / 4 * 8 + i % 2;
        s[i] = col < r->see[h].lo || col > r->see[h].hi ? -INFINITE : s[i];
    }
}
INLINE void logits_block(float s[BN / 2], const row_state *r, const lt_attn_args *a, int col0) {
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        const int h = i / 2 % 2, col = col0 + i / 4 * 8 + i % 2;
        float x = s[i] * a->scale * (SOFTCAP ? 1.0f : LOG2E);
        if (SOFTCAP) {
            x = a->softcap * LOG2E * tanh_of(__fdividef(x, a->softcap));
        }
        s[i] = ALIBI ? x + r->slope[h] * (float)(col - r->position[h]) : x;
    }
}

INLINE void see_block(float s[BN / 2], const row_state *r, const lt_attn_args *a,
                      const key_range *top, const key_range *low, int j, int col) {
    if (LOG2_UNITS) {
        logits_block(s, r, a, j * BN + col);
    }
    if (j * BN < low->lo || j * BN + BN - 1 > top->hi) {
        mask_block(s, r, j * BN + col);
    }
}

/* The maximum to which P is relative. base[h]: it in log2 units; back[h]: the factor for the
 * earlier sums and O, usually 1. */
INLINE void softmax_max(const float s[BN / 2], row_state *r, float base[2], float back[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float m = s[2 * h], old = r->max[h];
#pragma unroll
        for (int i = 0; i < BN / 8; i++) {
            m = fmaxf(m, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
        }
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        const bool follow = m > old + r->leap;
        m = follow ? m : old;
        r->max[h] = m;
        base[h] = m == -INFINITE ? 0.0f : m * r->scale;
        back[h] = follow ? exp2_fast(old * r->scale - base[h]) : 1.0f;
    }
}
/* P = exp2(S - max), and the running sum. */
INLINE void softmax_exp(float s[BN / 2], row_state *r, const float base[2], const float back[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < BN / 8; i++) {
            float *x = s + 4 * i + 2 * h;
            x[0] = exp2_fast(x[0] * r->scale - base[h]);
            x[1] = exp2_fast(x[1] * r->scale - base[h]);
            sum += x[0] + x[1];
        }
        r->sum[h] = r->sum[h] * back[h] + sum;
    }
}
INLINE void pack_block(u32 p[BN / 4], const float s[BN / 2]) {
#pragma unroll
    for (int i = 0; i < BN / 4; i++) {
        p[i] = PACK_ELEM(s[2 * i], s[2 * i + 1]);
    }
}

/* A consumer's rows of O from registers, 16 bytes per lane: those fewer than `left` tokens from its
 * first. */
INLINE void store_rows(const float o[HEAD_DIM / 2], const float inverse[2], const lt_attn_args *a,
                       const tile_pos *p, int first, int left) {
    const int warp = (int)threadIdx.x % 128 / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 16 * warp + lane / 4 + 8 * h, token = row / HEADS;
        elem *const to = (elem *)a->out + (PAGED ? 0 : p->b) * a->out_batch_ld +
                         (p->row + p->token + first + token) * a->out_ld +
                         (p->head + row % HEADS) * a->out_head_ld;
        store_row(o, h, inverse[h], to, token < left, a->out_width);
    }
}

/* 3. O / sum to shared memory and out; the log-sum-exp. */
INLINE void finish(float o[HEAD_DIM / 2], const row_state *r, const void *map_o,
                   const lt_attn_args *a, const tile_pos *p, u32 o_smem, int consumer) {
    const int tid = (int)threadIdx.x % 128, warp = tid / 32, lane = tid % 32, r8 = lane % 8;
    float inverse[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 16 * warp + lane / 4 + 8 * h;
        const int token = p->token + consumer * (64 / HEADS) + row / HEADS,
                  head = p->head + row % HEADS;
        float sum = r->sum[h], top = r->max[h] * r->scale;
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        inverse[h] = sum > 0.0f ? __fdividef(1.0f, sum) : (sum == 0.0f ? 0.0f : sum);
#if SINKS
        /* The sink is one more logit of the sum, without a value; not for NaN. */
        if (sum >= 0.0f) {
            const float sink = a->sinks[head] * LOG2E, m = fmaxf(top, sink),
                        keep = exp2_fast(top - m);
            sum = sum * keep + exp2_fast(sink - m);
            inverse[h] = keep / sum;
            top = m;
        }
#endif
        if (a->lse != 0 && lane % 4 == 0 && token < a->q_tokens) {
            a->lse[(i64)(p->b * a->q_heads + head) * a->q_tokens + token] =
                sum == 0.0f ? -INFINITE : (top + __log2f(sum)) * LN2;
        }
    }
    const int left = tokens_of(a, p->b) - p->token - consumer * (64 / HEADS);
    /* PAGED: the row after the sequence's last one belongs to another sequence. */
    if (O_DIRECT || (PAGED && left < 64)) {
        store_rows(o, inverse, a, p, consumer * (64 / HEADS), left);
        return;
    }
    if (tid == 0) {
        tma_store_wait_read(0);
    }
    named_barrier_sync(BAR_STORE + consumer, 128);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; i++) {
        const float *x = o + 8 * i;
        stmatrix_x4(o_smem + i / 4 * 8192 + (16 * warp + lane / 8 % 2 * 8 + r8) * 128 +
                        ((i % 4 * 2 + lane / 16) ^ r8) * 16,
                    PACK_ELEM(x[0] * inverse[0], x[1] * inverse[0]),
                    PACK_ELEM(x[2] * inverse[1], x[3] * inverse[1]),
                    PACK_ELEM(x[4] * inverse[0], x[5] * inverse[0]),
                    PACK_ELEM(x[6] * inverse[1], x[7] * inverse[1]));
    }
    fence_proxy_async();
    named_barrier_sync(BAR_STORE + consumer, 128);
    if (tid == 0) {
        for (int c = 0; c < COLUMNS; c++) {
            tma_store_4d(map_o, o_smem + c * 8192, c * 64, p->head,
                         p->row + p->token + consumer * (64 / HEADS), PAGED ? 0 : p->b);
        }
        tma_store_commit();
    }
}

INLINE void rows_start(row_state *r, const lt_attn_args *a, const tile_pos *p, int consumer) {
    const int tid = (int)threadIdx.x % 128;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = 16 * (tid / 32) + tid % 32 / 4 + 8 * h,
                  token = p->token + consumer * (64 / HEADS) + row / HEADS;
        r->see[h] = range_of(a, p->b, p->n_keys, token);
        r->position[h] = p->n_keys - tokens_of(a, p->b) + token;
        r->max[h] = -INFINITE;
        r->sum[h] = 0.0f;
        if (ALIBI) {
            r->slope[h] = a->alibi[p->head + row % HEADS] * LOG2E;
        }
    }
    r->scale = LOG2_UNITS ? 1.0f : a->scale * LOG2E;
    /* It is finite, so P is always rescaled to a first maximum. */
    r->leap = fminf(__fdividef(8.0f, r->scale), 1e30f);
}

/* The compiler moves no instruction across it, as it does across an asynchronous wait: a branch
 * that it cannot know to be never taken. */
INLINE void order_point(int positive) {
    asm volatile("{ .reg .pred p; setp.gt.s32 p, %0, 0; @!p trap; }" ::"r"(positive) : "memory");
}

/* 2. One consumer's 64 rows of a tile against all its key blocks, from the last to the first. o
 * starts as zeros. */
INLINE void attend(float o[HEAD_DIM / 2], row_state *r, const lt_attn_args *a, const smem_map *m,
                   const tile_pos *p, ring_pos *rk, ring_pos *rv, u32 q, u32 q_empty,
                   int consumer) {
    const int tid = (int)threadIdx.x % 128, col = tid % 4 * 2;
    const int first = p->token + consumer * (64 / HEADS);
    const key_range top = range_of(a, p->b, p->n_keys, first),
                    low = range_of(a, p->b, p->n_keys, first + 64 / HEADS - 1);
    const int next = consumer + 1 == CONSUMERS ? 0 : consumer + 1;
    float s[BN / 2], base[2], back[2];
    u32 probs[BN / 4], held[HEAD_DIM / 4];

#if Q_HELD
    hold_query(held, q);
    named_barrier_sync(BAR_STORE + consumer, 128);
    if (tid == 0) {
        mbarrier_arrive(q_empty);
    }
#endif
    mbarrier_wait(m->k_full + 8 * rk->slot, rk->phase);
    wgmma_fence();
    issue_keys(s, held, q, m->k + rk->slot * KV_BYTES);
    wgmma_wait(0);
    wgmma_pin(s, BN / 2);
    release(m->k_empty + 8 * rk->slot, tid);
    ring_step(rk, STAGES);
    see_block(s, r, a, &top, &low, p->j_end - 1, col);
    softmax_max(s, r, base, back);
    softmax_exp(s, r, base, back);
    pack_block(probs, s);
    for (int j = p->j_end - 2; j >= p->j_begin; j--) { /* probs belong to block j + 1. */
        mbarrier_wait(m->k_full + 8 * rk->slot, rk->phase);
        if (CONSUMERS > 1 && TURNS) {
            named_barrier_sync(BAR_TURN + consumer, 256);
        }
        wgmma_fence();
        issue_keys(s, held, q, m->k + rk->slot * KV_BYTES);
        mbarrier_wait(m->v_full + 8 * rv->slot, rv->phase);
        issue_sums(o, probs, m->v + rv->slot * KV_BYTES);
        if (CONSUMERS > 1 && TURNS) {
            named_barrier_arrive(BAR_TURN + next, 256);
        }
        wgmma_wait(1);
        wgmma_pin(s, BN / 2);
        release(m->k_empty + 8 * rk->slot, tid);
        ring_step(rk, STAGES);
        see_block(s, r, a, &top, &low, j, col);
        softmax_max(s, r, base, back);
        const bool scales = __any_sync(0xffffffffu, back[0] != 1.0f || back[1] != 1.0f);
        /* Maxima are computed before this point and exponentials after it. With both before it the
         * kernel is up to 8 % slower, with both after it 1 %. */
        order_point(p->n_keys);
        wgmma_wait(0);
        wgmma_pin(o, HEAD_DIM / 2);
        release(m->v_empty + 8 * rv->slot, tid);
        ring_step(rv, STAGES);
        softmax_exp(s, r, base, back);
        pack_block(probs, s);
        if (scales) {
#pragma unroll
            for (int i = 0; i < HEAD_DIM / 2; i++) {
                o[i] *= back[i / 2 % 2];
            }
        }
    }
    /* It is released after the last scores rather than with the tile. */
    if (O_DIRECT && !Q_HELD && tid == 0) {
        mbarrier_arrive(q_empty);
    }
    mbarrier_wait(m->v_full + 8 * rv->slot, rv->phase);
    wgmma_fence();
    issue_sums(o, probs, m->v + rv->slot * KV_BYTES);
    wgmma_wait(0);
    wgmma_pin(o, HEAD_DIM / 2);
    release(m->v_empty + 8 * rv->slot, tid);
    ring_step(rv, STAGES);
}

INLINE void consume(const void *map_o, const lt_attn_args *a, const smem_map *m, int consumer) {
    ring_pos rk = {0, 0}, rv = {0, 0};
    ring_pos q = {0, 0};
    const u32 o_smem = m->o + consumer * Q_BYTES;
    float o[HEAD_DIM / 2];

    if (CONSUMERS > 1 && TURNS && consumer == CONSUMERS - 1) {
        named_barrier_arrive(BAR_TURN + 0, 256); /* Consumer 0 begins. */
    }
    for (;; ring_step(&q, Q_SLOTS)) {
        const int i = q.slot * CONSUMERS + consumer;
        mbarrier_wait(m->q_full + 8 * i, q.phase);
        const tile_pos p = tile_get(m->tile + TILE_BYTES * i);
        if (p.b < 0) {
            break;
        }
        const bool sees = p.j_begin < p.j_end;
        row_state r;
        rows_start(&r, a, &p, consumer);
#pragma unroll
        for (int e = 0; e < HEAD_DIM / 2; e++) {
            o[e] = 0.0f;
        }
        if (sees) {
            attend(o, &r, a, m, &p, &rk, &rv, m->q + i * Q_BYTES, m->q_empty + 8 * i, consumer);
        }
        if (!O_DIRECT && !Q_HELD && sees && threadIdx.x % 128 == 0) {
            mbarrier_arrive(m->q_empty + 8 * i);
        }
        finish(o, &r, map_o, a, &p, o_smem, consumer);
        /* Without products, only a barrier ensures that all warps have read the tile's position. */
        if (!sees) {
            named_barrier_sync(BAR_STORE + consumer, 128);
            if (threadIdx.x % 128 == 0) {
                mbarrier_arrive(m->q_empty + 8 * i);
            }
        }
    }
    if (threadIdx.x % 128 == 0) {
        tma_store_wait_read(0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    attn_fwd_sm90(const __grid_constant__ tensor_map map_q,
                  const __grid_constant__ tensor_map map_k,
                  const __grid_constant__ tensor_map map_v,
                  const __grid_constant__ tensor_map map_o,
                  const __grid_constant__ lt_attn_args args) {
    extern __shared__ __align__(1024) u8 smem[];
    static_assert(1024 + CONSUMERS * (Q_SLOTS + !O_DIRECT) * Q_BYTES + 2 * STAGES * KV_BYTES +
                          LT_ATTN_FORWARD_PLACES ==
                      LT_ATTN_FORWARD_BYTES(HEAD_DIM, BN, CONSUMERS, O_DIRECT, Q_SLOTS, STAGES),
                  "q, k, v, o");
    static_assert(16 * Q_SLOTS * CONSUMERS + 32 * STAGES + DRAW_BYTES + TILE_BYTES +
                          TILE_BYTES * Q_SLOTS * CONSUMERS <=
                      LT_ATTN_FORWARD_PLACES,
                  "barriers, tiles");
    const int group = warp_uniform((int)threadIdx.x / 128);
    smem_map m;
    m.q = (smem_addr(smem) + 1023) & ~1023u;
    m.k = m.q + Q_SLOTS * CONSUMERS * Q_BYTES;
    m.v = m.k + STAGES * KV_BYTES;
    m.o = m.v + STAGES * KV_BYTES; /* O_DIRECT: it needs no memory. */
    m.q_full = m.o + (O_DIRECT ? 0 : CONSUMERS * Q_BYTES);
    m.q_empty = m.q_full + 8 * Q_SLOTS * CONSUMERS;
    m.k_full = m.q_empty + 8 * Q_SLOTS * CONSUMERS;
    m.k_empty = m.k_full + 8 * STAGES;
    m.v_full = m.k_empty + 8 * STAGES;
    m.v_empty = m.v_full + 8 * STAGES;
    m.drawn = m.v_empty + 8 * STAGES;
    m.tile = (m.drawn + DRAW_BYTES + TILE_BYTES - 1) & ~(TILE_BYTES - 1u);

    if (threadIdx.x == 0) {
        for (int i = 0; i < Q_SLOTS * CONSUMERS; i++) {
            mbarrier_init(m.q_full + 8 * i, 1);
            mbarrier_init(m.q_empty + 8 * i, 1);
        }
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(m.k_full + 8 * s, 1);
            mbarrier_init(m.v_full + 8 * s, 1);
            mbarrier_init(m.k_empty + 8 * s, CONSUMERS * CLUSTER);
            mbarrier_init(m.v_empty + 8 * s, CONSUMERS * CLUSTER);
        }
        draws_init(m.drawn);
        mbarrier_init_fence();
    }
    route way = {0};
#if PAGED
    int *const n_stops = (int *)(smem + (m.tile - smem_addr(smem)) +
                                 TILE_BYTES * Q_SLOTS * CONSUMERS);
    stop *const stops = (stop *)(n_stops + 2);
    if (threadIdx.x < 32) {
        const int n = stops_make(&args, stops);
        if (threadIdx.x == 0) {
            *n_stops = n;
        }
    }
#endif
    if (CLUSTER > 1) {
        cluster_sync();
    }
    __syncthreads();
#if PAGED
    way.stops = stops;
    way.n = *n_stops;
#endif
    if (group == 0) {
        if (CONSUMERS > 1) {
            regs_shrink(REGS_PRODUCER);
        }
        if (threadIdx.x == 0) {
            produce(&map_q, &map_k, &map_v, &args, &m, &way);
        }
    } else {
        if (CONSUMERS > 1) {
            regs_grow(REGS_CONSUMER);
        }
        consume(&map_o, &args, &m, group - 1);
    }
    if (CLUSTER > 1) {
        __syncwarp();
        /* No block leaves while its neighbour may still write to its shared memory. */
        cluster_sync();
    }
}

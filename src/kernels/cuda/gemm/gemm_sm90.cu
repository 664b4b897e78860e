/* gemm_sm90.cu: C (M, N) = alpha * op(A) (M, K) . op(B) (K, N), 16-bit in, f32 sums, 16-bit or f32
 * out, on Hopper.
 *
 * SHAPES    any M, N, K > 0. A stored (M, K), or (K, M) with A_MAJOR_M; B stored (N, K), or (K, N)
 *           with B_MAJOR_N; rows of all three 16-byte aligned (others: gemm_sm80.cu). The copy
 *           engine handles edges: loads past the end give 0, and stores there are dropped.
 * MAP       persistent blocks, one an SM, in clusters of CLUSTER along M; warpgroup 0 copies,
 *           CONSUMERS more multiply. A block makes tiles of BM x BN; each consumer owns 64 * WG_M
 *           rows of the tile, or (PINGPONG) every other tile whole, so that one consumer stores
 *           while the other multiplies: worth it where K is short.
 * MOVEMENT
 *     HBM/L2 ──TMA, 128-byte swizzle──▶ ring of STAGES x (A BM x 64, B BN x 64) in smem
 *                B: each block of a cluster fetches its share and multicasts it
 *         ──wgmma──▶ acc[WG_M][BN / 2] registers a thread ──epilogue, stmatrix──────────────────┐
 *     HBM ◀──TMA store (or add, f32)── C_STAGES x (64 rows x 128 bytes) of smem a consumer ◀────┘
 *     full[s]: bytes of stage s arrived. empty[s]: every consumer (of every block of the cluster)
 *     has read stage s; one thread arrives.
 * EPILOGUE  bias and residual in registers. An activation runs on the rounded chunk in smem, 16
 *           bytes a thread in a loop: unrolled over the accumulators its code alone is larger than
 *           the instruction cache (measured: 2.6 times the product's time).
 * PAIR      1: two blocks, a cluster, make one tile, each over half of (this split's) K. Where
 *           there are few long tiles, this halves the work of an SM and keeps other SMs busy. Each
 *           block keeps half of the columns: it sends its sums of the others to its neighbour's
 *           ring, which is no longer read, thread by thread (st.async), and adds the sums that it
 *           receives. With two addends the order does not change the bits.
 * EARLY     where each block makes one tile, it starts while the kernel before runs, and lets the
 *           next kernel start when it has fetched everything (common/early.cuh): barriers and
 *           tensor maps are ready when the inputs are. Blocks that walk over several tiles get
 *           slower, because they then land on other SMs, and neighbours no longer share data in the
 *           L2.
 * EXPERTS   GROUPED 1: rows [start[e], start[e + 1]) of A and C belong to expert e, whose B is the
 *           e-th of a 3-D map; a tile never spans two experts, and one that ends past its expert's
 *           rows writes its own rows element by element. GROUPED 2: those rows are K: C is 3-D, and
 *           the consumers clear the rows of the next expert that the last step brought. The kernel
 *           reads start, since the host does not know how many rows an expert has.
 * ADAPTERS  BESIDE n: the last n steps of K are those of a second pair of operands, u and v (LoRA:
 *           y = x W^T + u B^T). This costs one step for a rank up to 64; a product of its own would
 *           read and write C once more (H200, 16,384 rows of Llama-1B's gate and up, rank 16: 1.46
 *           ms, in parts 2.35 ms). Columns of C belong to parts, each with its own columns of u
 *           and rows of v. A part has fewer columns of u than a step: the columns of its neighbours
 *           meet zeros, which the copy engine gives past the end of v.
 * FP8       FP8 1: A of A_F8 (e4m3, e5m2) and B of e4m3, both with K contiguous: a step is 128
 *           deep, of as many bytes and clocks as 64 of 16 bits. C is DTYPE or f32. SCALES 1: one
 *           scale an operand. 2: of A one a row and 128 of K, stored (K / 128, M); of B one for 128
 *           rows and 128 of K, (N / 128, K / 128). Hopper adds 8-bit products with some 14 bits:
 *           each is shifted to the largest of its sum and truncated (measured by DeepSeek-AI 2024,
 *           arXiv:2412.19437, 3.3.2; about 2 % of error at K 4096). So with PROMOTE each step has a
 *           separate sum, which the FP32 units scale and add to the total while the tensor cores
 *           make the next step's. Two thirds of the accumulators hold sums of steps, so BN is 128.
 *           Scales come by plain loads, one step ahead. Without PROMOTE (SCALES 1) the tensor cores
 *           sum all of K, in wider tiles.
 * BOUND     2 M N K flop at 4096 flop a clock an SM: (8192 with FP8): 989 TFLOP/s at 1.83 GHz; the
 *           700 W limit keeps random data near 800. smem: a 64 x 256 x 16 product reads 10 KB in
 *           128 clocks, where 16 KB are possible. L2: 128 x 256 tiles in pairs need 32 KB an SM in
 *           1024 clocks.
 * MEASURED  docs/speed/gemm.md.
 * NUMERICS  f32 accumulation in the tensor cores in order of K; one rounding at the store. No
 *           atomics, except OUT_ADD, which adds each element once: bit-identical run to run. Split
 *           K writes partial sums, added in order by gemm_split_sum (gemm_split.cu).
 * LADDER    ladder/01..: mma.sync, wgmma, larger tiles, producer and consumers, persistent,
 *           cluster; this file is the last rung.
 * REFS      PTX ISA 9.7.15 (wgmma), 9.7.9.27 (bulk tensor copies); fast.cu and its worklog;
 *           simplegemm (ping-pong). */
#include "common/hopper.cuh"
#include "common/ring.cuh"
#include "common/wgmma.cuh"
#define EPI_ACT_LATER 1
#include "gemm/epilogue.cuh"

#ifndef OUT_F32
#define OUT_F32 0
#endif
#ifndef OUT_ADD
#define OUT_ADD 0
#endif
#ifndef GROUPED
#define GROUPED 0
#endif
#ifndef FP8
#define FP8 0
#endif
#ifndef SCALES
#define SCALES 0
#endif
#ifndef PROMOTE
#define PROMOTE 0
#endif
#ifndef PAIR
#define PAIR 0
#endif
#ifndef BESIDE
#define BESIDE 0
#endif
#define BK      (FP8 ? 128 : 64) /* One 128-byte row of the swizzle. */
#define MMAS    4                /* Products of 32 bytes of K in a step. */
#define BM      (64 * WG_M * (PINGPONG ? 1 : CONSUMERS))
#define THREADS (128 * (1 + CONSUMERS))
#define A_BYTES (BM * 128)
/* N contiguous: whole columns of 64, of which BN are used */
#define B_ROWS      (B_MAJOR_N ? (BN + 63) / 64 * 64 : BN)
#define B_BYTES     (B_ROWS * 128)
#define STAGE_BYTES (A_BYTES + B_BYTES)
/* columns of a tile that this block stores */
#define OUT_COLS (PAIR ? BN / 2 : BN)
/* of these, columns stored at a time */
#define CHUNK_COLS (OUT_F32 || OUT_COLS % 64 != 0 ? 32 : 64)
/* 128, or 64 for 16-bit C where OUT_COLS is no multiple of 64 */
#define ROW_BYTES   (CHUNK_COLS * (OUT_F32 ? 4 : 2))
#define CHUNK_BYTES (64 * 128)
#define READERS     (PINGPONG ? 1 : CONSUMERS) /* consumers that read one stage */
#define BAR_STORE   1                          /* named barriers: one per consumer */
/* ping-pong: the consumer whose turn it is to multiply */
#define BAR_ORDER 4
static_assert(BN % 32 == 0 && BN >= 64 && BN <= 256, "BN is a multiple of 32 up to 256");
static_assert(!B_MAJOR_N || (B_ROWS / 64) % CLUSTER == 0,
              "a block fetches whole columns of B tiles");
static_assert(BN / CLUSTER % 8 == 0, "a block fetches whole groups of 8 rows of B");
static_assert(WG_M * BN <= 256, "accumulators must fit in registers");
static_assert(!PINGPONG || CONSUMERS == 2, "ping-pong is for two");
#define EPI_LATE (EPI_ACT || EPI_ACT_BWD)
static_assert(!EPI_LATE || (CHUNK_COLS == 64 && C_STAGES == 2 && !EPI_RESIDUAL && !GROUPED),
              "activations of 16-bit chunks");
static_assert(!GROUPED || CLUSTER == 1, "experts are not multicast");
static_assert(GROUPED != 2 || (A_MAJOR_M && B_MAJOR_N && !PINGPONG && WG_M == 1 && OUT_F32),
              "gradients of weights");
static_assert(!OUT_ADD || OUT_F32, "sums are added in f32");
static_assert(!FP8 || (!A_MAJOR_M && !B_MAJOR_N && !GROUPED && SCALES),
              "8-bit operands have K contiguous and scales");
static_assert(!PROMOTE || (FP8 && WG_M == 1 && BN == 128 && !PINGPONG),
              "two steps' sums beside the whole sum");
static_assert(PROMOTE == (SCALES == 2), "scales a step");
static_assert(!PAIR || (CLUSTER == 1 && WG_M == 1 && !PINGPONG && !GROUPED && !FP8 && !EPI_LATE &&
                        BN % 64 == 0),
              "halves of K");
static_assert(!BESIDE || (!A_MAJOR_M && !GROUPED && !FP8 && !PAIR), "steps of one more product");

#if FP8
WGMMA_SS_F8(mma, BN, A_F8)
#else
WGMMA_SS(mma, BN, A_MAJOR_M, B_MAJOR_N)
#endif

typedef struct {
    int row, col;        /* of the tile's first element */
    int k_begin, k_end;  /* in steps of BK */
    int out_row;         /* row in C, or in the partial sums of this split */
    int expert, row_end; /* GROUPED 1: one past the expert's last row */
    /* GROUPED 2: row of A and B at k = 0; rows of the last step that belong to the expert */
    int k_row, tail;
} tile_pos;

/* Tile `t` of the order: groups of `group` rows of tiles, column by column, so that blocks running
 * together share A and B in L2. */
INLINE tile_pos tile_locate(int t, const lt_gemm_kernel_args *a, int rank) {
    const int rows = div_up(a->m, BM * CLUSTER), cols = div_up(a->n, BN);
    const int split = PAIR ? t % a->splits * 2 + rank : t % a->splits, u = t / a->splits;
    const int first = u / (a->group * cols) * a->group, inside = u % (a->group * cols);
    const int height = min_i(a->group, rows - first);
    const int steps = div_up(a->k, BK) + BESIDE, share = div_up(steps, a->splits * (PAIR ? 2 : 1));
    tile_pos p;
    p.row = ((first + inside % height) * CLUSTER + (PAIR ? 0 : rank)) * BM;
    p.col = inside / height * BN;
    p.k_begin = split * share;
    p.k_end = min_i(steps, p.k_begin + share);
    p.out_row = t % a->splits * a->m_padded + p.row;
    return p;
}
INLINE int tile_count(const lt_gemm_kernel_args *a) {
    return div_up(a->m, BM * CLUSTER) * div_up(a->n, BN) * a->splits;
}

/* The tile of turn t; false if none is left. Turns only rise, so a search through the experts
 * continues where it stopped. */
typedef struct {
    int expert, before; /* tiles of the experts before this one */
} walk;
#if GROUPED
INLINE bool tile_next(int t, const lt_gemm_kernel_args *a, int rank, walk *w, tile_pos *p) {
    const int cols = div_up(a->n, BN);
    for (; w->expert < a->experts; w->expert++) {
        const int from = a->start[w->expert], to = a->start[w->expert + 1], n = to - from;
        const int rows = GROUPED == 1 ? div_up(n, BM) : (n > 0 || !OUT_ADD ? div_up(a->m, BM) : 0);
        if (t < w->before + rows * cols) {
            const int u = t - w->before, first = u / (a->group * cols) * a->group,
                      inside = u % (a->group * cols);
            const int height = min_i(a->group, rows - first), row = (first + inside % height) * BM;
            p->expert = w->expert;
            p->row = p->out_row = GROUPED == 1 ? from + row : row;
            p->col = inside / height * BN;
            p->row_end = to;
            p->k_begin = 0;
            p->k_end = GROUPED == 1 ? div_up(a->k, BK) : div_up(n, BK);
            p->k_row = GROUPED == 1 ? 0 : from;
            p->tail = GROUPED == 1 ? BK : n - (p->k_end - 1) * BK;
            return true;
        }
        w->before += rows * cols;
    }
    (void)rank;
    return false;
}
#else
INLINE bool tile_next(int t, const lt_gemm_kernel_args *a, int rank, walk *w, tile_pos *p) {
    (void)w;
    if (t >= tile_count(a)) {
        return false;
    }
    *p = tile_locate(t, a, rank);
    return true;
}
#endif

INLINE void ring_skip(ring_pos *r, int n) {
    const int to = r->slot + n;
    r->phase ^= (u32)(to / STAGES) & 1u;
    r->slot = to % STAGES;
}

#define BLOCKS_A_TILE (PAIR ? 2 : CLUSTER)

/* One thread of a warpgroup signals, to all that fetched a stage, that it has been read. */
INLINE void stage_give_back(u32 bar, int tid) {
    if (PAIR && tid == 0) {
        mbarrier_arrive(bar);
    } else if (!PAIR && tid < CLUSTER) {
        mbarrier_arrive_remote(bar, tid);
    }
}

/* The second pair of operands, with BESIDE. */
typedef struct {
    const void *map_u, *map_v;
    const lt_gemm_beside_args *args;
} second_pair;

#if BESIDE
/* Fetch step `step` of the second product into a stage whose barrier expects the usual bytes. */
INLINE void fetch_beside(const second_pair *s, u32 tile_a, u32 tile_b, u32 bar, const tile_pos *p,
                         int from, int step) {
    const lt_gemm_beside_args *const b = s->args;
    int u = 0, v = b->none; /* Columns of no part use rows of v past its end, which are 0. */
    for (int i = 0; i < b->n_parts; i++) {
        if (p->col >= b->first[i] && p->col < b->end[i]) {
            u = i * b->rank, v = p->col + b->shift[i];
        }
    }
    tma_load_2d(tile_a, s->map_u, bar, u + step * BK, p->row);
#if B_MAJOR_N
    for (int i = 0; i < B_ROWS / CLUSTER; i += 64) {
        if (CLUSTER > 1) {
            tma_load_2d_multicast(tile_b + i * 128, s->map_v, bar, v + from + i, step * BK,
                                  (1 << CLUSTER) - 1);
        } else {
            tma_load_2d(tile_b + i * 128, s->map_v, bar, v + i, step * BK);
        }
    }
#else
    if (CLUSTER > 1) {
        tma_load_2d_multicast(tile_b, s->map_v, bar, step * BK, v + from, (1 << CLUSTER) - 1);
    } else {
        tma_load_2d(tile_b, s->map_v, bar, step * BK, v);
    }
#endif
}
#endif

/* 1. One thread fills the ring. */
INLINE void produce(const void *map_a, const void *map_b, const lt_gemm_kernel_args *a,
                    const second_pair *second, u32 ring, u32 full, u32 empty, int rank) {
    ring_pos r = {0, 1}; /* A new ring is empty, so the wait for "phase 1" returns immediately. */
    const int part = PAIR ? 0 : B_ROWS / CLUSTER * rank;
    walk w = {0, 0};
    tile_pos p;

    for (int t = (int)blockIdx.x / BLOCKS_A_TILE; tile_next(t, a, rank, &w, &p);
         t += (int)gridDim.x / BLOCKS_A_TILE) {
        for (int k = p.k_begin; k < p.k_end; k++, ring_step(&r, STAGES)) {
            const u32 bar = full + 8 * r.slot, tile_a = ring + r.slot * STAGE_BYTES,
                      tile_b = tile_a + A_BYTES + part * 128;
            mbarrier_wait(empty + 8 * r.slot, r.phase);
            mbarrier_expect(bar, STAGE_BYTES);
#if BESIDE
            const int step = k - div_up(a->k, BK);
            if (step >= 0) {
                fetch_beside(second, tile_a, tile_b, bar, &p, part, step);
                continue;
            }
#endif
#if A_MAJOR_M
            for (int i = 0; i < BM; i += 64) {
                tma_load_2d(tile_a + i * 128, map_a, bar, p.row + i,
                            (GROUPED == 2 ? p.k_row : 0) + k * BK);
            }
#else
            tma_load_2d(tile_a, map_a, bar, k * BK, p.row);
#endif
#if B_MAJOR_N
            for (int i = 0; i < B_ROWS / CLUSTER; i += 64) {
                if (CLUSTER > 1) {
                    tma_load_2d_multicast(tile_b + i * 128, map_b, bar, p.col + part + i, k * BK,
                                          (1 << CLUSTER) - 1);
                } else if (GROUPED == 1) {
                    tma_load_3d(tile_b + i * 128, map_b, bar, p.col + i, k * BK, p.expert);
                } else {
                    tma_load_2d(tile_b + i * 128, map_b, bar, p.col + i,
                                (GROUPED == 2 ? p.k_row : 0) + k * BK);
                }
            }
#else
            if (CLUSTER > 1) {
                tma_load_2d_multicast(tile_b, map_b, bar, k * BK, p.col + part, (1 << CLUSTER) - 1);
            } else if (GROUPED == 1) {
                tma_load_3d(tile_b, map_b, bar, k * BK, p.col, p.expert);
            } else {
                tma_load_2d(tile_b, map_b, bar, k * BK, p.col);
            }
#endif
        }
    }
    (void)second;
}

/* Rows of K from `tail` on belong to another expert: zero them, in this consumer's A and in all of
 * B (the other consumer writes the same zeros there). */
INLINE void clear_tail(u32 my_a, u32 b, int tail, int consumer) {
    const int tid = (int)threadIdx.x % 128, n = (BK - tail) * 8;
    for (int i = tid; i < n * (1 + B_ROWS / 64); i += 128) {
        const int tile = i / n, at = tail * 128 + i % n * 16;
        st_shared_v4_s32((tile == 0 ? my_a : b + (tile - 1) * 8192) + at, 0, 0, 0, 0);
    }
    fence_proxy_async();
    named_barrier_sync(BAR_STORE + consumer, 128);
}

#if !PROMOTE
/* 2. A consumer's share of one tile: acc = A B over K. Frees each stage when the next product has
 * been issued. */
INLINE void multiply(float acc[WG_M][BN / 2], ring_pos *r, int n_steps, u32 my_a, u32 ring,
                     u32 full, u32 empty, int next, int tail, int consumer) {
    const int tid = (int)threadIdx.x % 128;
    int last = -1;

    for (int step = 0; step < n_steps; step++, ring_step(r, STAGES)) {
        const u32 tile = ring + r->slot * STAGE_BYTES;
        const u64 a = wgmma_desc(tile + my_a, 8192), b = wgmma_desc(tile + A_BYTES, 8192);
        mbarrier_wait(full + 8 * r->slot, r->phase);
        if (GROUPED == 2 && tail < BK && step == n_steps - 1) {
            clear_tail(tile + my_a, tile + A_BYTES, tail, consumer);
        }
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < MMAS; k++) {
#pragma unroll
            for (int i = 0; i < WG_M; i++) {
                mma(acc[i], DESC_ADD(a, i * 8192 + k * (A_MAJOR_M ? 2048 : 32)),
                    DESC_ADD(b, k * (B_MAJOR_N ? 2048 : 32)), step + k > 0);
            }
        }
        wgmma_commit();
        wgmma_wait(1);
        if (last >= 0) {
            stage_give_back(empty + 8 * last, tid);
        }
        last = r->slot;
    }
    if (PINGPONG) {
        /* All products are issued; the other consumer's may be queued after them. */
        named_barrier_arrive(next, 256);
    }
    wgmma_wait(0);
    stage_give_back(empty + 8 * last, tid);
#pragma unroll
    for (int i = 0; i < WG_M; i++) {
        wgmma_pin(acc[i], BN / 2);
    }
}
#endif

#if PROMOTE
#include "gemm/promote.cuh" /* 2b: multiply_scaled. */
#endif

#if EPI_LATE
/* Eight elements of the chunk: y = f(x). */
INLINE uint4 act_piece(uint4 v) {
    u32 x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = PACK_ELEM(act_apply(EPI_ACT, elem_lo(x[i])), act_apply(EPI_ACT, elem_hi(x[i])));
    }
    return make_uint4(x[0], x[1], x[2], x[3]);
}
/* d f'(x). */
INLINE uint4 slope_piece(uint4 d, uint4 aux) {
    u32 x[4] = {d.x, d.y, d.z, d.w};
    const u32 at[4] = {aux.x, aux.y, aux.z, aux.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = PACK_ELEM(elem_lo(x[i]) * act_slope(EPI_ACT_BWD, elem_lo(at[i])),
                         elem_hi(x[i]) * act_slope(EPI_ACT_BWD, elem_hi(at[i])));
    }
    return make_uint4(x[0], x[1], x[2], x[3]);
}
/* Eight elements of aux at piece i of the chunk at (row, col); zeros outside. */
INLINE uint4 aux_piece(const lt_gemm_kernel_args *a, int i, int row, int col) {
    const int r = row + i / 8, c = col + ((i % 8) ^ (i / 8 % 8)) * 8;
    u32 x[4] = {0, 0, 0, 0};
    if (r < a->m && c + 8 <= a->n) {
        return *(const uint4 *)(a->aux + r * a->aux_ld + c);
    }
    if (r < a->m) {
        for (int e = 0; e < 8 && c + e < a->n; e += 2) { /* n is even. */
            const u32 pair = *(const u32 *)(a->aux + r * a->aux_ld + c + e);
            x[0] = e == 0 ? pair : x[0], x[1] = e == 2 ? pair : x[1], x[2] = e == 4 ? pair : x[2],
            x[3] = e == 6 ? pair : x[3];
        }
    }
    return make_uint4(x[0], x[1], x[2], x[3]);
}

/* A chunk of 64 x 64 that has been rounded into buffer 0. Forward: store it as x, then f of it
 * through buffer 1. Backward: multiply by f' in place. */
INLINE void store_late(const void *map_c, const void *map_pre, const lt_gemm_kernel_args *a,
                       u32 stage, int consumer, int row, int col, int out_row) {
    const int tid = (int)threadIdx.x % 128;
#if EPI_ACT
    u32 out = stage + CHUNK_BYTES;
    fence_proxy_async();
    named_barrier_sync(BAR_STORE + consumer, 128);
    if (tid == 0) {
        if (EPI_SAVE) {
            tma_store_2d(map_pre, stage, col, out_row);
        }
        tma_store_commit();
        tma_store_wait_read(1); /* The last chunk's y has left buffer 1. */
    }
    named_barrier_sync(BAR_STORE + consumer, 128);
#pragma unroll 1
    for (int i = tid; i < CHUNK_BYTES / 16; i += 128) {
        st_shared_v4(out + i * 16, act_piece(ld_shared_v4(stage + i * 16)));
    }
#else
    u32 out = stage;
#pragma unroll
    /* All of aux is fetched at the same time, into buffer 1; each thread reads back its own
     * part. */
    for (int j = 0; j < CHUNK_BYTES / 16 / 128; j++) {
        st_shared_v4(stage + CHUNK_BYTES + (tid + 128 * j) * 16,
                     aux_piece(a, tid + 128 * j, row, col));
    }
    named_barrier_sync(BAR_STORE + consumer, 128);
#pragma unroll 1
    for (int i = tid; i < CHUNK_BYTES / 16; i += 128) {
        st_shared_v4(stage + i * 16, slope_piece(ld_shared_v4(stage + i * 16),
                                                 ld_shared_v4(stage + CHUNK_BYTES + i * 16)));
    }
#endif
    fence_proxy_async();
    named_barrier_sync(BAR_STORE + consumer, 128);
    if (tid == 0) {
        tma_store_2d(map_c, out, col, out_row);
        tma_store_commit();
    }
    (void)map_pre;
    (void)row;
}
#endif

#if GROUPED == 1
/* Store rows below row_end, two columns at a time, from registers. */
INLINE void store_rows(const float acc[BN / 2], const lt_gemm_kernel_args *a, int row, int col,
                       int row_end) {
    const int tid = (int)threadIdx.x % 128, lane = tid % 32;
#pragma unroll
    for (int i = 0; i < BN / 4; i++) {
        const int r = row + 16 * (tid / 32) + lane / 4 + i % 2 * 8,
                  c = col + i / 2 * 8 + lane % 4 * 2;
        const float x = acc[4 * (i / 2) + 2 * (i % 2)], y = acc[4 * (i / 2) + 2 * (i % 2) + 1];
        if (r < row_end && c < a->n) { /* n is even. */
#if OUT_F32
            float2 *at = (float2 *)((float *)a->c + r * a->ldc + c);
            const float2 old = OUT_ADD ? *at : make_float2(0.0f, 0.0f);
            *at = make_float2(old.x + x, old.y + y);
#else
            *(u32 *)((elem *)a->c + r * a->ldc + c) = PACK_ELEM(x, y);
#endif
        }
    }
}
#endif

#if PAIR
/* 2c. This block's half of the columns, with its neighbour's sums added, moves to the front of acc.
 * Both rings are idle: everything fetched has been multiplied. */
INLINE void exchange(float acc[BN / 2], u32 ring, u32 given, int consumer, int rank) {
    const u32 mine = ring + (u32)(consumer * 128 * BN + (int)threadIdx.x % 128 * 16);
    const u32 theirs = remote_address(mine, rank ^ 1),
              bar = remote_address(given + 8 * consumer, rank ^ 1);
    __syncwarp();
    cluster_sync();
#pragma unroll
    for (int j = 0; j < BN / 16; j++) {
        const float *x = acc + 4 * j, *y = acc + BN / 4 + 4 * j;
        st_async_v4(theirs + j * 2048, rank ? x[0] : y[0], rank ? x[1] : y[1], rank ? x[2] : y[2],
                    rank ? x[3] : y[3], bar);
    }
    mbarrier_wait(given + 8 * consumer, 0);
#pragma unroll
    for (int j = 0; j < BN / 16; j++) {
        const uint4 got = ld_shared_v4(mine + j * 2048);
        float *x = acc + 4 * j, *y = acc + BN / 4 + 4 * j;
        x[0] = (rank ? y[0] : x[0]) + __uint_as_float(got.x),
        x[1] = (rank ? y[1] : x[1]) + __uint_as_float(got.y);
        x[2] = (rank ? y[2] : x[2]) + __uint_as_float(got.z),
        x[3] = (rank ? y[3] : x[3]) + __uint_as_float(got.w);
    }
}
#endif

/* 3. Epilogue, then 64 rows of C through swizzled smem, a chunk of columns at a time, so that
 *    stores overlap arithmetic. */
INLINE void store(float acc[BN / 2], const void *map_c, const void *map_pre,
                  const lt_gemm_kernel_args *a, u32 stage, int consumer, int row, int col,
                  int out_row, const tile_pos *p) {
    const int tid = (int)threadIdx.x % 128, warp = tid / 32, lane = tid % 32;
    [[maybe_unused]] const int r8 = lane % 8;
    u32 buf = stage;

#pragma unroll
    for (int i = 0; i < OUT_COLS / 8; i++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            epilogue_pair(&acc[4 * i + 2 * h], &acc[4 * i + 2 * h + 1],
                          row + 16 * warp + lane / 4 + 8 * h, col + 8 * i + 2 * (lane % 4), a);
        }
    }
#if GROUPED == 1
    if (row + 64 > p->row_end) { /* The rows after it belong to the next expert. */
        store_rows(acc, a, row, col, p->row_end);
        return;
    }
#endif
#pragma unroll
    for (int chunk = 0; chunk < OUT_COLS / CHUNK_COLS; chunk++) {
        buf = stage + (EPI_LATE ? 0 : chunk % C_STAGES * CHUNK_BYTES);
        if (tid == 0) {
            /* Forward: x has been stored; y may still be leaving buffer 1. */
            tma_store_wait_read(EPI_ACT_BWD ? 0 : C_STAGES - 1);
        }
        named_barrier_sync(BAR_STORE + consumer, 128);
#if OUT_F32
#pragma unroll
        for (int i = 0; i < 8; i++) { /* Four groups of 8 columns, two rows each. */
            const int e = 4 * (chunk * 4 + i / 2) + 2 * (i % 2),
                      r = 16 * warp + lane / 4 + 8 * (i % 2);
            st_shared_v2(buf + r * 128 + ((i / 2 * 2 + lane % 4 / 2) ^ (r % 8)) * 16 + lane % 2 * 8,
                         acc[e], acc[e + 1]);
        }
#else
#pragma unroll
        /* 16 columns at a time; lane l addresses row l % 8 of matrix l / 8. */
        for (int i = 0; i < CHUNK_COLS / 16; i++) {
            const float *v = acc + 4 * (chunk * (CHUNK_COLS / 8) + i * 2);
            stmatrix_x4(buf + (16 * warp + lane / 8 % 2 * 8 + r8) * ROW_BYTES +
                            ((i * 2 + lane / 16) ^ (ROW_BYTES == 128 ? r8 : r8 / 2)) * 16,
                        PACK_ELEM(v[0], v[1]), PACK_ELEM(v[2], v[3]), PACK_ELEM(v[4], v[5]),
                        PACK_ELEM(v[6], v[7]));
        }
#endif
#if EPI_LATE
        store_late(map_c, map_pre, a, stage, consumer, row, col + chunk * CHUNK_COLS, out_row);
        continue;
#endif
        fence_proxy_async();
        named_barrier_sync(BAR_STORE + consumer, 128);
        if (tid == 0) {
            if (GROUPED == 2 && OUT_ADD) {
                tma_add_3d(map_c, buf, col + chunk * CHUNK_COLS, out_row, p->expert);
            } else if (GROUPED == 2) {
                tma_store_3d(map_c, buf, col + chunk * CHUNK_COLS, out_row, p->expert);
            } else if (OUT_ADD) {
                tma_add_2d(map_c, buf, col + chunk * CHUNK_COLS, out_row);
            } else {
                tma_store_2d(map_c, buf, col + chunk * CHUNK_COLS, out_row);
            }
            tma_store_commit();
        }
    }
}

INLINE void consume(const void *map_c, const void *map_pre, const lt_gemm_kernel_args *a, u32 ring,
                    u32 full, u32 empty, u32 given, u32 stage, int consumer, int rank) {
    ring_pos r = {0, 0};
    float acc[WG_M][BN / 2] = {{0.0f}};
    int turn = 0;
    const int my_row = PINGPONG ? 0 : consumer * 64 * WG_M;

    if (PINGPONG && consumer == 1) {
        named_barrier_arrive(BAR_ORDER + 0, 256); /* Consumer 0 begins. */
    }
    walk w = {0, 0};
    tile_pos p;
    for (int t = (int)blockIdx.x / BLOCKS_A_TILE; tile_next(t, a, rank, &w, &p);
         t += (int)gridDim.x / BLOCKS_A_TILE, turn ^= 1) {
        const int n_steps = p.k_end - p.k_begin;
        if (PINGPONG && turn != consumer) {
            ring_skip(&r, n_steps);
            continue;
        }
        if (PINGPONG) {
            named_barrier_sync(BAR_ORDER + consumer, 256);
        }
        /* No token chose this expert: store zeros. */
        if (GROUPED == 2 && !OUT_ADD && n_steps == 0) {
#pragma unroll
            for (int i = 0; i < BN / 2; i++) {
                acc[0][i] = 0.0f;
            }
        } else {
#if PROMOTE
            const scaled_tile tile = {my_row * 128,
                                      ring,
                                      full,
                                      empty,
                                      a,
                                      p.row + my_row + (int)threadIdx.x % 128 / 32 * 16 +
                                          (int)threadIdx.x % 32 / 4,
                                      p.col,
                                      p.k_begin};
            multiply_scaled(acc[0], &r, n_steps, &tile);
#else
            multiply(acc, &r, n_steps, my_row * 128, ring, full, empty, BAR_ORDER + (consumer ^ 1),
                     p.tail, consumer);
#endif
        }
#if SCALES == 1 && !PROMOTE
        const float one = __ldg(a->a_scale) * __ldg(a->b_scale);
#pragma unroll
        for (int i = 0; i < WG_M * BN / 2; i++) {
            acc[i / (BN / 2)][i % (BN / 2)] *= one;
        }
#endif
#if PAIR
        exchange(acc[0], ring, given, consumer, rank);
        p.col += rank * OUT_COLS;
#endif
#pragma unroll
        for (int i = 0; i < WG_M; i++) {
            store(acc[i], map_c, map_pre, a, stage, consumer, p.row + my_row + i * 64, p.col,
                  p.out_row + my_row + i * 64, &p);
        }
    }
    if (threadIdx.x % 128 == 0) {
        tma_store_wait_read(0);
    }
    (void)given;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    gemm_sm90(const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
              const __grid_constant__ tensor_map map_c, const __grid_constant__ tensor_map map_pre,
              const __grid_constant__ lt_gemm_kernel_args args
#if BESIDE
              ,
              const __grid_constant__ tensor_map map_u, const __grid_constant__ tensor_map map_v,
              const __grid_constant__ lt_gemm_beside_args beside
#endif
    ) {
    extern __shared__ __align__(1024) u8 smem[];
    /* STAGES x (A, B), C stages, barriers. */
    static_assert(1024 + STAGES * (STAGE_BYTES + 16) + CONSUMERS * C_STAGES * CHUNK_BYTES +
                          (PAIR ? 8 * CONSUMERS : 0) <=
                      LT_GEMM_SM90_BYTES(BM, B_ROWS, STAGES, CONSUMERS, C_STAGES),
                  "what the launch asks for holds all places");
    const u32 ring = (smem_addr(smem) + 1023) & ~1023u;
    const u32 c_stages = ring + STAGES * STAGE_BYTES;
    const u32 full = c_stages + CONSUMERS * C_STAGES * CHUNK_BYTES, empty = full + 8 * STAGES,
              given = empty + 8 * STAGES;
    const int group = warp_uniform((int)threadIdx.x / 128);
    const int rank = CLUSTER > 1 || PAIR ? (int)cluster_cta_rank() : 0;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, READERS * CLUSTER);
        }
        for (int g = 0; PAIR && g < CONSUMERS; g++) {
            mbarrier_init(given + 8 * g, 1);
        }
        mbarrier_init_fence();
        for (int g = 0; PAIR && g < CONSUMERS; g++) {
            mbarrier_expect(given + 8 * g, 128 * BN);
        }
        tensor_map_prefetch(&map_a);
        tensor_map_prefetch(&map_b);
        tensor_map_prefetch(&map_c);
    }
    if (CLUSTER > 1 || PAIR) {
        cluster_sync();
    } else {
        __syncthreads();
    }
    wait_for_previous_kernel();
    if (group == 0) {
        if (CONSUMERS > 1) {
            regs_shrink(REGS_PRODUCER);
        }
        if (threadIdx.x == 0) {
#if BESIDE
            const second_pair second = {&map_u, &map_v, &beside};
#else
            const second_pair second = {NULL, NULL, NULL};
#endif
            produce(&map_a, &map_b, &args, &second, ring, full, empty, rank);
            if (args.early) {
                let_next_kernel_start();
            }
        }
        __syncwarp();
        if (PAIR) {
            cluster_sync(); /* The barrier of exchange. */
        }
    } else {
        if (CONSUMERS > 1) {
            regs_grow(REGS_CONSUMER);
        }
        consume(&map_c, &map_pre, &args, ring, full, empty, given,
                c_stages + (group - 1) * C_STAGES * CHUNK_BYTES, group - 1, rank);
    }
    if (CLUSTER > 1) {
        /* No block leaves while its neighbour may still write to its shared memory. */
        cluster_sync();
    }
}

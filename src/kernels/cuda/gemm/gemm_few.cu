/* gemm_few.cu: few rows times a weight matrix on Hopper's tensor cores: y (M, N) = x (M, K) W^T, W
 * stored (N, K), M = 1 .. 64: decoding of many streams.
 *
 * SHAPES    any N, K; rows of x and W 16-byte aligned. BN is M rounded up to a multiple of 8.
 * MAP       operands change places: 64 columns of y (rows of W) are the 64 rows of a consumer
 *           warpgroup's product, the rows of x its N = BN. A tile is 64 * GROUPS columns. SPLITS
 *           blocks, a cluster, share a tile's K; with SPLITS 1 a block walks over tiles, and its
 *           ring runs over their ends.
 * GATED     1: N = 2 F, and act = f(first F columns) * others, too (KIND 0: GELU's tanh form, 2:
 *           SiLU): each consumer's 64 columns are 32 and their 32 factors.
 * MOVEMENT
 *     W ──TMA, 128-byte swizzle──▶ ring of STAGES x DEPTH x 64 of K ─┐
 *     x ──TMA, from the L2───────▶ the same stages ──────────────────┴─wgmma─▶ acc[BN / 2]
 *         ──▶ SPLITS x smem of the block that adds these rows of x ──▶ y
 *     The weights of the stages are requested before the kernels before this one are done
 *     (common/early.cuh), and x after that wait, so the whole ring of an SM is in flight.
 * BOUND     bytes of W: each is used once; x comes M / (64 * GROUPS) times as often as W from the
 *           L2, which is about twice as fast as the memory. Products: 64 BN 16 in BN / 2 clocks,
 *           with 2 KB of W, for which the memory needs 160 clocks.
 * MEASURED  docs/speed/decoding.md. Weights leave the L2 first (evict_first): 3 to 8 %
 *           faster.
 * NUMERICS  f32 sums in order of K within a part; parts in order; one rounding: bit-identical run
 *           to run. Rows are independent: a row's bits do not depend on M for equal SPLITS. */
#include "common/early.cuh"
#include "common/ring.cuh"
#include "gemm/few_sums.cuh"

/* The consumers, and one warp of which one thread copies. */
#define THREADS     (128 * GROUPS + 32)
#define TILE        (64 * GROUPS) /* Columns of y. */
#define W_BYTES     (TILE * 128)  /* 64 of K. */
#define X_BYTES     (BN * 128)
#define DEPTH       2 /* times 64 of K a stage */
#define STAGE_BYTES (DEPTH * (W_BYTES + X_BYTES))
#define STAGE_K     (DEPTH * 64)
static_assert(BN <= 64, "few rows of x");
static_assert(GROUPS == 1 || GROUPS == 2, "consumers");

WGMMA_SS(mma, BN, 0, 0)

/* This block's share of K, in stages, and its sequence of tiles. */
typedef struct {
    int tile, step;
} place;
typedef struct {
    int tiles, first, stride; /* of tiles */
    int begin, end;           /* of stages */
} share;
INLINE share share_of(const lt_gemm_few_args *a) {
    const int steps = div_up(a->k, STAGE_K), each = div_up(steps, SPLITS),
              rank = (int)blockIdx.x % SPLITS;
    share s;
    s.tiles = div_up(cols_of(a), COLS * GROUPS), s.first = (int)blockIdx.x / SPLITS,
    s.stride = (int)gridDim.x / SPLITS;
    s.begin = min_i(steps, rank * each), s.end = min_i(steps, s.begin + each);
    return s;
}
INLINE bool place_there(const place *p, const share *s) {
    return p->tile < s->tiles && s->begin < s->end;
}
INLINE void place_step(place *p, const share *s) {
    if (++p->step == s->end) {
        p->step = s->begin;
        p->tile += s->stride;
    }
}

INLINE void send_weights(const place *p, const void *map, u32 stage, u32 bar, u64 once,
                         int factors) {
    mbarrier_expect(bar, STAGE_BYTES);
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
#if GATED
#pragma unroll
        for (int half = 0; half < 2 * GROUPS; half++) {
            tma_load_2d_hint(stage + i * W_BYTES + half * 4096, map, bar,
                             p->step * STAGE_K + i * 64,
                             (p->tile * GROUPS + half / 2) * COLS + half % 2 * factors, once);
        }
#else
        tma_load_2d_hint(stage + i * W_BYTES, map, bar, p->step * STAGE_K + i * 64, p->tile * TILE,
                         once);
#endif
    }
    (void)factors;
}
INLINE void send_rows(const place *p, const void *map, u32 stage, u32 bar) {
#pragma unroll
    for (int i = 0; i < DEPTH; i++) {
        tma_load_2d(stage + DEPTH * W_BYTES + i * X_BYTES, map, bar, p->step * STAGE_K + i * 64, 0);
    }
}

/* 1. One thread fills the ring: at first only with weights, while other kernels may still write
 * x. */
INLINE void produce(const void *map_w, const void *map_x, const lt_gemm_few_args *a, u32 ring,
                    u32 full, u32 empty) {
    const share s = share_of(a);
    place w = {s.first, s.begin}, x = w;
    const u64 once = evict_first();
    int sent = 0, slot = 0;
    u32 phase = 0;

    for (; sent < STAGES && place_there(&w, &s); sent++, place_step(&w, &s)) {
        send_weights(&w, map_w, ring + sent * STAGE_BYTES, full + 8 * sent, once, cols_of(a));
    }
    wait_for_others();
    for (int i = 0; i < sent; i++, place_step(&x, &s)) {
        send_rows(&x, map_x, ring + i * STAGE_BYTES, full + 8 * i);
    }
    for (; place_there(&w, &s); place_step(&w, &s)) {
        mbarrier_wait(empty + 8 * slot, phase);
        send_weights(&w, map_w, ring + slot * STAGE_BYTES, full + 8 * slot, once, cols_of(a));
        send_rows(&w, map_x, ring + slot * STAGE_BYTES, full + 8 * slot);
        if (++slot == STAGES) {
            slot = 0;
            phase ^= 1;
        }
    }
}

/* 2. 64 columns over this block's part of K. */
INLINE void multiply(float acc[BN / 2], ring_pos *r, int steps, int group, u32 ring, u32 full,
                     u32 empty) {
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        acc[i] = 0.0f;
    }
    for (int step = 0; step < steps; step++) {
        const u32 stage = ring + r->slot * STAGE_BYTES;
        const u64 w = wgmma_desc(stage + group * 8192, 8192),
                  x = wgmma_desc(stage + DEPTH * W_BYTES, 8192);
        mbarrier_wait(full + 8 * r->slot, r->phase);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < DEPTH * 4; i++) {
            mma(acc, DESC_ADD(w, i / 4 * W_BYTES + i % 4 * 32),
                DESC_ADD(x, i / 4 * X_BYTES + i % 4 * 32), 1);
        }
        wgmma_commit();
        /* The memory is slower than the products, so it matters most that the stage is requested
         * again at once. */
        wgmma_wait(0);
        wgmma_pin(acc, BN / 2);
        if (threadIdx.x % 128 == 0) {
            mbarrier_arrive(empty + 8 * r->slot);
        }
        ring_step(r, STAGES);
    }
}

static_assert(STAGES <= LT_FEW_MOST_STAGES && STAGE_BYTES == LT_FEW_STAGE_BYTES(GROUPS, BN) &&
                  1023 + GROUPS * GROUP_BYTES + 16 * STAGES + 8 * GROUPS <=
                      LT_FEW_FIXED_BYTES(GROUPS, SPLITS, OCTETS),
              "the ring, sums, barriers");
extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_few(const __grid_constant__ tensor_map map_w, const __grid_constant__ tensor_map map_x,
             const __grid_constant__ lt_gemm_few_args a) {
    extern __shared__ __align__(1024) u8 smem[];
    const u32 ring = (smem_addr(smem) + 1023) & ~1023u; /* Ring, sums, barriers; see few.c. */
    const u32 sums = ring + STAGES * STAGE_BYTES, full = sums + GROUPS * GROUP_BYTES,
              empty = full + 8 * STAGES, given = empty + 8 * STAGES;
    const int group = warp_uniform((int)threadIdx.x / 128), rank = (int)blockIdx.x % SPLITS;
    /* octets that this block adds */
    const int mine = SPLITS == 1
                         ? OCTETS
                         : max_i(min_i(first_octet(rank + 1), OCTETS) - first_octet(rank), 0);

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbarrier_init(full + 8 * s, 1);
            mbarrier_init(empty + 8 * s, GROUPS);
        }
        for (int g = 0; g < GROUPS; g++) {
            mbarrier_init(given + 8 * g, 1);
        }
        mbarrier_init_fence();
        for (int g = 0; g < GROUPS && SPLITS > 1; g++) {
            mbarrier_expect(given + 8 * g, (u32)(SPLITS * mine * OCTET_BYTES));
        }
    }
    __syncthreads();
    if (SPLITS > 1) {
        cluster_arrive(); /* Waiting for all blocks is deferred until they are sent parts. */
    }
    if (group == GROUPS) {
        if (threadIdx.x % 32 == 0) {
            produce(&map_w, &map_x, &a, ring, full, empty);
        }
        __syncwarp();
        if (SPLITS > 1) {
            cluster_wait();
        }
        return;
    }
    const share s = share_of(&a);
    const u32 my_sums = sums + group * GROUP_BYTES;
    ring_pos r = {0, 0};
    float acc[BN / 2];
    wait_for_others();
    for (int tile = s.first; tile < s.tiles; tile += s.stride) {
        const int col = (tile * GROUPS + group) * COLS;
        multiply(acc, &r, s.end - s.begin, group, ring, full, empty);
#if SPLITS == 1
        store_own(acc, &a, my_sums, group, 0, col);
#else /* One tile per cluster. */
        cluster_wait();
        give_away(acc, my_sums, given + 8 * group, rank);
        mbarrier_wait(given + 8 * group, 0);
        for (int o = 0; o < mine; o++) {
            store_octet(&a, my_sums + o * OCTET_BYTES, 8 * (first_octet(rank) + o), col);
        }
#endif
    }
}

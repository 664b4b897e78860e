/* gemm_q_sm90.cu: rows times a quantised weight matrix on Hopper's tensor cores: y (M, N) = x (M,
 * K) W^T, W packed as tile_q.cuh says: decoding of many streams, prompts.
 *
 * SHAPES    any N; K a multiple of 32; rows of x 16-byte aligned. BN rows of x at a time, a
 *           multiple of 8.
 * MAP       operands change places, as in gemm_few.cu: 64 columns of y (four slabs of W) are the 64
 *           rows of a consumer warpgroup's product, rows of x its N = BN. The weights come from
 *           registers: a lane's share of a packed tile is its part of wgmma's left operand. A tile
 *           is 64 * GROUPS columns and BN rows. SPLITS blocks, a cluster, share a tile's K; with
 *           SPLITS 1 a block walks over tiles, and its rings run over their ends.
 * MOVEMENT
 *     W ──copy engine, packed tiles as they lie──▶ ring of w_stages x 128 of K ──registers──▶
 *         16-bit floats ──────────────────────────────────────────┐
 *     x ──TMA, 128-byte swizzle──▶ ring of x_stages x 64 of K ────┴─wgmma─▶ acc ──▶ few_sums.cuh
 *     W's ring is filled before the kernels before this one are done (common/early.cuh).
 * EXACT     1: numbers without their scales are the operand; a group's sums are scaled and added to
 *           acc by the FP32 units while other warpgroups multiply. Minima: the same rows times
 *           ones. BATCH groups share a wait for the tensor cores. 0: scale and minimum are in the
 *           operand: a multiply-add of 16 bits a pair gives the weights, and another one restores
 *           what rounding took from the scale, an error that all numbers of a group would share.
 * EXPERTS   GROUPED: rows of x are in the order of their experts, and W is one matrix for each. A
 *           tile never spans two experts: it reads rows of the next one, and does not store them.
 *           One with at most NARROW rows has narrower products. The kernel reads `start`, since the
 *           host does not know how many rows an expert has.
 * BOUND     bytes of W; x comes M / (64 * GROUPS) times 2 / (bytes a weight) as often from the L2.
 *           A warp unpacks 16 weights a lane, 22 to 30 instructions, a group of 32 columns, and
 *           EXACT BN / 2 multiply-adds: a tile of 16 x 128 of Q4_0 at 32 rows 269, at 64 340, not
 *           EXACT 245; with minima 449, 512, 273 (SASS); the memory brings it in 343 clocks. The
 *           tensor cores need BN clocks a group (EXACT with minima twice that).
 * MEASURED  docs/speed/decoding.md.
 * NUMERICS  EXACT: f32 sums of a group (32; 16 of Q6_K) in the tensor cores, scaled and added by
 *           rounding adds in order of K within a part; parts in order. Else f32 sums in order of K.
 *           Bit-identical run to run. Rows are independent: a row's bits depend on EXACT and
 *           SPLITS, not on M or BN.
 * REFS      PTX ISA 9.7.15 (wgmma); Frantar et al. 2024, arXiv:2408.11743. */
#include "common/early.cuh"
#include "common/ring.cuh"
#include "gemm/few_sums.cuh"
#include "kernels/cuda/gemm/few_args.h"
/* With minima, measured from the middle: what remains of the minimum, which is rounded, is then
 * small. */
#define TAKEN_OFF (MINS && !EXACT ? 1 << (BITS - 1) : OFFSET)
#include "gemm/operand_q.cuh"

/* A tile with no more rows than this has products of so many. */
#ifndef NARROW
#define NARROW 0
#endif
#ifndef GROUPED
#define GROUPED 0
#endif

/* Accumulators need other warps' registers: the kernel is compiled for the maximum of 168 per
 * thread. */
#define WIDE (BN > 128)
/* After the consumers come two copying warps, with one thread each: for W and for x. */
#define THREADS       (128 * GROUPS + (WIDE ? 128 : 64))
#define SLABS         (4 * GROUPS)
#define W_STAGE_BYTES (SLABS * TILE_BYTES)
#define X_STAGE_BYTES (BN * 128)
/* parts of a packed tile, so that each is at most 256 words, the limit of a copy's box */
#define CUTS       (TILE_BYTES > 2048 ? 4 : 2)
#define STEPS      (TILE_K / GROUP) /* of a tile: columns with one scale */
#define HALF_STEPS (64 / GROUP)
#define PRODUCTS   (GROUP / 16) /* of a step */
static_assert(TILE_BYTES % 128 == 0 && TILE_BYTES % (16 * CUTS) == 0 && TILE_BYTES / CUTS <= 1024,
              "stages stay aligned, pieces are whole 16 bytes");
static_assert(BN <= (EXACT ? 64 : 128) || (!EXACT && GROUPS == 2 && BN <= 256),
              "accumulators must fit in registers");
static_assert(GROUPS == 1 || GROUPS == 2, "consumers");
static_assert(NARROW < BN && (NARROW == 0 || !EXACT), "narrow products");
static_assert(!GROUPED || (SPLITS == 1 && !GATED), "a walk over the tiles of experts");
static_assert(HALF_STEPS % BATCH == 0, "a batch reads one stage of x");

WGMMA_RS(mma, BN, 0)
#if NARROW > 0
WGMMA_RS(mma_narrow, NARROW, 0)
#else
#define mma_narrow mma
#endif

typedef struct {
    u32 x, w, sums, full_w, empty_w, full_x, empty_x, given; /* addresses in shared memory */
    int w_stages, x_stages;
} places;
static_assert(W_STAGE_BYTES == LT_GEMM_Q_W_BYTES(TILE_BYTES, GROUPS) &&
                  X_STAGE_BYTES == LT_GEMM_Q_X_BYTES(BN) &&
                  1023 + GROUPS * GROUP_BYTES + 2 * 16 * LT_FEW_MOST_STAGES + 8 * GROUPS <=
                      LT_GEMM_Q_FIXED_BYTES(GROUPS, SPLITS, OCTETS),
              "rings, sums, barriers");
INLINE places places_of(u32 base, const lt_gemm_q_plan *d) {
    places p;
    p.w_stages = d->w_stages, p.x_stages = d->x_stages;
    p.x = (base + 1023) & ~1023u;
    p.w = p.x + (u32)(p.x_stages * X_STAGE_BYTES);
    p.sums = p.w + (u32)(p.w_stages * W_STAGE_BYTES);
    p.full_w = p.sums + GROUPS * GROUP_BYTES, p.empty_w = p.full_w + 8 * p.w_stages;
    p.full_x = p.empty_w + 8 * p.w_stages, p.empty_x = p.full_x + 8 * p.x_stages;
    p.given = p.empty_x + 8 * p.x_stages;
    return p;
}

/* A tile of y: its first row and column, one past the last row that is its own, and the slab of W
 * that it begins with. */
typedef struct {
    int row, row_end, col, slab;
    bool alone; /* No other tile reads its weights. */
} tile_pos;
/* This block's share of K, in tiles of 128, and its walk over tiles of y: rows first, so that
 * neighbouring blocks share weights. Turns only rise, so a search through the experts continues
 * where it stopped. */
typedef struct {
    int begin, end;
    int turn, expert, before; /* before: tiles of the experts before this one */
} walk;
INLINE walk walk_of(const lt_gemm_few_args *a) {
    const int tiles = div_up(a->k, TILE_K), each = div_up(tiles, SPLITS),
              rank = (int)blockIdx.x % SPLITS;
    walk s;
    s.begin = min_i(tiles, rank * each), s.end = min_i(tiles, s.begin + each);
    s.turn = (int)blockIdx.x / SPLITS, s.expert = s.before = 0;
    return s;
}
/* The tile of the next turn; false: none is left. */
INLINE bool tile_next(walk *s, const lt_gemm_few_args *a, const lt_gemm_q_plan *of, tile_pos *p) {
    const int cols = div_up(cols_of(a), COLS * GROUPS);
    for (; s->expert < (GROUPED ? of->experts : 1); s->expert++) {
        const int from = GROUPED ? of->start[s->expert] : 0,
                  to = GROUPED ? of->start[s->expert + 1] : a->m, rows = div_up(to - from, BN),
                  at = s->turn - s->before;
        if (at < rows * cols) {
            const int col = at / rows * GROUPS;
            p->row = from + at % rows * BN, p->row_end = to, p->col = col * COLS;
            p->slab = s->expert * of->slabs + col * (COLS / TILE_ROWS);
            p->alone = rows == 1;
            s->turn += (int)gridDim.x / SPLITS;
            return true;
        }
        s->before += rows * cols;
    }
    return false;
}
/* 1. One thread copies the weights, another the rows. A fresh ring is empty: a wait for "phase 1"
 * returns at once. */
INLINE void produce_w(const void *map, const lt_gemm_few_args *a, const lt_gemm_q_plan *of,
                      const places *p) {
    walk s = walk_of(a);
    tile_pos t;
    const u64 once = evict_first();
    const int factors = cols_of(a) / TILE_ROWS;
    ring_pos r = {0, 1};
    while (tile_next(&s, a, of, &t)) {
        for (int k = s.begin; k < s.end; k++, ring_step(&r, p->w_stages)) {
            const u32 stage = p->w + (u32)(r.slot * W_STAGE_BYTES), bar = p->full_w + 8 * r.slot;
            mbarrier_wait(p->empty_w + 8 * r.slot, r.phase);
            mbarrier_expect(bar, W_STAGE_BYTES);
#pragma unroll
            /* GATED: two slabs, and two of their factors. */
            for (int i = 0; i < (GATED ? 2 * GROUPS : 1); i++) {
                const u32 to = stage + i * (2 * TILE_BYTES);
                const int from = t.slab + i / 2 * 2 + (i % 2 == 1 ? factors : 0);
                if (t.alone) {
                    tma_load_3d_hint(to, map, bar, 0, k * CUTS, from, once);
                } else {
                    tma_load_3d(to, map, bar, 0, k * CUTS, from);
                }
            }
        }
    }
}
INLINE void produce_x(const void *map, const lt_gemm_few_args *a, const lt_gemm_q_plan *of,
                      const places *p) {
    walk s = walk_of(a);
    tile_pos t;
    ring_pos r = {0, 1};
    while (tile_next(&s, a, of, &t)) {
        for (int k = 2 * s.begin; k < 2 * s.end; k++, ring_step(&r, p->x_stages)) {
            mbarrier_wait(p->empty_x + 8 * r.slot, r.phase);
            mbarrier_expect(p->full_x + 8 * r.slot, X_STAGE_BYTES);
            tma_load_2d(p->x + (u32)(r.slot * X_STAGE_BYTES), map, p->full_x + 8 * r.slot, k * 64,
                        t.row);
        }
    }
}

/* ---- 2. Products */

INLINE float scale_at(const share *s, int step, int h) {
    return scale_of(s->scale[SCALES == 2 ? step / 4 : 0], 4 * h + step % 4);
}
INLINE float least_at(const share *s, int step, int h) {
    return MINS ? scale_of(s->least, 4 * h + step % 4) : 0.0f;
}
/* The left operands of a step. */
INLINE void operands(u32 a[PRODUCTS][4], const share *s, int step) {
    const int g = SCALES == 2 ? step / 2 : step;
    u32 pair[2][4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        widen(pair[h], s, g, h);
#pragma unroll
        for (int j = 0; j < 4 && !EXACT; j++) {
            const float scale = scale_at(s, step, h),
                        less = MINS ? scale * TAKEN_OFF - least_at(s, step, h) : 0.0f;
            const u32 by = PACK_ELEM(scale, scale);
            const float rest = scale - elem_lo(by);
            pair[h][j] = FMA2(pair[h][j], by,
                              FMA2(pair[h][j], PACK_ELEM(rest, rest), PACK_ELEM(less, less)));
        }
    }
#pragma unroll
    for (int i = 0; i < PRODUCTS; i++) {
        const int j = 2 * (SCALES == 2 ? step % 2 : i);
        a[i][0] = pair[0][j], a[i][1] = pair[1][j], a[i][2] = pair[0][j + 1],
        a[i][3] = pair[1][j + 1];
    }
}

typedef struct {
    ring_pos w, x;
} rings;
INLINE void give_back(u32 bar) { /* Signals that a warpgroup has read a stage of x. */
    if (threadIdx.x % 128 == 0) {
        mbarrier_arrive(bar);
    }
}

#if EXACT
typedef struct {
    float by[2], least[2]; /* Factor and minimum of this lane's two rows of W. */
} factors;
/* acc += a group's sums, scaled. */
INLINE void promote(float acc[BN / 2], float part[BN / 2], float total[BN / 2], const factors *f) {
    wgmma_pin(part, BN / 2);
#if MINS
    wgmma_pin(total, BN / 2);
#endif
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        acc[i] += f->by[i / 2 % 2] * part[i];
        acc[i] -= MINS ? f->least[i / 2 % 2] * total[i] : 0.0f;
    }
}
/* 64 columns of y over this block's part of K. BATCH groups are unpacked while the previous ones
 * are multiplied. */
INLINE void multiply(float acc[BN / 2], rings *r, int tiles, const places *p, bool narrow) {
    (void)narrow;
    const u32 ones[4] = {ONE, ONE, ONE, ONE}, mine = (u32)(threadIdx.x / 32 * TILE_BYTES);
    float part[BATCH][BN / 2], total[BATCH][BN / 2];
    u32 a[2][BATCH][PRODUCTS][4];
    factors last[BATCH] = {{{0.0f, 0.0f}, {0.0f, 0.0f}}};
    int read = -1; /* The stage of x's ring that the products in progress read. */
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        acc[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < BATCH; j++) {
            part[j][i] = total[j][i] = 0.0f;
        }
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++, ring_step(&r->w, p->w_stages)) {
        share s;
        mbarrier_wait(p->full_w + 8 * r->w.slot, r->w.phase);
        take_share(&s, p->w + r->w.slot * W_STAGE_BYTES + mine);
#pragma unroll
        for (int batch = 0; batch < STEPS / BATCH; batch++) {
            const int first = batch * BATCH, half = first % HALF_STEPS;
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                operands(a[batch % 2][i], &s, first + i);
            }
            if (half == 0) {
                mbarrier_wait(p->full_x + 8 * r->x.slot, r->x.phase);
            }
            wgmma_wait(0);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                promote(acc, part[i], total[i], &last[i]);
            }
            const u64 x = wgmma_desc(p->x + r->x.slot * X_STAGE_BYTES, 8192) +
                          (u64)(half * PRODUCTS * 2);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                mma_set(part[i], a[batch % 2][i][0], DESC_ADD(x, i * PRODUCTS * 32));
                if (PRODUCTS == 2) {
                    mma(part[i], a[batch % 2][i][PRODUCTS - 1], DESC_ADD(x, i * PRODUCTS * 32 + 32),
                        1);
                }
                if (MINS) {
                    mma_set(total[i], ones, DESC_ADD(x, i * PRODUCTS * 32));
                    mma(total[i], ones, DESC_ADD(x, i * PRODUCTS * 32 + 32), 1);
                }
            }
            wgmma_commit();
            if (half == 0) { /* All products before this batch are done. */
                if (read >= 0) {
                    give_back(p->empty_x + 8 * read);
                }
                read = r->x.slot;
            }
            if (half + BATCH == HALF_STEPS) {
                ring_step(&r->x, p->x_stages);
            }
#pragma unroll
            for (int i = 0; i < 2 * BATCH; i++) {
                last[i / 2].by[i % 2] = scale_at(&s, first + i / 2, i % 2),
                                   last[i / 2].least[i % 2] = least_at(&s, first + i / 2, i % 2);
            }
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            mbarrier_arrive(p->empty_w + 8 * r->w.slot);
        }
    }
    wgmma_wait(0);
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        promote(acc, part[i], total[i], &last[i]);
    }
    if (read >= 0) {
        give_back(p->empty_x + 8 * read);
    }
}

#else
INLINE void multiply(float acc[BN / 2], rings *r, int tiles, const places *p, bool narrow) {
    const u32 mine = (u32)(threadIdx.x / 32 * TILE_BYTES);
    u32 a[2][PRODUCTS][4];
    int read = -1;
#pragma unroll
    for (int i = 0; i < BN / 2; i++) {
        acc[i] = 0.0f;
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++, ring_step(&r->w, p->w_stages)) {
        share s;
        mbarrier_wait(p->full_w + 8 * r->w.slot, r->w.phase);
        take_share(&s, p->w + r->w.slot * W_STAGE_BYTES + mine);
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            operands(a[step % 2], &s, step); /* Done while the previous step is multiplied. */
            if (step % HALF_STEPS == 0) {
                mbarrier_wait(p->full_x + 8 * r->x.slot, r->x.phase);
            }
            const u64 x = wgmma_desc(p->x + r->x.slot * X_STAGE_BYTES, 8192) +
                          (u64)(step % HALF_STEPS * PRODUCTS * 2);
            wgmma_fence();
#pragma unroll
            for (int i = 0; i < PRODUCTS; i++) {
                if (narrow) {
                    mma_narrow(acc, a[step % 2][i], DESC_ADD(x, 32 * i), 1);
                } else {
                    mma(acc, a[step % 2][i], DESC_ADD(x, 32 * i), 1);
                }
            }
            wgmma_commit();
            wgmma_wait(1);
            if (step % HALF_STEPS == 0) {
                if (read >= 0) {
                    give_back(p->empty_x + 8 * read);
                }
                read = r->x.slot;
            }
            if (step % HALF_STEPS == HALF_STEPS - 1) {
                ring_step(&r->x, p->x_stages);
            }
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            mbarrier_arrive(p->empty_w + 8 * r->w.slot);
        }
    }
    wgmma_wait(0);
    wgmma_pin(acc, BN / 2);
    if (read >= 0) {
        give_back(p->empty_x + 8 * read);
    }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
    gemm_q_sm90(const __grid_constant__ tensor_map map_w, const __grid_constant__ tensor_map map_x,
                const __grid_constant__ lt_gemm_few_args a,
                const __grid_constant__ lt_gemm_q_plan d) {
    extern __shared__ __align__(1024) u8 smem[];
    const places p = places_of(smem_addr(smem), &d);
    const int warp = warp_uniform((int)threadIdx.x / 32), group = warp / 4,
              rank = (int)blockIdx.x % SPLITS;
    /* octets that this block adds */
    const int mine = SPLITS == 1
                         ? OCTETS
                         : max_i(min_i(first_octet(rank + 1), OCTETS) - first_octet(rank), 0);

    if (threadIdx.x == 0) {
        for (int s = 0; s < p.w_stages; s++) {
            mbarrier_init(p.full_w + 8 * s, 1);
            mbarrier_init(p.empty_w + 8 * s, SLABS);
        }
        for (int s = 0; s < p.x_stages; s++) {
            mbarrier_init(p.full_x + 8 * s, 1);
            mbarrier_init(p.empty_x + 8 * s, GROUPS);
        }
        for (int g = 0; g < GROUPS; g++) {
            mbarrier_init(p.given + 8 * g, 1);
        }
        mbarrier_init_fence();
        for (int g = 0; g < GROUPS && SPLITS > 1; g++) {
            mbarrier_expect(p.given + 8 * g, (u32)(SPLITS * mine * OCTET_BYTES));
        }
    }
    __syncthreads();
    if (SPLITS > 1) {
        cluster_arrive(); /* Waiting for all blocks is deferred until they are sent parts. */
    }
    if (warp >= 4 * GROUPS) {
#if WIDE
        regs_shrink(40);
#endif
        if (warp == 4 * GROUPS && threadIdx.x % 32 == 0) {
            if (GROUPED) { /* Numbers of rows come from kernels before this one. */
                wait_for_others();
            }
            produce_w(&map_w, &a, &d, &p);
        } else if (warp == 4 * GROUPS + 1 && threadIdx.x % 32 == 0) {
            wait_for_others();
            produce_x(&map_x, &a, &d, &p);
        }
        __syncwarp();
        if (SPLITS > 1) {
            cluster_wait();
        }
        return;
    }
#if WIDE
    regs_grow(232);
#endif
    walk s = walk_of(&a);
    tile_pos t;
    const u32 my_sums = p.sums + group * GROUP_BYTES;
    rings r = {{0, 0}, {0, 0}};
    float acc[BN / 2];
    wait_for_others();
    while (tile_next(&s, &a, &d, &t)) {
        const int col = t.col + group * COLS;
#if NARROW > 0
        if (t.row_end - t.row <= NARROW) {
            multiply(acc, &r, s.end - s.begin, &p, true);
        } else
#endif
        {
            multiply(acc, &r, s.end - s.begin, &p, false);
        }
#if SPLITS == 1
        lt_gemm_few_args own = a;
        own.m = t.row_end;
        store_own(acc, &own, my_sums, group, t.row, col);
#else /* One tile a cluster. */
        cluster_wait();
        give_away(acc, my_sums, p.given + 8 * group, rank);
        mbarrier_wait(p.given + 8 * group, 0);
        for (int o = 0; o < mine; o++) {
            store_octet(&a, my_sums + o * OCTET_BYTES, t.row + 8 * (first_octet(rank) + o), col);
        }
#endif
    }
}

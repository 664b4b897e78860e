/* gemm_q_ring.cu: gemv_ring.cu for quantised weights: up to 8 rows times a matrix packed as
 * tile_q.cuh says, with the small ops beside it (beside.cuh).
 *
 * SHAPES    M = 1 .. 8; K = WIDTH, a multiple of 32; rows of x 16-byte aligned; any N (TAIL 0),
 *           else N / 2 a multiple of 16 (TAIL 1), or dim / 2 (TAIL 2).
 * MAP       one block an SM (BLOCKS 2: with so few registers that the next kernel's block fits
 *           beside it); each group of SPLIT warps walks over units of SLABS slabs of 16 columns:
 *           one, or two whose columns are pairs: gates and factors, or the numbers that rotate with
 *           each other. A warp of a group has the tiles of its part of K.
 * MOVEMENT
 *     W ──cp.async, tiles as they lie──▶ ring of STAGES tiles of this warp ──▶ operands of
 *         mma.sync of bytes ──────────────────────────────────────────────────────────┐
 *     x [+ add] ─ norm, every block by itself ─▶ smem ─ 8 bits a number, a factor a    │
 *         group (eight_q.cuh) ─▶ smem ────────────────────────────────────────────────┴─▶ sums
 *     sums ──smem──▶ y, act, pages
 * FILL      2: the copy engine (sm_90) fills the ring, a tile a copy, an mbarrier a stage, on
 *           behalf of one lane, so that the loads of x do not wait; otherwise all lanes fill it.
 *           gemv_ring.c chooses.
 * NUMERICS  x rounded to 8 bits; then exact sums of 32 (16) products, scaled and added in fp32: by
 *           tiles of a warp's part, then parts in order. Bit-identical run to run; a row's bits
 *           depend on SPLIT alone. */
#define THREADS (32 * WARPS)
#ifndef FILL
#define FILL 0
#endif
#define SENT         (FILL == 2 ? 1 : STAGES)   /* All of the ring. */
#define ROW_ITEMS(a) ((WIDTH + 127) / 128 * 16) /* Items of a row, counted in whole tiles. */
#define IN_REGISTERS (NORM && (M * ROW_ITEMS(0) + THREADS - 1) / THREADS <= 4)
/* Rows of x in their storage type, waiting for the norm. */
#define HELD (NORM && !IN_REGISTERS)
#include "gemm/beside.cuh"
#include "gemm/eight_q.cuh"

#define GROUPS     (WARPS / SPLIT)
#define SLABS      (TAIL ? 2 : 1)
#define RING_BYTES (STAGES * TILE_BYTES) /* of a warp */
#define COLUMNS    (SLABS * TILE_ROWS)
#define PARTS      (SPLIT > 1 ? WARPS : 1)
#define AHEAD      (ITEMS < 8 ? ITEMS : 8) /* Pieces of x that a thread loads at a time. */
static_assert(WARPS % SPLIT == 0 && STAGES >= 1, "warps in groups");

/* First columns of the slabs of a unit. */
INLINE int column_of(const lt_gemv_ring_args *a, int unit, int slab) {
    if (TAIL != 2) {
        return unit * TILE_ROWS + slab * (a->n / 2);
    }
    const int half = a->dim / 2, each = half / TILE_ROWS;
    return unit / each * (2 * half) + unit % each * TILE_ROWS + slab * half;
}

/* ---- Weights on their way */

/* This warp's part of the tiles of a unit. */
#define MOST_TILES ((TILES + SPLIT - 1) / SPLIT)
INLINE int first_tile(void) {
    return (int)(threadIdx.x / 32 % SPLIT) * MOST_TILES;
}
INLINE int tiles_here(void) {
    /* May be zero or negative. */
    return TILES % SPLIT == 0 ? MOST_TILES : min_i(TILES - first_tile(), MOST_TILES);
}

typedef struct {
    /* Address of this lane's first 16 bytes (FILL 2: of all bytes) of the next tile of the first
     * slab. */
    const u8 *at;
    u64 once;
    u32 second; /* Bytes from there to the second slab's. */
    int unit, left;
    u32 ring, bars; /* FILL 2: the warp's ring, with one mbarrier per stage. */
} source;
INLINE void aim(source *s, const lt_gemv_ring_args *a) {
    s->left = tiles_here();
    s->at = (const u8 *)a->w +
            (u32)(column_of(a, s->unit, 0) / TILE_ROWS * TILES + first_tile()) * TILE_BYTES +
            (FILL == 2 ? 0 : threadIdx.x % 32 * 16);
}
/* slot: this lane's first bytes of it; the slabs of a unit alternate. */
INLINE void send(source *s, const lt_gemv_ring_args *a, u32 slot, int slab, int units) {
    if (s->unit < units && s->left > 0) {
        const u8 *const from = s->at + (slab > 0 ? s->second : 0);
#if FILL == 2
        if (threadIdx.x % 32 == 0) {
            const u32 bar = s->bars + (slot - s->ring) / TILE_BYTES * 8;
            mbarrier_expect(bar, TILE_BYTES);
            bulk_load_hint(slot, from, TILE_BYTES, bar, s->once);
        }
#else
#pragma unroll
        for (int at = 0; at < TILE_BYTES; at += 512) {
            if (at + 512 <= TILE_BYTES || at + (int)(threadIdx.x % 32 * 16) < TILE_BYTES) {
                cp_async_16_hint(slot + (u32)at, from + at, s->once);
            }
        }
#endif
        if (slab == SLABS - 1) {
            s->at += TILE_BYTES;
            if (--s->left == 0) {
                s->unit += (int)gridDim.x * GROUPS;
                aim(s, a);
            }
        }
    }
#if FILL != 2
    cp_async_commit();
#endif
}
/* ---- x */

typedef struct {
    u8 *numbers, *factors; /* The numbers and factors of row 0: eight_q.cuh. */
} held;
/* Convert rows of x, normalised if there is a norm, to 8 bits, with zeros after the last column. */
INLINE void keep_rows(const lt_gemv_ring_args *a, const places *s, const held *to) {
#if NORM
    own_pieces own;
    norm_rows(a, s, &own);
#endif
    const int pieces = WIDTH / 8;
#pragma unroll
    for (int turn = 0; turn < ITEMS; turn += AHEAD) {
        uint4 v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int m = row_of(a, turn + i), c = piece_of(a, turn + i);
#if NORM
            const uint4 *const from = piece_at(a, s, &own, IN_REGISTERS ? (turn + i) % ITEMS : 0, m,
                                               c);
#else
            const uint4 *const from = (const uint4 *)(a->x + m * a->ldx + 8 * c);
#endif
            v[i] = is_item(a, turn + i) && c < pieces ? *from : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int m = row_of(a, turn + i), c = piece_of(a, turn + i);
            if (item_of(turn + i) / 32 * 32 < (u32)(M * ROW_ITEMS(a))) { /* Whole warps. */
                keep_piece(to->numbers + m * NUMBER_PITCH,
                           (float *)(to->factors + m * FACTOR_PITCH), (u32)c, v[i],
                           is_item(a, turn + i));
            }
        }
    }
}

/* ---- Sums */

INLINE void store(const lt_gemv_ring_args *a, const places *s, int unit, int at, int row,
                  float first, float second) {
    if (TAIL == 0) {
        store_column(a, row, column_of(a, unit, 0) + at, first);
    } else {
        store_pair(a, s, row, unit * TILE_ROWS + at, first, second);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemm_q_ring(const __grid_constant__ lt_gemv_ring_args a) {
    extern __shared__ __align__(128) u8 smem[];
    __shared__ float part[PARTS][COLUMNS * M];
    const int warp = (int)(threadIdx.x / 32), lane = (int)(threadIdx.x % 32),
              group = (int)(threadIdx.x / (32 * SPLIT)),
              of_group = (int)(threadIdx.x % (32 * SPLIT));
    const int units = div_up(div_up(a.n, TILE_ROWS), SLABS);
    const held x = {smem + WARPS * RING_BYTES, smem + WARPS * RING_BYTES + M * NUMBER_PITCH};
    const places s = places_of(&a, smem + WARPS * RING_BYTES + EIGHT_BYTES);
    const u32 ring = smem_addr(smem) + (u32)(warp * RING_BYTES);
    source from = {(const u8 *)a.w, evict_first(), 0, group * (int)gridDim.x + (int)blockIdx.x, 0};
    const u32 to = FILL == 2 ? 0 : 16 * lane; /* Where this lane's copies begin in a stage. */
    u32 slot = 0;
#if FILL == 2
    __shared__ __align__(8) u64 barriers[WARPS][STAGES];
    u32 phase = 0, bar = smem_addr(barriers[warp]);
    from.ring = ring, from.bars = bar;
    if (lane < STAGES) {
        mbarrier_init(bar + lane * 8, 1);
    }
    mbarrier_init_fence();
    __syncwarp();
#endif

    send_early(&a, &s);
    if (FILL == 2) {
        cp_async_commit(); /* Gains. */
    }
    from.second = TAIL ? (u32)((column_of(&a, 0, 1) / TILE_ROWS * TILES) * TILE_BYTES) : 0;
    aim(&from, &a);
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) { /* 1. On their way before x is there. */
        send(&from, &a, ring + i * TILE_BYTES + to, i % SLABS, units);
    }
    wait_for_others();
    keep_rows(&a, &s, &x); /* 2. */
    __syncthreads();
    const u32 numbers = smem_addr(x.numbers) + (u32)(min_i(lane / 4, M - 1) * NUMBER_PITCH +
                                                     first_tile() * TILE_K + lane % 4 * 16);
    u32 factors[SUMS / 2];
#pragma unroll
    for (int i = 0; i < SUMS / 2; i++) {
        factors[i] = smem_addr(x.factors) + (u32)(min_i(lane % 4 * 2 + i, M - 1) * FACTOR_PITCH +
                                                  first_tile() * FACTOR_BYTES);
    }
#pragma unroll 1
    for (int unit = group * (int)gridDim.x + (int)blockIdx.x; unit < units;
         unit += (int)gridDim.x * GROUPS) {
        float sum[SLABS][SUMS] = {{0.0f}};
#pragma unroll 1
        for (int tile = 0; tile < tiles_here(); tile++) { /* 3. */
            eight row;
            take_eight(&row, numbers, factors, tile);
#pragma unroll
            for (int i = 0; i < SLABS; i++) {
                share w;
#if FILL == 2
                mbarrier_wait(bar, phase);
#else
                cp_async_wait(STAGES - 1);
                __syncwarp(); /* All lanes' copies have arrived. */
#endif
                take_share(&w, ring + slot);
                multiply_eight(sum[i], &w, &row);
                __syncwarp(); /* All lanes have read theirs. */
                send(&from, &a, ring + slot + to, (i + STAGES) % SLABS, units);
#if FILL == 2
                bar = slot == RING_BYTES - TILE_BYTES ? from.bars : bar + 8;
                phase ^= slot == RING_BYTES - TILE_BYTES;
#endif
                slot = slot == RING_BYTES - TILE_BYTES ? 0 : slot + TILE_BYTES;
            }
        }
#pragma unroll
        for (int i = 0; i < SUMS; i++) { /* 4. */
            const int n_rows = SUMS / 2, at = lane / 4 + i / n_rows * 8,
                      row = lane % 4 * 2 + i % n_rows;
            if (row < M && SPLIT == 1) {
                store(&a, &s, unit, at, row, sum[0][i], sum[SLABS - 1][i]);
            } else if (row < M) {
#pragma unroll
                for (int j = 0; j < SLABS; j++) {
                    part[SPLIT > 1 ? warp : 0][(j * TILE_ROWS + at) * M + row] = sum[j][i];
                }
            }
        }
        if (SPLIT == 1) {
            continue;
        }
        named_barrier_sync(1 + group, 32 * SPLIT);
#pragma unroll 1
        for (int i = of_group; i < TILE_ROWS * M; i += 32 * SPLIT) {
            const float *const of = &part[SPLIT > 1 ? group * SPLIT : 0][i];
            float first = 0.0f, second = 0.0f;
#pragma unroll
            for (int p = 0; p < SPLIT; p++) {
                first += of[p * (COLUMNS * M)];
                second += of[p * (COLUMNS * M) + (SLABS - 1) * TILE_ROWS * M];
            }
            store(&a, &s, unit, i / M, i % M, first, second);
        }
        if (unit + (int)gridDim.x * GROUPS < units) {
            named_barrier_sync(1 + group, 32 * SPLIT); /* Before the next sums. */
        }
    }
}

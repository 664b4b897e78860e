/* gemv_ring.cu: few rows times a weight matrix, with the small ops before and after it in a layer
 * that decodes: y (M, N) = x (M, K) W^T, W stored (N, K), M = 1 .. 8.
 *
 * SHAPES    K a multiple of 8; rows of x and W 16-byte aligned; any N (TAIL 0).
 *           NORM 1: x is what RMSNorm makes of x [+ add], which is stored, too (normed, sum, rstd).
 *           TAIL 1: N = 2 F, act = f(first F columns) * others. TAIL 2: N = (q_heads + 2 kv_heads)
 *           dim: heads of q and k are rotated in place, those of k and v are also written to their
 *           pages.
 * MAP       one block an SM, each group of SPLIT warps walks over units of ROWS columns, PAIRS
 *           pairs: neighbours, a gate and its factor, or the two numbers that rotate with each
 *           other. The SPLIT warps of a group and their lanes share K, 8 elements each in turn.
 * MOVEMENT
 *     W ──cp.async, 16 bytes a lane──▶ ring of STAGES x UNROLL x ROWS pieces of this lane ─┐
 *     x [+ add] ─ norm, every block by itself ─▶ smem (HELD 0: the L1) ────────────────────┴─▶
 *         M x ROWS sums a lane ──shuffles──▶ smem ──▶ y, act, pages
 *     A lane reads the pieces that it copied itself, so only the SPLIT warps of a unit wait for
 *     each other, at its end. The ring continues across the ends of units, and is filled before the
 *     kernel before this one is done (common/early.cuh): as deep as the SM allows, 16 to 23 MB of
 *     weights are in flight while the rows are normalised.
 * FILL      how the ring is filled. 0: the stage used last is refilled before the next one is
 *           multiplied, so one stage is always empty. 1: all stages are requested before x is
 *           there, and each is refilled after its own products. 2: as 1, by the copy engine
 *           (sm_90), 512 bytes a column for a lane and an mbarrier a stage, so that the loads of x
 *           do not wait; BEYOND stages after the ring are prefetched to the L2 meanwhile. BLOCKS 2:
 *           at most 64 registers a thread, so that the next kernel's block fits beside. gemv_ring.c
 *           chooses.
 * BOUND     bytes of W: each is used once.
 * MEASURED  docs/speed/decoding.md, with what was slower: shallow rings that leave room
 *           for the next kernel's blocks, other prefetches to the L2. Weights leave the L2 first
 *           (evict_first): 1 % faster, 2 % with blocks.
 * NUMERICS  as the ops one by one: f32 multiply-adds, a lane's sum in order of k, a fixed tree over
 *           lanes, warps in order: the bits of gemv.cu for equal SPLIT; the norm's sums in
 *           norm.cu's order; values that an op would have read back from y are rounded as in y. */
#define PAIRS   (ROWS / 2)
#define GROUPS  (WARPS / SPLIT)
#define THREADS (32 * WARPS)
#ifndef FILL
#define FILL 0
#endif
#ifndef BEYOND
#define BEYOND 0
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#define AHEAD       (FILL ? STAGES : STAGES - 1) /* Stages in flight when x arrives. */
#define SENT        (FILL == 2 ? 1 : AHEAD)
#define STAGE_BYTES (UNROLL * ROWS * 512) /* of a warp */
#define RING_BYTES  (STAGES * STAGE_BYTES)
#define STEP        (UNROLL * SPLIT * 256) /* Columns of W by which a stage of a group advances. */
static_assert(ROWS % 2 == 0 && WARPS % SPLIT == 0 && STAGES >= 2 - (FILL > 0),
              "columns in pairs, warps in groups");
static_assert(FILL != 2 || (WHOLE && UNROLL == 1),
              "the copy engine takes whole pieces of 512 bytes");
#if BEYOND
static_assert(FILL == 2 && (STAGES + BEYOND) * STEP <= WIDTH, "stages of the first unit");
#endif
#include "gemm/beside.cuh"

/* ---- Columns in pairs */

INLINE int pairs_of(const lt_gemv_ring_args *a) {
    return (a->n + 1) / 2;
}
INLINE int distance_of(const lt_gemv_ring_args *a) {
    return TAIL == 0 ? 1 : TAIL == 1 ? a->n / 2 : a->dim / 2;
}
INLINE int column_of(const lt_gemv_ring_args *a, int pair) {
    const int half = a->dim / 2;
    return TAIL == 0 ? 2 * pair : TAIL == 1 ? pair : pair / half * a->dim + pair % half;
}

/* ---- Weights on their way */

typedef struct {
    u64 once;
    int unit, step;
    u32 ring, bars; /* FILL 2: the warp's ring, with one mbarrier per stage. */
    const elem *w[ROWS];
} source;
INLINE void aim(source *s, const lt_gemv_ring_args *a) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) { /* Past the end: the last column again, which is not stored. */
        const int pair = min_i(s->unit * PAIRS + r / 2, pairs_of(a) - 1);
        s->w[r] = (const elem *)a->w +
                  (i64)min_i(column_of(a, pair) + r % 2 * distance_of(a), a->n - 1) * a->ldw;
    }
}
/* The first unit of a group; the next is gridDim.x * GROUPS further. FILL: a block's units of one
 * turn are adjacent. */
INLINE int first_unit(int group) {
    return FILL ? (int)blockIdx.x * GROUPS + group : group * (int)gridDim.x + (int)blockIdx.x;
}
INLINE void send(source *s, const lt_gemv_ring_args *a, u32 slot, int first, int steps, int units) {
    if (s->unit < units) {
#if FILL == 2
        if (threadIdx.x % 32 == 0) {
            const u32 bar = s->bars + (slot - s->ring) / STAGE_BYTES * 8;
            const int k = first + s->step * STEP;
            mbarrier_expect(bar, STAGE_BYTES);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                bulk_load_hint(slot + r * 512, s->w[r] + k, 512, bar, s->once);
            }
        }
#else
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int k = first + s->step * STEP + u * SPLIT * 256;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const u32 to = slot + (u * ROWS + r) * 512;
                if (WHOLE) {
                    cp_async_16_hint(to, s->w[r] + k, s->once);
                } else {
                    cp_async_16_or_zero(to, s->w[r] + (k < a->k ? k : 0), k < a->k ? 4 : 0);
                }
            }
        }
#endif
        if (++s->step == steps) {
            s->step = 0;
            s->unit += (int)gridDim.x * GROUPS;
            aim(s, a);
        }
    }
#if FILL != 2
    cp_async_commit();
#endif
}
#if BEYOND
/* Prefetch the stages of the first unit beyond the ring, one column per lane of the group. */
INLINE void send_beyond(const source *s, int units) {
    const int lane = (int)threadIdx.x % (32 * SPLIT);
    const elem *from = s->w[0];
#pragma unroll
    for (int r = 1; r < ROWS; r++) {
        from = lane == r ? s->w[r] : from;
    }
    if (s->unit < units && lane < ROWS) {
        bulk_prefetch(from + STAGES * STEP, BEYOND * STEP * (u32)sizeof(elem));
    }
}
#endif

/* A stage's part of the sums: eight columns of W starting at k0, UNROLL times. */
INLINE void multiply(const lt_gemv_ring_args *a, const places *s, float sum[ROWS][M], u32 slot,
                     int k0) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const int k = k0 + u * SPLIT * 256;
        float y[ROWS][8];
        if (!WHOLE && k >= a->k) {
            break;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            UNPACK(DTYPE, y[r], ld_shared_v4(slot + (u * ROWS + r) * 512));
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            float x[8];
            UNPACK(DTYPE, x, *x_at(a, s, m, k));
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    sum[r][m] += x[i] * y[r][i];
                }
            }
        }
    }
}

static_assert(STAGE_BYTES == LT_RING_STAGE_BYTES(UNROLL, ROWS), "a stage");

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    gemv_ring(const __grid_constant__ lt_gemv_ring_args a) {
    extern __shared__ __align__(128) u8 smem[];
    __shared__ float part[2][WARPS][ROWS * M];
#if FILL == 2
    __shared__ __align__(8) u64 barriers[WARPS][STAGES];
    u32 phase = 0;
#endif
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = warp / SPLIT,
              share = warp % SPLIT;
    const int units = div_up(pairs_of(&a), PAIRS), steps = div_up(a.k, STEP),
              first = (share * 32 + lane) * 8;
    const places s = places_of(&a, smem + WARPS * RING_BYTES);
    const u32 ring = smem_addr(smem) + (u32)(warp * RING_BYTES + lane * 16);
    source from = {evict_first(), first_unit(group), 0};
    int slot = 0, turn = 0;
#if FILL == 2
    from.ring = ring, from.bars = smem_addr(barriers[warp]);
    if (lane < STAGES) {
        mbarrier_init(from.bars + lane * 8, 1);
    }
    mbarrier_init_fence();
    __syncwarp();
#endif

    send_early(&a, &s);
    if (FILL == 2) {
        cp_async_commit(); /* Gains. */
    }
    aim(&from, &a);
    /* The first column that is copied; one lane issues the copies of all lanes. */
    const int from_column = FILL == 2 ? share * 256 : first;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) { /* 1. On their way before x is there. */
        send(&from, &a, ring + i * STAGE_BYTES, from_column, steps, units);
    }
#if BEYOND
    send_beyond(&from, units);
#endif
    wait_for_others();
    bring_x(&a, &s); /* 2. */
    for (int unit = first_unit(group); unit < units; unit += (int)gridDim.x * GROUPS) {
        float sum[ROWS][M] = {{0.0f}};
        for (int step = 0; step < steps; step++) { /* 3. */
#if FILL == 0 /* Refill the stage of the step before while this one is multiplied. */
            cp_async_wait(STAGES - 2);
            const u32 old = ring + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE_BYTES;
            send(&from, &a, old, first, steps, units);
            multiply(&a, &s, sum, ring + slot * STAGE_BYTES, first + step * STEP);
#else
#if FILL == 2
            mbarrier_wait(from.bars + slot * 8, phase);
#else
            cp_async_wait(STAGES - 1);
#endif
            multiply(&a, &s, sum, ring + slot * STAGE_BYTES, first + step * STEP);
            if (FILL == 2) {
                __syncwarp(); /* All lanes have read it. */
            }
            send(&from, &a, ring + slot * STAGE_BYTES, from_column, steps, units);
#endif
#if FILL == 2
            phase ^= slot == STAGES - 1;
#endif
            slot = slot == STAGES - 1 ? 0 : slot + 1;
        }
#pragma unroll
        for (int i = 0; i < ROWS * M; i++) { /* 4. */
            const float x = warp_sum(sum[i / M][i % M]);
            if (lane == 0) {
                part[turn][warp][i] = x;
            }
        }
        if (SPLIT > 1) {
            named_barrier_sync(1 + group, 32 * SPLIT);
        } else {
            __syncwarp();
        }
        for (int i = lane; share == 0 && i < PAIRS * M; i += 32) {
            const int p = i / M, m = i % M;
            float x = 0.0f, y = 0.0f;
            for (int w = 0; w < SPLIT; w++) {
                x += part[turn][warp + w][2 * p * M + m];
                y += part[turn][warp + w][(2 * p + 1) * M + m];
            }
            const int pair = unit * PAIRS + p, col = column_of(&a, pair);
            if (TAIL == 0) {
                store_column(&a, m, col, x);
                store_column(&a, m, col + 1, y);
            } else if (pair < pairs_of(&a)) {
                store_pair(&a, &s, m, pair, x, y);
            }
        }
        turn ^= 1;
    }
}

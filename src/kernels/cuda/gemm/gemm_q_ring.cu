/* gemm_q_ring.cu: gemv_ring.cu for quantised weights: up to 8 rows times a matrix packed as tile_q.cuh says, with the small ops beside it (beside.cuh).
 *
 * SHAPES    M = 1 .. 8; K a multiple of 32, WHOLE: of 128; rows of x 16-byte aligned; any N (TAIL 0), else N / 2 a multiple of 16 (TAIL 1), or dim / 2 (TAIL 2).
 * MAP       one block an SM; each group of SPLIT warps walks over units of SLABS slabs of 16 columns: one, or two whose columns are pairs: gates and factors, or the numbers that rotate with
 *           each other. A warp of a group has the tiles of its part of K.
 * MOVEMENT
 *     W ──cp.async, tiles as they lie──▶ ring of STAGES x SLABS tiles of this warp ──▶ operands of mma.sync (operand_q.cuh) ─┐
 *     x [+ add] ─ norm, every block by itself ─▶ smem ───────────────────────────────────────────────────────────────────────┴─▶ sums ──smem──▶ y, act, pages
 * BOUND, NUMERICS   as gemm_q.cu: its bits for equal SPLIT.
 *@spec sm_80 sm_90a: M=1 SPLIT=4 WARPS=16 STAGES=3 WHOLE=1 HELD=1 NORM=1 ADD=1 PARAM=fp32 LANES=32 TAIL=1 KIND=2 BITS=4 GROUP=32 MINS=0 OFFSET=8 OUT=bf16
 *@spec sm_80 sm_90a: M=1 SPLIT=16 WARPS=16 STAGES=2 WHOLE=1 HELD=1 NORM=1 ADD=1 PARAM=bf16 LANES=32 TAIL=2 KIND=0 BITS=8 GROUP=32 MINS=0 OFFSET=128 OUT=bf16
 *@spec sm_80 sm_90a: M=1 SPLIT=1 WARPS=16 STAGES=4 WHOLE=1 HELD=1 NORM=0 ADD=0 PARAM=fp32 LANES=32 TAIL=0 KIND=0 BITS=6 GROUP=16 MINS=0 OFFSET=32 OUT=fp32
 *@spec sm_80 sm_90a: M=8 SPLIT=8 WARPS=16 STAGES=2 WHOLE=0 HELD=0 NORM=0 ADD=0 PARAM=fp32 LANES=32 TAIL=0 KIND=0 BITS=5 GROUP=32 MINS=1 OFFSET=0 OUT=bf16
 *@spec sm_80 sm_90a: M=8 SPLIT=4 WARPS=16 STAGES=2 WHOLE=1 HELD=1 NORM=1 ADD=1 PARAM=fp32 LANES=256 TAIL=1 KIND=0 BITS=4 GROUP=32 MINS=1 OFFSET=0 OUT=bf16 */
#define TILES   1
#define THREADS (32 * WARPS)
#include "gemm/beside.cuh"
#include "gemm/operand_q.cuh"

#define GROUPS      (WARPS / SPLIT)
#define SLABS       (TAIL ? 2 : 1)
#define STAGE_BYTES (SLABS * TILE_BYTES) /* of a warp */
#define RING_BYTES  (STAGES * STAGE_BYTES)
#define SUMS        (SLABS * 4)
#define PARTS       (SPLIT > 1 ? WARPS : 1)
static_assert(WARPS % SPLIT == 0 && STAGES >= 2, "warps in groups");

/* First columns of the slabs of a unit. */
INLINE int column_of(const ring_args *a, int unit, int slab) {
    const int half = TAIL == 2 ? a->dim / 2 : a->n / 2, each = half / TILE_ROWS;
    return TAIL == 0 ? unit * TILE_ROWS : unit / each * (2 * half) + unit % each * TILE_ROWS + slab * half;
}

/* ---- Weights on their way */

typedef struct {
    u64 once;
    int unit, tile;
    u32 at, second; /* Bytes from the first weight to the unit's first slab, from there to its second. */
} source;
INLINE void aim(source *s, const ring_args *a, int tiles) {
    s->at = (u32)(column_of(a, s->unit, 0) / TILE_ROWS * tiles) * TILE_BYTES;
}
INLINE void send(source *s, const ring_args *a, u32 slot, int begin, int end, int units, int tiles) {
    const int lane = (int)threadIdx.x % 32;
    if (s->unit < units && begin < end) {
#pragma unroll
        for (int i = 0; i < SLABS; i++) {
#pragma unroll
            for (int at = 0; at < TILE_BYTES; at += 512) {
                if (at + 512 <= TILE_BYTES || at + lane * 16 < TILE_BYTES) {
                    const u32 from = s->at + i * s->second + (u32)s->tile * TILE_BYTES + (u32)(at + lane * 16);
                    cp_async_16_hint(slot + (u32)(i * TILE_BYTES + at + lane * 16), (const u8 *)a->w + from, s->once);
                }
            }
        }
        if (++s->tile == end) {
            s->tile = begin;
            s->unit += (int)gridDim.x * GROUPS;
            aim(s, a, tiles);
        }
    }
    cp_async_commit();
}
/* This lane's share of a tile in shared memory. */
INLINE void take_share(share *s, u32 tile) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        s->v[p] = ld_shared_v4(tile + 512 * p + 16 * lane);
    }
    if (HIGH == 2) {
        s->high = ld_shared_v4(tile + HIGH_AT + 16 * lane);
    } else if (HIGH == 1) {
        s->high = make_uint4((u32)ld_shared_s32(tile + HIGH_AT + 8 * lane), (u32)ld_shared_s32(tile + HIGH_AT + 8 * lane + 4), 0, 0);
    }
#pragma unroll
    for (int i = 0; i < SCALES; i++) {
        s->scale[i] = ld_shared_v4(tile + SCALES_AT + 128 * i + lane / 4 * 16);
    }
    if (MINS) {
        s->least = ld_shared_v4(tile + MINS_AT + lane / 4 * 16);
    }
}

/* Sum i (0 .. 3) of lane `lane`: row and column of a slab. */
INLINE int row_of(int i, int lane) {
    return lane % 4 * 2 + i % 2;
}
INLINE void store(const ring_args *a, const places *s, int unit, int i, int lane, float first, float second) {
    const int row = row_of(i, lane), at = lane / 4 + i / 2 * 8;
    if (row >= M) {
        return;
    }
    if (TAIL == 0) {
        store_column(a, row, column_of(a, unit, 0) + at, first);
    } else {
        store_pair(a, s, row, unit * TILE_ROWS + at, first, second);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) /* The block has the SM for itself: ptxas need not save registers. */
gemm_q_ring(const __grid_constant__ ring_args a) {
    extern __shared__ __align__(128) u8 smem[];
    __shared__ float part[PARTS][SUMS][32];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = warp / SPLIT, share_of_k = warp % SPLIT;
    const int tiles = div_up(a.k, TILE_K), each = div_up(tiles, SPLIT), begin = share_of_k * each, end = min_i(tiles, begin + each);
    const int units = div_up(div_up(a.n, TILE_ROWS), SLABS);
    const places s = places_of(&a, smem + WARPS * RING_BYTES);
    const u32 ring = smem_addr(smem) + (u32)(warp * RING_BYTES);
    source from = {evict_first(), group * (int)gridDim.x + (int)blockIdx.x, begin};
    int slot = 0;

    send_early(&a, &s);
    from.second = TAIL ? (u32)((column_of(&a, 0, 1) / TILE_ROWS * tiles) * TILE_BYTES) : 0;
    aim(&from, &a, tiles);
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) { /* 1. On their way before x is there. */
        send(&from, &a, ring + i * STAGE_BYTES, begin, end, units, tiles);
    }
    wait_for_others();
    bring_x(&a, &s); /* 2. */
    const elem *const x = (const elem *)x_at(&a, &s, min_i(lane / 4, M - 1), 0) + element_at(lane % 4, 0);
    for (int unit = group * (int)gridDim.x + (int)blockIdx.x; unit < units; unit += (int)gridDim.x * GROUPS) {
        float sum[SLABS][1][4] = {{{0.0f}}};
        for (int tile = begin; tile < end; tile++) { /* 3. */
            cp_async_wait(STAGES - 2);
            __syncwarp(); /* All lanes' copies are there, and the slot of before has been read by all. */
            send(&from, &a, ring + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE_BYTES, begin, end, units, tiles);
            const elem *const row[1] = {x};
#pragma unroll
            for (int i = 0; i < SLABS; i++) {
                share w;
                take_share(&w, ring + slot * STAGE_BYTES + i * TILE_BYTES);
                multiply(sum[i], &w, row, tile * TILE_K, a.k - tile * TILE_K);
            }
            slot = slot == STAGES - 1 ? 0 : slot + 1;
        }
        if (SPLIT == 1) { /* 4. */
#pragma unroll
            for (int i = 0; i < 4; i++) {
                store(&a, &s, unit, i, lane, sum[0][0][i], sum[SLABS - 1][0][i]);
            }
            continue;
        }
#pragma unroll
        for (int i = 0; i < SUMS; i++) {
            part[warp % PARTS][i][lane] = sum[i / 4][0][i % 4];
        }
        named_barrier_sync(1 + group, 32 * SPLIT);
        for (int i = share_of_k; i < 4; i += SPLIT) {
            float first = 0.0f, second = 0.0f;
            for (int p = 0; p < SPLIT && row_of(i, lane) < M; p++) {
                first += part[(group * SPLIT + p) % PARTS][i][lane];
                second += part[(group * SPLIT + p) % PARTS][(SLABS - 1) * 4 + i][lane];
            }
            store(&a, &s, unit, i, lane, first, second);
        }
        named_barrier_sync(1 + group, 32 * SPLIT); /* Before the next sums. */
    }
}

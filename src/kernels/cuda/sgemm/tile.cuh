/* tile.cuh: the parts of sgemm.cu: the constants of a tile, how a stage is fetched, how fragments
 * are read and multiplied. sgemm.cu explains them. */
#ifndef LT_SGEMM_TILE_CUH
#define LT_SGEMM_TILE_CUH

#include "common/ptx.cuh"
#include "sgemm/edge.cuh"
#include "kernels/cuda/sgemm/sgemm_args.h"

#define WARP        32
#define LANES_N     (WARP / LANES_M)
#define WARPS       (WARPS_M * WARPS_N)
#define THREADS     (WARPS * WARP)
#define BM          (WARPS_M * LANES_M * TM)
#define BN          (WARPS_N * LANES_N * TN)
#define BK          LT_SGEMM_K
#define QUADS       (BK / 4)
#define ROW_BYTES   (BK * 4) /* Bytes of a row of A's tile: the span of the 128-byte swizzle. */
#define A_BYTES     (BM * ROW_BYTES)
#define STAGE_BYTES (A_BYTES + BK * BN * 4)
#define COPY_TMA    0
#define COPY_16     1
#define COPY_4      2
static_assert(STAGES * STAGE_BYTES == LT_SGEMM_BYTES(BM, BN, STAGES), "the ring");
static_assert(LANES_M == 4 || LANES_M == 8, "the zigzag of lanes needs pairs both ways");
static_assert(STAGES >= (COPY == COPY_TMA ? 2 : 3), "a stage to read, one to come, one to refill");
static_assert(TN % 4 == 0 && LANES_M * TM % 8 == 0,
              "quads of columns; a warp's rows start at a swizzle atom");

INLINE float4 lds128(u32 addr) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(addr));
    return v;
}
INLINE float part(float4 v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}
/* Row i of this lane's A: four values of k. With 4 rows of lanes, rows with odd i are in the
 * other half of the swizzle atom. */
INLINE float4 a_read(u32 addr, int i) {
    return lds128((LANES_M == 4 && (i & 1) ? addr ^ 64 : addr) + i * LANES_M * ROW_BYTES);
}

#if COPY == COPY_TMA
#define MAPS const __grid_constant__ tensor_map map_a, const __grid_constant__ tensor_map map_b,
/* Thread 0 requests stage t of the tile's A and B. */
INLINE void stage_fetch(u32 dst, u32 bar, const tensor_map *map_a, const tensor_map *map_b, int row,
                        int col, int t) {
    mbarrier_expect(bar, STAGE_BYTES);
    tma_load_2d(dst, map_a, bar, t * BK, row);
    tma_load_2d(dst + A_BYTES, map_b, bar, col, t * BK);
}
#else
#define MAPS
#define SPAN              (COPY == COPY_16 ? 4 : 1) /* Floats per copy. */
/* All threads request the same by cp.async, with zeros beyond the edges. A loop with a fixed
 * number of turns needs no further registers: a loop that ended at the last piece had a remainder
 * of unknown length, whose addresses were kept, and spilled, through the loop over K. */
#define TURNS(pieces)     (((pieces) + THREADS - 1) / THREADS)
#define INSIDE(v, pieces) ((pieces) % THREADS == 0 || (v) < (pieces))
INLINE void stage_fetch(u32 dst, const float *a, const float *b, int lda, int ldb, int row, int col,
                        int t, int m, int n, int k) {
#pragma unroll 2
    for (int turn = 0; turn < TURNS(BM * BK / SPAN); turn++) {
        const int v = turn * THREADS + threadIdx.x;
        const int r = v / (BK / SPAN), x = v % (BK / SPAN) * SPAN;
        if (!INSIDE(v, BM * BK / SPAN)) {
            break;
        }
        const u32 to = dst + r * ROW_BYTES + ((x / 4 ^ (r & 7)) * 16 + x % 4 * 4);
        const bool in = row + r < m && t * BK + x < k;
        const float *from = a + (in ? (i64)(row + r) * lda + t * BK + x : 0);
        if (SPAN == 4) {
            cp_async_16_or_zero(to, from, in ? min(4, k - t * BK - x) : 0);
        } else {
            cp_async_4_or_zero(to, from, in);
        }
    }
#pragma unroll 2
    for (int turn = 0; turn < TURNS(BK * BN / SPAN); turn++) {
        const int v = turn * THREADS + threadIdx.x;
        const int r = v / (BN / SPAN), x = v % (BN / SPAN) * SPAN;
        if (!INSIDE(v, BK * BN / SPAN)) {
            break;
        }
        const bool in = t * BK + r < k && col + x < n;
        const float *from = b + (in ? (i64)(t * BK + r) * ldb + col + x : 0);
        if (SPAN == 4) {
            cp_async_16_or_zero(dst + A_BYTES + (r * BN + x) * 4, from,
                                in ? min(4, n - col - x) : 0);
        } else {
            cp_async_4_or_zero(dst + A_BYTES + (r * BN + x) * 4, from, in);
        }
    }
}
#endif

/* The place of a tile: tiles go down GROUP_M rows before the next column, so that the A and B
 * rows of a wave stay in L2. */
INLINE int2 tile_corner(int tile, int m, int n) {
    const int tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN, group = GROUP_M * tiles_n;
    const int first = tile / group * GROUP_M, height = min(tiles_m - first, GROUP_M);
    return make_int2((first + tile % group % height) * BM, tile % group / height * BN);
}

/* Four steps of k: sum += a b. The fragments of the next step are read on the way: b one step
 * ahead, a[i] when its row is done. */
INLINE void quad(float (*sum)[TN], float4 *a, float4 (*b)[TN / 4], u32 b_now, u32 b_next,
                 u32 a_next) {
#pragma unroll
    for (int kk = 0; kk < 4; kk++) {
        const float4 *held = b[kk & 1];
        const u32 from = kk < 3 ? b_now + (kk + 1) * BN * 4 : b_next;
#pragma unroll
        for (int j = 0; j < TN / 4; j++) {
            b[kk & 1 ^ 1][j] = lds128(from + j * LANES_N * 16);
        }
#pragma unroll
        for (int i = 0; i < TM; i++) {
            const float x = part(a[i], kk);
#pragma unroll
            for (int step = 0; step < TN; step++) {
                /* Back and forth: at the turn, b's operand stays. */
                const int j = i & 1 ? TN - 1 - step : step;
                sum[i][j] += x * part(held[j / 4], j % 4);
            }
            if (kk == 3) {
                a[i] = a_read(a_next, i);
            }
        }
    }
}

#endif

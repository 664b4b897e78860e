/* gemm_few.cu: up to 64 rows times a weight matrix: y (M, N) = x (M, K) W^T (+ bias) (+ y), W stored (N, K): a decoding step of many sequences.
 *
 * SHAPES    M at most 8 TILES (TILES 1 to 8); K a multiple of 8; rows of x and W 16-byte aligned; any N.
 * MAP       a block of 8 warps makes 128 columns of y, for all rows, over one of `splits` parts of K; a warp 16 columns. The weights are the left operand
 *           of mma.sync, whose 16 rows are columns of y, and x the right one, 8 rows of x an operand.
 * MOVEMENT
 *     W ──16 bytes a lane, past the L1, a step of 128 of K ahead──▶ registers ─────────────────────────────┐
 *     x ──cp.async, a step ahead──▶ two buffers of 8 TILES x 128 in smem ──16 bytes a lane──▶ registers ──┴─mma.sync──▶ sums ──▶ y
 *                                                                                                           splits > 1: ──▶ part (splits, M, N) f32
 *     The last block of a tile of columns to come (done[tile] counts them) adds the parts in order and leaves the count at zero.
 *     A product does not care in which order it meets K, so a lane's 16 bytes, 8 neighbours in K of one row, are its operands of two products as they
 *     are: what mma.sync calls k = 2q, 2q + 1, 2q + 8, 2q + 9 are elements 0..3, then 4..7, of lane quarter q's piece, in W and x alike.
 * BOUND     bytes of W, each used once: 32 KB under way a block. x comes from the L2: 8 TILES / 128 of W's bytes a block; parts 8 splits M N more.
 * NUMERICS  f32 sums in the tensor cores, which cut off, over 128 of K; those are added by rounding adds, then parts in order: bit-identical run to run, and a
 *           row's bits depend neither on the other rows nor on TILES.
 * REFS      PTX ISA 9.7.14 (mma.sync).
 *@spec sm_80 sm_90a: TILES=2 OUT=bf16
 *@spec sm_80 sm_90a: TILES=4 OUT=bf16
 *@spec sm_80 sm_90a: TILES=8 OUT=bf16
 *@spec sm_80 sm_90a: TILES=8 OUT=fp32 DTYPE=fp16 */
#include "common/early.cuh"
#include "common/mma.cuh"

#define WARPS   8
#define THREADS (32 * WARPS)
#define COLS    (16 * WARPS)
#define BK      128
#define PIECES  (BK / 32)
#define ROWS    (8 * TILES)
#define PITCH   (BK + 32) /* elements: 64 bytes past 256, so that neighbouring rows lie in the other half of the banks */
static_assert(TILES >= 1 && TILES <= 8, "sums must fit in registers");

typedef struct {
    const elem *x, *w;
    const void *bias;
    OUT *y;
    float *part;
    int *done;
    i64 ldx, ldw, ldy;
    int m, n, k, splits;
    int bias_type, accumulate; /* bias_type: 0 none, 1 f32, 2 bf16, 3 fp16 */
} few_args;

INLINE float bias_at(const few_args *a, int col) {
    return a->bias_type == 1   ? ((const float *)a->bias)[col]
           : a->bias_type == 2 ? bf16_to_f32(((const bf16 *)a->bias)[col])
           : a->bias_type == 3 ? fp16_to_f32(((const fp16 *)a->bias)[col])
                               : 0.0f;
}
INLINE void put(const few_args *a, int row, int col, float x) {
    OUT *y = a->y + row * a->ldy + col;
    x += bias_at(a, col);
    *y = FROM_F32(OUT, a->accumulate ? x + TO_F32(OUT, *y) : x);
}

/* Lane l's pieces of rows l / 4 and l / 4 + 8 of the warp's columns. */
INLINE void load_weights(uint4 v[PIECES][2], const elem *const w[2], int k0, int k_end) {
    const int q = (int)threadIdx.x % 4;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int k = k0 + 32 * p + 8 * q;
            v[p][h] = k < k_end ? load_once(w[h] + k) : make_uint4(0, 0, 0, 0);
        }
    }
}
INLINE void load_x(elem *buf, const few_args *a, int k0, int k_end) {
#pragma unroll
    for (int i = 0; i < (ROWS * BK / 8 + THREADS - 1) / THREADS; i++) {
        const int piece = i * THREADS + (int)threadIdx.x, row = piece / (BK / 8), k = k0 + piece % (BK / 8) * 8;
        if (ROWS * BK / 8 % THREADS == 0 || row < ROWS) {
            const bool valid = row < a->m && k < k_end;
            cp_async_16_or_zero(smem_addr(buf + row * PITCH + k - k0), valid ? a->x + row * a->ldx + k : a->x, valid ? 4 : 0);
        }
    }
    cp_async_commit();
}

INLINE void multiply(float acc[TILES][4], uint4 v[PIECES][2], const elem *buf) {
    const int lane = (int)threadIdx.x % 32;
    float step[TILES][4] = {{0.0f}};
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        const u32 first[4] = {v[p][0].x, v[p][1].x, v[p][0].y, v[p][1].y}, second[4] = {v[p][0].z, v[p][1].z, v[p][0].w, v[p][1].w};
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const uint4 x = *(const uint4 *)(buf + (8 * t + lane / 4) * PITCH + 32 * p + 8 * (lane % 4));
            mma_16x8x16(step[t], first, x.x, x.y);
            mma_16x8x16(step[t], second, x.z, x.w);
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            acc[t][i] += step[t][i];
        }
    }
}

/* This block's sums to y, or to its part. */
INLINE void store(const few_args *a, float acc[TILES][4], int col0, int split) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 8 * t + lane % 4 * 2 + i % 2, col = col0 + lane / 4 + i / 2 * 8;
            if (row < a->m && col < a->n) {
                if (a->splits == 1) {
                    put(a, row, col, acc[t][i]);
                } else {
                    a->part[((i64)split * a->m + row) * a->n + col] = acc[t][i];
                }
            }
        }
    }
}

/* The last block of a tile of columns adds up all parts. */
INLINE void finish(const few_args *a, int tile) {
    __shared__ int last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(a->done + tile, 1) == a->splits - 1;
    }
    __syncthreads();
    if (!last) {
        return;
    }
    __threadfence();
    for (int i = (int)threadIdx.x; i < COLS * a->m; i += THREADS) {
        const int row = i / COLS, col = tile * COLS + i % COLS;
        float x = 0.0f;
        for (int s = 0; s < a->splits && col < a->n; s++) {
            x += *(volatile const float *)(a->part + ((i64)s * a->m + row) * a->n + col);
        }
        if (col < a->n) {
            put(a, row, col, x);
        }
    }
    if (threadIdx.x == 0) {
        a->done[tile] = 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gemm_few(const __grid_constant__ few_args a) {
    __shared__ __align__(16) elem x[2][ROWS * PITCH];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int tile = (int)blockIdx.x / a.splits, split = (int)blockIdx.x % a.splits, col0 = tile * COLS + 16 * warp;
    const int steps = (a.k + BK - 1) / BK, share = (steps + a.splits - 1) / a.splits;
    const int begin = split * share * BK, end = min_i(a.k, begin + share * BK);
    const elem *const w[2] = {a.w + (i64)min_i(col0 + lane / 4, a.n - 1) * a.ldw, a.w + (i64)min_i(col0 + lane / 4 + 8, a.n - 1) * a.ldw};
    uint4 v[PIECES][2], next[PIECES][2];
    float acc[TILES][4] = {{0.0f}};
    int turn = 0;

    load_weights(v, w, begin, end); /* On their way before x is there. */
    wait_for_others();
    load_x(x[0], &a, begin, end);
    for (int k = begin; k < end; k += BK, turn ^= 1) {
        const bool more = k + BK < end;
        cp_async_wait(0);
        __syncthreads(); /* x of this step is there, and nobody reads the other buffer any more. */
        if (more) {
            load_x(x[turn ^ 1], &a, k + BK, end);
            load_weights(next, w, k + BK, end);
        }
        multiply(acc, v, x[turn]);
#pragma unroll
        for (int p = 0; p < PIECES && more; p++) {
            v[p][0] = next[p][0], v[p][1] = next[p][1];
        }
    }
    store(&a, acc, col0, split);
    if (a.splits > 1) {
        finish(&a, tile);
    }
}

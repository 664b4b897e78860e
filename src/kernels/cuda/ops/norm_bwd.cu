/* norm_bwd.cu — RMSNorm and LayerNorm over rows, backward.
 *
 * SHAPES    x, dy, dx (rows, C) of DTYPE, views; gain (C) of PARAM; mean, rstd (rows) fp32; parts
 *           (blocks, C) fp32 of dgain, then as many of dbias. KIND, LANES, VECS, W, ROWS, FULL as
 *           in norm.cu. ADD 1: dx is added to. dx may be dy's memory.
 * MAP       resident blocks: each visits turns blockIdx, blockIdx + grid, .. of THREADS / LANES *
 *           ROWS rows and keeps the columns' sums in registers; col_sum.cu adds the blocks' sums
 *           in order.
 * MOVEMENT  x, dy (and dx) ──cp.async, DEPTH turns ahead──▶ smem ─▶ two sums a row ─▶
 *               shuffle (▶ smem ▶ barrier) ─▶ x, dy again from smem ─▶ dx
 *           A thread reads the 16 bytes that it copied itself, so that the ring needs no barrier;
 *           what is in flight costs no registers. rstd and mean of the next turn are loaded a
 *           turn ahead, too. DEPTH 0 (W = 1): everything is read from memory when it is needed.
 * BOUND     bytes per element (bf16): 6; with ADD 8. 8192 x 4096: 67 us at 3.0 TB/s; the parts
 *           are 8 C bytes per block, twice.
 * NUMERICS  fp32 sums in a fixed order (the kind of GPU decides the number of blocks). Rows of up
 *           to 8 elements (LANES=8, W=1) are computed in double, because dx cancels there. */
#include "common/ptx.cuh"
#include "ops/norm.cuh"
#include "kernels/cuda/ops/norm_args.h"

#define STREAMS    (2 + ADD)               /* x, dy, and the dx that is added to. */
#define A_TURN     (GROUPS * ROWS)         /* Rows that a block computes in a turn. */
#define KEEP_GAIN  (VECS * W <= 16)        /* The gain stays in registers over all turns. */
#define MIN_BLOCKS (THREADS > 256 ? 1 : 2) /* Per SM: at most 128 registers per thread. */
#define WIDTH      (LANES * VECS * W)
#define N_SUMS     (KIND == 1 ? 2 * ROWS : ROWS) /* The rows' dot products, then their totals. */
#define RING_BYTES (DEPTH * STREAMS * ROWS * VECS * THREADS * (int)sizeof(uint4))
#define SUMS_BYTES ((1 + KIND) * WARPS * WIDTH * (int)sizeof(float))
static_assert(RING_BYTES == LT_NORM_RING_BYTES(DEPTH, STREAMS, ROWS, VECS, THREADS) &&
                  (DEPTH == 0 || LANES > WARP ||
                   SUMS_BYTES <= LT_NORM_BWD_BYTES(RING_BYTES,
                                                   LT_NORM_SUMS_BYTES(1 + KIND, THREADS, WIDTH),
                                                   DEPTH, LANES)),
              "the ring, then warps' sums of columns");
static_assert(W > 1 || DEPTH == 0, "pieces of 16 bytes are copied");
#if LANES == 8 && W == 1
typedef double wide;
#else
typedef float wide;
#endif

typedef struct {
    const DTYPE *stream[3]; /* x, dy, dx. */
    lt_cuda_view of[3];
    lt_cuda_row_shape n;
    int rows, cols;
    uint4 *ring; /* [DEPTH][STREAMS][ROWS][VECS][THREADS] */
} inputs;

INLINE uint4 *ring_at(const inputs *in, int slot, int stream, int r, int v) {
    return in->ring + (((slot * STREAMS + stream) * ROWS + r) * VECS + v) * THREADS + threadIdx.x;
}

/* Request the rows of a turn, from row `first` on; past an end the ring gets zeros. */
INLINE void turn_fetch(const inputs *in, int slot, int first, int lane) {
#if DEPTH > 0
#pragma unroll
    for (int s = 0; s < STREAMS; s++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const bool live = first + r < in->rows;
            const DTYPE *from = in->stream[s] + (live ? row_begin(in->of[s], first + r, in->n) : 0);
#pragma unroll
            for (int v = 0; v < VECS; v++) {
                const int col = (v * LANES + lane) * W,
                          there = live && (FULL || col < in->cols) ? 4 : 0;
                cp_async_16_or_zero(smem_addr(ring_at(in, slot, s, r, v)), from + (there ? col : 0),
                                    there);
            }
        }
    }
    cp_async_commit();
#endif
}
INLINE void take(float *f, const inputs *in, int s, int slot, int first, int r, int v, int lane) {
#if DEPTH > 0
    UNPACK(DTYPE, f, *ring_at(in, slot, s, r, v));
#else
    const int col = (v * LANES + lane) * W;
    f[0] = first + r < in->rows && col < in->cols
               ? TO_F32(DTYPE, in->stream[s][row_begin(in->of[s], first + r, in->n) + col])
               : 0.0f;
#endif
}

INLINE void gain_load(float *g, const PARAM *gain, int v, int lane, int cols, float offset) {
    const int col = (v * LANES + lane) * W;
#pragma unroll
    for (int i = 0; i < W; i++) {
        g[i] = 0.0f;
    }
    if (INSIDE(col)) {
        piece_load_param(g, gain + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            g[i] += KIND == 0 ? offset : 0.0f;
        }
    }
}

/* Store the block's sums of columns in its row of parts. If a row belongs to part of a warp, the
 * groups of a warp are added by shuffles, then the warps in order through the ring's memory,
 * which is free by then; without a ring one group after the other. */
INLINE void parts_store(float *parts, float (*dgain)[W], float (*dbias)[W], float *room, int lane,
                        int cols) {
    float *const gain_part = parts + (i64)blockIdx.x * cols, *const bias_part =
                                                                 gain_part + (i64)gridDim.x * cols;
#if LANES <= WARP && DEPTH > 0
#pragma unroll
    for (int kind = 0; kind <= KIND; kind++) {
        float *const to = room + (kind * WARPS + threadIdx.x / WARP) * WIDTH + lane * W;
#pragma unroll
        for (int v = 0; v < VECS; v++) {
            float *const sum = kind ? dbias[v] : dgain[v];
#pragma unroll
            for (int lanes = LANES; lanes < WARP; lanes *= 2) {
#pragma unroll
                for (int i = 0; i < W; i++) {
                    sum[i] += __shfl_xor_sync(ALL_LANES, sum[i], lanes);
                }
            }
            if (threadIdx.x % WARP < LANES) {
                piece_store_f32(to + v * LANES * W, sum);
            }
        }
    }
    __syncthreads();
    for (int col = threadIdx.x; col < (1 + KIND) * cols; col += THREADS) {
        const int kind = KIND && col >= cols, at = col - kind * cols;
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            sum += room[(kind * WARPS + w) * WIDTH + at];
        }
        (kind ? bias_part : gain_part)[at] = sum;
    }
#elif LANES <= WARP
    __shared__ float sums[1 + KIND][LANES * VECS * W];
    for (int g = 0; g < GROUPS; g++) {
        if ((int)threadIdx.x / LANES == g) {
#pragma unroll
            for (int v = 0; v < VECS; v++) {
#pragma unroll
                for (int i = 0; i < W; i++) {
                    const int at = (v * LANES + lane) * W + i;
                    sums[0][at] = (g > 0 ? sums[0][at] : 0.0f) + dgain[v][i];
                    if (KIND == 1) {
                        sums[KIND][at] = (g > 0 ? sums[KIND][at] : 0.0f) + dbias[v][i];
                    }
                }
            }
        }
        __syncthreads();
    }
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        gain_part[col] = sums[0][col];
        if (KIND == 1) {
            bias_part[col] = sums[KIND][col];
        }
    }
#else
#pragma unroll
    for (int v = 0; v < VECS; v++) {
        const int col = (v * LANES + lane) * W;
        if (INSIDE(col)) {
            piece_store_f32(gain_part + col, dgain[v]);
            if (KIND == 1) {
                piece_store_f32(bias_part + col, dbias[v]);
            }
        }
    }
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    norm_bwd(const lt_cuda_norm_bwd_args w) {
    const int cols = w.cols;
    extern __shared__ __align__(16) uint4 ring[];
    /* Two sets in turn, so that one barrier per turn is enough. */
    __shared__ float slots[2][N_SUMS * WARPS];
    const int lane = threadIdx.x % LANES, step = gridDim.x * A_TURN;
    const inputs in = {{w.x, w.dy, w.dx}, {w.at.x, w.at.dy, w.at.dx}, w.at.n, w.rows, cols, ring};
    float dgain[VECS][W] = {{0.0f}}, dbias[VECS][W] = {{0.0f}}, g[KEEP_GAIN ? VECS : 1][W],
          next_scale[ROWS], next_centre[ROWS];
    const float share = 1.0f / cols;
    int first = blockIdx.x * A_TURN + threadIdx.x / LANES * ROWS, slot = 0;
    wait_for_others();
    for (int d = 0; d < DEPTH; d++) {
        turn_fetch(&in, d, first + d * step, lane);
    }
#pragma unroll
    for (int v = 0; v < VECS && KEEP_GAIN; v++) {
        gain_load(g[v], w.gain, v, lane, cols, w.gain_offset);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        next_scale[r] = first + r < w.rows ? w.rstd[first + r] : 0.0f;
        next_centre[r] = KIND == 1 && first + r < w.rows ? w.mean[first + r] : 0.0f;
    }
    for (int base = blockIdx.x * A_TURN, turn = 0; base < w.rows;
         base += step, first += step, turn ^= 1) {
        float scale[ROWS], centre[ROWS], sums[2 * ROWS];
#if LANES == 8 && W == 1
        wide tiny_dot = 0.0, tiny_total = 0.0;
#endif
#pragma unroll
        /* Rows past the end have scale 0, and zeros for x and dy. */
        for (int r = 0; r < ROWS; r++) {
            const int next = first + step + r;
            scale[r] = next_scale[r], centre[r] = next_centre[r];
            next_scale[r] = next < w.rows ? w.rstd[next] : 0.0f;
            next_centre[r] = KIND == 1 && next < w.rows ? w.mean[next] : 0.0f;
            sums[r] = sums[ROWS + r] = 0.0f;
        }
        if (DEPTH > 0) {
            cp_async_wait(DEPTH > 0 ? DEPTH - 1 : 0);
        }
#pragma unroll
        for (int v = 0; v < VECS; v++) { /* 1. Sums of columns, and the two sums of each row. */
            float *const gv = g[KEEP_GAIN ? v : 0];
            if (!KEEP_GAIN) {
                gain_load(gv, w.gain, v, lane, cols, w.gain_offset);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float from_x[W], from_dy[W];
                take(from_x, &in, 0, slot, first, r, v, lane);
                take(from_dy, &in, 1, slot, first, r, v, lane);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    const wide h = (KIND == 1 ? (wide)from_x[i] - centre[r] : (wide)from_x[i]) *
                                   scale[r],
                               s = (wide)from_dy[i] * gv[i];
                    dgain[v][i] += from_dy[i] * (float)h;
                    dbias[v][i] += KIND == 1 ? from_dy[i] : 0.0f;
                    sums[r] += (float)(s * h);
                    sums[ROWS + r] += KIND == 1 ? (float)s : 0.0f;
#if LANES == 8 && W == 1
                    tiny_dot = s * h, tiny_total = s;
#endif
                }
            }
        }
        row_sums(sums, N_SUMS, slots[turn]); /* 2. Sums over the threads of a row. */
        /* x and dy are read again. The compiler would otherwise keep them in registers, and
         * spill. */
        __syncwarp();
        wide row_dot[ROWS], row_total[ROWS];
        DTYPE *to[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            to[r] = w.dx + row_begin(w.at.dx, first + r, w.at.n) + lane * W;
            row_dot[r] = sums[r] * share, row_total[r] = KIND == 1 ? sums[ROWS + r] * share : 0.0f;
        }
#if LANES == 8 && W == 1
        /* There are few elements, so every lane adds them all in double. */
        row_dot[0] = row_total[0] = 0.0;
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            row_dot[0] += __shfl_sync(ALL_LANES, tiny_dot, l, LANES) / cols;
            row_total[0] += KIND == 1 ? __shfl_sync(ALL_LANES, tiny_total, l, LANES) / cols : 0.0;
        }
#endif
#pragma unroll
        for (int v = 0; v < VECS; v++) { /* 3. dx. */
            const int col = (v * LANES + lane) * W;
            float *const gv = g[KEEP_GAIN ? v : 0];
            if (!KEEP_GAIN) {
                gain_load(gv, w.gain, v, lane, cols, w.gain_offset);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float from_x[W], from_dy[W], out[W] = {0.0f};
                take(from_x, &in, 0, slot, first, r, v, lane);
                take(from_dy, &in, 1, slot, first, r, v, lane);
                if (ADD) {
                    take(out, &in, 2, slot, first, r, v, lane);
                }
#pragma unroll
                for (int i = 0; i < W; i++) {
                    const wide h = (KIND == 1 ? (wide)from_x[i] - centre[r] : (wide)from_x[i]) *
                                   scale[r],
                               s = (wide)from_dy[i] * gv[i];
                    out[i] += (float)(scale[r] * (s - row_total[r] - h * row_dot[r]));
                }
                if (first + r < w.rows && INSIDE(col)) {
                    piece_store(to[r] + v * LANES * W, out);
                }
            }
        }
        turn_fetch(&in, slot, first + DEPTH * step, lane); /* 4. The slot is free. */
        slot = slot + 1 < DEPTH ? slot + 1 : 0;
    }
    if (DEPTH > 0) {
        cp_async_wait(0);
        __syncthreads();
    }
    parts_store(w.parts, dgain, dbias, (float *)ring, lane, cols);
}

/* norm.cu — RMSNorm and LayerNorm over rows, forward and backward, with the residual sum fused in.
 *
 * SHAPES    x, y, add, sum, dy, dx (rows, C) of DTYPE, views (rows may be heads of a wider row); gain, bias (C) of PARAM; mean, rstd (rows) fp32. add, sum, bias, mean, rstd
 *           may be null. KIND 0: RMSNorm, 1: LayerNorm. C <= LANES * VECS * W.
 * MAP       LANES threads a row (8, 16, 32 of a warp: rows of a head; or the whole block: rows of the model), VECS pieces of W elements a
 *           thread, THREADS a block.
 * MOVEMENT
 *     forward   x (+ add) ──16 B/thread──▶ registers ─sum of squares─▶ shuffle (▶ smem ▶ barrier) ─▶ rstd ──▶ y, sum
 *     backward  x, dy ──▶ registers ─▶ two sums a row ─▶ dx;  dgain, dbias: a block walks rows blockIdx, blockIdx + grid, .. and keeps the
 *               columns' sums in registers, the next row's reads in flight; at the end one partial row a block ─▶ col_sum adds them in order
 * BOUND     bytes a element (bf16): forward 4, with add and sum 8; backward 6. 8192 x 4096: 45, 89, 67 us at 3.0 TB/s.
 * NUMERICS  fp32 sums in a fixed order (same bits every run); variance from the centred row, which is in registers; one rounding at the store. Rows of
 *           up to 8 elements (LANES=8, W=1) run backward in double: dx cancels there.
 * REFS      Zhang & Sennrich 2019, arXiv:1910.07467; Ba et al. 2016, arXiv:1607.06450.
 *@spec sm_80 sm_90a: KIND=0 DTYPE=bf16 PARAM=fp32 W=8 LANES=256 VECS=2 THREADS=256
 *@spec sm_80 sm_90a: KIND=0 DTYPE=bf16 PARAM=fp32 W=8 LANES=256 VECS=4 THREADS=256
 *@spec sm_80 sm_90a: KIND=0 DTYPE=bf16 PARAM=bf16 W=8 LANES=256 VECS=2 THREADS=256
 *@spec sm_80 sm_90a: KIND=0 DTYPE=bf16 PARAM=fp32 W=8 LANES=16 VECS=1 THREADS=256
 *@spec sm_80 sm_90a: KIND=1 DTYPE=bf16 PARAM=fp32 W=8 LANES=32 VECS=3 THREADS=256
 *@spec sm_80 sm_90a: KIND=0 DTYPE=fp32 PARAM=fp32 W=1 LANES=8 VECS=1 THREADS=256
 *@spec sm_80 sm_90a: KIND=0 DTYPE=fp32 PARAM=fp32 W=4 LANES=256 VECS=4 THREADS=256
 *@spec sm_80 sm_90a: KIND=0 DTYPE=bf16 PARAM=fp32 W=1 LANES=256 VECS=8 THREADS=256
 *@spec sm_80 sm_90a: KIND=1 DTYPE=bf16 PARAM=fp32 W=8 LANES=256 VECS=2 THREADS=256
 *@spec sm_80 sm_90a: KIND=1 DTYPE=fp32 PARAM=fp32 W=4 LANES=256 VECS=4 THREADS=256 */
#include "common/vec.cuh"

#define ROWS_AT_ONCE (THREADS / LANES)
static_assert(LANES <= WARP || LANES == THREADS, "a row belongs to part of a warp or to the block");
static_assert(VECS * W <= 64, "a thread's part of the row stays in registers");

/* Sum over the LANES threads of a row; every one of them gets it. Each call has its own slot: no barrier to protect the last one. */
INLINE float row_sum(float x, float *slot) {
#if LANES <= WARP
#pragma unroll
    for (int lanes = LANES / 2; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, lanes);
    }
    return x;
#else
    return block_sum(x, slot, THREADS / WARP);
#endif
}

/* (mean, sum of squares about it) of n values a lane -> of all `lanes` lanes; the same bits on each: every step is symmetric. */
INLINE float2 join_equal(float2 m, float *n, int lanes) {
#pragma unroll
    for (int d = 1; d < lanes; d *= 2) {
        const float mean = __shfl_xor_sync(ALL_LANES, m.x, d), squares = __shfl_xor_sync(ALL_LANES, m.y, d), away = mean - m.x;
        m = make_float2(0.5f * (m.x + mean), (m.y + squares) + away * away * (0.5f * *n));
        *n *= 2.0f;
    }
    return m;
}

/* Two sums behind one barrier. */
INLINE float2 row_sum2(float2 x, float2 *slots) {
#if LANES <= WARP
    return make_float2(row_sum(x.x, 0), row_sum(x.y, 0));
#else
    x = make_float2(warp_sum(x.x), warp_sum(x.y));
    if (threadIdx.x % WARP == 0) {
        slots[threadIdx.x / WARP] = x;
    }
    __syncthreads();
    x = threadIdx.x % WARP < THREADS / WARP ? slots[threadIdx.x % WARP] : make_float2(0.0f, 0.0f);
    return make_float2(warp_sum(x.x), warp_sum(x.y));
#endif
}

typedef struct {
    view y, x, add, sum; /* forward */
    view dx, dy;         /* backward, and x */
    row_shape n;
} norm_views;

extern "C" __global__ void __launch_bounds__(THREADS)
norm_fwd(DTYPE *y, const DTYPE *x, const DTYPE *add, DTYPE *sum, const PARAM *gain, const PARAM *bias, float *mean, float *rstd, int rows,
         int cols, float eps, float gain_offset, const __grid_constant__ norm_views at) {
    __shared__ float slots[THREADS / WARP];
    const int row = blockIdx.x * ROWS_AT_ONCE + threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const bool live = row < rows; /* All lanes take part in the shuffles. */
    float held[VECS][W], total = 0.0f, centre = 0.0f, squares = 0.0f;
    wait_for_others();
    x += row_at(at.x, row, at.n), y += row_at(at.y, row, at.n);
    if (add) {
        add += row_at(at.add, row, at.n);
    }
    if (sum) {
        sum += row_at(at.sum, row, at.n);
    }
#pragma unroll
    for (int v = 0; v < VECS; v++) { /* 1. The only read. */
        const int col = (v * LANES + lane) * W;
#pragma unroll
        for (int i = 0; i < W; i++) {
            held[v][i] = 0.0f;
        }
        if (live && col < cols) {
            piece_load_stream(held[v], x + col);
            if (add) {
                float more[W];
                piece_load_stream(more, add + col);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    held[v][i] += more[i];
                }
            }
            if (sum) {
#pragma unroll
                for (int i = 0; i < W; i++) { /* Rounded as it is stored, so that backward sees the same number. */
                    held[v][i] = TO_F32(DTYPE, FROM_F32(DTYPE, held[v][i]));
                }
                piece_store(sum + col, held[v]);
            }
        }
#pragma unroll
        for (int i = 0; i < W; i++) {
            total += held[v][i];
            squares += held[v][i] * held[v][i];
        }
    }
#if KIND == 1
    __shared__ float more_slots[THREADS / WARP];
    __shared__ float2 joined[THREADS / WARP];
    if (cols == LANES * VECS * W) { /* 2. Every thread holds equally many: means and squares about them join without a division, behind one barrier. */
        float2 m = make_float2(total / (VECS * W), 0.0f);
        float n = VECS * W;
#pragma unroll
        for (int v = 0; v < VECS; v++) {
#pragma unroll
            for (int i = 0; i < W; i++) {
                m.y += (held[v][i] - m.x) * (held[v][i] - m.x);
            }
        }
        m = join_equal(m, &n, LANES < WARP ? LANES : WARP);
#if LANES > WARP
        if (threadIdx.x % WARP == 0) {
            joined[threadIdx.x / WARP] = m;
        }
        __syncthreads();
        m = join_equal(joined[threadIdx.x % (THREADS / WARP)], &n, THREADS / WARP);
#endif
        centre = m.x, squares = m.y;
    } else {
        centre = row_sum(total, more_slots) / cols;
        squares = 0.0f;
#pragma unroll
        for (int v = 0; v < VECS; v++) {
#pragma unroll
            for (int i = 0; i < W; i++) {
                const float away = held[v][i] - centre;
                squares += (v * LANES + lane) * W < cols ? away * away : 0.0f;
            }
        }
        squares = row_sum(squares, slots);
    }
    (void)joined;
#else
    squares = row_sum(squares, slots);
#endif
    const float scale = rsqrtf(squares / cols + eps); /* 3. */
    if (!live) {
        return;
    }
    if (lane == 0 && rstd) {
        rstd[row] = scale;
    }
    if (KIND == 1 && lane == 0 && mean) {
        mean[row] = centre;
    }
#pragma unroll
    for (int v = 0; v < VECS; v++) { /* 4. The only write. */
        const int col = (v * LANES + lane) * W;
        if (col < cols) {
            float g[W], out[W];
            piece_load_param(g, gain + col);
#pragma unroll
            for (int i = 0; i < W; i++) {
                out[i] = (held[v][i] - centre) * scale * (gain_offset + g[i]);
            }
            if (KIND == 1 && bias) {
                piece_load_param(g, bias + col);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    out[i] += g[i];
                }
            }
            piece_store(y + col, out);
        }
    }
}

#if W > 1
typedef uint4 raw; /* A piece as it is in memory: half the registers while it waits. */
INLINE void raw_unpack(float *f, raw r) {
    UNPACK(DTYPE, f, r);
}
#else
typedef DTYPE raw;
INLINE void raw_unpack(float *f, raw r) {
    f[0] = TO_F32(DTYPE, r);
}
#endif
#define RECOMPUTE (W == 8) /* 16-bit rows stay packed while their sums are made: half the registers, twice the warps. */
#if LANES == 8 && W == 1
typedef double wide;
#else
typedef float wide;
#endif

/* parts: (gridDim.x, cols) fp32 partial sums of dgain, then as many of dbias. Two blocks an SM where the row fits in 128 registers. */
extern "C" __global__ void __launch_bounds__(THREADS, VECS * W <= 24 ? 2 : 1)
norm_bwd(DTYPE *dx, float *parts, const DTYPE *dy, const DTYPE *x, const PARAM *gain, const float *mean, const float *rstd, int rows,
         int cols, float gain_offset, int add_dx, const __grid_constant__ norm_views at) {
    __shared__ float2 slots[2][THREADS / WARP]; /* Two sets in turn: one barrier a row is enough. */
    const int group = threadIdx.x / LANES, lane = threadIdx.x % LANES, step = gridDim.x * ROWS_AT_ONCE;
    float dgain[VECS][W] = {{0.0f}}, dbias[VECS][W] = {{0.0f}};
    raw next_x[VECS], next_dy[VECS];
    int row = blockIdx.x * ROWS_AT_ONCE + group;
#pragma unroll
    for (int v = 0; v < VECS; v++) {
        const int col = (v * LANES + lane) * W;
        if (row < rows && col < cols) {
            next_x[v] = *(const raw *)(x + row_at(at.x, row, at.n) + col);
            next_dy[v] = *(const raw *)(dy + row_at(at.dy, row, at.n) + col);
        }
    }
    for (int first = blockIdx.x * ROWS_AT_ONCE, turn = 0; first < rows; first += step, row += step, turn ^= 1) {
        const bool live = row < rows;
        DTYPE *const to = dx + row_at(at.dx, row, at.n);
        const DTYPE *const x_next = x + row_at(at.x, row + step, at.n), *const dy_next = dy + row_at(at.dy, row + step, at.n);
        const float scale = live ? rstd[row] : 0.0f, centre = KIND == 1 && live ? mean[row] : 0.0f;
#if RECOMPUTE
        raw now_x[VECS], now_dy[VECS];
#else
        wide hat[VECS][W], slope[VECS][W];
#endif
        float dot = 0.0f, total = 0.0f;
#pragma unroll
        for (int v = 0; v < VECS; v++) { /* 1. Columns' sums, and the row's two. */
            const int col = (v * LANES + lane) * W;
            float g[W], from_x[W], from_dy[W];
            if (live && col < cols) {
                raw_unpack(from_x, next_x[v]);
                raw_unpack(from_dy, next_dy[v]);
                piece_load_param(g, gain + col);
#if RECOMPUTE
                now_x[v] = next_x[v], now_dy[v] = next_dy[v];
#endif
#pragma unroll
                for (int i = 0; i < W; i++) {
                    const wide h = ((wide)from_x[i] - centre) * scale, s = (wide)from_dy[i] * (gain_offset + g[i]);
                    dgain[v][i] += from_dy[i] * (float)h;
                    if (KIND == 1) {
                        dbias[v][i] += from_dy[i];
                    }
                    dot += (float)(s * h);
                    total += (float)s;
#if !RECOMPUTE
                    hat[v][i] = h, slope[v][i] = s;
#endif
                }
            }
        }
#pragma unroll
        for (int v = 0; v < VECS; v++) { /* 2. The next row is on its way before this one's sums are known. */
            const int col = (v * LANES + lane) * W;
            if (row + step < rows && col < cols) {
                next_x[v] = *(const raw *)(x_next + col);
                next_dy[v] = *(const raw *)(dy_next + col);
            }
        }
#if LANES == 8 && W == 1
        wide row_dot = 0.0, row_total = 0.0; /* Few elements: every lane adds them all in double. */
#pragma unroll
        for (int l = 0; l < LANES; l++) {
            row_dot += __shfl_sync(ALL_LANES, live && lane < cols ? slope[0][0] * hat[0][0] : 0.0, l, LANES) / cols;
            row_total += KIND == 1 ? __shfl_sync(ALL_LANES, live && lane < cols ? slope[0][0] : 0.0, l, LANES) / cols : 0.0;
        }
#else
#if KIND == 1
        const float2 both = row_sum2(make_float2(dot, total), slots[turn]);
#else
        const float2 both = make_float2(row_sum(dot, (float *)slots[turn]), 0.0f);
#endif
        const wide row_dot = both.x / cols, row_total = both.y / cols;
#endif
#pragma unroll
        for (int v = 0; v < VECS; v++) { /* 3. */
            const int col = (v * LANES + lane) * W;
            if (live && col < cols) {
                float out[W];
                if (add_dx) {
                    piece_load(out, to + col);
                }
#if RECOMPUTE
                float from_x[W], from_dy[W], g[W];
                raw_unpack(from_x, now_x[v]);
                raw_unpack(from_dy, now_dy[v]);
                piece_load_param(g, gain + col);
#endif
#pragma unroll
                for (int i = 0; i < W; i++) {
#if RECOMPUTE
                    const wide h = (from_x[i] - centre) * scale, s = from_dy[i] * (gain_offset + g[i]);
#else
                    const wide h = hat[v][i], s = slope[v][i];
#endif
                    out[i] = (add_dx ? out[i] : 0.0f) + (float)(scale * (s - row_total - h * row_dot));
                }
                piece_store(to + col, out);
            }
        }
    }
    float *const gain_part = parts + (i64)blockIdx.x * cols, *const bias_part = gain_part + (i64)gridDim.x * cols;
#if LANES <= WARP /* 4. The block's row groups, one after the other. */
    __shared__ float sums[2][LANES * VECS * W];
    for (int g = 0; g < ROWS_AT_ONCE; g++) {
        if (group == g) {
#pragma unroll
            for (int v = 0; v < VECS; v++) {
#pragma unroll
                for (int i = 0; i < W; i++) {
                    const int at = (v * LANES + lane) * W + i;
                    sums[0][at] = (g > 0 ? sums[0][at] : 0.0f) + dgain[v][i];
                    sums[1][at] = (g > 0 ? sums[1][at] : 0.0f) + dbias[v][i];
                }
            }
        }
        __syncthreads();
    }
    for (int col = threadIdx.x; col < cols; col += THREADS) {
        gain_part[col] = sums[0][col];
        if (KIND == 1) {
            bias_part[col] = sums[1][col];
        }
    }
#else
#pragma unroll
    for (int v = 0; v < VECS; v++) {
        const int col = (v * LANES + lane) * W;
        if (col < cols) {
            piece_store_f32(gain_part + col, dgain[v]);
            if (KIND == 1) {
                piece_store_f32(bias_part + col, dbias[v]);
            }
        }
    }
#endif
}

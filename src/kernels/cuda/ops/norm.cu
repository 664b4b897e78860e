/* norm.cu — RMSNorm and LayerNorm over rows, forward, with the residual sum fused in. Backward:
 * norm_bwd.cu.
 *
 * SHAPES    x, y, add, sum (rows, C) of DTYPE, views (rows may be heads of a wider row); gain, bias
 *           (C) of PARAM; mean, rstd (rows) fp32. mean and rstd may be null. KIND 0: RMSNorm, 1:
 *           LayerNorm. C <= LANES * VECS * W. ADD, SUM, BIAS 1: add, sum, bias are given; FULL 1:
 *           C is LANES * VECS * W.
 * MAP       LANES threads per row (8, 16 or 32 of a warp, up to 2048 columns of bf16; or the
 *           whole block), VECS pieces of W elements per thread, ROWS neighbouring rows at once,
 *           THREADS per block.
 * MOVEMENT  x (+ add) ──16 B/thread──▶ registers, packed ─sum─▶ shuffle (▶ smem ▶ barrier) ─▶
 *               mean ─sum of squares about it─▶ rstd ──▶ y, sum
 *           Packed rows are unpacked again for each use: this costs one operation per element and
 *           halves the registers, so that twice as many bytes are in flight.
 * BOUND     bytes per element (bf16): 4, with add and sum 8. 8192 x 4096: 45, 89 us at 3.0 TB/s.
 * NUMERICS  fp32 sums in a fixed order that LANES and VECS alone decide (same bits every run, with
 *           ADD or from the stored sum, for any ROWS); variance from squares about the means of
 *           pieces, and those about the row's; one rounding at the store. 16-bit rows are centred
 *           and scaled in one operation, whose error, 2^-24 of the mean, is far below that of their
 *           own rounding.
 * REFS      Zhang & Sennrich 2019, arXiv:1910.07467; Ba et al. 2016, arXiv:1607.06450. */
#include "ops/norm.cuh"
#include "kernels/cuda/ops/norm_args.h"

#define IS_BF16_bf16  1
#define IS_BF16_fp16  0
#define IS_BF16_fp32  0
#define DTYPE_IS_BF16 CONCAT(IS_BF16_, DTYPE)
#define MIN_BLOCKS    (512 / THREADS) /* Per SM: at most 128 registers per thread. */
static_assert(ROWS * VECS * (W > 1 ? 4 : 1) <= 64,
              "a thread's part of its rows stays in registers");

#if ADD && !SUM
typedef struct {
    float f[W];
} kept; /* Not rounded, because it is not stored. */
INLINE kept keep(const float *f) {
    kept k;
#pragma unroll
    for (int i = 0; i < W; i++) {
        k.f[i] = f[i];
    }
    return k;
}
INLINE void kept_get(float *f, const kept *k) {
#pragma unroll
    for (int i = 0; i < W; i++) {
        f[i] = k->f[i];
    }
}
#else
typedef raw kept;
INLINE kept keep(const float *f) {
    return raw_pack(f);
}
INLINE void kept_get(float *f, const kept *k) {
    raw_unpack(f, *k);
}
#endif
/* kept_get by another instruction, so that the compiler does not recognise the values. It would
 * otherwise keep the floats of the first call, and spill. */
INLINE void kept_get_again(float *f, const kept *k) {
#if W == 8 && !(ADD && !SUM)
    if (DTYPE_IS_BF16) {
        const u32 word[4] = {k->x, k->y, k->z, k->w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f[2 * i] = __uint_as_float(__byte_perm(word[i], 0, 0x1044));
            f[2 * i + 1] = __uint_as_float(__byte_perm(word[i], 0, 0x3244));
        }
        return;
    }
#endif
    kept_get(f, k);
}
/* Load x (+ add) of one row. sum gets it as well, and the row is kept as rounded there, so that
 * the backward pass sees the same numbers. */
INLINE void row_load(kept *held, const DTYPE *x, const DTYPE *add, DTYPE *sum, int lane, int cols,
                     bool live) {
    raw more[ADD ? VECS : 1], first[VECS];
#pragma unroll
    for (int v = 0; v < VECS; v++) {
        const int col = (v * LANES + lane) * W;
        first[v] = raw_zero();
        if (INSIDE(col)) {
            first[v] = raw_load_once(x + col);
#if ADD
            more[v] = raw_load_once(add + col);
#endif
        }
    }
#pragma unroll
    for (int v = 0; v < VECS; v++) {
        const int col = (v * LANES + lane) * W;
        float f[W];
        raw_unpack(f, first[v]);
#if ADD
        if (INSIDE(col)) {
            float g[W];
            raw_unpack(g, more[v]);
#pragma unroll
            for (int i = 0; i < W; i++) {
                f[i] += g[i];
            }
        }
#endif
        held[v] = keep(f);
#if SUM
        if (live && INSIDE(col)) {
#if W > 1
            *(raw *)(sum + col) = held[v];
#else
            sum[col] = held[v];
#endif
        }
#endif
    }
    (void)more, (void)add, (void)sum, (void)live;
}

INLINE void params_load(float *g, float *b, const PARAM *gain, const PARAM *bias, int col,
                        int cols) {
#pragma unroll
    for (int i = 0; i < W; i++) {
        b[i] = 0.0f;
    }
    if (INSIDE(col)) {
        piece_load_param(g, gain + col);
        if (BIAS) {
            piece_load_param(b, bias + col);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    norm_fwd(const lt_cuda_norm_fwd_args w) {
    const int cols = w.cols;
    __shared__ float slots[2][ROWS * WARPS];
    const int lane = threadIdx.x % LANES,
              first = (blockIdx.x * GROUPS + threadIdx.x / LANES) * ROWS;
    const float share = 1.0f / cols;
    kept held[ROWS][VECS];
    DTYPE *to[ROWS];
    float centre[ROWS], squares[ROWS], scale[ROWS], shift[ROWS];
#if KIND == 1
    float middles[ROWS][VECS];
#endif
    wait_for_others();
#pragma unroll
    /* 1. The only read. Past the end the last row is read again, because all lanes take part in
     * the shuffles. */
    for (int r = 0; r < ROWS; r++) {
        const int row = min(first + r, w.rows - 1);
        to[r] = w.y + row_begin(w.at.y, row, w.at.n) + lane * W;
        row_load(held[r], w.x + row_begin(w.at.x, row, w.at.n),
                 ADD ? w.add + row_begin(w.at.add, row, w.at.n) : w.add,
                 SUM ? w.sum + row_begin(w.at.sum, row, w.at.n) : w.sum, lane, cols,
                 first + r < w.rows);
    }
#pragma unroll
    /* 2. Sums; for LayerNorm's squares, those about the mean of each piece. Columns past the end
     * hold zeros. */
    for (int r = 0; r < ROWS; r++) {
        centre[r] = squares[r] = 0.0f;
#pragma unroll
        for (int v = 0; v < VECS; v++) {
            float f[W], part = 0.0f, middle = 0.0f;
            kept_get(f, &held[r][v]);
#if KIND == 1
#pragma unroll
            for (int i = 0; i < W; i++) {
                middle += f[i];
            }
            centre[r] += middle;
            middle *= 1.0f / W;
            middles[r][v] = middle;
#endif
#pragma unroll
            for (int i = 0; i < W; i++) {
                const float away = f[i] - middle;
                part += away * away;
            }
            squares[r] += part;
        }
    }
#if KIND == 1
    row_sums(centre, ROWS, slots[0]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) { /* 3. Sums of squares about the row's mean. */
        centre[r] *= share;
#pragma unroll
        for (int v = 0; v < VECS; v++) {
            const float away = middles[r][v] - centre[r];
            squares[r] += INSIDE((v * LANES + lane) * W) ? (float)W * away * away : 0.0f;
        }
    }
#endif
    row_sums(squares, ROWS, slots[1]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        scale[r] = rsqrtf(squares[r] * share + w.eps), shift[r] = -centre[r] * scale[r];
        if (lane == 0 && first + r < w.rows) {
            if (w.rstd) {
                w.rstd[first + r] = scale[r];
            }
            if (KIND == 1 && w.mean) {
                w.mean[first + r] = centre[r];
            }
        }
    }
    float g[2][W], b[2][W];
    params_load(g[0], b[0], w.gain, w.bias, lane * W, cols);
#pragma unroll
    /* 4. The only write. Parameters are loaded one piece ahead, because the compiler moves no
     * load across a store. */
    for (int v = 0; v < VECS; v++) {
        const int col = (v * LANES + lane) * W, turn = v % 2;
        if (v + 1 < VECS) {
            params_load(g[1 - turn], b[1 - turn], w.gain, w.bias, col + LANES * W, cols);
        }
        if (INSIDE(col)) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float f[W];
                kept_get_again(f, &held[r][v]);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    const float hat = KIND == 0            ? f[i] * scale[r]
                                      : sizeof(DTYPE) == 2 ? fmaf(f[i], scale[r], shift[r])
                                                           : (f[i] - centre[r]) * scale[r];
                    f[i] = KIND == 0 ? hat * (w.gain_offset + g[turn][i])
                                     : fmaf(hat, g[turn][i], b[turn][i]);
                }
                if (first + r < w.rows) {
                    piece_store(to[r] + v * LANES * W, f);
                }
            }
        }
    }
}

/* gemv.cu: few rows times a weight matrix: y (M, N) = x (M, K) W^T, W stored (N, K), M = 1 .. 8:
 * the products of a decoding step.
 *
 * SHAPES    K a multiple of 8; rows of x and W 16-byte aligned; any N.
 * MAP       a warp makes ROWS columns of y for all M rows of x; its lanes share K, 8 elements each
 *           in turn. SPLIT warps of a block share the same columns where N alone gives the machine
 *           too few warps.
 * MOVEMENT
 *     W ──16 bytes a lane, past the L1──▶ registers ─┐
 *     x ──16 bytes a lane, from the L1──▶ registers ─┴─▶ M x ROWS sums a lane ──shuffles──▶
 *         (SPLIT: smem) ──▶ y
 * EXPERTS   GROUPED: rows of x are in the order of their experts, and W is (E, N, K). A block finds
 *           the expert of its row (blockIdx.y), and computes up to M rows of it; a row that the
 *           block of an earlier one computes has nothing to do.
 *           GATED: a warp has the same columns of gates and of factors (experts_args.h).
 * BOUND     bytes of W: each is used once. UNROLL x ROWS loads of 16 bytes under way a lane hide
 *           the memory's latency.
 * NUMERICS  f32 multiply-adds; a lane's sum in order of k, then a fixed tree over lanes, then warps
 *           in order: bit-identical, whatever M is. */
#include "common/early.cuh"
#include "common/hopper.cuh"
#include "common/product.cuh"
#include "kernels/cuda/gemm/gemv_args.h"

#ifndef GROUPED
#define GROUPED 0
#endif
#ifndef GATED
#define GATED 0
#endif
#if GATED
#include "gemm/experts.cuh"
#endif
#define WARPS  4
#define GROUPS (WARPS / SPLIT)           /* groups of warps in a block, each with its own columns */
#define COLS   (GATED ? ROWS / 2 : ROWS) /* of a group, beside factors */
static_assert(!GATED || (GROUPED && ROWS % 2 == 0), "a gate and a factor");
#ifndef UNROLL
#define UNROLL (M <= 2 ? 4 : 2)
#endif

/* 16 bytes of each column's row at k, and of the next UNROLL - 1 steps. */
INLINE void load_weights(uint4 v[UNROLL][ROWS], const elem *const w[ROWS], int k0, int n) {
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int k = k0 + u * SPLIT * 256;
            v[u][r] = k < n ? load_once(w[r] + k) : make_uint4(0, 0, 0, 0);
        }
    }
}

#if GROUPED
/* The first row of this block in a->x (unless it is gathered) and a->y, and its expert's offset
 * from the first matrix; returns the number of rows, 0 if there is nothing to do. */
INLINE int take_rows(lt_gemv_args *a, i64 *matrix, const lt_gemv_grouped_args *of) {
    const int row = (int)blockIdx.y, lane = (int)threadIdx.x % 32;
    int expert = 0; /* As many as end at this row or before. */
    for (int e = lane; e - lane < of->experts; e += 32) {
        const bool before = e < of->experts && of->start[e + 1] <= row;
        expert += __popc(__ballot_sync(0xffffffffu, before));
    }
    if (expert == of->experts || (row - of->start[expert]) % M != 0) {
        return 0;
    }
    a->x += GATED ? 0 : row * a->ldx;
    a->y += row * a->ldy;
    *matrix = expert * of->next_expert;
    return min_i(M, of->start[expert + 1] - row);
}
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
#if GROUPED
#if GATED
    gemv_gated(const __grid_constant__ lt_gemv_grouped_args of,
               const __grid_constant__ lt_experts_up_args up) {
#else
    gemv_grouped(const __grid_constant__ lt_gemv_grouped_args of) {
#endif
    lt_gemv_args a = of.product;
    i64 matrix = 0;
    wait_for_others();
    const int n_rows = take_rows(&a, &matrix, &of);
    if (n_rows == 0) {
        return;
    }
#else
    gemv(const __grid_constant__ lt_gemv_args a) {
    const i64 matrix = 0;
    const int n_rows = M;
#endif
    __shared__ float part[WARPS][M * ROWS];
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = warp / SPLIT,
              share = warp % SPLIT;
    const int col = ((int)blockIdx.x * GROUPS + group) * COLS;
    const elem *w[ROWS], *rows_of_x[M];
    float sum[ROWS][M] = {{0.0f}};

    for (int r = 0; r < ROWS; r++) { /* Past the end: the last column again, which is not stored. */
#if GATED
        const elem *const first_matrix = r < COLS ? a.w : (const elem *)up.factors;
#else
        const elem *const first_matrix = a.w;
#endif
        w[r] = first_matrix + matrix + (i64)min_i(col + r % COLS, a.n - 1) * a.ldw;
    }
    for (int m = 0; m < M; m++) { /* Rows past the last repeat it. */
        const int row = GROUPED ? min_i(m, n_rows - 1) : m;
#if GATED
        rows_of_x[m] = gathered_row(&up, a.x, a.ldx, (int)blockIdx.y + row);
#else
        rows_of_x[m] = a.x + row * a.ldx;
#endif
    }
    const int first = (share * 32 + lane) * 8;
    uint4 v[UNROLL][ROWS];
    load_weights(v, w, first, a.k); /* Without experts, these loads start before x is ready. */
#if !GROUPED
    wait_for_others();
#endif
    for (int k0 = first; k0 < a.k; k0 += UNROLL * SPLIT * 256) {
        if (k0 != first) {
            load_weights(v, w, k0, a.k);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int k = k0 + u * SPLIT * 256;
            if (k >= a.k) {
                break;
            }
            float y[ROWS][8];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                UNPACK(DTYPE, y[r], v[u][r]);
            }
#pragma unroll
            for (int m = 0; m < M; m++) {
                float x[8];
                UNPACK(DTYPE, x, *(const uint4 *)(rows_of_x[m] + k));
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
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                sum[r][m] += __shfl_xor_sync(0xffffffffu, sum[r][m], step);
            }
            if (lane == 0) {
                part[warp][r * M + m] = sum[r][m];
            }
        }
    }
    if (SPLIT > 1) {
        __syncthreads();
    } else {
        __syncwarp();
    }
    for (int i = lane; share == 0 && i < COLS * M; i += 32) {
        const int at = col + i / M, row = i % M;
        float x[ROWS / COLS] = {0.0f};
        for (int f = 0; f < ROWS / COLS; f++) { /* the column and, GATED, its factor */
            for (int s = 0; s < SPLIT; s++) {
                x[f] += part[warp + s][i + f * COLS * M];
            }
            if (at < a.n && row < n_rows) {
                product_store(a.y + row * a.ldy + at + f * a.n, x[f],
                              bias_at(a.bias, a.bias_type, at), a.accumulate);
            }
        }
#if GATED
        if (at < a.n && row < n_rows) {
            store_gated(&up, (int)blockIdx.y + row, at, x[0], x[ROWS / COLS - 1]);
        }
#endif
    }
#if GATED
    if (blockIdx.x == 0) {
        gather_rows(&up, a.x, a.ldx, (int)blockIdx.y, n_rows, a.k);
    }
#endif
}

/* lora.cu: adapters, where each row may have another one, in two kernels: u = x A^T, and then
 * y += s u B. Formula: tensor/ops.h.
 *
 * SHAPES    x (n, in), a (places, parts, rank, in), u (n, n_u = parts rank) fp32; y (n, out),
 *           b (places, rank, out); place (n) int32. Pieces of W elements; W = 1 takes any width and
 *           alignment.
 * MAP       lora_shrink: a block computes TOGETHER numbers of u of one row (blockIdx.y). Each of
 *           its 8 warps takes every eighth span of 32 W elements of x and multiplies it with the
 *           same span of all these rows of A.
 *           lora_expand: a thread takes W columns of one row and adds the sum of `rank` products
 *           to each.
 *           lora_scale: a thread multiplies W columns of one row by the factors of its place.
 * MOVEMENT  x row: L2 ──▶ registers, once per block; A and B: HBM once per row, or L2 where
 *           rows share an adapter; u: 4 bytes per number, through L2.
 * EARLY     place is uploaded before a step's first kernel, and A and B are weights. So the first
 *           loads of A and B are in flight before the kernel waits for the previous one, which
 *           hides a part of their latency.
 * BOUND     the bytes of the A and B that rows use; with few rows the latency of two launches.
 * MEASURED  H200, Llama-1B, rank 16 beside all linear layers, 64 streams: a step of 1.17 ms becomes
 *           1.58 ms with one adapter and 1.76 to 1.86 ms with 64. With all loads after the wait:
 *           1.77 and 2.17 ms (bench/results/posttrain.md).
 * NUMERICS  fp32; a fixed order of sums that depends only on `in`, rank and W. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/lora_args.h"

#define THREADS  256
#define WARPS    (THREADS / WARP)
#define TOGETHER LT_LORA_TOGETHER
#define COLUMNS  (THREADS * W) /* Columns that a block of lora_expand computes. */
#define FIRST    16            /* Rows of B that lora_expand loads before it waits. */

/* Load a span of all rows of A that a block has. Rows past the last repeat the last one. */
INLINE void load_span(raw *to, const lt_cuda_lora_shrink_args &s, const DTYPE *a, int j, int k) {
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        const int row = j + i < s.n_u ? j + i : s.n_u - 1;
        to[i] = raw_load(a + row / s.rank * s.part_a + row % s.rank * s.ld_a + k);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    lora_shrink(const lt_cuda_lora_shrink_args s) {
    __shared__ float parts[WARPS][TOGETHER];
    const int row = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int j = blockIdx.x * TOGETHER, place = s.place[row];
    const DTYPE *const x = s.x + row * s.ld_x, *const a = s.a + (i64)place * s.next_a;
    int k = threadIdx.x * W;
    float sum[TOGETHER];
    raw fetched[TOGETHER];
    if (place >= 0 && k < s.in) {
        load_span(fetched, s, a, j, k);
    }
    wait_for_others();
    if (place < 0) {
        return;
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        sum[i] = 0.0f;
    }
    while (k < s.in) {
        float fx[W], fa[W];
        piece_load(fx, x + k);
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            raw_unpack(fa, fetched[i]);
#pragma unroll
            for (int e = 0; e < W; e++) {
                sum[i] += fx[e] * fa[e];
            }
        }
        k += THREADS * W;
        if (k < s.in) {
            load_span(fetched, s, a, j, k);
        }
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        sum[i] = warp_sum(sum[i]);
    }
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < TOGETHER; i++) {
            parts[warp][i] = sum[i];
        }
    }
    __syncthreads();
    if (threadIdx.x < TOGETHER && j + (int)threadIdx.x < s.n_u) {
        float all = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            all += parts[w][threadIdx.x];
        }
        s.u[(i64)row * s.n_u + j + threadIdx.x] = all;
    }
}

/* sum += u b. */
INLINE void add_times(float *sum, float u, const float *b) {
#pragma unroll
    for (int i = 0; i < W; i++) {
        sum[i] += u * b[i];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    lora_expand(const lt_cuda_lora_expand_args e) {
    const int row = blockIdx.y, place = e.place[row];
    int part = 0, first = 0, columns = e.columns[0], of_y = e.of_y[0], of_b = e.of_b[0];
#pragma unroll
    for (int i = 1; i < LT_LORA_MOST_PARTS; i++) {
        if ((int)blockIdx.x >= e.block[i]) {
            part = i, first = e.block[i], columns = e.columns[i];
            of_y = e.of_y[i], of_b = e.of_b[i];
        }
    }
    const int c = ((int)blockIdx.x - first) * COLUMNS + threadIdx.x * W;
    const bool mine = place >= 0 && c < columns;
    const DTYPE *const b = e.b + (i64)place * e.next_b + of_b + c;
    raw fetched[FIRST];
    if (mine) {
#pragma unroll
        for (int r = 0; r < FIRST; r++) {
            fetched[r] = r < e.rank ? raw_load(b + r * e.ld_b) : raw_zero();
        }
    }
    wait_for_others();
    if (!mine) {
        return;
    }
    const float *const u = e.u + (i64)row * e.n_u + part * e.rank;
    DTYPE *const y = e.y + row * e.ld_y + of_y + c;
    float sum[W], fy[W];
#pragma unroll
    for (int i = 0; i < W; i++) {
        sum[i] = 0.0f;
    }
    piece_load(fy, y);
#pragma unroll
    for (int r = 0; r < FIRST; r++) {
        if (r < e.rank) {
            float fb[W];
            raw_unpack(fb, fetched[r]);
            add_times(sum, u[r], fb);
        }
    }
#pragma unroll 8
    for (int r = FIRST; r < e.rank; r++) {
        float fb[W];
        piece_load(fb, b + r * e.ld_b);
        add_times(sum, u[r], fb);
    }
    const float scale = e.scale != NULL ? e.scale[row] : 1.0f;
#pragma unroll
    for (int i = 0; i < W; i++) {
        fy[i] += scale * sum[i];
    }
    piece_store(y, fy);
}

/* Each thread scales W columns of one row. */
extern "C" __global__ void __launch_bounds__(THREADS) lora_scale(const lt_cuda_lora_scale_args s) {
    const int row = blockIdx.y, place = s.place[row],
              c = ((int)blockIdx.x * THREADS + (int)threadIdx.x) * W;
    DTYPE *const y = s.y + row * s.ld_y + c;
    float factor[W], offset[W], fy[W];
    const bool mine = place >= 0 && c < s.columns;
#pragma unroll
    for (int i = 0; i < W; i++) {
        factor[i] = mine ? s.factor[place * s.next_factor + c + i] : 1.0f;
        offset[i] = mine && s.offset != NULL ? s.offset[place * s.next_offset + c + i] : 0.0f;
    }
    wait_for_others();
    if (!mine) {
        return;
    }
    piece_load(fy, y);
#pragma unroll
    for (int i = 0; i < W; i++) {
        fy[i] = factor[i] * fy[i] + offset[i];
    }
    piece_store(y, fy);
}

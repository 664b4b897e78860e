/* embed.cu — rows of a table by id, and the table's gradient in a fixed order.
 *
 * SHAPES    table (V, C) of DTYPE; ids (rows) int32; y, dy (rows, C) of DTYPE; dtable (V, C) fp32, added to. C a multiple of W.
 * FORWARD   one block a row, y = scale * table[id] (+ pos_table[position]).
 * BACKWARD  Rows with the same id must be added in the order of rows, without atomics:
 *     1. a stable radix sort of (id, row) by id, 8 bits a pass: digit_count (a block counts its 2048 keys), digit_scan (one block: where each
 *        digit of each block begins), digit_place (a block places its keys in order). After it equal ids stand together, rows ascending.
 *     2. embed_sum: a block walks SPAN sorted rows and adds runs of equal ids in registers. A run inside its span is added to the table; what
 *        reaches over an end goes to parts (two rows a block: head, tail).
 *     3. embed_join: the block whose tail begins a run that crosses ends adds the heads that follow, in order.
 * BOUND     dy once: 2 bytes an element (bf16), and 8 bytes an element of each table row hit.
 * NUMERICS  fp32, fixed order: the same bits every run.
 *@spec sm_80 sm_90a: DTYPE=bf16 W=8
 *@spec sm_80 sm_90a: DTYPE=fp32 W=4
 *@spec sm_80 sm_90a: DTYPE=bf16 W=1 */
#include "common/vec.cuh"

#define THREADS 256
#define DIGITS  256
#define KEYS    2048 /* A block's, in the sort. */
#define SPAN    32   /* Sorted rows a block of embed_sum adds. */
#define WARPS   (THREADS / WARP)

extern "C" __global__ void __launch_bounds__(THREADS)
embed_fwd(DTYPE *y, const DTYPE *table, const int *ids, const DTYPE *pos_table, const int *positions, int cols, float scale,
          i64 ldy, i64 ld_table, i64 ld_pos) {
    wait_for_others();
    const i64 to = (i64)blockIdx.x * ldy, from = (i64)ids[blockIdx.x] * ld_table;
    const i64 at = pos_table ? (i64)positions[blockIdx.x] * ld_pos : 0;
    for (int col = threadIdx.x * W; col < cols; col += THREADS * W) {
        float x[W], more[W];
        piece_load(x, table + from + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            x[i] *= scale;
        }
        if (pos_table) {
            piece_load(more, pos_table + at + col);
#pragma unroll
            for (int i = 0; i < W; i++) {
                x[i] += more[i];
            }
        }
        piece_store(y + to + col, x);
    }
}

/* counts (DIGITS, gridDim.x): digit-major, so that one running sum over it gives the places. rows NULL: the first pass, key i is row i. */
extern "C" __global__ void __launch_bounds__(THREADS) digit_count(int *counts, const int *keys, int n, int shift) {
    __shared__ int hist[DIGITS];
    hist[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < KEYS; i += THREADS) {
        const int at = blockIdx.x * KEYS + i;
        if (at < n) {
            atomicAdd(&hist[keys[at] >> shift & (DIGITS - 1)], 1); /* Integers: the order does not matter. */
        }
    }
    __syncthreads();
    counts[threadIdx.x * gridDim.x + blockIdx.x] = hist[threadIdx.x];
}

/* Exclusive running sum over n counts, in place; one block of 1024. */
extern "C" __global__ void __launch_bounds__(1024) digit_scan(int *counts, int n) {
    __shared__ int warps[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int before = 0;
    for (int first = 0; first < n; first += 1024) {
        const int at = first + threadIdx.x, mine = at < n ? counts[at] : 0;
        int sum = mine, total;
#pragma unroll
        for (int d = 1; d < WARP; d *= 2) {
            const int left = __shfl_up_sync(ALL_LANES, sum, d);
            sum += lane >= d ? left : 0;
        }
        if (lane == WARP - 1) {
            warps[warp] = sum;
        }
        __syncthreads();
        int w = warps[lane];
#pragma unroll
        for (int d = 1; d < WARP; d *= 2) {
            const int left = __shfl_up_sync(ALL_LANES, w, d);
            w += lane >= d ? left : 0;
        }
        total = __shfl_sync(ALL_LANES, w, WARP - 1);
        w = warp > 0 ? __shfl_sync(ALL_LANES, w, warp > 0 ? warp - 1 : 0) : 0;
        if (at < n) {
            counts[at] = before + w + sum - mine;
        }
        before += total;
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
digit_place(int *keys_out, int *rows_out, const int *keys, const int *rows, const int *counts, int n, int shift) {
    __shared__ int next[DIGITS], of_warp[WARPS][DIGITS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    next[threadIdx.x] = counts[threadIdx.x * gridDim.x + blockIdx.x];
    for (int first = 0; first < KEYS; first += THREADS) { /* 256 keys at a time, in order. */
        const int at = blockIdx.x * KEYS + first + threadIdx.x;
        const int key = at < n ? keys[at] : 0, digit = at < n ? key >> shift & (DIGITS - 1) : DIGITS;
        const unsigned same = __match_any_sync(ALL_LANES, digit);
        const int rank = __popc(same & ((1u << lane) - 1u));
        for (int w = 0; w < WARPS; w++) {
            of_warp[w][threadIdx.x] = 0;
        }
        __syncthreads();
        if (rank == 0 && digit < DIGITS) {
            of_warp[warp][digit] = __popc(same);
        }
        __syncthreads();
        if (at < n) {
            int place = next[digit] + rank;
            for (int w = 0; w < warp; w++) {
                place += of_warp[w][digit];
            }
            keys_out[place] = key;
            rows_out[place] = rows ? rows[at] : at;
        }
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            next[threadIdx.x] += of_warp[w][threadIdx.x];
        }
    }
}

/* Blocks (spans of sorted rows) x (pieces of THREADS * W columns). parts (2, spans, C): heads, then tails. */
extern "C" __global__ void __launch_bounds__(THREADS)
embed_sum(float *dtable, float *parts, const DTYPE *dy, const int *keys, const int *rows, int n, int cols, float scale, i64 ld_table,
          i64 lddy) {
    const int first = blockIdx.x * SPAN, last = min(first + SPAN, n) - 1, col = (blockIdx.y * THREADS + threadIdx.x) * W;
    const bool from_before = first > 0 && keys[first - 1] == keys[first], goes_on = last + 1 < n && keys[last + 1] == keys[last];
    float sum[W] = {0.0f}, x[W];
    if (col >= cols) {
        return;
    }
    bool head = from_before;
#pragma unroll 4
    for (int at = first; at <= last; at++) {
        const int key = keys[at];
        piece_load_stream(x, dy + (i64)rows[at] * lddy + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            sum[i] += scale * x[i];
        }
        if (at < last && keys[at + 1] == key) {
            continue;
        }
        if (head || (at == last && goes_on)) { /* The run crosses an end: its owner joins the parts. */
            piece_store_f32(parts + ((i64)(head ? 0 : gridDim.x) + blockIdx.x) * cols + col, sum);
        } else {
            float old[W];
            float *to = dtable + (i64)key * ld_table + col;
            piece_load_f32(old, to);
#pragma unroll
            for (int i = 0; i < W; i++) {
                old[i] += sum[i];
            }
            piece_store_f32(to, old);
        }
        head = false;
#pragma unroll
        for (int i = 0; i < W; i++) {
            sum[i] = 0.0f;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
embed_join(float *dtable, const float *parts, const int *keys, int n, int cols, i64 ld_table) {
    const int first = blockIdx.x * SPAN, last = min(first + SPAN, n) - 1, col = (blockIdx.y * THREADS + threadIdx.x) * W;
    const int key = keys[last];
    const bool goes_on = last + 1 < n && keys[last + 1] == key;
    const bool began_here = keys[first] != key || first == 0 || keys[first - 1] != key;
    float sum[W], x[W];
    if (!goes_on || !began_here || col >= cols) {
        return;
    }
    piece_load_f32(sum, parts + ((i64)gridDim.x + blockIdx.x) * cols + col);
    for (int b = blockIdx.x + 1; b * SPAN < n && keys[b * SPAN] == key; b++) {
        piece_load_f32(x, parts + (i64)b * cols + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            sum[i] += x[i];
        }
    }
    float *to = dtable + (i64)key * ld_table + col;
    piece_load_f32(x, to);
#pragma unroll
    for (int i = 0; i < W; i++) {
        x[i] += sum[i];
    }
    piece_store_f32(to, x);
}

/* embed.cu — rows of a table by id, and the table's gradient in a fixed order.
 *
 * SHAPES    table (V, C) of DTYPE; ids (rows) int32; y, dy (rows, C) of DTYPE; dtable (V, C) fp32,
 *           added to. C a multiple of W.
 * FORWARD   one block a row, y = scale * table[id] (+ pos_table[position]); an id below 0 is looked
 *           up in late.
 * BACKWARD  Rows with the same id must be added in the order of rows, without atomics on numbers
 *           that round:
 *     1. a stable radix sort of (id, row) by id, 8 bits a pass. digit_count: a block counts the
 *        first digit of its KEYS keys. digit_place: a block adds up the counts before its keys (up
 *        to 64 blocks; for more, digit_scan made running sums), places its keys in order, and
 *        counts the next pass's digits at their new places. Then equal ids stand together, rows
 *        ascending.
 *     2. embed_sum: a block walks SPAN sorted rows, BATCH at a time (their rows of dy, and the
 *        table's rows that end in them, are all asked for before the first is added), and adds runs
 *        of equal ids in registers. A run inside its span is added to the table; what reaches over
 *        an end goes to parts (two rows a block: head, tail).
 *     3. embed_join: the block whose tail begins a run that crosses ends adds the heads that
 *        follow, in order.
 * PART      1: table holds ids first .. first + n_ids - 1. Forward, rows of other ids are 0;
 *           backward, embed_keys gives them none_key, which is larger than any key, and their run
 *           is not added.
 * BOUND     dy once: 2 bytes an element (bf16), and 8 bytes an element of each table row hit.
 * NUMERICS  fp32, fixed order: the same bits every run. */
#include "common/late.cuh"
#include "common/vec.cuh"
#include "kernels/cuda/ops/embed_args.h"

#ifndef PART
#define PART 0
#endif
#define HELD(key) (!PART || (key) != a.none_key)
#define THREADS   256
#define DIGITS    256
#define KEYS      1024 /* A block's, in the sort. */
#define SPAN      16   /* Sorted rows that a block of embed_sum adds. */
#define BATCH     4
#define COLUMNS   128 /* Threads of embed_sum and embed_join, W columns each. */
static_assert(SPAN % BATCH == 0, "whole batches");
#define WARPS (THREADS / WARP)

extern "C" __global__ void __launch_bounds__(THREADS) embed_fwd(const lt_cuda_embed_fwd_args a) {
    wait_for_others();
    const i64 to = (i64)blockIdx.x * a.ldy;
#if PART
    const int id = a.ids[blockIdx.x] - a.first;
    if (id < 0 || id >= a.n_ids) {
        float zero[W] = {0.0f};
        for (int col = threadIdx.x * W; col < a.cols; col += THREADS * W) {
            piece_store(a.y + to + col, zero);
        }
        return;
    }
#else
    const int id = late_id(a.ids[blockIdx.x], a.late);
#endif
    const i64 from = (i64)id * a.ld_table;
    const i64 at = a.pos_table ? (i64)a.positions[blockIdx.x] * a.ld_pos : 0;
    for (int col = threadIdx.x * W; col < a.cols; col += THREADS * W) {
        float x[W], more[W];
        piece_load(x, a.table + from + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            x[i] *= a.scale;
        }
        if (a.pos_table) {
            piece_load(more, a.pos_table + at + col);
#pragma unroll
            for (int i = 0; i < W; i++) {
                x[i] += more[i];
            }
        }
        piece_store(a.y + to + col, x);
    }
}

#if PART
/* rows: the rows of the gradient's table to which dy is added; NULL: those of the ids. */
extern "C" __global__ void __launch_bounds__(THREADS) embed_keys(const lt_cuda_embed_keys_args a) {
    const int at = blockIdx.x * THREADS + threadIdx.x;
    wait_for_others();
    if (at < a.n) {
        const int id = a.ids[at] - a.first;
        const bool held = id >= 0 && id < a.n_ids;
        a.keys[at] = held ? (a.rows ? a.rows[at] : id) : a.none_key;
    }
}
#endif

/* counts (n_passes, DIGITS, gridDim.x): a pass's counts are digit-major, so that one running sum
 * over them gives the places. Those of later passes are set to zero. */
extern "C" __global__ void __launch_bounds__(THREADS)
    digit_count(const lt_cuda_digit_count_args a) {
    __shared__ int hist[DIGITS];
    hist[threadIdx.x] = 0;
    __syncthreads();
    wait_for_others();
    for (int i = threadIdx.x; i < KEYS; i += THREADS) {
        const int at = blockIdx.x * KEYS + i;
        if (at < a.n) {
            /* Integers: the order does not matter. */
            atomicAdd(&hist[a.keys[at] & (DIGITS - 1)], 1);
        }
    }
    __syncthreads();
    for (int pass = 0; pass < a.n_passes; pass++) {
        a.counts[(pass * DIGITS + threadIdx.x) * gridDim.x + blockIdx.x] = pass == 0
                                                                               ? hist[threadIdx.x]
                                                                               : 0;
    }
}

/* Exclusive running sum over n counts, in place; one block of 1024. */
extern "C" __global__ void __launch_bounds__(1024) digit_scan(const lt_cuda_digit_scan_args a) {
    __shared__ int warps[WARP];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    int before = 0;
    wait_for_others();
    for (int first = 0; first < a.n; first += 1024) {
        const int at = first + threadIdx.x, mine = at < a.n ? a.counts[at] : 0;
        const int sum = warp_running_sum(mine);
        if (lane == WARP - 1) {
            warps[warp] = sum;
        }
        __syncthreads();
        int w = warp_running_sum(warps[lane]);
        const int total = __shfl_sync(ALL_LANES, w, WARP - 1);
        w = warp > 0 ? __shfl_sync(ALL_LANES, w, warp > 0 ? warp - 1 : 0) : 0;
        if (at < a.n) {
            a.counts[at] = before + w + sum - mine;
        }
        before += total;
        __syncthreads();
    }
}

/* Where this block's keys of digit threadIdx.x begin: after all smaller digits, and after the same
 * digit in earlier blocks. counts (DIGITS, gridDim.x). */
INLINE int place_of_digit(const int *counts, int *warps) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP,
              *mine = counts + threadIdx.x * gridDim.x;
    int before = 0, total = 0, sum;
#pragma unroll 8
    for (int b = 0; b < (int)gridDim.x; b++) {
        const int count = mine[b];
        before += b < (int)blockIdx.x ? count : 0;
        total += count;
    }
    sum = warp_running_sum(total);
    if (lane == WARP - 1) {
        warps[warp] = sum;
    }
    __syncthreads();
    for (int w = 0; w < warp; w++) {
        before += warps[w];
    }
    return before + sum - total;
}

/* rows NULL: the first pass, key i is row i. counts: this pass's, running sums if scanned;
 * next_counts: the next pass's, or NULL. */
extern "C" __global__ void __launch_bounds__(THREADS)
    digit_place(const lt_cuda_digit_place_args a) {
    __shared__ int next[DIGITS], of_warp[WARPS][DIGITS], sums[WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    wait_for_others();
    next[threadIdx.x] = a.scanned ? a.counts[threadIdx.x * gridDim.x + blockIdx.x]
                                  : place_of_digit(a.counts, sums);
    for (int first = 0; first < KEYS; first += THREADS) { /* 256 keys at a time, in order. */
        const int at = blockIdx.x * KEYS + first + threadIdx.x;
        const int key = at < a.n ? a.keys[at] : 0,
                  digit = at < a.n ? key >> a.shift & (DIGITS - 1) : DIGITS;
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
        if (at < a.n) {
            int place = next[digit] + rank;
            for (int w = 0; w < warp; w++) {
                place += of_warp[w][digit];
            }
            a.keys_out[place] = key;
            a.rows_out[place] = a.rows ? a.rows[at] : at;
            if (a.next_counts) {
                atomicAdd(&a.next_counts[(key >> (a.shift + 8) & (DIGITS - 1)) * gridDim.x +
                                         place / KEYS],
                          1);
            }
        }
        __syncthreads();
        for (int w = 0; w < WARPS; w++) {
            next[threadIdx.x] += of_warp[w][threadIdx.x];
        }
    }
}

/* Blocks (spans of sorted rows) x (pieces of COLUMNS * W columns). parts (2, spans, C): heads, then
 * tails. */
extern "C" __global__ void __launch_bounds__(COLUMNS) embed_sum(const lt_cuda_embed_sum_args a) {
    /* key_of: the previous key, the span's, the next; -1 if there is none. */
    __shared__ int key_of[SPAN + 2], row_of[SPAN];
    const int first = blockIdx.x * SPAN, count = min(SPAN, a.n - first),
              col = (blockIdx.y * COLUMNS + threadIdx.x) * W;
    float sum[W] = {0.0f};
    wait_for_others();
    for (int i = threadIdx.x; i < SPAN + 2; i += COLUMNS) {
        const int at = first + i - 1;
        key_of[i] = at >= 0 && at < a.n ? a.keys[at] : -1;
        if (i < SPAN) {
            row_of[i] = first + i < a.n ? a.rows[first + i] : 0;
        }
    }
    __syncthreads();
    if (col >= a.cols) {
        return;
    }
    bool head = key_of[0] == key_of[1];
    for (int start = 0; start < count; start += BATCH) {
        float x[BATCH][W], old[BATCH][W];
#pragma unroll
        for (int b = 0; b < BATCH; b++) { /* Start all loads before the first is needed. */
            const int at = start + b;
            const bool ends = at < count && key_of[at + 1] != key_of[at + 2];
            if (at < count) {
                piece_load_stream(x[b], a.dy + (i64)row_of[at] * a.lddy + col);
            }
            if (ends && HELD(key_of[at + 1])) {
                piece_load_f32(old[b], a.dtable + (i64)key_of[at + 1] * a.ld_table + col);
            }
        }
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
            const int at = start + b, key = key_of[at + 1];
            if (at >= count) {
                break;
            }
            const bool ends = key != key_of[at + 2];
#pragma unroll
            for (int i = 0; i < W; i++) {
                sum[i] += a.scale * x[b][i];
            }
            if (!ends && at < count - 1) {
                continue;
            }
            /* The run crosses an end of the span, so its owner joins the parts. */
            if (head || !ends) {
                piece_store_f32(a.parts + ((i64)(head ? 0 : gridDim.x) + blockIdx.x) * a.cols + col,
                                sum);
            } else if (HELD(key)) {
#pragma unroll
                for (int i = 0; i < W; i++) {
                    old[b][i] += sum[i];
                }
                piece_store_f32(a.dtable + (i64)key * a.ld_table + col, old[b]);
            }
            head = false;
#pragma unroll
            for (int i = 0; i < W; i++) {
                sum[i] = 0.0f;
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(COLUMNS) embed_join(const lt_cuda_embed_join_args a) {
    const int first = blockIdx.x * SPAN, last = min(first + SPAN, a.n) - 1,
              col = (blockIdx.y * COLUMNS + threadIdx.x) * W;
    wait_for_others();
    const int key = a.keys[last];
    const bool goes_on = last + 1 < a.n && a.keys[last + 1] == key;
    const bool began_here = a.keys[first] != key || first == 0 || a.keys[first - 1] != key;
    float sum[W], x[W];
    if (!goes_on || !began_here || !HELD(key) || col >= a.cols) {
        return;
    }
    piece_load_f32(sum, a.parts + ((i64)gridDim.x + blockIdx.x) * a.cols + col);
#pragma unroll 4
    for (int b = blockIdx.x + 1; b * SPAN < a.n && a.keys[b * SPAN] == key; b++) {
        piece_load_f32(x, a.parts + (i64)b * a.cols + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            sum[i] += x[i];
        }
    }
    float *to = a.dtable + (i64)key * a.ld_table + col;
    piece_load_f32(x, to);
#pragma unroll
    for (int i = 0; i < W; i++) {
        x[i] += sum[i];
    }
    piece_store_f32(to, x);
}

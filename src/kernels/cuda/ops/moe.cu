/* moe.cu — routing of a mixture of experts, forward and backward, and rows into expert order and
 * back. Formulas: tensor/ops.h.
 *
 * SHAPES    logits, probs (R, E) fp32, E <= 1024; experts, weights (R, K); slot_row (R K),
 *           expert_start (E + 1) int32; x, y (rows, C) of DTYPE.
 * ROUTE     1. route_choose: one warp per row: softmax, then K times the largest (ties: the lower
 *           index).
 *           2. A stable counting sort of the assignments by expert, on integers only: route_count
 *              (256 assignments per block), route_scan (one block: where each expert of each
 *              block begins; expert_start; how many were dropped before each block), route_place.
 *           3. route_aux: one block, from column sums of probs and the counts.
 *           Few rows, without aux: route_few does all of it in one launch.
 *           HELD: experts per lane.
 * ROWS      moe_invert: inverse[assignment] = its slot, or -1; sums of few rows search for slots
 *           instead. Then, with TEAM threads per row of C (a warp for narrow rows): gather, its
 *           backward, combine, its backward.
 * BOUND     rows: bytes of x and y once. Routing: a few us of latency per launch.
 * NUMERICS  fp32 in a fixed order; counts are integers: bit-identical run to run. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/moe_args.h"

#define THREADS 256
#define WARPS   (THREADS / WARP)
#ifndef HELD
#define HELD (LT_MOE_MAX_EXPERTS / WARP)
#endif
#ifndef TEAM
#define TEAM THREADS
#endif
#define TEAMS (THREADS / TEAM)
static_assert(TEAM == WARP || TEAM == THREADS, "a row belongs to a warp or to the block");
#define NEGATIVE __uint_as_float(0xff800000u)

/* ---- Routing ---- */

/* Log-sum-exp of a row of logits, and its maximum. */
INLINE float row_lse(const float *row, int experts, int lane) {
    float top = NEGATIVE, sum = 0.0f;
    for (int e = lane; e < experts; e += WARP) {
        top = fmaxf(top, row[e]);
    }
    top = warp_max(top);
    for (int e = lane; e < experts; e += WARP) {
        sum += expf(row[e] - top);
    }
    return top + logf(warp_sum(sum));
}

INLINE void choose(const lt_cuda_route_choose_args &a, int row) {
    const int lane = threadIdx.x % WARP;
    const float *const in = a.logits + row * a.ld_logits;
    const float lse = row_lse(in, a.experts, lane);
    u32 taken = 0;
    float sum = 0.0f;
    for (int e = lane; e < a.experts; e += WARP) {
        a.probs[row * a.ld_probs + e] = expf(in[e] - lse);
    }
    for (int k = 0; k < a.top_k; k++) {
        float best = NEGATIVE;
        int where = LT_MOE_MAX_EXPERTS;
        for (int j = 0, e = lane; e < a.experts; j++, e += WARP) {
            if (!(taken >> j & 1u) && (where == LT_MOE_MAX_EXPERTS || in[e] > best)) {
                best = in[e], where = e;
            }
        }
#pragma unroll
        for (int d = WARP / 2; d > 0; d /= 2) {
            const float other = __shfl_xor_sync(ALL_LANES, best, d);
            const int there = __shfl_xor_sync(ALL_LANES, where, d);
            if (there < LT_MOE_MAX_EXPERTS &&
                (where == LT_MOE_MAX_EXPERTS || other > best || (other == best && there < where))) {
                best = other, where = there;
            }
        }
        if (where % WARP == lane) {
            taken |= 1u << where / WARP;
        }
        const float p = expf(best - lse);
        sum += p;
        if (lane == 0) {
            a.chosen[row * a.ld_chosen + k] = where;
            a.weights[row * a.ld_weights + k] = p;
        }
    }
    if (lane == 0) {
        for (int k = 0; k < a.top_k && a.normalise; k++) {
            a.weights[row * a.ld_weights + k] /= sum;
        }
        a.lse_out[row] = lse;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    route_choose(const lt_cuda_route_choose_args a) {
    const int row = blockIdx.x * WARPS + threadIdx.x / WARP;
    wait_for_others();
    if (row < a.rows) {
        choose(a, row);
    }
}

/* Each thread of a block sorts one assignment. This is its expert; past the end, a value that no
 * assignment has. */
INLINE int expert_of(const int *chosen, i64 ld, int top_k, int i, int n) {
    return i < n ? chosen[i / top_k * ld + i % top_k] : LT_MOE_MAX_EXPERTS + (int)threadIdx.x;
}
/* Count the assignments of each expert in each warp; of_warp must be 0. Returns the lower lanes of
 * this warp that have the same expert. */
INLINE unsigned count_warp(int of_warp[WARPS][LT_MOE_MAX_EXPERTS], int e, bool any) {
    const int lane = threadIdx.x % WARP;
    const unsigned same = __match_any_sync(ALL_LANES, e), below = same & ((1u << lane) - 1u);
    if (any && below == 0) {
        of_warp[threadIdx.x / WARP][e] = __popc(same);
    }
    return below;
}
/* How many assignments before this thread's have its expert. */
INLINE int count_before(const int of_warp[WARPS][LT_MOE_MAX_EXPERTS], int e, unsigned below) {
    int n = __popc(below);
    for (int w = 0; w < (int)threadIdx.x / WARP; w++) {
        n += of_warp[w][e];
    }
    return n;
}
INLINE void clear_counts(int of_warp[WARPS][LT_MOE_MAX_EXPERTS], int experts) {
    for (int at = threadIdx.x; at < WARPS * experts; at += THREADS) {
        of_warp[at / experts][at % experts] = 0;
    }
}

/* Choosing and the whole sort, of at most WARPS rows and THREADS assignments, without capacity: one
 * block. */
extern "C" __global__ void __launch_bounds__(THREADS) route_few(const lt_cuda_route_few_args w) {
    __shared__ int of_warp[WARPS][LT_MOE_MAX_EXPERTS], begins[LT_MOE_MAX_EXPERTS], sums[WARPS];
    const lt_cuda_route_choose_args &a = w.choose;
    const int i = threadIdx.x, lane = i % WARP, warp = i / WARP, n = a.rows * a.top_k;
    clear_counts(of_warp, a.experts);
    wait_for_others();
    if (warp < a.rows) {
        choose(a, warp);
    }
    __syncthreads();
    const int e = expert_of(a.chosen, a.ld_chosen, a.top_k, i, n);
    const unsigned below = count_warp(of_warp, e, i < n);
    __syncthreads();
    /* A thread has `share` experts that follow each other: their sum, then the sums before it. */
    const int share = (a.experts + THREADS - 1) / THREADS;
    int own = 0;
    for (int x = i * share; x < min((i + 1) * share, a.experts); x++) {
        begins[x] = own;
        for (int v = 0; v < WARPS; v++) {
            own += of_warp[v][x];
        }
    }
    int before = own;
    for (int d = 1; d < WARP; d *= 2) {
        const int other = __shfl_up_sync(ALL_LANES, before, d);
        before += lane >= d ? other : 0;
    }
    if (lane == WARP - 1) {
        sums[warp] = before;
    }
    __syncthreads();
    before -= own;
    for (int v = 0; v < warp; v++) {
        before += sums[v];
    }
    for (int x = i * share; x < min((i + 1) * share, a.experts); x++) {
        begins[x] += before;
        w.start[x] = begins[x];
    }
    if (i == THREADS - 1) {
        w.start[a.experts] = n;
    }
    __syncthreads();
    if (i < n) {
        w.slot_row[begins[e] + count_before(of_warp, e, below)] = i;
    }
}

/* counts (blocks, E): how many of a block's 256 assignments chose each expert. */
extern "C" __global__ void __launch_bounds__(THREADS)
    route_count(const lt_cuda_route_count_args a) {
    __shared__ int hist[LT_MOE_MAX_EXPERTS];
    const int i = blockIdx.x * THREADS + threadIdx.x;
    wait_for_others();
    for (int e = threadIdx.x; e < a.experts; e += THREADS) {
        hist[e] = 0;
    }
    __syncthreads();
    if (i < a.n) {
        /* These are integers, so their order does not matter. */
        atomicAdd(&hist[a.chosen[i / a.top_k * a.ld + i % a.top_k]], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < a.experts; e += THREADS) {
        a.counts[(i64)blockIdx.x * a.experts + e] = hist[e];
    }
}

/* One block of 1024 threads. counts becomes, for each block and expert, the number of assignments
 * in earlier blocks; total (E); start (E + 1); dropped (blocks): the number dropped in earlier
 * blocks. */
extern "C" __global__ void __launch_bounds__(1024) route_scan(const lt_cuda_route_scan_args a) {
    __shared__ int kept[LT_MOE_MAX_EXPERTS], sums[1024];
    /* A group of threads for each expert; each thread adds up a range of the blocks. */
    const int e = threadIdx.x % a.experts, part = threadIdx.x / a.experts,
              parts = min(1024 / a.experts, 32);
    const int share = (a.blocks + parts - 1) / parts, from = min(part * share, a.blocks),
              to = part < parts ? min(from + share, a.blocks) : from;
    int before = 0, own = 0;
    wait_for_others();
#pragma unroll 8
    for (int b = from; b < to; b++) {
        own += a.counts[(i64)b * a.experts + e];
    }
    sums[threadIdx.x] = own;
    __syncthreads();
    for (int p = 0; p < part && part < parts; p++) {
        before += sums[p * a.experts + e];
    }
    if (part == parts - 1) {
        a.total[e] = before + own;
        kept[e] = a.capacity > 0 ? min(before + own, a.capacity) : before + own;
    }
#pragma unroll 8
    for (int b = from; b < to; b++) {
        const int n = a.counts[(i64)b * a.experts + e];
        a.counts[(i64)b * a.experts + e] = before;
        before += n;
    }
    __syncthreads();
    /* Rows dropped before block b: those of each expert beyond its capacity up to there. */
    for (int b = threadIdx.x; b < a.blocks && a.capacity > 0; b += 1024) {
        int n = 0;
        for (int x = 0; x < a.experts; x++) {
            n += max(0, a.counts[(i64)b * a.experts + x] - a.capacity);
        }
        a.dropped[b] = n;
    }
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int x = 0; x < a.experts; x++) {
            a.start[x] = sum;
            sum += kept[x];
        }
        a.start[a.experts] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    route_place(const lt_cuda_route_place_args a) {
    __shared__ int of_warp[WARPS][LT_MOE_MAX_EXPERTS], drops[WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP,
              i = blockIdx.x * THREADS + threadIdx.x;
    wait_for_others();
    const int e = expert_of(a.chosen, a.ld_chosen, a.top_k, i, a.n);
    clear_counts(of_warp, a.experts);
    __syncthreads();
    const unsigned below = count_warp(of_warp, e, i < a.n);
    __syncthreads();
    const int place =
        i < a.n ? a.counts[(i64)blockIdx.x * a.experts + e] + count_before(of_warp, e, below) : 0;
    const bool drop = i < a.n && a.capacity > 0 && place >= a.capacity;
    const unsigned dropping = __ballot_sync(ALL_LANES, drop);
    if (lane == 0) {
        drops[warp] = __popc(dropping);
    }
    __syncthreads();
    if (drop) {
        int slot = a.start[a.experts] + a.dropped[blockIdx.x] +
                   __popc(dropping & ((1u << lane) - 1u));
        for (int w = 0; w < warp; w++) {
            slot += drops[w];
        }
        a.slot_row[slot] = i;
        a.weights[i / a.top_k * a.ld_weights + i % a.top_k] = 0.0f;
    } else if (i < a.n) {
        a.slot_row[a.start[e] + place] = i;
    }
}

/* aux: E sum_e (total_e / n) (sums_e / rows), and the mean of lse^2; one block of 1024
 * threads. */
extern "C" __global__ void __launch_bounds__(1024) route_aux(const lt_cuda_route_aux_args a) {
    __shared__ float slots[2][WARP];
    float balance = 0.0f, z = 0.0f;
    wait_for_others();
    for (int e = threadIdx.x; e < a.experts; e += 1024) {
        balance += (float)a.total[e] * a.sums[e];
    }
    for (int r = threadIdx.x; r < a.rows; r += 1024) {
        z += a.lse[r] * a.lse[r];
    }
    balance = block_sum(balance, slots[0], WARP);
    z = block_sum(z, slots[1], WARP);
    if (threadIdx.x == 0) {
        a.aux[0] = balance * (float)a.experts / ((float)a.rows * (float)a.top_k) / (float)a.rows;
        a.aux[a.step] = z / (float)a.rows;
    }
}

/* total (E), zeroed before: how many assignments chose each expert. These are integers, so their
 * order does not matter. */
extern "C" __global__ void __launch_bounds__(THREADS)
    route_total(const lt_cuda_route_total_args a) {
    __shared__ int hist[LT_MOE_MAX_EXPERTS];
    wait_for_others();
    for (int e = threadIdx.x; e < a.experts; e += THREADS) {
        hist[e] = 0;
    }
    __syncthreads();
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < a.n; i += gridDim.x * THREADS) {
        atomicAdd(&hist[a.chosen[i / a.top_k * a.ld + i % a.top_k]], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < a.experts; e += THREADS) {
        if (hist[e] > 0) {
            atomicAdd(&a.total[e], hist[e]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) route_bwd(const lt_cuda_route_bwd_args a) {
    float z_coef = a.z_coef, aux_coef = a.aux_coef;
    const int row = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    wait_for_others();
    if (row >= a.rows) {
        return;
    }
    const float *const p = a.probs + row * a.ld_probs;
    const int *const which = a.chosen + row * a.ld_chosen;
    if (a.aux_scale != nullptr) {
        aux_coef *= *a.aux_scale;
        z_coef *= *a.aux_scale;
    }
    const float balance = aux_coef * (float)a.experts / ((float)a.rows * (float)a.top_k) /
                          (float)a.rows;
    const float z = z_coef != 0.0f
                        ? z_coef * 2.0f * row_lse(a.logits + row * a.ld_logits, a.experts, lane) /
                              (float)a.rows
                        : 0.0f;
    float dp[HELD], sum = 0.0f, mean = 0.0f, inner = 0.0f;
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        const int e = lane + WARP * j;
        dp[j] = e < a.experts && aux_coef != 0.0f ? balance * (float)a.total[e] : 0.0f;
    }
    for (int k = 0; k < a.top_k; k++) { /* All lanes have the same numbers. */
        const float dw = a.weights[row * a.ld_weights + k] == 0.0f
                             ? 0.0f
                             : a.dweights[row * a.ld_dweights + k];
        sum += p[which[k]];
        mean += dw * p[which[k]];
    }
    mean /= sum;
    for (int k = 0; k < a.top_k; k++) {
        const float dw = a.weights[row * a.ld_weights + k] == 0.0f
                             ? 0.0f
                             : a.dweights[row * a.ld_dweights + k];
        const float d = a.normalise ? (dw - mean) / sum : dw;
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            dp[j] += which[k] == lane + WARP * j ? d : 0.0f;
        }
    }
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        const int e = lane + WARP * j;
        inner += e < a.experts ? p[e] * dp[j] : 0.0f;
    }
    inner = warp_sum(inner);
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        const int e = lane + WARP * j;
        if (e < a.experts) {
            a.dlogits[row * a.ld_dlogits + e] = p[e] * (dp[j] - inner) + z * p[e];
        }
    }
}

/* ---- Rows ---- */

extern "C" __global__ void __launch_bounds__(THREADS) moe_invert(const lt_cuda_moe_invert_args a) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    wait_for_others();
    if (i < a.n) {
        a.inverse[a.slot_row[i]] = i < *a.n_kept ? i : -1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) moe_gather(const lt_cuda_moe_gather_args a) {
    const i64 i = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    wait_for_others();
    if (i >= min(a.n, *a.n_kept)) {
        return;
    }
    const DTYPE *const x = a.x + a.slot_row[i] / a.top_k * a.ldx;
    DTYPE *const y = a.y + i * a.ldy;
#pragma unroll 4
    for (int col = threadIdx.x % TEAM * W; col < a.cols; col += TEAM * W) {
        float f[W];
        piece_load(f, x + col);
        piece_store(y + col, f);
    }
}

/* The slot of assignment i, or -1; all lanes of a warp ask for the same one. */
INLINE int slot_of(const lt_cuda_moe_sum_args &a, i64 i) {
    if (a.inverse != nullptr) {
        return a.inverse[i];
    }
    for (int first = 0, n = (int)a.n * a.top_k; first < n; first += WARP) {
        const int slot = first + threadIdx.x % WARP;
        const unsigned found = __ballot_sync(ALL_LANES, slot < n && a.slot_row[slot] == i);
        if (found != 0) {
            const int at = first + __ffs((int)found) - 1;
            return at < *a.n_kept ? at : -1;
        }
    }
    return -1;
}

/* y[r] = sum over k of (weights[r][k] or 1) x[slot of (r, k)] (+ y[r]). */
extern "C" __global__ void __launch_bounds__(THREADS) moe_sum(const lt_cuda_moe_sum_args a) {
    const i64 r = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    wait_for_others();
    if (r >= a.n) {
        return;
    }
    DTYPE *const y = a.y + r * a.ldy;
    for (int from = 0; from < a.cols; from += TEAM * W) { /* Whole warps search for slots. */
        const int col = from + threadIdx.x % TEAM * W;
        float sum[W] = {0.0f}, f[W];
        if (a.add && col < a.cols) {
            piece_load(sum, y + col);
        }
#pragma unroll 2
        for (int k = 0; k < a.top_k; k++) {
            const int slot = slot_of(a, r * a.top_k + k);
            const float w = a.weights ? a.weights[r * a.ld_weights + k] : 1.0f;
            if (slot >= 0 && col < a.cols) {
                piece_load(f, a.x + slot * a.ldx + col);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    sum[i] += w * f[i];
                }
            }
        }
        if (col < a.cols) {
            piece_store(y + col, sum);
        }
    }
}

/* One assignment: dx[slot] = w dy[r]; dweights[r][k] = <x[slot], dy[r]>. dx may be x. */
extern "C" __global__ void __launch_bounds__(THREADS)
    moe_combine_bwd(const lt_cuda_moe_combine_bwd_args a) {
    __shared__ float slots[WARPS];
    const int at = blockIdx.x * TEAMS + threadIdx.x / TEAM, r = at / a.top_k, k = at % a.top_k;
    wait_for_others();
    const int slot = at < a.n ? a.inverse[at] : -1;
    float dot = 0.0f;
    if (slot >= 0) {
        const float w = a.weights[r * a.ld_weights + k];
#pragma unroll 4
        for (int col = threadIdx.x % TEAM * W; col < a.cols; col += TEAM * W) {
            float from_x[W], d[W];
            piece_load_stream(from_x, a.x + slot * a.ldx + col);
            piece_load(d, a.dy + r * a.lddy + col);
#pragma unroll
            for (int i = 0; i < W; i++) {
                dot += from_x[i] * d[i];
                d[i] *= w;
            }
            piece_store(a.dx + slot * a.lddx + col, d);
        }
    }
    dot = TEAM == WARP ? warp_sum(dot) : block_sum(dot, slots, WARPS);
    if (threadIdx.x % TEAM == 0 && at < a.n) {
        a.dweights[r * a.ld_dweights + k] = dot;
    }
}

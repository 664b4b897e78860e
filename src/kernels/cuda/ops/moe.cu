/* moe.cu — routing of a mixture of experts, forward and backward, and rows into expert order and
 * back. Formulas: tensor/ops.h.
 *
 * SHAPES    logits, probs (R, E) fp32, E <= 1024; experts, weights (R, K); slot_row (R K),
 *           expert_start (E + 1) int32; x, y (rows, C) of DTYPE.
 * ROUTE     1. route_choose: a warp a row: softmax, then K times the largest (ties: the lower
 *           index).
 *           2. A stable counting sort of the assignments by expert, on integers only: route_count
 *              (256 assignments a block), route_scan (one block: where each expert of each block
 *              begins; expert_start; how many were dropped before each block), route_place.
 *           3. route_aux: one block, from column sums of probs and the counts.
 *           HELD: experts of a lane.
 * ROWS      moe_invert: inverse[assignment] = its slot, or -1. Then TEAM threads a row of C (a warp
 *           for narrow rows): gather, its backward, combine, its backward.
 * BOUND     rows: bytes of x and y once. Routing: a few us of latency a launch.
 * NUMERICS  fp32 in a fixed order; counts are integers: bit-identical run to run. */
#include "common/vec.cuh"

#define THREADS     256
#define WARPS       (THREADS / WARP)
#define MAX_EXPERTS 1024
#ifndef HELD
#define HELD (MAX_EXPERTS / WARP)
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

extern "C" __global__ void __launch_bounds__(THREADS)
    route_choose(float *probs, int *chosen, float *weights, float *lse_out, const float *logits,
                 i64 ld_probs, i64 ld_chosen, i64 ld_weights, i64 ld_logits, int rows, int experts,
                 int top_k, int normalise) {
    const int row = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    wait_for_others();
    if (row >= rows) {
        return;
    }
    const float *const in = logits + row * ld_logits;
    const float lse = row_lse(in, experts, lane);
    u32 taken = 0;
    float sum = 0.0f;
    for (int e = lane; e < experts; e += WARP) {
        probs[row * ld_probs + e] = expf(in[e] - lse);
    }
    for (int k = 0; k < top_k; k++) {
        float best = NEGATIVE;
        int where = MAX_EXPERTS;
        for (int j = 0, e = lane; e < experts; j++, e += WARP) {
            if (!(taken >> j & 1u) && (where == MAX_EXPERTS || in[e] > best)) {
                best = in[e], where = e;
            }
        }
#pragma unroll
        for (int d = WARP / 2; d > 0; d /= 2) {
            const float other = __shfl_xor_sync(ALL_LANES, best, d);
            const int there = __shfl_xor_sync(ALL_LANES, where, d);
            if (there < MAX_EXPERTS &&
                (where == MAX_EXPERTS || other > best || (other == best && there < where))) {
                best = other, where = there;
            }
        }
        if (where % WARP == lane) {
            taken |= 1u << where / WARP;
        }
        const float p = expf(best - lse);
        sum += p;
        if (lane == 0) {
            chosen[row * ld_chosen + k] = where;
            weights[row * ld_weights + k] = p;
        }
    }
    if (lane == 0) {
        for (int k = 0; k < top_k && normalise; k++) {
            weights[row * ld_weights + k] /= sum;
        }
        lse_out[row] = lse;
    }
}

/* counts (blocks, E): assignments of each expert among a block's 256. */
extern "C" __global__ void __launch_bounds__(THREADS)
    route_count(int *counts, const int *chosen, i64 ld, int n, int top_k, int experts) {
    __shared__ int hist[MAX_EXPERTS];
    const int i = blockIdx.x * THREADS + threadIdx.x;
    wait_for_others();
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        hist[e] = 0;
    }
    __syncthreads();
    if (i < n) {
        /* Integers: the order does not matter. */
        atomicAdd(&hist[chosen[i / top_k * ld + i % top_k]], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        counts[(i64)blockIdx.x * experts + e] = hist[e];
    }
}

/* One block of 1024. counts becomes, for each block and expert, how many came before; total (E);
 * start (E + 1); dropped (blocks): before each block. */
extern "C" __global__ void __launch_bounds__(1024)
    route_scan(int *counts, int *total, int *start, int *dropped, int blocks, int experts,
               int capacity) {
    __shared__ int kept[MAX_EXPERTS], sums[1024];
    /* Of the blocks, for each expert. */
    const int e = threadIdx.x % experts, part = threadIdx.x / experts,
              parts = min(1024 / experts, 32);
    const int share = (blocks + parts - 1) / parts, from = min(part * share, blocks),
              to = part < parts ? min(from + share, blocks) : from;
    int before = 0, own = 0;
    wait_for_others();
#pragma unroll 8
    for (int b = from; b < to; b++) {
        own += counts[(i64)b * experts + e];
    }
    sums[threadIdx.x] = own;
    __syncthreads();
    for (int p = 0; p < part && part < parts; p++) {
        before += sums[p * experts + e];
    }
    if (part == parts - 1) {
        total[e] = before + own;
        kept[e] = capacity > 0 ? min(before + own, capacity) : before + own;
    }
#pragma unroll 8
    for (int b = from; b < to; b++) {
        const int n = counts[(i64)b * experts + e];
        counts[(i64)b * experts + e] = before;
        before += n;
    }
    __syncthreads();
    /* Dropped before block b: what each expert has beyond its capacity by then. */
    for (int b = threadIdx.x; b < blocks && capacity > 0; b += 1024) {
        int n = 0;
        for (int x = 0; x < experts; x++) {
            n += max(0, counts[(i64)b * experts + x] - capacity);
        }
        dropped[b] = n;
    }
    if (threadIdx.x == 0) {
        int sum = 0;
        for (int x = 0; x < experts; x++) {
            start[x] = sum;
            sum += kept[x];
        }
        start[experts] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    route_place(int *slot_row, float *weights, const int *chosen, const int *counts,
                const int *start, const int *dropped, i64 ld_chosen, i64 ld_weights, int n,
                int top_k, int experts, int capacity) {
    __shared__ int of_warp[WARPS][MAX_EXPERTS], drops[WARPS];
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP,
              i = blockIdx.x * THREADS + threadIdx.x;
    wait_for_others();
    /* Beyond the end: nobody's like. */
    const int e = i < n ? chosen[i / top_k * ld_chosen + i % top_k] : MAX_EXPERTS + threadIdx.x;
    const unsigned same = __match_any_sync(ALL_LANES, e), below = (1u << lane) - 1u;
    int place = 0;
    for (int at = threadIdx.x; at < WARPS * experts; at += THREADS) {
        of_warp[at / experts][at % experts] = 0;
    }
    __syncthreads();
    if (i < n && (same & below) == 0) {
        of_warp[warp][e] = __popc(same);
    }
    __syncthreads();
    if (i < n) {
        place = counts[(i64)blockIdx.x * experts + e] + __popc(same & below);
        for (int w = 0; w < warp; w++) {
            place += of_warp[w][e];
        }
    }
    const bool drop = i < n && capacity > 0 && place >= capacity;
    const unsigned dropping = __ballot_sync(ALL_LANES, drop);
    if (lane == 0) {
        drops[warp] = __popc(dropping);
    }
    __syncthreads();
    if (drop) {
        int slot = start[experts] + dropped[blockIdx.x] + __popc(dropping & below);
        for (int w = 0; w < warp; w++) {
            slot += drops[w];
        }
        slot_row[slot] = i;
        weights[i / top_k * ld_weights + i % top_k] = 0.0f;
    } else if (i < n) {
        slot_row[start[e] + place] = i;
    }
}

/* aux: E sum_e (total_e / n) (sums_e / rows), and the mean of lse^2; one block of 1024. */
extern "C" __global__ void __launch_bounds__(1024)
    route_aux(float *aux, i64 step, const float *sums, const int *total, const float *lse, int rows,
              int top_k, int experts) {
    __shared__ float slots[2][WARP];
    float balance = 0.0f, z = 0.0f;
    wait_for_others();
    for (int e = threadIdx.x; e < experts; e += 1024) {
        balance += (float)total[e] * sums[e];
    }
    for (int r = threadIdx.x; r < rows; r += 1024) {
        z += lse[r] * lse[r];
    }
    balance = block_sum(balance, slots[0], WARP);
    z = block_sum(z, slots[1], WARP);
    if (threadIdx.x == 0) {
        aux[0] = balance * (float)experts / ((float)rows * (float)top_k) / (float)rows;
        aux[step] = z / (float)rows;
    }
}

/* total (E), zeroed before: how many assignments chose each expert. Integers: the order does not
 * matter. */
extern "C" __global__ void __launch_bounds__(THREADS)
    route_total(int *total, const int *chosen, i64 ld, int n, int top_k, int experts) {
    __shared__ int hist[MAX_EXPERTS];
    wait_for_others();
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        hist[e] = 0;
    }
    __syncthreads();
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += gridDim.x * THREADS) {
        atomicAdd(&hist[chosen[i / top_k * ld + i % top_k]], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        if (hist[e] > 0) {
            atomicAdd(&total[e], hist[e]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    route_bwd(float *dlogits, const float *dweights, const float *logits, const float *probs,
              const int *chosen, const float *weights, const int *total, i64 ld_dlogits,
              i64 ld_dweights, i64 ld_logits, i64 ld_probs, i64 ld_chosen, i64 ld_weights, int rows,
              int experts, int top_k, int normalise, float aux_coef, float z_coef,
              const float *aux_scale) {
    const int row = blockIdx.x * WARPS + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    wait_for_others();
    if (row >= rows) {
        return;
    }
    const float *const p = probs + row * ld_probs;
    const int *const which = chosen + row * ld_chosen;
    if (aux_scale != nullptr) {
        aux_coef *= *aux_scale;
        z_coef *= *aux_scale;
    }
    const float balance = aux_coef * (float)experts / ((float)rows * (float)top_k) / (float)rows;
    const float z = z_coef != 0.0f
                        ? z_coef * 2.0f * row_lse(logits + row * ld_logits, experts, lane) /
                              (float)rows
                        : 0.0f;
    float dp[HELD], sum = 0.0f, mean = 0.0f, inner = 0.0f;
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        const int e = lane + WARP * j;
        dp[j] = e < experts && aux_coef != 0.0f ? balance * (float)total[e] : 0.0f;
    }
    for (int k = 0; k < top_k; k++) { /* All lanes alike. */
        const float dw = weights[row * ld_weights + k] == 0.0f ? 0.0f
                                                               : dweights[row * ld_dweights + k];
        sum += p[which[k]];
        mean += dw * p[which[k]];
    }
    mean /= sum;
    for (int k = 0; k < top_k; k++) {
        const float dw = weights[row * ld_weights + k] == 0.0f ? 0.0f
                                                               : dweights[row * ld_dweights + k];
        const float d = normalise ? (dw - mean) / sum : dw;
#pragma unroll
        for (int j = 0; j < HELD; j++) {
            dp[j] += which[k] == lane + WARP * j ? d : 0.0f;
        }
    }
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        const int e = lane + WARP * j;
        inner += e < experts ? p[e] * dp[j] : 0.0f;
    }
    inner = warp_sum(inner);
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        const int e = lane + WARP * j;
        if (e < experts) {
            dlogits[row * ld_dlogits + e] = p[e] * (dp[j] - inner) + z * p[e];
        }
    }
}

/* ---- Rows ---- */

extern "C" __global__ void __launch_bounds__(THREADS)
    moe_invert(int *inverse, const int *slot_row, const int *n_kept, int n) {
    const int i = blockIdx.x * THREADS + threadIdx.x;
    wait_for_others();
    if (i < n) {
        inverse[slot_row[i]] = i < *n_kept ? i : -1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    moe_gather(DTYPE *y, const DTYPE *x, const int *slot_row, const int *n_kept, i64 ldy, i64 ldx,
               int cols, int top_k, int n) {
    const i64 i = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    wait_for_others();
    if (i >= min(n, *n_kept)) {
        return;
    }
    x += slot_row[i] / top_k * ldx, y += i * ldy;
#pragma unroll 4
    for (int col = threadIdx.x % TEAM * W; col < cols; col += TEAM * W) {
        float f[W];
        piece_load(f, x + col);
        piece_store(y + col, f);
    }
}

/* y[r] = sum over k of (weights[r][k] or 1) x[slot of (r, k)] (+ y[r]). */
extern "C" __global__ void __launch_bounds__(THREADS)
    moe_sum(DTYPE *y, const DTYPE *x, const float *weights, const int *inverse, i64 ldy, i64 ldx,
            i64 ld_weights, int cols, int top_k, int add, int n) {
    const i64 r = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    wait_for_others();
    if (r >= n) {
        return;
    }
    y += r * ldy;
    for (int col = threadIdx.x % TEAM * W; col < cols; col += TEAM * W) {
        float sum[W] = {0.0f}, f[W];
        if (add) {
            piece_load(sum, y + col);
        }
#pragma unroll 2
        for (int k = 0; k < top_k; k++) {
            const int slot = inverse[r * top_k + k];
            const float w = weights ? weights[r * ld_weights + k] : 1.0f;
            if (slot >= 0) {
                piece_load(f, x + slot * ldx + col);
#pragma unroll
                for (int i = 0; i < W; i++) {
                    sum[i] += w * f[i];
                }
            }
        }
        piece_store(y + col, sum);
    }
}

/* An assignment: dx[slot] = w dy[r]; dweights[r][k] = <x[slot], dy[r]>. dx may be x. */
extern "C" __global__ void __launch_bounds__(THREADS)
    moe_combine_bwd(DTYPE *dx, float *dweights, const DTYPE *dy, const DTYPE *x,
                    const float *weights, const int *inverse, i64 lddx, i64 ld_dweights, i64 lddy,
                    i64 ldx, i64 ld_weights, int cols, int top_k, int n) {
    __shared__ float slots[WARPS];
    const int at = blockIdx.x * TEAMS + threadIdx.x / TEAM, r = at / top_k, k = at % top_k;
    wait_for_others();
    const int slot = at < n ? inverse[at] : -1;
    float dot = 0.0f;
    if (slot >= 0) {
        const float w = weights[r * ld_weights + k];
#pragma unroll 4
        for (int col = threadIdx.x % TEAM * W; col < cols; col += TEAM * W) {
            float from_x[W], d[W];
            piece_load_stream(from_x, x + slot * ldx + col);
            piece_load(d, dy + r * lddy + col);
#pragma unroll
            for (int i = 0; i < W; i++) {
                dot += from_x[i] * d[i];
                d[i] *= w;
            }
            piece_store(dx + slot * lddx + col, d);
        }
    }
    dot = TEAM == WARP ? warp_sum(dot) : block_sum(dot, slots, WARPS);
    if (threadIdx.x % TEAM == 0 && at < n) {
        dweights[r * ld_dweights + k] = dot;
    }
}

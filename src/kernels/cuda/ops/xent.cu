/* xent.cu — cross-entropy of logits against labels, forward and the gradient in place, one block a row.
 *
 * SHAPES    logits (rows, V) of DTYPE, rows ld apart; labels (rows) int32, -1 ignored; loss, lse (rows) fp32; best (rows) int32.
 * MAP       1024 threads a row; pieces of W.
 * MOVEMENT
 *     pass 1  row HBM ──16 B/thread──▶ running max and sum of exponentials (online) ─▶ block: lse
 *     pass 2  row, now from L2 (two rows an SM at V = 50k: 26 MB of 50) ──▶ softmax - onehot ──▶ row HBM
 * BOUND     4 bytes a logit (bf16) with gradient, 2 without. 8192 x 50304: 549 us at 3.0 TB/s.
 * NUMERICS  fp32; the maximum is subtracted before the exponential; fixed order of sums.
 *           SOFTCAP 1: logits pass through softcap * tanh(x / softcap) first.
 *@spec sm_80 sm_90a: DTYPE=bf16 W=8 SOFTCAP=0
 *@spec sm_80 sm_90a: DTYPE=bf16 W=1 SOFTCAP=1
 *@spec sm_80 sm_90a: DTYPE=fp32 W=4 SOFTCAP=0 */
#include "common/vec.cuh"

#define THREADS  1024
#define NEGATIVE __uint_as_float(0xff800000u) /* -inf */
#define LOG2_E   1.4426950409f

INLINE float capped(float x, float softcap) {
    return SOFTCAP ? softcap * tanhf(x / softcap) : x;
}
INLINE float exp2_fast(float x) { /* 2 ulp; -inf gives 0. */
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

extern "C" __global__ void __launch_bounds__(THREADS)
xent(DTYPE *logits, const int *labels, float *loss, float *lse, int *best, int cols, float grad_scale, float softcap, float z_coef,
     i64 ld) {
    __shared__ float slots[3][THREADS / WARP];
    __shared__ int best_shared;
    wait_for_others();
    DTYPE *row = logits + (i64)blockIdx.x * ld;
    const int label = labels[blockIdx.x], start = threadIdx.x * W;
    float top = NEGATIVE, sum = 0.0f;
    int where = cols;
    if (threadIdx.x == 0) {
        best_shared = cols;
    }
#pragma unroll 4
    for (int col = start; col < cols; col += THREADS * W) { /* 1. */
        float x[W], most = NEGATIVE;
        piece_load(x, row + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            x[i] = capped(x[i], softcap);
            most = fmaxf(most, x[i]);
        }
        if (most > top) { /* Rescale what was summed; rare after the first pieces. */
            sum *= exp2_fast((top - most) * LOG2_E);
            top = most;
#pragma unroll
            for (int i = W - 1; i >= 0; i--) {
                where = x[i] == most ? col + i : where;
            }
        }
        float part = 0.0f;
#pragma unroll
        for (int i = 0; i < W; i++) {
            part += exp2_fast((x[i] - top) * LOG2_E);
        }
        sum += top > NEGATIVE ? part : 0.0f;
    }
    const float row_top = block_max(top, slots[0], THREADS / WARP);
    const float mine = top > NEGATIVE ? sum * exp2_fast((top - row_top) * LOG2_E) : 0.0f;
    const float row_sum = block_sum(mine, slots[1], THREADS / WARP), row_log = logf(row_sum), row_lse = row_top + row_log;
    if (best) { /* The lowest index that holds the maximum. */
        if (top == row_top) {
            atomicMin(&best_shared, where);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) { /* Before the logits change. */
        const float hit = label >= 0 ? capped(TO_F32(DTYPE, row[label]), softcap) : 0.0f;
        loss[blockIdx.x] = label >= 0 ? row_log - (hit - row_top) : 0.0f; /* Exact differences first: logits may be large. */
        if (lse) {
            lse[blockIdx.x] = row_lse;
        }
        if (best) {
            best[blockIdx.x] = best_shared;
        }
    }
    if (grad_scale == 0.0f) {
        return;
    }
    __syncthreads();
    const float share = label >= 0 ? grad_scale * (1.0f + 2.0f * z_coef * row_lse) / row_sum : 0.0f, hot = label >= 0 ? grad_scale : 0.0f;
#pragma unroll 4
    for (int col = start; col < cols; col += THREADS * W) { /* 2. */
        float x[W];
        piece_load(x, row + col);
#pragma unroll
        for (int i = 0; i < W; i++) {
            const float y = capped(x[i], softcap);
            const float slope = SOFTCAP ? 1.0f - (y / softcap) * (y / softcap) : 1.0f;
            x[i] = (share * exp2_fast((y - row_top) * LOG2_E) - (col + i == label ? hot : 0.0f)) * slope;
        }
        piece_store(row + col, x);
    }
}

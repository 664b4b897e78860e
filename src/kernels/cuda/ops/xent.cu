/* xent.cu — cross-entropy of logits against labels, forward and the gradient in place, one block a
 * row, rows of any length. With gradient and rows that an SM can hold: xent_held.cu.
 *
 * SHAPES    logits (rows, V) of DTYPE, rows ld apart; labels (rows) int32, -1 ignored; loss, lse
 *           (rows) fp32; best (rows) int32.
 * MAP       1024 threads a row; pieces of W.
 * MOVEMENT
 *     pass 1  row HBM ──16 B/thread──▶ running max and sum of exponentials (online) ─▶ block: lse
 *     pass 2  row, now from L2 (two rows an SM at V = 50k: 26 MB of 50) ──▶ softmax - onehot ──▶ row HBM
 * BOUND     4 bytes a logit (bf16) with gradient, 2 without. 8192 x 50304: 549 us at 3.0 TB/s.
 * NUMERICS  fp32; the maximum is subtracted before the exponential; fixed order of sums.
 *           SOFTCAP 1: logits pass through softcap * tanh(x / softcap) first. WEIGHTS 1: weights
 *           (rows) fp32 scale the rows' gradients. */
#include "ops/xent.cuh"

#define THREADS 1024

extern "C" __global__ void __launch_bounds__(THREADS)
    xent(DTYPE *logits, const int *labels, float *loss, float *lse, int *best, int cols,
         float grad_scale, float softcap, float z_coef, i64 ld
#if WEIGHTS
         ,
         const float *weights
#endif
    ) {
    __shared__ float slots[3][THREADS / WARP];
    __shared__ int best_shared;
    wait_for_others();
    DTYPE *row = logits + (i64)blockIdx.x * ld;
    const int label = labels[blockIdx.x], start = threadIdx.x * W;
    running r = {NEGATIVE, 0.0f, cols};
    if (threadIdx.x == 0) {
        best_shared = cols;
    }
#pragma unroll 4
    for (int col = start; col < cols; col += THREADS * W) { /* 1. */
        float x[W];
        piece_load(x, row + col);
        running_add(&r, x, col, softcap);
    }
    const float row_top = block_max(r.top, slots[0], THREADS / WARP);
    const float mine = r.top > NEGATIVE ? r.sum * exp2_fast((r.top - row_top) * LOG2_E) : 0.0f;
    const float row_sum = block_sum(mine, slots[1], THREADS / WARP), row_log = logf(row_sum),
                row_lse = row_top + row_log;
    if (best) { /* The lowest index that holds the maximum. */
        if (r.top == row_top) {
            atomicMin(&best_shared, r.where);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) { /* Before the logits change. */
        const float hit = label >= 0 ? capped(TO_F32(DTYPE, row[label]), softcap) : 0.0f;
        /* Exact differences first: logits may be large. */
        loss[blockIdx.x] = label >= 0 ? row_log - (hit - row_top) : 0.0f;
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
#if WEIGHTS
    grad_scale *= weights[blockIdx.x];
#endif
    const float share = label >= 0 ? grad_scale * (1.0f + 2.0f * z_coef * row_lse) / row_sum : 0.0f,
                hot = label >= 0 ? grad_scale : 0.0f;
#pragma unroll 4
    for (int col = start; col < cols; col += THREADS * W) { /* 2. */
        float x[W];
        piece_load(x, row + col);
        gradient(x, col, label, row_top, share, hot, softcap);
        piece_store(row + col, x);
    }
}

/* xent.cu — cross-entropy of logits against labels, forward and the gradient in place, one
 * block per row, rows of any length. xent_held.cu serves calls with gradient whose rows an SM can
 * hold.
 *
 * SHAPES    logits (rows, V) of DTYPE, rows ld apart; labels (rows) int32, -1 ignored; loss, lse
 *           (rows) fp32; best (rows) int32.
 * MAP       1024 threads per row; pieces of W.
 * MOVEMENT
 *     pass 1  row HBM ──16 B/thread──▶ running max and sum of exponentials (online) ─▶ block: lse
 *     pass 2  row, now from L2 (two rows an SM at V = 50k: 26 MB of 50) ──▶ softmax - onehot ──▶
 *                 row HBM
 * BOUND     4 bytes per logit (bf16) with gradient, 2 without. 8192 x 50304: 549 us at 3.0 TB/s.
 * NUMERICS  fp32; the maximum is subtracted before the exponential; fixed order of sums.
 *           SOFTCAP 1: logits pass through softcap * tanh(x / softcap) first. WEIGHTS 1: weights
 *           (rows) fp32 scale the rows' gradients. */
#include "ops/xent.cuh"
#include "kernels/cuda/ops/xent_args.h"

#define THREADS 1024

extern "C" __global__ void __launch_bounds__(THREADS) xent(const lt_cuda_xent_args a) {
    float grad_scale = a.grad_scale;
    __shared__ float slots[3][THREADS / WARP];
    __shared__ int best_shared;
    wait_for_others();
    DTYPE *row = a.logits + (i64)blockIdx.x * a.ld;
    const int label = a.labels[blockIdx.x], start = threadIdx.x * W;
    running r = {NEGATIVE, 0.0f, a.cols};
    if (threadIdx.x == 0) {
        best_shared = a.cols;
    }
#pragma unroll 4
    for (int col = start; col < a.cols; col += THREADS * W) { /* 1. */
        float x[W];
        piece_load(x, row + col);
        running_add(&r, x, col, a.softcap);
    }
    const float row_top = block_max(r.top, slots[0], THREADS / WARP);
    const float mine = r.top > NEGATIVE ? r.sum * exp2_fast((r.top - row_top) * LOG2_E) : 0.0f;
    const float row_sum = block_sum(mine, slots[1], THREADS / WARP), row_log = logf(row_sum),
                row_lse = row_top + row_log;
    if (a.best) { /* The lowest index that holds the maximum. */
        if (r.top == row_top) {
            atomicMin(&best_shared, r.where);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) { /* Read before the logits change. */
        const float hit = label >= 0 ? capped(TO_F32(DTYPE, row[label]), a.softcap) : 0.0f;
        /* The exact difference is taken first, because logits may be large. */
        a.loss[blockIdx.x] = label >= 0 ? row_log - (hit - row_top) : 0.0f;
        if (a.lse) {
            a.lse[blockIdx.x] = row_lse;
        }
        if (a.best) {
            a.best[blockIdx.x] = best_shared;
        }
    }
    if (grad_scale == 0.0f) {
        return;
    }
    __syncthreads();
#if WEIGHTS
    grad_scale *= a.weights[blockIdx.x];
#endif
    const float share = label >= 0 ? grad_scale * (1.0f + 2.0f * a.z_coef * row_lse) / row_sum
                                   : 0.0f,
                hot = label >= 0 ? grad_scale : 0.0f;
#pragma unroll 4
    for (int col = start; col < a.cols; col += THREADS * W) { /* 2. */
        float x[W];
        piece_load(x, row + col);
        gradient(x, col, label, row_top, share, hot, a.softcap);
        piece_store(row + col, x);
    }
}

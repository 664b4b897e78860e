/* xent_part.cu — cross-entropy if this GPU has one part of the vocabulary and other ranks have
 * the others: the facts of the GPU's own part, and the result from the facts of all parts. One
 * block per row.
 *
 * SHAPES    logits (rows, V) of DTYPE, rows ld apart, ids first .. first + V - 1; labels (rows)
 *           int32 of the whole vocabulary, -1 ignored; part (rows, 4), parts (n, rows, 4) fp32: the
 *           largest logit, the sum of exponentials over it, the label's logit, the largest one's id
 *           (lt_xent_args); loss, lse (rows) fp32; best (rows) int32.
 * MAP       1024 threads per row; pieces of W.
 * MOVEMENT
 *     xent_facts  row HBM ──16 B/thread──▶ running max and sum of exponentials (online) ─▶ part
 *     xent_rest   parts ──▶ every thread adds them up; row HBM ──▶ softmax - onehot ──▶ row HBM
 * BOUND     6 bytes per logit (bf16) with gradient, 2 without. The ranks exchange facts between
 *           the two reads, so no SM can hold the row.
 * NUMERICS  fp32; facts are added in the order of the parts, so every rank has the same bits.
 *           SOFTCAP and WEIGHTS: xent.cu. */
#include "ops/xent.cuh"
#include "kernels/cuda/ops/xent_args.h"

#define THREADS 1024
#define FACTS   4 /* max, sum, hit, best */

extern "C" __global__ void __launch_bounds__(THREADS) xent_facts(const lt_cuda_xent_facts_args a) {
    __shared__ float slots[2][THREADS / WARP];
    __shared__ int best_shared;
    wait_for_others();
    const DTYPE *row = a.logits + (i64)blockIdx.x * a.ld;
    const int label = a.labels[blockIdx.x] - a.first, start = threadIdx.x * W;
    running r = {NEGATIVE, 0.0f, a.cols};
    if (threadIdx.x == 0) {
        best_shared = a.cols;
    }
#pragma unroll 4
    for (int col = start; col < a.cols; col += THREADS * W) {
        float x[W];
        piece_load(x, row + col);
        running_add(&r, x, col, a.softcap);
    }
    const float row_top = block_max(r.top, slots[0], THREADS / WARP);
    const float mine = r.top > NEGATIVE ? r.sum * exp2_fast((r.top - row_top) * LOG2_E) : 0.0f;
    const float row_sum = block_sum(mine, slots[1], THREADS / WARP);
    if (r.top == row_top) { /* The lowest index that holds the maximum. */
        atomicMin(&best_shared, r.where);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        float *fact = a.part + (i64)blockIdx.x * FACTS;
        const bool here = label >= 0 && label < a.cols;
        fact[0] = row_top;
        fact[1] = row_sum;
        fact[2] = here ? capped(TO_F32(DTYPE, row[label]), a.softcap) : 0.0f;
        fact[3] = (float)(a.first + (row_top > NEGATIVE ? best_shared : 0));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) xent_rest(const lt_cuda_xent_rest_args a) {
    float grad_scale = a.grad_scale, top = NEGATIVE, best = 0.0f, hit = 0.0f, sum = 0.0f;
    wait_for_others();
    DTYPE *row = a.logits + (i64)blockIdx.x * a.ld;
    const float *facts = a.parts + (i64)blockIdx.x * FACTS;
    const i64 apart = (i64)gridDim.x * FACTS;
    const int label = a.labels[blockIdx.x], start = threadIdx.x * W;
    /* Parts are in the order of ids, so the first of equal maxima has the lowest id. */
    for (int i = 0; i < a.n_parts; i++) {
        const float *fact = facts + i * apart;
        if (fact[0] > top || i == 0) {
            top = fact[0];
            best = fact[3];
        }
        hit += fact[2];
    }
    for (int i = 0; i < a.n_parts; i++) {
        sum += facts[i * apart + 1] * exp2_fast((facts[i * apart] - top) * LOG2_E);
    }
    const float row_log = logf(sum), row_lse = top + row_log;
    if (threadIdx.x == 0) {
        /* The exact difference is taken first, because logits may be large. */
        a.loss[blockIdx.x] = label >= 0 ? row_log - (hit - top) : 0.0f;
        if (a.lse) {
            a.lse[blockIdx.x] = row_lse;
        }
        if (a.best) {
            a.best[blockIdx.x] = (int)best;
        }
    }
    if (grad_scale == 0.0f) {
        return;
    }
#if WEIGHTS
    grad_scale *= a.weights[blockIdx.x];
#endif
    const float share = label >= 0 ? grad_scale * (1.0f + 2.0f * a.z_coef * row_lse) / sum : 0.0f,
                hot = label >= 0 ? grad_scale : 0.0f;
#pragma unroll 4
    for (int col = start; col < a.cols; col += THREADS * W) {
        float x[W];
        piece_load(x, row + col);
        gradient(x, col, label - a.first, top, share, hot, a.softcap);
        piece_store(row + col, x);
    }
}

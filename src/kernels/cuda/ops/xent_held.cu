/* xent_held.cu — cross-entropy of logits against labels with the gradient in place: a row is read
 * once, and stays in its SM until its gradient is written.
 *
 * SHAPES    logits (rows, V) of DTYPE, rows ld apart, 16-byte aligned; labels (rows) int32, -1
 *           ignored; loss, lse (rows) fp32; best (rows) int32. V <= PIECES * THREADS * W. Of a
 *           thread's PIECES pieces of 16 bytes, SMEM are in shared memory, the rest in registers.
 * MAP       resident blocks of THREADS threads: two per SM, or one for the longest rows; a block
 *           takes rows blockIdx, blockIdx + grid, ..
 * MOVEMENT
 *     1  row HBM ──cp.async──▶ smem ──▶ running max and sum of exponentials (online), as the
 *            pieces arrive ─▶ block: lse
 *     2  smem ──▶ softmax - onehot ──▶ row HBM; then the same piece of the block's next row is
 *            requested, so that reads and writes always overlap.
 *        A thread touches only the 16 bytes that it copied itself: the only barriers are the two
 *        of the sums.
 * BOUND     4 bytes per logit (bf16). 8192 x 50304: 549 us at 3.0 TB/s. Exponentials: 2 per
 *           logit, 16 per clock: a third of that.
 * NUMERICS  fp32; the maximum is subtracted before the exponential; fixed order of sums. SOFTCAP 1:
 *           logits pass through softcap * tanh(x / softcap) first. WEIGHTS 1: weights (rows) fp32
 *           scale the rows' gradients. */
#include "common/ptx.cuh"
#include "ops/xent.cuh"
#include "kernels/cuda/ops/xent_args.h"

#define WARPS      (THREADS / WARP)
#define CHUNK      4 /* Pieces that are requested, and awaited, together. */
#define CHUNKS     ((SMEM + CHUNK - 1) / CHUNK)
#define MIN_BLOCKS (1024 / THREADS) /* Per SM. */
#define IN_REGS    (PIECES - SMEM)
static_assert(W > 1 && SMEM <= PIECES && THREADS % WARP == 0, "pieces of 16 bytes");
static_assert(SMEM * THREADS * sizeof(uint4) == LT_XENT_HELD_BYTES(THREADS, SMEM), "smem");

typedef struct {
    DTYPE *row, *next; /* next: NULL after the last row. */
    uint4 *smem;       /* [SMEM][THREADS] */
    int cols;
} place;

INLINE int col_of(int piece) {
    return (piece * THREADS + (int)threadIdx.x) * W;
}
/* Request a chunk of the row `from`; nothing if it is NULL, or past its end. */
INLINE void chunk_fetch(const place *p, const DTYPE *from, int piece) {
    const int col = col_of(piece);
    if (from != 0 && piece < SMEM && col < p->cols) {
        cp_async_16(smem_addr(p->smem + piece * THREADS + threadIdx.x), from + col);
    }
}
INLINE uint4 register_fetch(const place *p, const DTYPE *from, int piece) {
    const int col = col_of(piece);
    return from != 0 && col < p->cols ? __ldcs((const uint4 *)(from + col))
                                      : make_uint4(0u, 0u, 0u, 0u);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
    xent_held(const lt_cuda_xent_held_args a) {
    extern __shared__ __align__(16) uint4 smem[];
    /* The two sets are used in turn, so that the next row does not overwrite what threads still
     * read for this one. */
    __shared__ float slots[2][2][WARPS];
    __shared__ int best_shared[2];
    uint4 kept[IN_REGS > 0 ? IN_REGS : 1];
    place p = {0, a.logits + (i64)blockIdx.x * a.ld, smem, a.cols};
    wait_for_others();
#pragma unroll 1
    for (int c = 0; c < CHUNKS; c++) {
#pragma unroll
        for (int i = 0; i < CHUNK; i++) {
            chunk_fetch(&p, p.next, c * CHUNK + i);
        }
        cp_async_commit();
    }
#pragma unroll
    for (int i = 0; i < IN_REGS; i++) {
        kept[i] = register_fetch(&p, p.next, SMEM + i);
    }
    int label = a.labels[blockIdx.x], next_label;
    for (int row = blockIdx.x, turn = 0; row < a.rows;
         row += gridDim.x, turn ^= 1, label = next_label) {
        const int after = row + (int)gridDim.x;
        running r = {NEGATIVE, 0.0f, a.cols};
        /* The label's logit, loaded before the logits change; it is needed after the sums. */
        DTYPE hit = FROM_F32(DTYPE, 0.0f);
        p.row = p.next, p.next = after < a.rows ? p.row + (i64)gridDim.x * a.ld : 0;
        next_label = after < a.rows ? a.labels[after] : -1;
        if (threadIdx.x == 0) {
            hit = p.row[label >= 0 ? label : 0];
            best_shared[turn] = a.cols;
        }
#pragma unroll 1
        /* 1. Empty groups replace those that have arrived, so that there are always CHUNKS of
         * them. */
        for (int c = 0; c < CHUNKS; c++) {
            cp_async_wait(CHUNKS - 1);
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                const int piece = c * CHUNK + i, col = col_of(piece);
                if (piece < SMEM && col < a.cols) {
                    float x[W];
                    UNPACK(DTYPE, x, smem[piece * THREADS + threadIdx.x]);
                    running_add(&r, x, col, a.softcap);
                }
            }
            cp_async_commit();
        }
#pragma unroll
        for (int i = 0; i < IN_REGS; i++) {
            if (col_of(SMEM + i) < a.cols) {
                float x[W];
                UNPACK(DTYPE, x, kept[i]);
                running_add(&r, x, col_of(SMEM + i), a.softcap);
            }
        }
        const float row_top = block_max(r.top, slots[turn][0], WARPS);
        const float mine = r.top > NEGATIVE ? r.sum * exp2_fast((r.top - row_top) * LOG2_E) : 0.0f;
        const float row_sum = block_sum(mine, slots[turn][1], WARPS), row_log = logf(row_sum),
                    row_lse = row_top + row_log;
        if (a.best) { /* The lowest index that holds the maximum. */
            if (r.top == row_top) {
                atomicMin(&best_shared[turn], r.where);
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            /* The exact difference is taken first, because logits may be large. */
            a.loss[row] = label >= 0 ? row_log - (capped(TO_F32(DTYPE, hit), a.softcap) - row_top)
                                     : 0.0f;
            if (a.lse) {
                a.lse[row] = row_lse;
            }
            if (a.best) {
                a.best[row] = best_shared[turn];
            }
        }
#if WEIGHTS
        const float row_scale = a.grad_scale * a.weights[row];
#else
        const float row_scale = a.grad_scale;
#endif
        const float share = label >= 0 ? row_scale * (1.0f + 2.0f * a.z_coef * row_lse) / row_sum
                                       : 0.0f,
                    hot = label >= 0 ? row_scale : 0.0f;
#pragma unroll 1
        for (int c = 0; c < CHUNKS; c++) { /* 2. */
#pragma unroll
            for (int i = 0; i < CHUNK; i++) {
                const int piece = c * CHUNK + i, col = col_of(piece);
                if (piece < SMEM && col < a.cols) {
                    float x[W];
                    UNPACK(DTYPE, x, smem[piece * THREADS + threadIdx.x]);
                    gradient(x, col, label, row_top, share, hot, a.softcap);
                    piece_store(p.row + col, x);
                }
                chunk_fetch(&p, p.next, piece);
            }
            cp_async_commit();
        }
#pragma unroll
        for (int i = 0; i < IN_REGS; i++) {
            if (col_of(SMEM + i) < a.cols) {
                float x[W];
                UNPACK(DTYPE, x, kept[i]);
                gradient(x, col_of(SMEM + i), label, row_top, share, hot, a.softcap);
                piece_store(p.row + col_of(SMEM + i), x);
            }
            kept[i] = register_fetch(&p, p.next, SMEM + i);
        }
    }
    cp_async_wait(0);
}

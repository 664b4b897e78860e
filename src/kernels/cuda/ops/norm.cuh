/* norm.cuh: shared by norm.cu (forward) and norm_bwd.cu (backward): a row belongs to LANES threads
 * (8, 16 or 32 of a warp, or the whole block), each with VECS pieces of W elements of it, and a
 * thread works on ROWS rows at once, so that one series of shuffles and one barrier serve them
 * all. */
#ifndef LT_CUDA_NORM_CUH
#define LT_CUDA_NORM_CUH

#include "common/vec.cuh"
#include "kernels/cuda/ops/norm_args.h"

#define WARPS (THREADS / WARP)
/* Lanes that add the sums of the warps. */
#define SLOTS       (WARPS > 16 ? 32 : WARPS > 8 ? 16 : WARPS > 4 ? 8 : 4)
#define GROUPS      (THREADS / LANES)      /* Groups, of ROWS rows each. */
#define INSIDE(col) (FULL || (col) < cols) /* Is the column inside the row? */
static_assert(LANES <= WARP || LANES == THREADS, "a row belongs to part of a warp or to the block");
static_assert(WARPS <= WARP, "one warp adds the warps' sums");

INLINE i64 row_begin(lt_cuda_view v, i64 row,
                     lt_cuda_row_shape n) { /* FLAT 1: rows are one stride apart. */
    return FLAT ? row * v.s[0] : row_at(v, row, n);
}

/* Sum n numbers over the LANES threads of a row, in a fixed order; every thread gets the sums.
 * slots: n * WARPS floats that nothing else uses until every thread has passed another barrier.
 * There is one barrier, or none if a row lies in a warp. */
INLINE void row_sums(float *x, const int n, float *slots) {
#pragma unroll
    for (int lanes = (LANES < WARP ? LANES : WARP) / 2; lanes > 0; lanes /= 2) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            x[i] += __shfl_xor_sync(ALL_LANES, x[i], lanes);
        }
    }
#if LANES > WARP
    const int lane = threadIdx.x % WARP;
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            slots[i * WARPS + threadIdx.x / WARP] = x[i];
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < n; i++) {
        x[i] = lane % SLOTS < WARPS ? slots[i * WARPS + lane % SLOTS] : 0.0f;
    }
#pragma unroll
    for (int lanes = SLOTS / 2; lanes > 0; lanes /= 2) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            x[i] += __shfl_xor_sync(ALL_LANES, x[i], lanes);
        }
    }
#else
    (void)slots;
#endif
}

#endif

/* gather_rows.cu — y[i] = the sum of the rows of x that row i names (tensor/ops.h).
 *
 * SHAPES    y (N, C), x (M, C) of DTYPE; index (K), start (N + 1) int32 or absent. Pieces of W
 *           elements; W = 1 takes any width and alignment.
 * MAP       TEAM threads per row of y: a warp for narrow rows, else the block.
 * MOVEMENT  x HBM ──16 B/thread──▶ registers, added as they arrive ──▶ y HBM.
 * BOUND     bytes of the rows that are named, and of y.
 * NUMERICS  fp32 in the order of index, rounded at the store; one row alone is a copy. */
#include "common/vec.cuh"
#include "kernels/cuda/ops/gather_rows_args.h"

#define THREADS 256
#define TEAMS   (THREADS / TEAM)
static_assert(TEAM == WARP || TEAM == THREADS, "a row belongs to a warp or to the block");

extern "C" __global__ void __launch_bounds__(THREADS)
    gather_rows(const lt_cuda_gather_rows_args a) {
    const i64 i = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM;
    wait_for_others();
    if (i >= a.n) {
        return;
    }
    const int first = a.start ? a.start[i] : (int)i, end = a.start ? a.start[i + 1] : (int)i + 1;
    for (int col = threadIdx.x % TEAM * W; col < a.cols; col += TEAM * W) {
        float sum[W] = {0.0f}, f[W];
        for (int j = first; j < end; j++) {
            const int row = a.index[j];
            if (row >= 0) {
                piece_load(f, a.x + row * a.ldx + col);
#pragma unroll
                for (int k = 0; k < W; k++) {
                    sum[k] += f[k];
                }
            }
        }
        piece_store(a.y + i * a.ldy + col, sum);
    }
}

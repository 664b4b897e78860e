/* col_sum.cu — dst (cols) += sum of the rows of parts (n_parts, cols), fp32, in a fixed order: the
 * second half of every parameter gradient.
 *
 * MAP       a block owns 32 columns: 32 x 16 threads; thread (x, y) adds rows y, y + 16, ..; then
 *           the 16 sums of a column are added in order.
 * BOUND     bytes = 4 n_parts cols, mostly from L2: a few us. */
#include "common/early.cuh"
#include "kernels/cuda/ops/col_sum_args.h"

#define COLS   32
#define GROUPS 16

INLINE void sum_columns(float *dst, const float *parts, int n_parts, int cols) {
    __shared__ float sums[GROUPS][COLS + 1];
    const int x = threadIdx.x % COLS, y = threadIdx.x / COLS, col = blockIdx.x * COLS + x;
    const float before = y == 0 && col < cols ? dst[col] : 0.0f; /* Loaded while the parts are. */
    float sum = 0.0f;
    if (col < cols) {
#pragma unroll 16
        for (int row = y; row < n_parts; row += GROUPS) {
            sum += parts[(i64)row * cols + col];
        }
    }
    sums[y][x] = sum;
    __syncthreads();
    if (y == 0 && col < cols) {
        sum = 0.0f;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            sum += sums[g][x];
        }
        dst[col] = before + sum;
    }
}

extern "C" __global__ void __launch_bounds__(COLS *GROUPS) col_sum(const lt_cuda_col_sum_args w) {
    wait_for_others();
    sum_columns(w.dst, w.parts, w.n_parts, w.cols);
}
/* Two gradients: the first n_first parts are dst's, the others dst2's; blockIdx.y says which.
 * Either dst may be null. */
extern "C" __global__ void __launch_bounds__(COLS *GROUPS)
    col_sum_split(const lt_cuda_col_sum_split_args w) {
    const int from = blockIdx.y ? w.n_first : 0, to = blockIdx.y ? w.n_parts : w.n_first;
    float *const sums = blockIdx.y ? w.dst2 : w.dst;
    wait_for_others();
    if (sums) {
        sum_columns(sums, w.parts + (i64)from * w.cols, to - from, w.cols);
    }
}
/* Two gradients whose parts follow each other; blockIdx.y says which. Either dst may be null. */
extern "C" __global__ void __launch_bounds__(COLS *GROUPS)
    col_sum_pair(const lt_cuda_col_sum_pair_args w) {
    float *const to = blockIdx.y ? w.dst2 : w.dst;
    wait_for_others();
    if (to) {
        sum_columns(to, w.parts + (i64)blockIdx.y * w.n_parts * w.cols, w.n_parts, w.cols);
    }
}

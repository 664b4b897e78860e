/* muon.cu — the elementwise parts of Muon (tensor/ops.h) for one matrix p (rows, cols); its
 * products are sgemm's.
 *
 * MAP       muon_momentum: a thread an element, grid-stride over a fixed grid: m = momentum m + g,
 *           u = g + momentum m, and a block's share of |u|^2. muon_scale: every block adds the
 *           shares in order and multiplies u by 1 / max(|u|, 1e-7). muon_update: p, and its copy.
 * BOUND     8 + 8 + 4 bytes an element, then 8, then 8 + 4.
 * NUMERICS  fp32; |u|^2 in double in a fixed order. */
#define DTYPE fp32
#define W     1
#include "common/vec.cuh"
#include "kernels/cuda/ops/optim_args.h"

#define THREADS 256
#define BLOCKS  264 /* of muon_momentum: fixed, so that the order of the sum is */

INLINE double block_sum_double(double x, double *slots) {
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, lanes);
    }
    if (lane == 0) {
        slots[warp] = x;
    }
    __syncthreads();
    x = lane < THREADS / WARP ? slots[lane] : 0.0;
#pragma unroll
    for (int lanes = WARP / 2; lanes > 0; lanes /= 2) {
        x += __shfl_xor_sync(ALL_LANES, x, lanes);
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    muon_momentum(float *u, double *parts, float *m, const float *g, i64 count, float momentum,
                  int nesterov, lt_optim_numbers s, const lt_optim_numbers *device) {
    __shared__ double slots[THREADS / WARP];
    double sum = 0.0;
    if (device) {
        s = *device;
    }
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < count; i += (i64)BLOCKS * THREADS) {
        const float d = s.grad_scale * g[i], mean = momentum * m[i] + d,
                    step = nesterov ? d + momentum * mean : mean;
        if (s.skip == 0.0f) {
            m[i] = mean;
        }
        u[i] = step;
        sum += (double)step * step;
    }
    sum = block_sum_double(sum, slots);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    muon_scale(float *u, const double *parts, i64 count) {
    __shared__ double slots[THREADS / WARP];
    double sum = 0.0;
    for (int i = threadIdx.x; i < BLOCKS; i += THREADS) {
        sum += parts[i];
    }
    const float inverse = (float)(1.0 / fmax(sqrt(block_sum_double(sum, slots)), 1e-7));
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < count;
         i += (i64)gridDim.x * THREADS) {
        u[i] *= inverse;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    muon_update(float *p, bf16 *copy, const float *u, i64 count, float decay, float scale,
                lt_optim_numbers s, const lt_optim_numbers *device) {
    const i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (device) {
        s = *device;
    }
    if (i < count && s.skip == 0.0f) {
        const float x = p[i] * (1.0f - s.lr * decay) - s.lr * scale * u[i];
        p[i] = x;
        if (copy) {
            copy[i] = f32_to_bf16(x);
        }
    }
}

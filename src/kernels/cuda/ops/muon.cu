/* muon.cu — the elementwise parts of Muon (tensor/ops.h) for one matrix p (rows, cols). sgemm
 * computes its products, or gemm_sm90 those of 16-bit operands.
 *
 * MAP       muon_momentum: one thread per element, grid-stride over a grid that depends on the size
 *           alone: m = momentum m + g, u = g + momentum m, and a block's share of |u|^2.
 *           muon_scale: every block adds the shares in order and multiplies u by 1 / max(|u|,
 *           1e-7), in place or rounded to x. muon_update writes p and its copy. muon_add: y = alpha
 *           sum + x, for products whose kernel has no epilogue.
 * BOUND     8 + 8 + 4 bytes per element, then 8, then 8 + 4; with x 6, then 8 + 2.
 * NUMERICS  fp32, x and y BF16; |u|^2 in double in a fixed order. */
#define DTYPE fp32
#define W     1
#include "common/vec.cuh"
#include "kernels/cuda/ops/muon_args.h"

#define THREADS 256

extern "C" __global__ void __launch_bounds__(THREADS)
    muon_momentum(const lt_cuda_muon_momentum_args w) {
    __shared__ double slots[THREADS / WARP];
    double sum = 0.0;
    lt_optim_numbers s = w.s;
    if (w.device) {
        s = *w.device;
    }
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < w.count;
         i += (i64)gridDim.x * THREADS) {
        const float d = s.grad_scale * w.g[i], mean = w.momentum * w.m[i] + d,
                    step = w.nesterov ? d + w.momentum * mean : mean;
        if (s.skip == 0.0f) {
            w.m[i] = mean;
        }
        w.u[i] = step;
        sum += (double)step * step;
    }
    sum = block_sum_of(sum, slots, THREADS / WARP);
    if (threadIdx.x == 0) {
        w.parts[blockIdx.x] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) muon_scale(const lt_cuda_muon_scale_args w) {
    __shared__ double slots[THREADS / WARP];
    double sum = 0.0;
    for (int i = threadIdx.x; i < w.n_parts; i += THREADS) {
        sum += w.parts[i];
    }
    const float inverse = (float)(1.0 / fmax(sqrt(block_sum_of(sum, slots, THREADS / WARP)), 1e-7));
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < w.count;
         i += (i64)gridDim.x * THREADS) {
        if (w.x) {
            w.x[i] = f32_to_bf16(w.u[i] * inverse);
        } else {
            w.u[i] *= inverse;
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    muon_update(const lt_cuda_muon_update_args w) {
    const i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    lt_optim_numbers s = w.s;
    if (w.device) {
        s = *w.device;
    }
    if (i < w.count && s.skip == 0.0f) {
        const float u = w.x ? bf16_to_f32(w.x[i]) : w.u[i],
                    x = w.p[i] * (1.0f - s.lr * w.decay) - s.lr * w.scale * u;
        w.p[i] = x;
        if (w.copy) {
            w.copy[i] = f32_to_bf16(x);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) muon_add(const lt_cuda_muon_add_args w) {
    const i64 i = (i64)blockIdx.x * THREADS + threadIdx.x;
    if (i < w.count) {
        w.y[i] = f32_to_bf16(w.alpha * w.sum[i] + (w.x ? bf16_to_f32(w.x[i]) : 0.0f));
    }
}

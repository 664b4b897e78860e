/* check.cu — reference products in double, and the distance of a result from them: the oracle of
 * the GPU's benches.
 *
 * gemm_ref    ref (m, n) double = alpha op(A) op(B) + beta C0, one thread an element, plain loop.
 *             DTYPE: type of A and B.
 * gemm_bound  the same with absolute values: the scale of rounding errors.
 * diff        x (n of DTYPE) against ref: sums of squares of (x - ref) and ref, greatest |x - ref|
 *             / (bound + tiny), count of elements that are not finite where ref is. Order of the
 *             sums is not fixed: this is a measurement, not a result. */
#include "common/types.cuh"
#include "kernels/cuda/check_args.h"

extern "C" __global__ void gemm_ref(const lt_cuda_gemm_ref_args w) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    double sum = 0.0, size = 0.0;
    if (col >= w.n) {
        return;
    }
    for (int i = 0; i < w.k; i++) {
        const double x = TO_F32(DTYPE, w.a[row * w.a_row + i * w.a_col]),
                     y = TO_F32(DTYPE, w.b[i * w.b_row + col * w.b_col]);
        sum += x * y;
        size += fabs(x * y);
    }
    sum *= w.alpha;
    size *= fabs(w.alpha);
    if (w.beta != 0.0f) {
        sum += (double)w.beta * w.c0[(i64)row * w.ldc + col];
        size += fabs((double)w.beta * w.c0[(i64)row * w.ldc + col]);
    }
    w.ref[(i64)row * w.n + col] = sum;
    w.bound[(i64)row * w.n + col] = size;
}

/* out: 4 doubles, zeroed by the caller: |x - ref|^2, |ref|^2, max scaled error (as ordered bits),
 * bad elements. */
extern "C" __global__ void diff(const lt_cuda_diff_args w) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= w.rows * w.cols) {
        return;
    }
    const double got = TO_F32(DTYPE, w.x[i / w.cols * w.ld + i % w.cols]), want = w.ref[i],
                 e = got - want;
    if (!(fabs(e) < 1e300)) {
        atomicAdd(&w.out[3], 1.0);
        return;
    }
    atomicAdd(&w.out[0], e * e);
    atomicAdd(&w.out[1], want * want);
    if (w.bound != 0) { /* Positive doubles have the order of their bits. */
        atomicMax((u64 *)&w.out[2], (u64)__double_as_longlong(fabs(e) / (w.bound[i] + 1e-30)));
    }
}

/* The thesis's two errors. out: 3 doubles, zeroed by the caller: greatest |x - ref| (as ordered
 * bits), sum of |x - ref| / (|ref| + 1e-6), elements that are not finite. */
extern "C" __global__ void diff_grid(const lt_cuda_diff_grid_args w) {
    const i64 stride = (i64)gridDim.x * blockDim.x;
    double most = 0.0, sum = 0.0, bad = 0.0;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < w.n; i += stride) {
        const double e = fabs((double)TO_F32(DTYPE, w.x[i]) - w.ref[i]);
        if (e < 1e300) {
            most = fmax(most, e);
            sum += e / (fabs(w.ref[i]) + 1e-6);
        } else {
            bad += 1.0;
        }
    }
    for (int step = 16; step > 0; step /= 2) {
        most = fmax(most, __shfl_xor_sync(0xffffffffu, most, step));
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
        bad += __shfl_xor_sync(0xffffffffu, bad, step);
    }
    if (threadIdx.x % 32 == 0) {
        atomicMax((u64 *)&w.out[0], (u64)__double_as_longlong(most));
        atomicAdd(&w.out[1], sum);
        atomicAdd(&w.out[2], bad);
    }
}

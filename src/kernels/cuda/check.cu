/* check.cu — reference products in double, and how far a result is from them: the oracle of the
 * GPU's benches.
 *
 * gemm_ref    ref (m, n) double = alpha op(A) op(B) + beta C0, one thread an element, plain loop.
 *             DTYPE: type of A and B.
 * gemm_bound  the same with absolute values: the scale that rounding errors are measured against.
 * diff        x (n of DTYPE) against ref: sums of squares of (x - ref) and ref, greatest |x - ref|
 *             / (bound + tiny), count of elements that are not finite where ref is. Order of the
 *             sums is not fixed: this is a measurement, not a result. */
#include "common/types.cuh"

extern "C" __global__ void gemm_ref(double *ref, double *bound, const DTYPE *a, const DTYPE *b,
                                    const float *c0, int m, int n, int k, i64 a_row, i64 a_col,
                                    i64 b_row, i64 b_col, int ldc, float alpha, float beta) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y;
    double sum = 0.0, size = 0.0;
    if (col >= n) {
        return;
    }
    for (int i = 0; i < k; i++) {
        const double x = TO_F32(DTYPE, a[row * a_row + i * a_col]),
                     y = TO_F32(DTYPE, b[i * b_row + col * b_col]);
        sum += x * y;
        size += fabs(x * y);
    }
    sum *= alpha;
    size *= fabs(alpha);
    if (beta != 0.0f) {
        sum += (double)beta * c0[(i64)row * ldc + col];
        size += fabs((double)beta * c0[(i64)row * ldc + col]);
    }
    ref[(i64)row * n + col] = sum;
    bound[(i64)row * n + col] = size;
}

/* out: 4 doubles, zeroed by the caller: |x - ref|^2, |ref|^2, max scaled error (as ordered bits),
 * bad elements. */
extern "C" __global__ void diff(double *out, const DTYPE *x, const double *ref, const double *bound,
                                i64 rows, i64 cols, i64 ld) {
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * cols) {
        return;
    }
    const double got = TO_F32(DTYPE, x[i / cols * ld + i % cols]), want = ref[i], e = got - want;
    if (!(fabs(e) < 1e300)) {
        atomicAdd(&out[3], 1.0);
        return;
    }
    atomicAdd(&out[0], e * e);
    atomicAdd(&out[1], want * want);
    if (bound != 0) { /* Positive doubles order like their bits. */
        atomicMax((u64 *)&out[2], (u64)__double_as_longlong(fabs(e) / (bound[i] + 1e-30)));
    }
}

/* The thesis's two errors. out: 3 doubles, zeroed by the caller: greatest |x - ref| (as ordered
 * bits), sum of |x - ref| / (|ref| + 1e-6), elements that are not finite. */
extern "C" __global__ void diff_grid(double *out, const DTYPE *x, const double *ref, i64 n) {
    const i64 stride = (i64)gridDim.x * blockDim.x;
    double most = 0.0, sum = 0.0, bad = 0.0;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        const double e = fabs((double)TO_F32(DTYPE, x[i]) - ref[i]);
        if (e < 1e300) {
            most = fmax(most, e);
            sum += e / (fabs(ref[i]) + 1e-6);
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
        atomicMax((u64 *)&out[0], (u64)__double_as_longlong(most));
        atomicAdd(&out[1], sum);
        atomicAdd(&out[2], bad);
    }
}

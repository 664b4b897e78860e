/* epilogue.cuh: the operations of a GEMM on its sums before they are stored, chosen with -D:
 *
 *     v = alpha * sum
 *     EPI_BIAS 1: v += bias[col] (16-bit)   2: v += bias[col] (f32)
 *     EPI_SAVE 1: pre[row][col] = v, for the backward pass
 *     EPI_ACT      v = f(v)                      f: ACT_GELU_TANH, ACT_SILU, ACT_RELU2
 *                                                (numbers below)
 *     EPI_ACT_BWD  v *= f'(aux[row][col])        aux holds what EPI_SAVE stored
 *     EPI_RESIDUAL 1: v += aux[row][col]
 *
 * Two neighbouring columns at a time (col is even), as the tensor cores hand them out. All
 * arithmetic in f32. */
#ifndef LT_CUDA_GEMM_EPILOGUE_CUH
#define LT_CUDA_GEMM_EPILOGUE_CUH

#include "common/act.cuh"
#include "common/hopper.cuh"
#include "kernels/cuda/gemm/gemm_args.h"

#define ACT_NONE      0
#define ACT_GELU_TANH 1
#define ACT_SILU      2
#define ACT_RELU2     3
#ifndef EPI_BIAS
#define EPI_BIAS 0
#endif
#ifndef EPI_SAVE
#define EPI_SAVE 0
#endif
#ifndef EPI_ACT
#define EPI_ACT ACT_NONE
#endif
#ifndef EPI_ACT_BWD
#define EPI_ACT_BWD ACT_NONE
#endif
#ifndef EPI_RESIDUAL
#define EPI_RESIDUAL 0
#endif
/* EPI_ACT_LATER: the kernel itself applies the activation to the result of epilogue_pair. */
#ifndef EPI_ACT_LATER
#define EPI_ACT_LATER 0
#endif
#define EPI_TRIVIAL (!EPI_BIAS && !EPI_SAVE && !EPI_ACT && !EPI_ACT_BWD && !EPI_RESIDUAL)

INLINE float act_apply(int kind, float x) {
    if (kind == ACT_GELU_TANH) {
        return gelu_tanh(x);
    } else if (kind == ACT_SILU) {
        return silu(x);
    }
    return x > 0.0f ? x * x : 0.0f;
}
INLINE float act_slope(int kind, float x) {
    if (kind == ACT_GELU_TANH) {
        return gelu_tanh_slope(x);
    } else if (kind == ACT_SILU) {
        return silu_slope(x);
    }
    return x > 0.0f ? 2.0f * x : 0.0f;
}

INLINE void epilogue_pair(float *v0, float *v1, int row, int col, const lt_gemm_kernel_args *a) {
    float x0 = *v0 * a->alpha, x1 = *v1 * a->alpha;
#if !EPI_TRIVIAL
    if (row < a->m && col < a->n) { /* n is even (16-byte rows), so col + 1 < n too. */
#if EPI_BIAS == 1
        const u32 b = *(const u32 *)((const elem *)a->bias + col);
        x0 += elem_lo(b);
        x1 += elem_hi(b);
#elif EPI_BIAS == 2
        x0 += ((const float *)a->bias)[col];
        x1 += ((const float *)a->bias)[col + 1];
#endif
#if EPI_SAVE && !EPI_ACT_LATER
        const u32 pre = PACK_ELEM(x0, x1);
        *(u32 *)(a->pre + (i64)row * a->pre_ld + col) = pre;
        x0 = elem_lo(pre); /* f of the stored value, as a recomputation will see it. */
        x1 = elem_hi(pre);
#endif
#if EPI_ACT && !EPI_ACT_LATER
        x0 = act_apply(EPI_ACT, x0);
        x1 = act_apply(EPI_ACT, x1);
#endif
#if (EPI_ACT_BWD && !EPI_ACT_LATER) || EPI_RESIDUAL
        const u32 x = *(const u32 *)(a->aux + (i64)row * a->aux_ld + col);
#endif
#if EPI_ACT_BWD && !EPI_ACT_LATER
        x0 *= act_slope(EPI_ACT_BWD, elem_lo(x));
        x1 *= act_slope(EPI_ACT_BWD, elem_hi(x));
#elif EPI_RESIDUAL
        x0 += elem_lo(x);
        x1 += elem_hi(x);
#endif
    }
#endif
    *v0 = x0;
    *v1 = x1;
}

#endif

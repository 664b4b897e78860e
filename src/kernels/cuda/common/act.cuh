/* act.cuh: activations that both act.cu and the GEMM's epilogue compute. Both give the same bits
 * (the compiler has no choice of contractions), since a recomputed activation must equal the one
 * that the product made. ex2.approx and rcp.approx: 2 ulp. */
#ifndef LT_ACT_CUH
#define LT_ACT_CUH

#include "common/types.cuh"

#define SQRT_2_PI  0.7978845608f
#define GELU_CUBIC 0.044715f

INLINE float sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}
/* sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): 0.5 (1 + tanh u). */
INLINE float gelu_gate(float x) {
    const float u = __fmul_rn(x, __fmaf_rn(GELU_CUBIC, __fmul_rn(x, x), 1.0f));
    return sigmoid(__fmul_rn(2.0f * SQRT_2_PI, u));
}
INLINE float gelu_tanh(float x) {
    return __fmul_rn(x, gelu_gate(x));
}
INLINE float gelu_tanh_slope(float x) {
    const float s = gelu_gate(x),
                du = __fmul_rn(2.0f * SQRT_2_PI,
                               __fmaf_rn(3.0f * GELU_CUBIC, __fmul_rn(x, x), 1.0f));
    return __fmaf_rn(__fmul_rn(__fmul_rn(x, s), 1.0f - s), du, s);
}
INLINE float silu(float x) {
    return __fmul_rn(x, sigmoid(x));
}
INLINE float silu_slope(float x) {
    const float s = sigmoid(x);
    return __fmul_rn(s, __fmaf_rn(x, 1.0f - s, 1.0f));
}

#endif

/* act.cu — activations, plain y = f(x) and gated y = f(gate) * up with x = [gate | up], forward and
 * backward.
 *
 * SHAPES    plain: x, y (rows, F). Gated: x (rows, 2 F), y (rows, F). DTYPE, contiguous. KIND as in
 *           LT_ACT_MAP: 0 gelu_tanh, 1 gelu (erf), 2 silu, 3 relu, 4 relu2, 5 xielu (params: 2
 *           floats p, n; dparams partials: 2 floats a block), 6 clamped SwiGLU, gated only, of
 *           ACT_ALPHA and ACT_LIMIT.
 * MAP       blocks of 256 threads, PIECES pieces of W elements a thread and operand, all loaded
 *           before the first is used. xIELU: as many blocks as are resident, which walk over the
 *           pieces, since a block has its two slopes to make from params, and on the way back
 *           leaves two sums.
 * BOUND     bytes a element of y (bf16): plain 4, backward 6; gated 6, backward 10. Special
 *           functions: 2 an element; a chip moves 0.75e12 elements/s and does 132 x 16 x 1.98e9 =
 *           4.2e12 special functions/s.
 * NUMERICS  fp32 inside; exponentials by ex2.approx (2 ulp), one rounding at the store (bf16) hides
 *           them. xIELU without branches: signs are random, so a warp would take both. */
#include "common/act.cuh"
#include "common/vec.cuh"
#include "kernels/cuda/ops/act_args.h"

#ifndef RAGGED
#define RAGGED 0
#endif
#ifndef PIECES
#define PIECES 1
#endif
#define THREADS      256
#define TURN         ((i64)THREADS * W * PIECES) /* Elements that a block processes at once. */
#define XIELU_BETA   0.5f
#define XIELU_EPS    (-1e-6f)
#define SQRT_HALF    0.7071067812f
#define INV_SQRT_2PI 0.3989422804f

/* xIELU's two slopes: softplus(p), beta + softplus(n). */
typedef struct {
    float positive, negative;
} xielu;
INLINE float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}
/* exp(x) - 1 for x <= 0. For 16-bit storage: an exponential and, near 0, where that cancels, a
 * polynomial, accurate to 3e-5 of what exceeds x and 1e-6 of the whole. */
INLINE float expm1_negative(float x) {
    if (sizeof(DTYPE) == 4) {
        return expm1f(x);
    }
    const float more = 0.5f + x * (0.166666667f + x * (0.0416666667f + x * 0.00833333333f)),
                near = fmaf(x * x, more, x);
    float far;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(far) : "f"(x * 1.4426950409f));
    return x > -0.125f ? near : far - 1.0f;
}
INLINE xielu xielu_slopes(const float *params) {
    const xielu k = {KIND == 5 ? softplus(params[0]) : 0.0f,
                     KIND == 5 ? XIELU_BETA + softplus(params[1]) : 0.0f};
    return k;
}
INLINE float f(float x, xielu k) {
#if KIND == 0
    return gelu_tanh(x);
#elif KIND == 1
    return 0.5f * x * (1.0f + erff(x * SQRT_HALF));
#elif KIND == 2
    return silu(x);
#elif KIND == 3
    return fmaxf(x, 0.0f);
#elif KIND == 4
    return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
#elif KIND == 6
    const float g = fminf(x, ACT_LIMIT);
    return g / (1.0f + __expf(-ACT_ALPHA * g));
#else
    const float right = (k.positive * x + XIELU_BETA) * x,
                left = k.negative * (expm1_negative(fminf(x, XIELU_EPS)) - x) + XIELU_BETA * x;
    return x > 0.0f ? right : left;
#endif
}
/* f'(x); for xIELU also the derivatives by the two slopes. */
INLINE float df(float x, xielu k, float *by_positive, float *by_negative) {
#if KIND == 0
    return gelu_tanh_slope(x);
#elif KIND == 1
    return 0.5f * (1.0f + erff(x * SQRT_HALF)) + x * INV_SQRT_2PI * __expf(-0.5f * x * x);
#elif KIND == 2
    return silu_slope(x);
#elif KIND == 3
    return x > 0.0f ? 1.0f : 0.0f;
#elif KIND == 4
    return 2.0f * fmaxf(x, 0.0f);
#elif KIND == 6
    const float s = 1.0f / (1.0f + __expf(-ACT_ALPHA * x));
    return x > ACT_LIMIT ? 0.0f : s * (1.0f + ACT_ALPHA * x * (1.0f - s));
#else
    const float e = expm1_negative(fminf(x, XIELU_EPS)), right = 2.0f * k.positive * x + XIELU_BETA;
    const float left = k.negative * (x < XIELU_EPS ? e : -1.0f) + XIELU_BETA;
    *by_positive = x > 0.0f ? x * x : 0.0f;
    *by_negative = x > 0.0f ? 0.0f : e - x;
    return x > 0.0f ? right : left;
#endif
}

/* The factor of f(gate), and its derivative by up. */
INLINE float factor_of(float up) {
#if KIND == 6
    return fmaxf(fminf(up, ACT_LIMIT), -ACT_LIMIT) + 1.0f;
#else
    return up;
#endif
}
INLINE float to_up(float up, float d) {
#if KIND == 6
    return fabsf(up) > ACT_LIMIT ? 0.0f : d;
#else
    return d;
#endif
}

/* Where piece `at` of y, dy (gated or not) is in memory, and of x, dx: gate (or plain), with up F
 * later. RAGGED: rows have strides. */
INLINE i64 y_at(i64 at, int cols, i64 ld) {
    return RAGGED ? at / cols * ld + at % cols : at;
}
INLINE i64 x_at(i64 at, int cols, i64 ld) {
    return RAGGED ? at / cols * ld + at % cols : GATED ? at / cols * 2 * cols + at % cols : at;
}

extern "C" __global__ void __launch_bounds__(THREADS) act_fwd(const lt_cuda_act_fwd_args w) {
    wait_for_others();
    const xielu k = xielu_slopes(w.params);
    for (i64 turn = blockIdx.x * TURN; turn < w.count; turn += gridDim.x * TURN) {
        const i64 first = turn + threadIdx.x * W;
        raw in[PIECES], up[PIECES];
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const i64 at = first + p * THREADS * W;
            in[p] = up[p] = raw_zero();
            if (at < w.count) {
                in[p] = raw_load_once(w.x + x_at(at, w.cols, w.ldx));
                if (GATED) {
                    up[p] = raw_load_once(w.x + x_at(at, w.cols, w.ldx) + w.cols);
                }
            }
        }
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const i64 at = first + p * THREADS * W;
            float from[W], factor[W], out[W];
            raw_unpack(from, in[p]);
            raw_unpack(factor, up[p]);
#pragma unroll
            for (int i = 0; i < W; i++) {
                out[i] = f(from[i], k) * (GATED ? factor_of(factor[i]) : 1.0f);
            }
            if (at < w.count) {
                piece_store(w.y + y_at(at, w.cols, w.ldy), out);
            }
        }
    }
}

/* parts (2, gridDim.x): xIELU only. dx may alias x. */
extern "C" __global__ void __launch_bounds__(THREADS) act_bwd(const lt_cuda_act_bwd_args w) {
    wait_for_others();
    const xielu k = xielu_slopes(w.params);
    float d_positive = 0.0f, d_negative = 0.0f;
    for (i64 turn = blockIdx.x * TURN; turn < w.count; turn += gridDim.x * TURN) {
        const i64 first = turn + threadIdx.x * W;
        raw in[PIECES], up[PIECES], d[PIECES];
#pragma unroll
        for (int p = 0; p < PIECES; p++) { /* Zeros beyond the end add nothing to the sums. */
            const i64 at = first + p * THREADS * W;
            in[p] = up[p] = d[p] = raw_zero();
            if (at < w.count) {
                d[p] = raw_load_once(w.dy + y_at(at, w.cols, w.lddy));
                in[p] = raw_load_once(w.x + x_at(at, w.cols, w.ldx));
                if (GATED) {
                    up[p] = raw_load_once(w.x + x_at(at, w.cols, w.ldx) + w.cols);
                }
            }
        }
#pragma unroll
        for (int p = 0; p < PIECES; p++) {
            const i64 at = first + p * THREADS * W;
            float from[W], factor[W], slope[W], out[W], out_up[W];
            raw_unpack(from, in[p]);
            raw_unpack(factor, up[p]);
            raw_unpack(slope, d[p]);
#pragma unroll
            for (int i = 0; i < W; i++) {
                const float s = slope[i] * (GATED ? factor_of(factor[i]) : 1.0f);
                float by_positive = 0.0f, by_negative = 0.0f;
                out[i] = s * df(from[i], k, &by_positive, &by_negative);
                if (GATED) {
                    out_up[i] = to_up(factor[i], slope[i] * f(from[i], k));
                }
                d_positive += s * by_positive;
                d_negative += s * by_negative;
            }
            if (at < w.count) {
                piece_store(w.dx + x_at(at, w.cols, w.lddx), out);
                if (GATED) {
                    piece_store(w.dx + x_at(at, w.cols, w.lddx) + w.cols, out_up);
                }
            }
        }
    }
#if KIND == 5
    __shared__ float slots[2][THREADS / WARP];
    d_positive = block_sum(d_positive, slots[0], THREADS / WARP);
    d_negative = block_sum(d_negative, slots[1], THREADS / WARP);
    if (threadIdx.x == 0) {
        w.parts[blockIdx.x] = d_positive;
        w.parts[gridDim.x + blockIdx.x] = d_negative;
    }
#endif
}

/* dparams += sums of the parts, times softplus' = sigmoid; one block. */
extern "C" __global__ void __launch_bounds__(1024) act_params(const lt_cuda_act_params_args w) {
    __shared__ float slots[2][WARP];
    float sum[2] = {0.0f, 0.0f};
    wait_for_others();
    for (int i = threadIdx.x; i < w.n; i += 1024) {
        sum[0] += w.parts[i];
        sum[1] += w.parts[w.n + i];
    }
    sum[0] = block_sum(sum[0], slots[0], WARP);
    sum[1] = block_sum(sum[1], slots[1], WARP);
    if (threadIdx.x < 2) {
        w.dparams[threadIdx.x] += sum[threadIdx.x] * (1.0f / (1.0f + expf(-w.params[threadIdx.x])));
    }
}

/* act.c: activations, plain and gated, forward and backward (formulas: tensor/ops.h).
 *
 * BOUND     Memory: x in, y out (backward x, dy in, dx out); 10 to 40 flops an element on the way.
 * xIELU     expm1(m) - m, m = min(x, eps), is its series below |m| = 0.35 (the difference of nearly
 *           equal numbers elsewhere loses digits) and exp(m) - 1 - m above. Gradients of its two
 *           parameters are summed over fixed chunks of rows in F32 lanes, then over chunks in
 *           double.
 * IN PLACE  dx may be x: every element of x is read before its dx is written, and with gating both
 *           halves at a time. */
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/cpu.h"

#include <math.h>

typedef struct {
    float a_p, a_n;     /* Of xIELU. */
    float alpha, limit; /* Of the clamped SwiGLU. */
} constants;

typedef struct {
    vf p, n;
} xielu_sums;

static double softplus(double x) {
    return fmax(x, 0.0) + log1p(exp(-fabs(x)));
}

static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

static constants read_constants(const lt_tensor *params, float alpha, float limit) {
    constants c = {.alpha = alpha, .limit = limit};
    if (params->data != NULL) {
        const float *p = params->data;
        c.a_p = (float)softplus((double)p[0]);
        c.a_n = (float)((double)LT_XIELU_BETA + softplus((double)p[params->stride[0]]));
    }
    return c;
}

/* expm1(min(x, eps)) - x, and e^min(x, eps). */
LT_INLINE vf xielu_negative(vf x, vf *exponential) {
    const vf m = v_min(x, v_set(LT_XIELU_EPS));
    const vf e = v_exp(m);
    vf p = v_set(1.0f / 5040);
    p = p * m + 1.0f / 720;
    p = p * m + 1.0f / 120;
    p = p * m + 1.0f / 24;
    p = p * m + 1.0f / 6;
    p = p * m + 0.5f;
    *exponential = e;
    return v_pick_lt(m, v_set(-0.35f), (e - 1.0f) - m, m * m * p) + (m - x);
}

/* f(x) and f'(x). With sums, the derivatives of xIELU by a_p and a_n, times df, are added there. */
LT_INLINE vf act(const lt_act_kind kind, const constants *c, vf x, vf *slope) {
    const vf zero = {0};
    if (kind == LT_ACT_GELU_TANH) {
        const vf u = 0.79788456f * (x + 0.044715f * x * x * x);
        const vf s = v_sigmoid(2.0f * u); /* 1 + tanh(u) = 2 sigmoid(2u) */
        const vf du = 0.79788456f * (1.0f + 3.0f * 0.044715f * x * x);
        *slope = s + x * (2.0f * s * (1.0f - s)) * du;
        return x * s;
    }
    if (kind == LT_ACT_GELU) {
        vf density;
        const vf phi = v_phi(x, &density);
        *slope = phi + x * (0.39894228f * density);
        return x * phi;
    }
    if (kind == LT_ACT_SILU) {
        const vf s = v_sigmoid(x);
        *slope = s * (1.0f + x * (1.0f - s));
        return x * s;
    }
    if (kind == LT_ACT_RELU) {
        *slope = v_pick_lt(zero, x, v_set(1.0f), zero);
        return v_max(zero, x);
    }
    if (kind == LT_ACT_RELU2) {
        const vf y = v_max(zero, x);
        *slope = 2.0f * y;
        return y * y;
    }
    if (kind == LT_ACT_SWIGLU_CLAMPED) {
        const vf limit = v_set(c->limit), g = v_min(x, limit);
        const vf s = v_sigmoid(c->alpha * g);
        *slope = v_pick_lt(limit, x, zero, s * (1.0f + c->alpha * g * (1.0f - s)));
        return g * s;
    }
    vf e;
    const vf negative = xielu_negative(x, &e);
    const vf e_or_0 = v_pick_lt(x, v_set(LT_XIELU_EPS), e, zero);
    *slope = v_pick_lt(zero, x, 2.0f * c->a_p * x, c->a_n * (e_or_0 - 1.0f)) + LT_XIELU_BETA;
    return v_pick_lt(zero, x, c->a_p * x * x, c->a_n * negative) + LT_XIELU_BETA * x;
}

/* The factor of f(gate). */
LT_INLINE vf factor(const lt_act_kind kind, const constants *c, vf up) {
    const vf limit = v_set(c->limit);
    return kind == LT_ACT_SWIGLU_CLAMPED ? v_max(v_min(up, limit), -limit) + 1.0f : up;
}

/* d where the factor follows up, 0 where it is clamped. */
LT_INLINE vf to_up(const lt_act_kind kind, const constants *c, vf up, vf d) {
    const vf limit = v_set(c->limit), zero = {0};
    return kind != LT_ACT_SWIGLU_CLAMPED
               ? d
               : v_pick_lt(limit, up, zero, v_pick_lt(up, -limit, zero, d));
}

LT_INLINE void fwd_row(const lt_act_args *a, const constants *c, int64_t r, const lt_act_kind kind,
                       const lt_dtype dtype) {
    const int64_t width = a->y.shape[1];
    const void *x = at_element(&a->x, r * a->x.stride[0]);
    void *y = at_element(&a->y, r * a->y.stride[0]);
    for (int64_t f = 0; f < width; f += VEC) {
        const int64_t n = width - f;
        vf slope;
        vf out = act(kind, c, v_get(x, dtype, f, n), &slope);
        if (a->gated) {
            out *= factor(kind, c, v_get(x, dtype, width + f, n));
        }
        v_put(y, dtype, f, out, n);
    }
}

LT_INLINE void fwd_rows(const lt_act_args *a, const lt_act_kind kind, const lt_dtype dtype) {
    const constants c = read_constants(&a->xielu_params, a->alpha, a->limit);
    const int64_t rows = a->y.shape[0];
#pragma omp parallel for schedule(static) if (rows * a->y.shape[1] > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        fwd_row(a, &c, r, kind, dtype);
    }
}

LT_INLINE void bwd_row(const lt_act_bwd_args *a, const constants *c, int64_t r, xielu_sums *sums,
                       const lt_act_kind kind, const lt_dtype dtype) {
    const int64_t width = a->dy.shape[1];
    const void *x = at_element(&a->x, r * a->x.stride[0]);
    const void *dy = at_element(&a->dy, r * a->dy.stride[0]);
    void *dx = at_element(&a->dx, r * a->dx.stride[0]);
    for (int64_t f = 0; f < width; f += VEC) {
        const int64_t n = width - f;
        const vf xv = v_get(x, dtype, f, n);
        const vf d = v_get(dy, dtype, f, n);
        vf df = d;
        vf slope;
        const vf y = act(kind, c, xv, &slope);
        if (a->gated) {
            const vf up = v_get(x, dtype, width + f, n);
            df *= factor(kind, c, up);
            v_put(dx, dtype, width + f, to_up(kind, c, up, d * y), n);
        }
        v_put(dx, dtype, f, df * slope, n);
        if (kind == LT_ACT_XIELU) { /* df is 0 beyond the row. */
            const vf zero = {0};
            vf e;
            sums->p += v_pick_lt(zero, xv, df * xv * xv, zero);
            sums->n += v_pick_lt(zero, xv, zero, df * xielu_negative(xv, &e));
        }
    }
}

LT_INLINE void bwd_rows(const lt_act_bwd_args *a, const lt_act_kind kind, const lt_dtype dtype) {
    const constants c = read_constants(&a->xielu_params, a->alpha, a->limit);
    const int64_t rows = a->dy.shape[0];
    const int64_t n_chunks = row_chunks(rows);
    double partial[64][2];
#pragma omp parallel for schedule(static) if (rows * a->dy.shape[1] > PARALLEL_MIN)
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        partial[chunk][0] = partial[chunk][1] = 0.0;
        for (int64_t r = chunk_start(rows, n_chunks, chunk);
             r < chunk_start(rows, n_chunks, chunk + 1); r++) {
            /* One row's sums; over more rows, sums in F32 would lose digits. */
            xielu_sums sums = {{0}, {0}};
            bwd_row(a, &c, r, &sums, kind, dtype);
            if (kind == LT_ACT_XIELU) {
                partial[chunk][0] += (double)v_sum(sums.p);
                partial[chunk][1] += (double)v_sum(sums.n);
            }
        }
    }
    if (kind == LT_ACT_XIELU && a->dxielu_params.data != NULL) {
        const float *params = a->xielu_params.data;
        float *d = a->dxielu_params.data;
        double sum[2] = {0.0, 0.0};
        for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
            sum[0] += partial[chunk][0];
            sum[1] += partial[chunk][1];
        }
        d[0] += (float)(sum[0] * sigmoid((double)params[0]));
        d[a->dxielu_params.stride[0]] +=
            (float)(sum[1] * sigmoid((double)params[a->xielu_params.stride[0]]));
    }
}

#define BY_KIND(kind, dtype, f, a)                                                                 \
    switch (kind) {                                                                                \
    case LT_ACT_GELU_TANH:                                                                         \
        BY_DTYPE(dtype, f, a, LT_ACT_GELU_TANH);                                                   \
        break;                                                                                     \
    case LT_ACT_GELU:                                                                              \
        BY_DTYPE(dtype, f, a, LT_ACT_GELU);                                                        \
        break;                                                                                     \
    case LT_ACT_SILU:                                                                              \
        BY_DTYPE(dtype, f, a, LT_ACT_SILU);                                                        \
        break;                                                                                     \
    case LT_ACT_RELU:                                                                              \
        BY_DTYPE(dtype, f, a, LT_ACT_RELU);                                                        \
        break;                                                                                     \
    case LT_ACT_RELU2:                                                                             \
        BY_DTYPE(dtype, f, a, LT_ACT_RELU2);                                                       \
        break;                                                                                     \
    case LT_ACT_SWIGLU_CLAMPED:                                                                    \
        BY_DTYPE(dtype, f, a, LT_ACT_SWIGLU_CLAMPED);                                              \
        break;                                                                                     \
    default:                                                                                       \
        BY_DTYPE(dtype, f, a, LT_ACT_XIELU);                                                       \
        break;                                                                                     \
    }

lt_err LT_ISA_NAME(lt_cpu_act_fwd)(lt_queue *q, const void *args) {
    const lt_act_args *a = args;
    (void)q;
    LT_ASSERT(a->x.shape[0] == a->y.shape[0] &&
              (a->kind != LT_ACT_XIELU || a->xielu_params.data != NULL) &&
              (a->kind != LT_ACT_SWIGLU_CLAMPED || (a->gated && a->limit > 0.0f)));
    BY_KIND(a->kind, a->x.dtype, fwd_rows, a);
    return LT_OK;
}

lt_err LT_ISA_NAME(lt_cpu_act_bwd)(lt_queue *q, const void *args) {
    const lt_act_bwd_args *a = args;
    (void)q;
    LT_ASSERT(a->x.shape[0] == a->dy.shape[0] &&
              (a->kind != LT_ACT_XIELU || a->xielu_params.data != NULL) &&
              (a->kind != LT_ACT_SWIGLU_CLAMPED || (a->gated && a->limit > 0.0f)));
    BY_KIND(a->kind, a->x.dtype, bwd_rows, a);
    return LT_OK;
}

/* act.c (ref): activations, plain and gated, and their backward. The formulas stand beside each
 * case below; gelu_tanh and silu are differentiated through t = tanh(u) and s = sigmoid(x). Gated:
 * x = [gate | up], y = f(gate) up, so
 *     dgate = dy up f'(gate),  dup = dy f(gate)
 * except in the clamped SwiGLU, whose factor is up + 1 within its limits.
 * The gradients of xIELU's two parameters are sums over all elements, rows rising, then columns. */
#include "kernels/host.h"
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

static const double SQRT_2_OVER_PI = 0.79788456080286535588;
static const double SQRT_HALF = 0.70710678118654752440;
static const double INV_SQRT_2PI = 0.39894228040143267794;

static double sigmoid(double x) {
    return 1.0 / (1.0 + exp(-x));
}

static double softplus(double x) {
    return fmax(x, 0.0) + log1p(exp(-fabs(x)));
}

/* What does not depend on x: four numbers of xIELU, two of the clamped SwiGLU. */
typedef struct {
    double a_p, a_n, da_p, da_n; /* da: derivative of softplus at the raw parameter. */
    double alpha, limit;
} constants;

static constants read_constants(const lt_tensor *params, float alpha, float limit) {
    constants c = {.alpha = (double)alpha, .limit = (double)limit};
    if (present(params)) {
        const double p = get(params, at1(params, 0)), n = get(params, at1(params, 1));
        c.a_p = softplus(p);
        c.a_n = (double)LT_XIELU_BETA + softplus(n);
        c.da_p = sigmoid(p);
        c.da_n = sigmoid(n);
    }
    return c;
}

/* expm1(min(x, eps)) - x: what a_n multiplies for x <= 0. */
static double xielu_negative(double x) {
    return expm1(fmin(x, (double)LT_XIELU_EPS)) - x;
}

/* f(x); *slope gets f'(x). */
static double act(lt_act_kind kind, const constants *c, double x, double *slope) {
    switch (kind) {
    case LT_ACT_GELU_TANH: { /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
        const double t = tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x));
        const double du = SQRT_2_OVER_PI * (1.0 + 3.0 * 0.044715 * x * x);
        *slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du;
        return 0.5 * x * (1.0 + t);
    }
    case LT_ACT_GELU: { /* x Phi(x) */
        const double phi = INV_SQRT_2PI * exp(-0.5 * x * x);
        const double big_phi = 0.5 * erfc(-x * SQRT_HALF);
        *slope = big_phi + x * phi;
        return x * big_phi;
    }
    case LT_ACT_SILU: { /* x sigmoid(x) */
        const double s = sigmoid(x);
        *slope = s * (1.0 + x * (1.0 - s));
        return x * s;
    }
    case LT_ACT_RELU:
        *slope = x > 0.0 ? 1.0 : 0.0;
        return x > 0.0 ? x : 0.0;
    case LT_ACT_RELU2: /* max(x, 0)^2 */
        *slope = x > 0.0 ? 2.0 * x : 0.0;
        return x > 0.0 ? x * x : 0.0;
    case LT_ACT_XIELU:
        if (x > 0.0) {
            *slope = 2.0 * c->a_p * x + (double)LT_XIELU_BETA;
            return c->a_p * x * x + (double)LT_XIELU_BETA * x;
        }
        *slope = c->a_n * ((x < (double)LT_XIELU_EPS ? exp(x) : 0.0) - 1.0) + (double)LT_XIELU_BETA;
        return c->a_n * xielu_negative(x) + (double)LT_XIELU_BETA * x;
    case LT_ACT_SWIGLU_CLAMPED: { /* g sigmoid(alpha g), g = min(x, limit) */
        const double g = fmin(x, c->limit), s = sigmoid(c->alpha * g);
        *slope = x > c->limit ? 0.0 : s * (1.0 + c->alpha * g * (1.0 - s));
        return g * s;
    }
    default:
        LT_ASSERT(!"an activation");
        return 0.0;
    }
}

/* The factor of f(gate); *slope: its derivative by up. */
static double factor(lt_act_kind kind, const constants *c, double up, double *slope) {
    *slope = 1.0;
    if (kind == LT_ACT_SWIGLU_CLAMPED) {
        *slope = fabs(up) > c->limit ? 0.0 : 1.0;
        return fmax(fmin(up, c->limit), -c->limit) + 1.0;
    }
    return up;
}

lt_err lt_ref_act_fwd(lt_queue *q, const lt_act_args *a) {
    const constants c = read_constants(&a->xielu_params, a->alpha, a->limit);
    const int64_t width = a->y.shape[1];

    (void)q;
    LT_ASSERT(a->x.shape[1] == (a->gated ? 2 * width : width) && a->x.shape[0] == a->y.shape[0]);
    LT_ASSERT(a->kind != LT_ACT_XIELU || present(&a->xielu_params));
    LT_ASSERT(a->kind != LT_ACT_SWIGLU_CLAMPED || (a->gated && a->limit > 0.0f));
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->y.shape[0]; r++) {
        for (int64_t f = 0; f < width; f++) {
            double slope, y = act(a->kind, &c, get(&a->x, at2(&a->x, r, f)), &slope);
            if (a->gated) {
                y *= factor(a->kind, &c, get(&a->x, at2(&a->x, r, width + f)), &slope);
            }
            set(&a->y, at2(&a->y, r, f), y);
        }
    }
    return LT_OK;
}

/* dparams += sums over all elements. It is called before dx is written, because dx may be in x's
 * memory. */
static void xielu_bwd_params(const lt_act_bwd_args *a, const constants *c) {
    const int64_t width = a->dy.shape[1];
    double sum_p = 0.0, sum_n = 0.0;

    for (int64_t r = 0; r < a->dy.shape[0]; r++) {
        for (int64_t f = 0; f < width; f++) {
            const double x = get(&a->x, at2(&a->x, r, f));
            double df = get(&a->dy, at2(&a->dy, r, f));
            if (a->gated) {
                df *= get(&a->x, at2(&a->x, r, width + f));
            }
            if (x > 0.0) {
                sum_p += df * x * x;
            } else {
                sum_n += df * xielu_negative(x);
            }
        }
    }
    const lt_tensor *d = &a->dxielu_params;
    set(d, at1(d, 0), get(d, at1(d, 0)) + sum_p * c->da_p);
    set(d, at1(d, 1), get(d, at1(d, 1)) + sum_n * c->da_n);
}

lt_err lt_ref_act_bwd(lt_queue *q, const lt_act_bwd_args *a) {
    const constants c = read_constants(&a->xielu_params, a->alpha, a->limit);
    const int64_t width = a->dy.shape[1];

    (void)q;
    LT_ASSERT(a->x.shape[1] == (a->gated ? 2 * width : width) && a->dx.shape[1] == a->x.shape[1]);
    LT_ASSERT(a->kind != LT_ACT_XIELU || present(&a->xielu_params));
    LT_ASSERT(a->kind != LT_ACT_SWIGLU_CLAMPED || (a->gated && a->limit > 0.0f));
    if (a->kind == LT_ACT_XIELU && present(&a->dxielu_params)) {
        xielu_bwd_params(a, &c);
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->dy.shape[0]; r++) {
        for (int64_t f = 0; f < width; f++) {
            const double dy = get(&a->dy, at2(&a->dy, r, f));
            double slope;
            const double y = act(a->kind, &c, get(&a->x, at2(&a->x, r, f)), &slope);
            if (a->gated) {
                double by_up;
                const double up = factor(a->kind, &c, get(&a->x, at2(&a->x, r, width + f)), &by_up);
                set(&a->dx, at2(&a->dx, r, f), dy * up * slope);
                set(&a->dx, at2(&a->dx, r, width + f), dy * y * by_up);
            } else {
                set(&a->dx, at2(&a->dx, r, f), dy * slope);
            }
        }
    }
    return LT_OK;
}

lt_err lt_ref_matmul_act(lt_queue *q, const lt_matmul_act_args *a) {
    return lt_matmul_act_in_parts(lt_backend_ref()->ops, q, a);
}

/* optimiser.c (ref): AdamW, AdEMAMix and Lion, one element at a time. g' = grad_scale g; formulas
 * in ops.h, with
 *     m <- beta1 m + (1 - beta1) g',  m^ = m / (1 - beta1^step)
 *     v <- beta2 v + (1 - beta2) g'^2,  v^ = v / (1 - beta2^step)
 * Sources: torch.optim.AdamW; AdEMAMix of swiss-ai's Megatron-LM (m1 bias-corrected, m2 not); Lion,
 * algorithm 2 of its paper. */
#include <string.h>

#include "base/rng.h"
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

static double ema(const lt_tensor *t, int64_t i, double beta, double x) {
    const double v = beta * get(t, i) + (1.0 - beta) * x;
    set(t, i, v);
    return v;
}

/* ema for a moment that may be BF16, with stochastic rounding by these bits. */
static double ema_drawn(const lt_tensor *t, int64_t i, double beta, double x, uint32_t bits) {
    const double v = beta * get(t, i) + (1.0 - beta) * x;
    if (t->dtype == LT_BF16) {
        ((uint16_t *)t->data)[i] = lt_f32_to_bf16_drawn((float)v, bits);
    } else {
        set(t, i, v);
    }
    return v;
}

/* The random words of element i (ops.h); zeros if no moment needs them. */
static void draw(uint32_t words[4], const lt_tensor *moment, uint64_t seed, int64_t step,
                 int64_t at) {
    memset(words, 0, 4 * sizeof *words);
    if (moment->dtype == LT_BF16) {
        lt_rng_block(words, seed, LT_OPTIM_STREAM | (uint64_t)(step & LT_OPTIM_STEP_MASK),
                     (uint64_t)at);
    }
}

/* The numbers that change from step to step: taken from the arguments, or from `now`. */
typedef struct {
    double lr, grad_scale, c1, c2, alpha, beta3;
    int64_t step;
    bool skip;
} step_now;
static step_now now_of(const lt_tensor *now, step_now plain) {
    if (!present(now)) {
        return plain;
    }
    return (step_now){.lr = get(now, LT_OPTIM_LR),
                      .grad_scale = get(now, LT_OPTIM_GRAD_SCALE),
                      .c1 = get(now, LT_OPTIM_CORRECT1),
                      .c2 = get(now, LT_OPTIM_CORRECT2),
                      .alpha = get(now, LT_OPTIM_ALPHA),
                      .beta3 = get(now, LT_OPTIM_BETA3),
                      .step = (int64_t)get(now, LT_OPTIM_STEP),
                      .skip = get(now, LT_OPTIM_SKIP) != 0.0};
}

static void put_param(const lt_tensor *p, const lt_tensor *copy, int64_t i, double x) {
    set(p, i, x);
    if (present(copy)) {
        /* From the stored parameter, so that the copy is that parameter rounded. */
        set(copy, i, get(p, i));
    }
}

lt_err lt_ref_adamw(lt_queue *q, const lt_adamw_args *a) {
    const double b1 = (double)a->beta1, b2 = (double)a->beta2;
    const step_now n = now_of(&a->now, (step_now){.lr = (double)a->lr,
                                                  .grad_scale = (double)a->grad_scale,
                                                  .c1 = 1.0 - pow(b1, (double)a->step),
                                                  .c2 = 1.0 - pow(b2, (double)a->step),
                                                  .step = a->step});
    const double lr = n.lr, c1 = n.c1, c2 = n.c2;

    (void)q;
    LT_ASSERT((a->step >= 1 || present(&a->now)) &&
              lt_tensor_count(&a->p) == lt_tensor_count(&a->g));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < (n.skip ? 0 : lt_tensor_count(&a->p)); i++) {
        const double g = n.grad_scale * get(&a->g, i);
        uint32_t w[4];
        draw(w, &a->m, a->seed, n.step, a->first + i);
        const double m = ema_drawn(&a->m, i, b1, g, w[0]);
        const double v = ema_drawn(&a->v, i, b2, g * g, w[1]);
        const double p = get(&a->p, i) * (1.0 - lr * (double)a->decay);
        put_param(&a->p, &a->copy, i, p - lr * (m / c1) / (sqrt(v / c2) + (double)a->eps));
    }
    return LT_OK;
}

lt_err lt_ref_ademamix(lt_queue *q, const lt_ademamix_args *a) {
    const double b1 = (double)a->beta1, b2 = (double)a->beta2;
    const step_now n = now_of(&a->now, (step_now){.lr = (double)a->lr,
                                                  .grad_scale = (double)a->grad_scale,
                                                  .c1 = 1.0 - pow(b1, (double)a->step),
                                                  .c2 = 1.0 - pow(b2, (double)a->step),
                                                  .alpha = (double)a->alpha,
                                                  .beta3 = (double)a->beta3,
                                                  .step = a->step});
    const double lr = n.lr, c1 = n.c1, c2 = n.c2;

    (void)q;
    LT_ASSERT((a->step >= 1 || present(&a->now)) &&
              lt_tensor_count(&a->p) == lt_tensor_count(&a->g));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < (n.skip ? 0 : lt_tensor_count(&a->p)); i++) {
        const double g = n.grad_scale * get(&a->g, i), p = get(&a->p, i);
        uint32_t w[4];
        draw(w, &a->m1, a->seed, n.step, a->first + i);
        const double m1 = ema_drawn(&a->m1, i, b1, g, w[0]);
        const double v = ema_drawn(&a->v, i, b2, g * g, w[1]);
        const double m2 = ema_drawn(&a->m2, i, n.beta3, g, w[2]);
        const double step = (m1 / c1 + n.alpha * m2) / (sqrt(v / c2) + (double)a->eps);
        put_param(&a->p, &a->copy, i, p - lr * (step + (double)a->decay * p));
    }
    return LT_OK;
}

lt_err lt_ref_lion(lt_queue *q, const lt_lion_args *a) {
    const step_now n = now_of(&a->now,
                              (step_now){.lr = (double)a->lr, .grad_scale = (double)a->grad_scale});
    const double b1 = (double)a->beta1, lr = n.lr;

    (void)q;
    LT_ASSERT(lt_tensor_count(&a->p) == lt_tensor_count(&a->g));
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < (n.skip ? 0 : lt_tensor_count(&a->p)); i++) {
        const double g = n.grad_scale * get(&a->g, i);
        const double u = b1 * get(&a->m, i) + (1.0 - b1) * g;
        const double sign = (double)((u > 0.0) - (u < 0.0));
        const double p = get(&a->p, i) * (1.0 - lr * (double)a->decay);
        ema(&a->m, i, (double)a->beta2, g);
        put_param(&a->p, &a->copy, i, p - lr * sign);
    }
    return LT_OK;
}

lt_err lt_ref_clip(lt_queue *q, const lt_clip_args *a) {
    const double norm = sqrt(get(&a->sumsq, 0)) * (double)a->scale;
    const bool clips = a->max_norm > 0.0f && norm > (double)a->max_norm;

    (void)q;
    set(&a->now, LT_OPTIM_GRAD_SCALE,
        (double)a->scale * (clips ? (double)a->max_norm / norm : 1.0));
    set(&a->now, LT_OPTIM_SKIP, isfinite(norm) ? 0.0 : 1.0);
    if (present(&a->norm)) {
        set(&a->norm, 0, norm);
    }
    return LT_OK;
}

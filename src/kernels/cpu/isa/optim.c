/* optim.c: AdamW, AdEMAMix and Lion over flat F32 buffers, one pass, each element read and written once.
 *
 * BOUND     Memory: AdamW reads p, g, m, v and writes p, m, v: 28 bytes a parameter (30 with the BF16 copy); GPT-2 124M: 3.5 GB a step.
 * NUMERICS  Bias corrections in double, once a call; the element in F32. The copy is the rounding of the stored p. */
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/cpu.h"

#include <math.h>

LT_INLINE void put_param(const lt_tensor *p, const lt_tensor *copy, int64_t i, vf x, int64_t n) {
    v_put(p->data, LT_F32, i, x, n);
    if (copy->data != NULL) {
        v_put(copy->data, LT_BF16, i, x, n);
    }
}

LT_INLINE vf get_f32(const lt_tensor *t, int64_t i, int64_t n) {
    return v_get(t->data, LT_F32, i, n);
}

lt_err LT_ISA_NAME(lt_cpu_adamw)(lt_queue *q, const void *args) {
    const lt_adamw_args *a = args;
    const int64_t count = lt_tensor_count(&a->p);
    const double c1 = 1.0 - pow((double)a->beta1, (double)a->step);
    const double c2 = 1.0 - pow((double)a->beta2, (double)a->step);
    const float keep = (float)(1.0 - (double)a->lr * (double)a->decay);
    const float rate = (float)((double)a->lr / c1);
    const float v_scale = (float)(1.0 / c2);
    const float m_new = (float)(1.0 - (double)a->beta1);
    const float v_new = (float)(1.0 - (double)a->beta2);
    (void)q;
    LT_ASSERT(a->step >= 1 && count == lt_tensor_count(&a->g));
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < count; i += VEC) {
        const int64_t n = count - i;
        const vf g = a->grad_scale * get_f32(&a->g, i, n);
        const vf m = a->beta1 * get_f32(&a->m, i, n) + m_new * g;
        const vf v = a->beta2 * get_f32(&a->v, i, n) + v_new * (g * g);
        const vf p = keep * get_f32(&a->p, i, n) - rate * m / (v_sqrt(v_scale * v) + a->eps);
        v_put(a->m.data, LT_F32, i, m, n);
        v_put(a->v.data, LT_F32, i, v, n);
        put_param(&a->p, &a->copy, i, p, n);
    }
    return LT_OK;
}

lt_err LT_ISA_NAME(lt_cpu_ademamix)(lt_queue *q, const void *args) {
    const lt_ademamix_args *a = args;
    const int64_t count = lt_tensor_count(&a->p);
    const float m1_scale = (float)(1.0 / (1.0 - pow((double)a->beta1, (double)a->step)));
    const float v_scale = (float)(1.0 / (1.0 - pow((double)a->beta2, (double)a->step)));
    const float m1_new = (float)(1.0 - (double)a->beta1);
    const float m2_new = (float)(1.0 - (double)a->beta3);
    const float v_new = (float)(1.0 - (double)a->beta2);
    (void)q;
    LT_ASSERT(a->step >= 1 && count == lt_tensor_count(&a->g));
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < count; i += VEC) {
        const int64_t n = count - i;
        const vf g = a->grad_scale * get_f32(&a->g, i, n);
        const vf p = get_f32(&a->p, i, n);
        const vf m1 = a->beta1 * get_f32(&a->m1, i, n) + m1_new * g;
        const vf m2 = a->beta3 * get_f32(&a->m2, i, n) + m2_new * g;
        const vf v = a->beta2 * get_f32(&a->v, i, n) + v_new * (g * g);
        const vf step = (m1_scale * m1 + a->alpha * m2) / (v_sqrt(v_scale * v) + a->eps);
        v_put(a->m1.data, LT_F32, i, m1, n);
        v_put(a->m2.data, LT_F32, i, m2, n);
        v_put(a->v.data, LT_F32, i, v, n);
        put_param(&a->p, &a->copy, i, p - a->lr * (step + a->decay * p), n);
    }
    return LT_OK;
}

lt_err LT_ISA_NAME(lt_cpu_lion)(lt_queue *q, const void *args) {
    const lt_lion_args *a = args;
    const int64_t count = lt_tensor_count(&a->p);
    const float keep = (float)(1.0 - (double)a->lr * (double)a->decay);
    const float u_new = (float)(1.0 - (double)a->beta1);
    const float m_new = (float)(1.0 - (double)a->beta2);
    const vf zero = {0};
    (void)q;
    LT_ASSERT(count == lt_tensor_count(&a->g));
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < count; i += VEC) {
        const int64_t n = count - i;
        const vf g = a->grad_scale * get_f32(&a->g, i, n);
        const vf m = get_f32(&a->m, i, n);
        const vf u = a->beta1 * m + u_new * g;
        const vf sign = v_pick_lt(zero, u, v_set(1.0f), v_pick_lt(u, zero, v_set(-1.0f), zero));
        v_put(a->m.data, LT_F32, i, a->beta2 * m + m_new * g, n);
        put_param(&a->p, &a->copy, i, keep * get_f32(&a->p, i, n) - a->lr * sign, n);
    }
    return LT_OK;
}

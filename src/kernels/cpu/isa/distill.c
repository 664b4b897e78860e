/* distill.c: the divergence of a teacher's and a student's distributions, and its gradient in
 * place, a row at a time. src/kernels/ref/distill.c has the formulas.
 *
 * MOVEMENT  Whole teacher: both rows ──memory──▶ sums of exponentials ──▶ terms of the divergence,
 *           from L2 ──▶ the gradient over the student's row. K tokens of the teacher: the
 *           student's row in the runs between them, then the K words one by one; without the rest
 *           only these.
 * BOUND     Student: 8 bytes a logit in F32; teacher: 4. Exponentials a word: 2 for the sums, and 1
 *           or 2 for each of the two passes over terms (3 where 0 < beta < 1).
 * NUMERICS  Logarithms of probabilities are l - max - log_sum in F32, terms are summed in F32 over
 *           blocks and in F64 over the row, in a fixed order. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/isa/softmax.h"

typedef struct {
    vf d, u;
} terms;

/* log x of 1 <= x <= 2, by the series of the inverse hyperbolic tangent. */
LT_INLINE vf log_1_to_2(vf x) {
    const vf s = (x - 1.0f) / (x + 1.0f), z = s * s;
    vf y = v_set(1.0f / 15.0f);
    for (int n = 13; n > 0; n -= 2) {
        y = v_fma(y, z, v_set(1.0f / (float)n));
    }
    return 2.0f * s * y;
}

/* x times its weight, where 0 log 0 = 0. A NaN weight stays NaN. */
LT_INLINE vf weighed(vf weight, vf x) {
    return v_pick(weight == 0.0f, v_set(0.0f), weight * x);
}

LT_INLINE terms terms_of(vf logp, vf logq, float beta) {
    const vf p = v_exp(logp), q = v_exp(logq);
    if (beta == 0.0f) {
        return (terms){weighed(p, logp - logq), -p};
    }
    if (beta == 1.0f) {
        const vf d = weighed(q, logq - logp);
        return (terms){d, d};
    }
    const vf a = logp + logf(beta), b = logq + log1pf(-beta), high = v_max(a, b);
    const vf logm = high + log_1_to_2(1.0f + v_exp(v_min(a, b) - high));
    const vf of_q = weighed(q, logq - logm);
    return (terms){beta * weighed(p, logp - logm) + (1.0f - beta) * of_q, (1.0f - beta) * of_q};
}

LT_INLINE double total_of(log_total t) {
    return (double)t.max + (double)t.log_sum;
}

LT_INLINE log_total log_total_from(double x) {
    const float max = (float)x;
    return (log_total){max, max > -INFINITY ? (float)(x - (double)max) : 0.0f};
}

/* A row and the values derived from it. */
typedef struct {
    const lt_distill_args *a;
    void *row;
    const void *teacher;
    const int32_t *ids; /* (n_named) */
    const float *logp;
    int64_t n, n_named, label;
    float inv_t, share, scale, hit; /* scale: of the gradient; hit: the label's logit. */
    log_total lse, teacher_lse, rest_lse, hard_lse; /* hard_lse: at temperature 1. */
    double given, top_lse, rest_u, rest_q, d, u;
} row_state;

LT_INLINE const void *run_at(const row_state *s, int64_t first, const lt_dtype dtype) {
    return (const char *)s->row + first * (dtype == LT_F32 ? 4 : 2);
}

LT_INLINE log_total log_total_of(const void *row, int64_t n, float softcap, float scale,
                                 const lt_dtype dtype) {
    double sum;
    const float max = row_exp_sum(&sum, row, n, softcap, scale, dtype);
    return (log_total){max, (float)log(sum)};
}

/* ---- A whole teacher ---- */

LT_INLINE terms whole_terms(const row_state *s, int64_t i, vf l) {
    const lt_distill_args *a = s->a;
    const vf t = capped(v_get(s->teacher, a->teacher.dtype, i, s->n - i), a->teacher_softcap);
    return terms_of(minus(t * s->inv_t, s->teacher_lse), minus(l * s->inv_t, s->lse), a->beta);
}

LT_INLINE void sum_whole(row_state *s, const lt_dtype dtype) {
    const lt_distill_args *a = s->a;
    s->lse = log_total_of(s->row, s->n, a->softcap, s->inv_t, dtype);
    s->teacher_lse = a->teacher.dtype == LT_F32
                         ? log_total_of(s->teacher, s->n, a->teacher_softcap, s->inv_t, LT_F32)
                         : log_total_of(s->teacher, s->n, a->teacher_softcap, s->inv_t, LT_BF16);
    for (int64_t at = 0; at < s->n; at += SOFTMAX_BLOCK) {
        const int64_t end = s->n - at < SOFTMAX_BLOCK ? s->n : at + SOFTMAX_BLOCK;
        terms sum = {0};
        for (int64_t i = at; i < end; i += VEC) {
            const terms t = whole_terms(s, i,
                                        capped(v_get(s->row, dtype, i, s->n - i), a->softcap));
            sum.d += v_first(t.d, end - i, 0.0f);
            sum.u += v_first(t.u, end - i, 0.0f);
        }
        s->d += (double)v_sum(sum.d);
        s->u += (double)v_sum(sum.u);
    }
}

/* ---- The teacher's words ---- */

LT_INLINE double named_logit(const row_state *s, int64_t k, const lt_dtype dtype) {
    const vf l = v_set(f_load_as(s->row, dtype, s->ids[k]));
    return (double)capped(l, s->a->softcap)[0] * (double)s->inv_t;
}

LT_INLINE double add_log(double a, double b) {
    const double high = a > b ? a : b;
    return high > -INFINITY ? high + log(exp(a - high) + exp(b - high)) : high;
}

/* The student's tokens that the teacher does not name: a log-sum over the runs between named
 * tokens. */
LT_INLINE log_total rest_of(const row_state *s, const lt_dtype dtype) {
    double all = -INFINITY;
    int64_t first = 0;
    for (int64_t k = 0; k <= s->n_named; k++) {
        const int64_t end = k < s->n_named ? s->ids[k] : s->n;
        double sum;
        if (end > first) {
            const float max = row_exp_sum(&sum, run_at(s, first, dtype), end - first, s->a->softcap,
                                          s->inv_t, dtype);
            all = add_log(all, (double)max + log(sum));
        }
        first = end + 1;
    }
    return log_total_from(all);
}

/* Terms of token k, as one lane. */
LT_INLINE terms named_terms(const row_state *s, int64_t k, double l) {
    const double of = s->a->rest ? total_of(s->lse) : s->top_lse;
    const double logp = (double)s->logp[k] - (s->a->rest ? 0.0 : log(s->given));
    return terms_of(v_set((float)logp), v_set((float)(l - of)), s->a->beta);
}

LT_INLINE void sum_rest(row_state *s) {
    const double left = 1.0 - s->given > LT_DISTILL_REST ? 1.0 - s->given : LT_DISTILL_REST;
    const double logq = total_of(s->rest_lse) - total_of(s->lse);
    const terms t = terms_of(v_set((float)log(left)), v_set((float)logq), s->a->beta);
    s->rest_q = exp(logq);
    s->rest_u = s->u = (double)t.u[0];
    s->d = (double)t.d[0];
}

LT_INLINE void sum_named(row_state *s, const lt_dtype dtype) {
    s->top_lse = -INFINITY;
    for (int64_t k = 0; k < s->n_named; k++) {
        s->given += exp((double)s->logp[k]);
        s->top_lse = add_log(s->top_lse, named_logit(s, k, dtype));
    }
    if (s->a->rest) {
        s->rest_lse = rest_of(s, dtype);
        s->lse = log_total_from(add_log(s->top_lse, total_of(s->rest_lse)));
    }
    if (s->a->rest && s->n_named < s->n) {
        sum_rest(s);
    }
    for (int64_t k = 0; k < s->n_named; k++) {
        const terms t = named_terms(s, k, named_logit(s, k, dtype));
        s->d += (double)t.d[0];
        s->u += (double)t.u[0];
    }
}

/* ---- The gradient ---- */

/* The derivative of the loss by logit l, capped, from `slope`, the derivative of D by l over the
 * temperature. It excludes the cross-entropy's term of the label. */
LT_INLINE vf derivative(const row_state *s, vf l, vf slope) {
    const float cap = s->a->softcap;
    vf d = (1.0f - s->share) * s->inv_t * slope;
    if (s->share > 0.0f) {
        d += s->share * v_exp(minus(l, s->hard_lse));
    }
    return s->scale * (cap > 0.0f ? d * (1.0f - (l / cap) * (l / cap)) : d);
}

LT_INLINE void gradient_whole(const row_state *s, const lt_dtype dtype) {
    for (int64_t i = 0; i < s->n; i += VEC) {
        const vf l = capped(v_get(s->row, dtype, i, s->n - i), s->a->softcap);
        const vf slope = whole_terms(s, i, l).u - v_exp(minus(l * s->inv_t, s->lse)) * (float)s->u;
        v_put(s->row, dtype, i, derivative(s, l, slope), s->n - i);
    }
}

/* Tokens [first, end), which the teacher does not name. */
LT_INLINE void gradient_run(const row_state *s, int64_t first, int64_t end, const lt_dtype dtype) {
    void *run = (void *)(uintptr_t)run_at(s, first, dtype);
    const float rest = (float)(s->rest_u - s->rest_q * s->u);
    for (int64_t i = 0; i < end - first; i += VEC) {
        const vf l = capped(v_get(run, dtype, i, end - first - i), s->a->softcap);
        const vf slope = s->a->rest ? rest * v_exp(minus(l * s->inv_t, s->rest_lse)) : v_set(0.0f);
        v_put(run, dtype, i, derivative(s, l, slope), end - first - i);
    }
}

LT_INLINE void gradient_named(const row_state *s, const lt_dtype dtype) {
    const double of = s->a->rest ? total_of(s->lse) : s->top_lse;
    int64_t first = 0;
    for (int64_t k = 0; k <= s->n_named; k++) {
        const int64_t end = k < s->n_named ? s->ids[k] : s->n;
        gradient_run(s, first, end, dtype);
        if (k < s->n_named) {
            const double l = named_logit(s, k, dtype);
            const double slope = (double)named_terms(s, k, l).u[0] - exp(l - of) * s->u;
            const vf d = derivative(s, v_set((float)(l / (double)s->inv_t)), v_set((float)slope));
            f_store_as(s->row, dtype, end, d[0]);
        }
        first = end + 1;
    }
}

/* The cross-entropy's term for the label's token. */
LT_INLINE void gradient_label(const row_state *s, const lt_dtype dtype) {
    const float cap = s->a->softcap,
                slope = cap > 0.0f ? 1.0f - (s->hit / cap) * (s->hit / cap) : 1.0f;
    f_store_as(s->row, dtype, s->label,
               f_load_as(s->row, dtype, s->label) - s->share * s->scale * slope);
}

/* ---- A row ---- */

LT_INLINE row_state state_of(const lt_distill_args *a, int64_t r, const lt_dtype dtype) {
    row_state s = {.a = a,
                   .row = at_element(&a->logits, r * a->logits.stride[0]),
                   .n = a->logits.shape[1],
                   .label = ((const int32_t *)a->labels.data)[r * a->labels.stride[0]],
                   .inv_t = 1.0f / a->temperature,
                   .share = a->label_share,
                   .scale = a->grad_scale};
    if (a->weights.data != NULL) {
        s.scale *= ((const float *)a->weights.data)[r * a->weights.stride[0]];
    }
    if (a->teacher.data != NULL) {
        s.teacher = at_element(&a->teacher, r * a->teacher.stride[0]);
    } else {
        s.ids = (const int32_t *)a->ids.data + r * a->ids.stride[0];
        s.logp = (const float *)a->logp.data + r * a->logp.stride[0];
        while (s.n_named < a->ids.shape[1] && s.ids[s.n_named] >= 0) {
            s.n_named++;
        }
    }
    if (s.label >= 0) {
        s.hit = capped(v_set(f_load_as(s.row, dtype, s.label)), a->softcap)[0];
    }
    return s;
}

LT_INLINE void distill_row(const lt_distill_args *a, int64_t r, const lt_dtype dtype) {
    row_state s = state_of(a, r, dtype);
    float *loss = (float *)a->loss.data + r * a->loss.stride[0];
    *loss = 0.0f;
    if (s.label < 0) {
        if (a->grad_scale != 0.0f) {
            memset(s.row, 0, (size_t)s.n * (dtype == LT_F32 ? 4 : 2));
        }
        return;
    }
    LT_ASSERT(s.label < s.n);
    if (s.teacher != NULL) {
        sum_whole(&s, dtype);
    } else {
        sum_named(&s, dtype);
    }
    if (s.share > 0.0f) {
        s.hard_lse = log_total_of(s.row, s.n, a->softcap, 1.0f, dtype);
        *loss = s.share * (s.hard_lse.log_sum - (s.hit - s.hard_lse.max));
    }
    *loss += (1.0f - s.share) * (float)s.d;
    if (a->grad_scale == 0.0f) {
        return;
    }
    if (s.teacher != NULL) {
        gradient_whole(&s, dtype);
    } else {
        gradient_named(&s, dtype);
    }
    if (s.share > 0.0f) {
        gradient_label(&s, dtype);
    }
}

LT_INLINE void distill_rows(const lt_distill_args *a, const lt_dtype dtype) {
    const int64_t rows = a->logits.shape[0];
#pragma omp parallel for schedule(dynamic, 4) if (rows * a->logits.shape[1] > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        distill_row(a, r, dtype);
    }
}

lt_err LT_ISA_NAME(lt_cpu_distill)(lt_queue *q, const void *args) {
    const lt_distill_args *a = args;
    (void)q;
    LT_ASSERT(a->logits.n_dims == 2 && a->labels.shape[0] == a->logits.shape[0]);
    LT_ASSERT((a->teacher.data != NULL) != (a->ids.data != NULL) && a->temperature > 0.0f);
    BY_DTYPE(a->logits.dtype, distill_rows, a);
    return LT_OK;
}

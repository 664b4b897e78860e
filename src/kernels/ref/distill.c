/* distill.c (ref): the divergence of a teacher's and a student's distributions, and its gradient in
 * the place of the student's logits.
 *
 * A row is a sum over classes: all words, or the teacher's K words and, with `rest`, all others
 * together. Class c has probability p of the teacher and q of the student, and the terms
 *     forward, beta 0    d = p log(p/q)                                u = -p
 *     reverse, beta 1    d = q log(q/p)                                u = d
 *     between, m mixed   d = beta p log(p/m) + (1 - beta) q log(q/m)   u = (1 - beta) q log(q/m)
 * Then D is the sum of d. Since q is a softmax over the classes' logits, the derivative by the
 * logit of class c is u - q U, where U is the sum of u. A word of the rest has its share of
 * that. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

typedef struct {
    double d, u;
} terms;

/* x log-probabilities, with 0 log 0 = 0. */
static terms terms_of(const lt_distill_args *a, double logp, double logq) {
    const double p = exp(logp), q = exp(logq), beta = (double)a->beta;
    if (beta == 0.0) {
        return (terms){p > 0.0 ? p * (logp - logq) : 0.0, -p};
    }
    if (beta == 1.0) {
        const double d = q > 0.0 ? q * (logq - logp) : 0.0;
        return (terms){d, d};
    }
    const double logm = log(beta * p + (1.0 - beta) * q), of_p = p > 0.0 ? p * (logp - logm) : 0.0,
                 of_q = q > 0.0 ? q * (logq - logm) : 0.0;
    return (terms){beta * of_p + (1.0 - beta) * of_q, (1.0 - beta) * of_q};
}

static double capped(const lt_tensor *t, int64_t r, int64_t v, float softcap) {
    const double x = get(t, at2(t, r, v));
    return softcap > 0.0f ? (double)softcap * tanh(x / (double)softcap) : x;
}

/* log sum exp of logits over a temperature. */
static double log_sum(const lt_tensor *t, int64_t r, float softcap, double temperature) {
    double max = -INFINITY, sum = 0.0;
    for (int64_t v = 0; v < t->shape[1]; v++) {
        max = fmax(max, capped(t, r, v, softcap) / temperature);
    }
    for (int64_t v = 0; v < t->shape[1]; v++) {
        sum += exp(capped(t, r, v, softcap) / temperature - max);
    }
    return max + log(sum);
}

/* What is known of a row before its classes are visited. */
typedef struct {
    double lse; /* Log-sum over the student's words, at the temperature. */
    /* Log-sum over the teacher's words, or over its K words if there are no others. */
    double teacher_lse;
    double top_lse;  /* Log-sum over the student's logits at the K words. */
    double rest_lse; /* Log-sum over its other words; -inf: there are none. */
    terms rest, sum; /* Terms of the class of the others; sum over all classes. */
} row_facts;

static double student(const lt_distill_args *a, int64_t r, int64_t v) {
    return capped(&a->logits, r, v, a->softcap) / (double)a->temperature;
}

/* Number of words that the teacher names in the row. */
static int64_t n_named(const lt_distill_args *a, int64_t r) {
    int64_t n = 0;
    while (n < a->ids.shape[1] && get_i32(&a->ids, at2(&a->ids, r, n)) >= 0) {
        n++;
    }
    return n;
}

static double add_log(double a, double b) {
    const double high = fmax(a, b);
    return high > -INFINITY ? high + log(exp(a - high) + exp(b - high)) : high;
}

/* Divide the student's words into two sums, by a walk along both lists. */
static void split_student(const lt_distill_args *a, int64_t r, row_facts *f) {
    const int64_t n = n_named(a, r);
    f->top_lse = f->rest_lse = -INFINITY;
    for (int64_t v = 0, k = 0; v < a->logits.shape[1]; v++) {
        const bool named = k < n && get_i32(&a->ids, at2(&a->ids, r, k)) == v;
        double *sum = named ? &f->top_lse : &f->rest_lse;
        *sum = add_log(*sum, student(a, r, v));
        k += named;
    }
}

/* Log-probabilities of class k of the teacher's words. */
static terms named_terms(const lt_distill_args *a, int64_t r, int64_t k, const row_facts *f) {
    const double l = student(a, r, get_i32(&a->ids, at2(&a->ids, r, k)));
    return terms_of(a, get(&a->logp, at2(&a->logp, r, k)) - f->teacher_lse,
                    l - (a->rest ? f->lse : f->top_lse));
}

static void sum_named(const lt_distill_args *a, int64_t r, row_facts *f) {
    const int64_t n = n_named(a, r);
    double given = 0.0;
    split_student(a, r, f);
    for (int64_t k = 0; k < n; k++) {
        given += exp(get(&a->logp, at2(&a->logp, r, k)));
    }
    f->teacher_lse = a->rest ? 0.0 : log(given);
    if (a->rest && f->rest_lse > -INFINITY) {
        f->rest = terms_of(a, log(fmax(1.0 - given, LT_DISTILL_REST)), f->rest_lse - f->lse);
        f->sum = f->rest;
    }
    for (int64_t k = 0; k < n; k++) {
        const terms t = named_terms(a, r, k, f);
        f->sum.d += t.d;
        f->sum.u += t.u;
    }
}

static terms whole_terms(const lt_distill_args *a, int64_t r, int64_t v, const row_facts *f) {
    const double p = capped(&a->teacher, r, v, a->teacher_softcap) / (double)a->temperature;
    return terms_of(a, p - f->teacher_lse, student(a, r, v) - f->lse);
}

static row_facts facts_of(const lt_distill_args *a, int64_t r) {
    row_facts f = {.lse = log_sum(&a->logits, r, a->softcap, (double)a->temperature)};
    if (!present(&a->teacher)) {
        sum_named(a, r, &f);
        return f;
    }
    f.teacher_lse = log_sum(&a->teacher, r, a->teacher_softcap, (double)a->temperature);
    for (int64_t v = 0; v < a->logits.shape[1]; v++) {
        const terms t = whole_terms(a, r, v, &f);
        f.sum.d += t.d;
        f.sum.u += t.u;
    }
    return f;
}

/* dD by word v's logit over the temperature. *k: the next of the teacher's words. */
static double slope_of(const lt_distill_args *a, int64_t r, int64_t v, const row_facts *f,
                       int64_t *k) {
    const double l = student(a, r, v);
    if (present(&a->teacher)) {
        return whole_terms(a, r, v, f).u - exp(l - f->lse) * f->sum.u;
    }
    if (*k < n_named(a, r) && get_i32(&a->ids, at2(&a->ids, r, *k)) == v) {
        const double q = exp(l - (a->rest ? f->lse : f->top_lse));
        return named_terms(a, r, (*k)++, f).u - q * f->sum.u;
    }
    return a->rest ? f->rest.u * exp(l - f->rest_lse) - exp(l - f->lse) * f->sum.u : 0.0;
}

static void replace_by_gradient(const lt_distill_args *a, int64_t r, int64_t label, double lse1,
                                const row_facts *f) {
    const double weight = present(&a->weights) ? get(&a->weights, at1(&a->weights, r)) : 1.0,
                 scale = (double)a->grad_scale * weight, share = (double)a->label_share;
    int64_t k = 0;
    for (int64_t v = 0; v < a->logits.shape[1]; v++) {
        const double l = capped(&a->logits, r, v, a->softcap), slope = slope_of(a, r, v, f, &k);
        double d = (1.0 - share) * slope / (double)a->temperature;
        d += share > 0.0 ? share * (exp(l - lse1) - (v == label ? 1.0 : 0.0)) : 0.0;
        if (a->softcap > 0.0f) {
            d *= 1.0 - (l / (double)a->softcap) * (l / (double)a->softcap);
        }
        set(&a->logits, at2(&a->logits, r, v), scale * d);
    }
}

static void distill_row(const lt_distill_args *a, int64_t r, int64_t label) {
    const row_facts f = facts_of(a, r);
    const double share = (double)a->label_share,
                 lse1 = share > 0.0 ? log_sum(&a->logits, r, a->softcap, 1.0) : 0.0;
    double loss = (1.0 - share) * f.sum.d;
    if (share > 0.0) {
        loss += share * (lse1 - capped(&a->logits, r, label, a->softcap));
    }
    set(&a->loss, at1(&a->loss, r), loss);
    if (a->grad_scale != 0.0f) {
        replace_by_gradient(a, r, label, lse1, &f);
    }
}

static void skip_row(const lt_distill_args *a, int64_t r) {
    set(&a->loss, at1(&a->loss, r), 0.0);
    for (int64_t v = 0; a->grad_scale != 0.0f && v < a->logits.shape[1]; v++) {
        set(&a->logits, at2(&a->logits, r, v), 0.0);
    }
}

lt_err lt_ref_distill(lt_queue *q, const lt_distill_args *a) {
    (void)q;
    LT_ASSERT(a->logits.n_dims == 2 && a->labels.shape[0] == a->logits.shape[0]);
    LT_ASSERT(present(&a->teacher) != present(&a->ids) && a->temperature > 0.0f);
#pragma omp parallel for schedule(dynamic)
    for (int64_t r = 0; r < a->logits.shape[0]; r++) {
        const int32_t label = get_i32(&a->labels, at1(&a->labels, r));
        LT_ASSERT(label >= -1 && label < a->logits.shape[1]);
        if (label >= 0) {
            distill_row(a, r, label);
        } else {
            skip_row(a, r);
        }
    }
    return LT_OK;
}

/* xent.c (ref): cross-entropy of a chunk of rows, and its gradient in the place of the logits.
 *
 * Per row, l_v = softcap tanh(logit_v / softcap) (or the logit itself), lse = log sum_v exp(l_v):
 *     loss = lse - l[label];  gradient of loss + z_coef lse^2:
 *     dlogit_v = grad_scale ((1 + 2 z_coef lse) exp(l_v - lse) - [v = label])
 *                (1 - (l_v / softcap)^2)
 * times the row's weight, where there are weights. A row with label -1 has loss 0 and gradient 0;
 * its lse and argmax are still written.
 *
 * For part i of the vocabulary, a row has max_i, s_i = sum of exp(l - max_i), the label's l if it
 * is in the part, and argmax. From all n parts, with M the largest max_i:
 *     lse = M + log(sum over i of s_i exp(max_i - M)) */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

static double capped(const lt_xent_args *a, int64_t r, int64_t v) {
    const double x = get(&a->logits, at2(&a->logits, r, v));
    return a->softcap > 0.0f ? (double)a->softcap * tanh(x / (double)a->softcap) : x;
}

/* What is known of a row, from all of its logits or from a part of them. */
typedef struct {
    double max, sum, hit;
    int64_t best;
} row_facts;

static row_facts facts_of(const lt_xent_args *a, int64_t r, int64_t label) {
    row_facts f = {.max = -INFINITY, .best = a->first};
    for (int64_t v = 0; v < a->logits.shape[1]; v++) {
        const double l = capped(a, r, v);
        if (l > f.max) {
            f.max = l;
            f.best = a->first + v;
        }
        f.hit = a->first + v == label ? l : f.hit;
    }
    /* All logits of a part may be -inf. */
    for (int64_t v = 0; v < a->logits.shape[1]; v++) {
        f.sum += exp(capped(a, r, v) - (f.max > -INFINITY ? f.max : 0.0));
    }
    return f;
}

static int64_t fact_at(const lt_xent_args *a, int64_t part, int64_t r, int which) {
    return (part * a->logits.shape[0] + r) * LT_XENT_PART + which;
}

static row_facts facts_of_parts(const lt_xent_args *a, int64_t r) {
    row_facts f = {.max = -INFINITY};
    for (int64_t i = 0; i < a->parts.shape[0]; i++) {
        const double max = get(&a->parts, fact_at(a, i, r, LT_XENT_MAX));
        if (max > f.max || i == 0) {
            f.max = max;
            f.best = (int64_t)get(&a->parts, fact_at(a, i, r, LT_XENT_BEST));
        }
        f.hit += get(&a->parts, fact_at(a, i, r, LT_XENT_HIT));
    }
    for (int64_t i = 0; i < a->parts.shape[0]; i++) {
        f.sum += get(&a->parts, fact_at(a, i, r, LT_XENT_SUM)) *
                 exp(get(&a->parts, fact_at(a, i, r, LT_XENT_MAX)) - f.max);
    }
    return f;
}

static void write_part(const lt_xent_args *a, int64_t r, int64_t label) {
    const row_facts f = facts_of(a, r, label);
    set(&a->part, fact_at(a, 0, r, LT_XENT_MAX), f.max);
    set(&a->part, fact_at(a, 0, r, LT_XENT_SUM), f.sum);
    set(&a->part, fact_at(a, 0, r, LT_XENT_HIT), f.hit);
    set(&a->part, fact_at(a, 0, r, LT_XENT_BEST), (double)f.best);
}

static void replace_by_gradient(const lt_xent_args *a, int64_t r, int64_t label, double lse) {
    const double z_factor = 1.0 + 2.0 * (double)a->z_coef * lse,
                 weight = present(&a->weights) ? get(&a->weights, at1(&a->weights, r)) : 1.0;
    for (int64_t v = 0; v < a->logits.shape[1]; v++) {
        const double l = capped(a, r, v);
        double d = 0.0;
        if (label >= 0) {
            d = (double)a->grad_scale * weight *
                (z_factor * exp(l - lse) - (a->first + v == label ? 1.0 : 0.0));
        }
        if (a->softcap > 0.0f) {
            d *= 1.0 - (l / (double)a->softcap) * (l / (double)a->softcap);
        }
        set(&a->logits, at2(&a->logits, r, v), d);
    }
}

lt_err lt_ref_xent(lt_queue *q, const lt_xent_args *a) {
    (void)q;
    LT_ASSERT(a->logits.n_dims == 2 && a->labels.shape[0] == a->logits.shape[0]);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->logits.shape[0]; r++) {
        const int32_t label = get_i32(&a->labels, at1(&a->labels, r));
        LT_ASSERT(label >= -1 &&
                  (label < a->logits.shape[1] || present(&a->part) || present(&a->parts)));
        if (present(&a->part)) {
            write_part(a, r, label);
            continue;
        }
        const row_facts f = present(&a->parts) ? facts_of_parts(a, r) : facts_of(a, r, label);
        const double lse = f.max + log(f.sum);
        set(&a->loss, at1(&a->loss, r), label >= 0 ? lse - f.hit : 0.0);
        if (present(&a->lse)) {
            set(&a->lse, at1(&a->lse, r), lse);
        }
        if (present(&a->best)) {
            set_i32(&a->best, at1(&a->best, r), f.best);
        }
        if (a->grad_scale != 0.0f) {
            replace_by_gradient(a, r, label, lse);
        }
    }
    return LT_OK;
}

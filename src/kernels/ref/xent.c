/* xent.c (ref): cross-entropy of a chunk of rows, and its gradient in the place of the logits.
 *
 * Per row, l_v = softcap tanh(logit_v / softcap) (or the logit itself), lse = log sum_v exp(l_v):
 *     loss = lse - l[label];  gradient of loss + z_coef lse^2:
 *     dlogit_v = grad_scale ((1 + 2 z_coef lse) exp(l_v - lse) - [v = label]) (1 - (l_v /
 *     softcap)^2)
 * times the row's weight, where there are weights. A row with label -1 has loss 0 and gradient 0;
 * its lse and argmax are still written. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

static double capped(const lt_xent_args *a, int64_t r, int64_t v) {
    const double x = get(&a->logits, at2(&a->logits, r, v));
    return a->softcap > 0.0f ? (double)a->softcap * tanh(x / (double)a->softcap) : x;
}

static void replace_by_gradient(const lt_xent_args *a, int64_t r, int64_t label, double lse) {
    const double z_factor = 1.0 + 2.0 * (double)a->z_coef * lse,
                 weight = present(&a->weights) ? get(&a->weights, at1(&a->weights, r)) : 1.0;
    for (int64_t v = 0; v < a->logits.shape[1]; v++) {
        const double l = capped(a, r, v);
        double d = 0.0;
        if (label >= 0) {
            d = (double)a->grad_scale * weight *
                (z_factor * exp(l - lse) - (v == label ? 1.0 : 0.0));
        }
        if (a->softcap > 0.0f) {
            d *= 1.0 - (l / (double)a->softcap) * (l / (double)a->softcap);
        }
        set(&a->logits, at2(&a->logits, r, v), d);
    }
}

lt_err lt_ref_xent(lt_queue *q, const lt_xent_args *a) {
    const int64_t n_vocab = a->logits.shape[1];

    (void)q;
    LT_ASSERT(a->logits.n_dims == 2 && a->labels.shape[0] == a->logits.shape[0]);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->logits.shape[0]; r++) {
        const int32_t label = get_i32(&a->labels, at1(&a->labels, r));
        double max = -INFINITY, sum = 0.0, lse;
        int64_t best = 0;

        LT_ASSERT(label >= -1 && label < n_vocab);
        for (int64_t v = 0; v < n_vocab; v++) {
            const double l = capped(a, r, v);
            if (l > max) {
                max = l;
                best = v;
            }
        }
        for (int64_t v = 0; v < n_vocab; v++) {
            sum += exp(capped(a, r, v) - max);
        }
        lse = max + log(sum);
        set(&a->loss, at1(&a->loss, r), label >= 0 ? lse - capped(a, r, label) : 0.0);
        if (present(&a->lse)) {
            set(&a->lse, at1(&a->lse, r), lse);
        }
        if (present(&a->best)) {
            set_i32(&a->best, at1(&a->best, r), best);
        }
        if (a->grad_scale != 0.0f) {
            replace_by_gradient(a, r, label, lse);
        }
    }
    return LT_OK;
}

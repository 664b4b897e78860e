/* mix.h: a sum of weighted log-probabilities of one token by several models, or by one model after
 * several prompts, where some of them may rule the token out (log p = -inf): step_guide.c and
 * step_beside.c. */
#ifndef LT_SERVE_MIX_H
#define LT_SERVE_MIX_H

#include <math.h>

/* What a further log p adds to weight_0 own + ..., where own, of the served model, is finite. With
 * a positive weight, a token that it rules out is ruled out. With a negative one the sum would be
 * +inf, which is no logit: the term is then that of a model which agrees with the served one. */
static inline double lt_mix_term(double weight, double log_p, double own) {
    if (log_p > -INFINITY) {
        return weight * log_p;
    }
    return weight > 0 ? -INFINITY : weight * own;
}

#endif

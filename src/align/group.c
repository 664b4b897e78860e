/* group.c: what reinforcement learning computes before the policy's loss: advantages of a group of
 * completions, and estimators of the divergence from a reference.
 *
 * Advantages: GRPO, Shao et al. 2024, arXiv:2402.03300, with TRL's standard deviation (n - 1) and
 * its 1e-4; Dr. GRPO, Liu et al. 2025, arXiv:2503.20783, which does not divide; RLOO, Ahmadian et
 * al. 2024, arXiv:2402.14740. Estimators: Schulman 2020, "Approximating KL divergence". */
#include <math.h>

#include "base/error.h"
#include "lateen/align.h"

#define STD_FLOOR 1e-4 /* TRL's; verl adds 1e-6. */

lt_err lt_align_advantages(lt_align_advantage kind, const double *rewards, int64_t n,
                           double *advantages, bool *equal) {
    double sum = 0, sum_sq = 0, mean, scale;
    bool same = true;
    LT_ASSERT(kind >= 0 && kind < LT_ALIGN_ADVANTAGES);
    if (n < 2) {
        LT_FAIL(LT_ERR_FORMAT, "a group has %lld completions, but needs at least 2", (long long)n);
    }
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(rewards[i])) {
            LT_FAIL(LT_ERR_NUMERIC, "reward %lld of a group of %lld is %g", (long long)i,
                    (long long)n, rewards[i]);
        }
        same = same && rewards[i] == rewards[0];
        sum += rewards[i];
    }
    mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) {
        sum_sq += (rewards[i] - mean) * (rewards[i] - mean);
    }
    if (!isfinite(sum_sq)) {
        LT_FAIL(LT_ERR_NUMERIC, "the squared spread of a group of %lld rewards is %g", (long long)n,
                sum_sq);
    }
    /* r minus the mean of the others is n / (n - 1) times r minus the mean of all. */
    scale = (double[]){[LT_ALIGN_GRPO] = 1 / (sqrt(sum_sq / (double)(n - 1)) + STD_FLOOR),
                       [LT_ALIGN_DR_GRPO] = 1,
                       [LT_ALIGN_RLOO] = (double)n / (double)(n - 1)}[kind];
    for (int64_t i = 0; i < n; i++) {
        advantages[i] = same ? 0 : (rewards[i] - mean) * scale;
    }
    *equal = same;
    return LT_OK;
}

lt_err lt_align_kl(lt_align_kl_kind kind, double logp, double ref, double *value, double *dlogp) {
    const double x = logp - ref;
    const double values[] = {
        [LT_ALIGN_K1] = x, [LT_ALIGN_K2] = x * x / 2, [LT_ALIGN_K3] = expm1(-x) + x};
    const double slopes[] = {[LT_ALIGN_K1] = 1, [LT_ALIGN_K2] = x, [LT_ALIGN_K3] = -expm1(-x)};
    LT_ASSERT(kind >= 0 && kind < LT_ALIGN_KLS);
    if (!(isfinite(logp) && isfinite(ref) && isfinite(values[kind]) && isfinite(slopes[kind]))) {
        LT_FAIL(LT_ERR_NUMERIC, "divergence estimator k%d of log-probabilities %g and %g is %g",
                (int)kind + 1, logp, ref, values[kind]);
    }
    *value = values[kind];
    *dlogp = slopes[kind];
    return LT_OK;
}

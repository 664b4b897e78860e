/* policy.c: the loss of reinforcement learning and its gradients, computed from log-probabilities
 * of drawn tokens and the advantages of their completions.
 *
 * A token's loss depends on its logp in two ways: through the ratio and directly (CISPO, the
 * divergence). The two derivatives are kept apart, because the ratio of a whole sequence depends on
 * all of its tokens: for such a ratio each token gets the mean of the derivatives with respect to
 * the log ratio.
 *
 * GRPO: Shao et al. 2024, arXiv:2402.03300. Dr. GRPO: Liu et al. 2025, arXiv:2503.20783. DAPO: Yu
 * et al. 2025, arXiv:2503.14476. GSPO: Zheng et al. 2025, arXiv:2507.18071. CISPO: MiniMax 2025,
 * arXiv:2506.13585. RLOO: Ahmadian et al. 2024, arXiv:2402.14740; its loss is that of REINFORCE,
 * which on policy is the sum over an answer of the clipped loss. Truncated importance weights: Yao
 * et al. 2025; masks: IcePop, 2025. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/option.h"
#include "lateen/align.h"

/* Published constants. The clip of GRPO is PPO's. The paper of CISPO gives no cap; 5 is ScaleRL's
 * (arXiv:2510.13786). GSPO's are those of its paper; LUSPO (arXiv:2602.05261), a modification of
 * GSPO, has the same values here. */
typedef struct {
    const char *name;
    lt_align_policy_options o;
} method;

static const method methods[] = {
    {"grpo", {.low = 0.2, .high = 0.2}},
    {"dr_grpo", {.low = 0.2, .high = 0.2, .reduction = LT_ALIGN_FIXED_LENGTH}},
    {"dapo", {.low = 0.2, .high = 0.28, .reduction = LT_ALIGN_TOKEN_MEAN}},
    {"gspo", {.low = 3e-4, .high = 4e-4, .ratio = LT_ALIGN_SEQUENCE_RATIO}},
    {"cispo", {.surrogate = LT_ALIGN_CISPO, .cap = 5, .reduction = LT_ALIGN_TOKEN_MEAN}},
    {"luspo",
     {.low = 3e-4,
      .high = 4e-4,
      .ratio = LT_ALIGN_SEQUENCE_RATIO,
      .reduction = LT_ALIGN_SEQUENCE_SUM}},
    {"rloo", {.low = 0.2, .high = 0.2, .reduction = LT_ALIGN_SEQUENCE_SUM}},
};

#define METHOD_ADVANTAGE(name, advantage) LT_ALIGN_##advantage,
static const lt_align_advantage advantages[] = {LT_ALIGN_METHOD_MAP(METHOD_ADVANTAGE)};
#undef METHOD_ADVANTAGE

lt_err lt_align_policy_find(lt_align_policy_options *out, lt_align_advantage *advantage,
                            const char *name) {
    enum { N = sizeof methods / sizeof *methods };
    static_assert(N == sizeof advantages / sizeof *advantages, "a method lacks its advantages");
    const method *m = lt_name_find(name, methods, sizeof *methods, N);
    char names[256];
    if (m == NULL) {
        LT_FAIL(LT_ERR_NOT_FOUND, "method \"%s\" does not exist; there are:%s", name,
                lt_name_list(names, sizeof names, methods, sizeof *methods, N));
    }
    *out = m->o;
    if (advantage != NULL) {
        *advantage = advantages[m - methods];
    }
    return LT_OK;
}

lt_err lt_align_policy_check(const lt_align_policy_options *o) {
    const bool clip = o->surrogate == LT_ALIGN_CLIP;
    const bool corrects = o->correction != LT_ALIGN_NO_CORRECTION;
    const struct {
        const char *name;
        double value;
        bool read, positive;
        double most;
    } numbers[] = {{"low", o->low, clip, false, 1},
                   {"high", o->high, clip, false, HUGE_VAL},
                   {"dual", o->dual, clip, false, HUGE_VAL},
                   {"cap", o->cap, !clip, true, HUGE_VAL},
                   {"max_tokens", (double)o->max_tokens, o->reduction == LT_ALIGN_FIXED_LENGTH,
                    true, HUGE_VAL},
                   {"kl", o->kl, true, false, HUGE_VAL},
                   {"kl_ratio", o->kl_ratio, o->kl > 0, false, 1},
                   {"weight_low", o->weight_low, corrects, false, HUGE_VAL},
                   {"weight_high", o->weight_high, corrects, true, HUGE_VAL}};
    LT_ASSERT(o->ratio < LT_ALIGN_RATIOS && o->surrogate < LT_ALIGN_SURROGATES &&
              o->reduction < LT_ALIGN_REDUCTIONS && o->kl_kind < LT_ALIGN_KLS &&
              o->correction < LT_ALIGN_CORRECTIONS);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const double x = numbers[i].value;
        if (!(isfinite(x) && x >= 0 && x <= numbers[i].most) ||
            (numbers[i].read && numbers[i].positive && x <= 0)) {
            LT_FAIL(LT_ERR_ARG, "%s is %g, but must be %s", numbers[i].name, x,
                    numbers[i].most == 1  ? "from 0 to 1"
                    : numbers[i].positive ? "over 0"
                                          : "0 or more");
        }
        if (x > 0 && !numbers[i].read) {
            LT_FAIL(LT_ERR_ARG, "%s is %g, but it has no effect here", numbers[i].name, x);
        }
    }
    if (o->dual > 0 && o->dual <= 1 + o->high) {
        LT_FAIL(LT_ERR_ARG, "dual is %g, but must be over 1 + high, which is %g", o->dual,
                1 + o->high);
    }
    if (corrects && o->weight_low >= o->weight_high) {
        LT_FAIL(LT_ERR_ARG, "weight_low is %g, but must be below weight_high, which is %g",
                o->weight_low, o->weight_high);
    }
    return LT_OK;
}

/* log(new) - log(old) of token t. */
static double log_ratio(const lt_align_rollout *r, int64_t t) {
    return r->old != NULL ? (double)r->logp[t] - (double)r->old[t] : 0;
}

/* log(old) - log(sampler) of token t. */
static double log_weight(const lt_align_rollout *r, int64_t t) {
    return (double)(r->old != NULL ? r->old[t] : r->logp[t]) - (double)r->sampler[t];
}

typedef double (*log_of_token)(const lt_align_rollout *r, int64_t t);

static double sum_of(const lt_align_rollout *r, log_of_token f) {
    double sum = 0;
    for (int64_t t = 0; t < r->n; t++) {
        sum += f(r, t);
    }
    return sum;
}

static double ratio_of(const lt_align_policy_options *o, const lt_align_rollout *r, int64_t t) {
    return exp(o->ratio == LT_ALIGN_TOKEN_RATIO ? log_ratio(r, t)
                                                : sum_of(r, log_ratio) / (double)r->n);
}

static bool by_sequence(lt_align_correction c) {
    return c == LT_ALIGN_SEQUENCE_TRUNCATE || c == LT_ALIGN_SEQUENCE_MASK;
}

static double weight_of(const lt_align_policy_options *o, const lt_align_rollout *r, int64_t t) {
    double w;
    if (o->correction == LT_ALIGN_NO_CORRECTION) {
        return 1;
    }
    w = exp(by_sequence(o->correction) ? sum_of(r, log_weight) : log_weight(r, t));
    if (o->correction == LT_ALIGN_TOKEN_TRUNCATE || o->correction == LT_ALIGN_SEQUENCE_TRUNCATE) {
        return fmin(fmax(w, o->weight_low), o->weight_high);
    }
    return w < o->weight_low || w > o->weight_high ? 0 : w;
}

static lt_err rollout_check(const lt_align_policy_options *o, const lt_align_rollout *r,
                            int64_t which) {
    const struct {
        const char *name;
        const float *x;
        bool needed;
    } given[] = {{"model", r->logp, true},
                 {"weights before the update", r->old, false},
                 {"reference", r->ref, o->kl > 0},
                 {"sampler", r->sampler, o->correction != LT_ALIGN_NO_CORRECTION}};
    if (!isfinite(r->advantage)) {
        LT_FAIL(LT_ERR_NUMERIC, "completion %lld: its advantage is %g", (long long)which,
                r->advantage);
    }
    if (r->n < 0 || (o->reduction == LT_ALIGN_FIXED_LENGTH && r->n > o->max_tokens)) {
        LT_FAIL(LT_ERR_ARG, "completion %lld has %lld tokens, but max_tokens is %lld",
                (long long)which, (long long)r->n, (long long)o->max_tokens);
    }
    for (size_t i = 0; i < sizeof given / sizeof *given && r->n > 0; i++) {
        if (given[i].needed && given[i].x == NULL) {
            LT_FAIL(LT_ERR_ARG, "completion %lld: no log-probabilities of the %s", (long long)which,
                    given[i].name);
        }
        for (int64_t t = 0; t < r->n && given[i].x != NULL; t++) {
            if (!(isfinite(given[i].x[t]) && given[i].x[t] <= 0)) {
                LT_FAIL(LT_ERR_NUMERIC,
                        "completion %lld, token %lld: the log-probability of the %s is %g; it must "
                        "be finite and at most 0",
                        (long long)which, (long long)t, given[i].name, (double)given[i].x[t]);
            }
        }
    }
    for (int64_t t = 0; t < r->n; t++) {
        const double p = ratio_of(o, r, t);
        double k = 0, slope;
        if (o->kl > 0) {
            LT_TRY(lt_align_kl(o->kl_kind, (double)r->logp[t], (double)r->ref[t], &k, &slope));
        }
        if (!isfinite(p) || !isfinite(p * (fabs(r->advantage) + k))) {
            LT_FAIL(LT_ERR_NUMERIC, "completion %lld, token %lld: the ratio is %g",
                    (long long)which, (long long)t, p);
        }
        if (o->ratio == LT_ALIGN_SEQUENCE_RATIO && o->kl <= 0) {
            break; /* The same for all tokens. */
        }
    }
    return LT_OK;
}

/* A token's loss, and its derivatives with respect to the logarithm of its ratio and to logp
 * directly. */
typedef struct {
    double value, by_ratio, direct;
} term;

static term clipped(const lt_align_policy_options *o, double p, double a,
                    lt_align_policy_stats *stats) {
    const double held = fmin(fmax(p, 1 - o->low), 1 + o->high);
    const double bounded = o->dual > 0 ? fmin(p, o->dual) : p;
    const bool clips = held * a < bounded * a;
    stats->clipped_low += clips && p < 1 - o->low;
    stats->clipped_high += clips && p > 1 + o->high;
    /* Inside the range both are p; at the bound `dual` the gradient is 0. */
    return clips ? (term){-held * a, 0, 0}
                 : (term){-bounded * a, o->dual > 0 && p > o->dual ? 0 : -p * a, 0};
}

static term token_term(const lt_align_policy_options *o, const lt_align_rollout *r, int64_t t,
                       double p, double w, lt_align_policy_stats *stats) {
    const double logp = (double)r->logp[t], a = r->advantage, weight = fmin(p, o->cap);
    term x = o->surrogate == LT_ALIGN_CLIP ? clipped(o, p, a, stats)
                                           : (term){-weight * a * logp, 0, -weight * a};
    x = (term){w * x.value, w * x.by_ratio, w * x.direct};
    if (o->kl > 0) {
        const double by = o->kl * (o->kl_ratio ? p : 1);
        double k = 0, slope = 0;
        const lt_err err = lt_align_kl(o->kl_kind, logp, (double)r->ref[t], &k, &slope);
        LT_ASSERT(err == LT_OK); /* rollout_check has checked this. */
        x.value += by * k;
        x.direct += by * slope;
        x.by_ratio += o->kl_ratio ? by * k : 0;
        stats->kl_sum += k;
    }
    stats->off_policy += p != 1;
    stats->mismatched += r->sampler != NULL && log_weight(r, t) != 0;
    stats->ratio_max = fmax(stats->ratio_max, p);
    return x;
}

/* The factor of a token's loss. */
static double share_of(const lt_align_policy_options *o, const lt_align_step *step, int64_t n) {
    const double all = (double)step->completions;
    const double shares[] = {[LT_ALIGN_SEQUENCE_MEAN] = 1 / (all * (double)n),
                             [LT_ALIGN_FIXED_LENGTH] = 1 / (all * (double)o->max_tokens),
                             [LT_ALIGN_TOKEN_MEAN] = 1 / (double)step->tokens,
                             [LT_ALIGN_SEQUENCE_SUM] = 1 / all};
    return shares[o->reduction];
}

/* Loss and gradients of one completion with at least one token. */
static double rollout_loss(const lt_align_policy_options *o, const lt_align_step *step,
                           const lt_align_rollout *r, lt_align_policy_stats *stats) {
    const bool sequence = o->ratio == LT_ALIGN_SEQUENCE_RATIO;
    const double share = share_of(o, step, r->n);
    double loss = 0, by_ratio = 0, p = 0, w = 0;
    for (int64_t t = 0; t < r->n; t++) {
        term x;
        p = !sequence || t == 0 ? ratio_of(o, r, t) : p;
        w = !by_sequence(o->correction) || t == 0 ? weight_of(o, r, t) : w;
        x = token_term(o, r, t, p, w, stats);
        loss += share * x.value;
        by_ratio += x.by_ratio;
        if (r->dlogp != NULL) {
            r->dlogp[t] = share * (x.direct + (sequence ? 0 : x.by_ratio));
        }
    }
    for (int64_t t = 0; t < r->n && sequence && r->dlogp != NULL; t++) {
        r->dlogp[t] += share * by_ratio / (double)r->n;
    }
    stats->tokens += r->n;
    return loss;
}

lt_err lt_align_policy(const lt_align_policy_options *o, const lt_align_step *step,
                       const lt_align_rollout *rollouts, int64_t n, double *loss,
                       lt_align_policy_stats *stats) {
    lt_align_policy_stats unused = {0};
    int64_t tokens = 0;
    double sum = 0;
    LT_TRY(lt_align_policy_check(o));
    for (int64_t i = 0; i < n; i++) {
        LT_TRY(rollout_check(o, &rollouts[i], i));
        tokens += rollouts[i].n;
    }
    if (step->completions < n || step->tokens < tokens || step->completions < 1) {
        LT_FAIL(LT_ERR_ARG,
                "the step has %lld completions with %lld tokens, but %lld with %lld are given",
                (long long)step->completions, (long long)step->tokens, (long long)n,
                (long long)tokens);
    }
    for (int64_t i = 0; i < n; i++) {
        sum += rollouts[i].n > 0
                   ? rollout_loss(o, step, &rollouts[i], stats != NULL ? stats : &unused)
                   : 0;
    }
    *loss = sum;
    return LT_OK;
}

/* align.h: what preferences and rewards teach a model.
 *
 * An objective is a row of one table: what it is given, and a function from log-probabilities of
 * tokens, or from scores, to a loss and its gradients. The model's passes know nothing of
 * objectives. A row is given one of these:
 *
 *     LT_ALIGN_PAIR    one prompt with two completions, of which the first was preferred
 *     LT_ALIGN_SCORES  the scores that a reward model gives to such a pair
 *     LT_ALIGN_SINGLE  one completion with a label or a reward
 *     LT_ALIGN_STEPS   what a process reward model says of a completion: a log-probability a step
 *
 *     lt_align_options o = {.beta = 0.1};
 *     const lt_align_objective *dpo;
 *     LT_TRY(lt_align_find(&dpo, "dpo"));
 *     LT_TRY(lt_align_pair(dpo, &o, &chosen, &rejected, &loss));
 *
 * docs/post-training.md has the formula of each row and says whose definition it is. */
#ifndef LATEEN_ALIGN_H
#define LATEEN_ALIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

/* An option that the objective does not read must be 0. Other values are refused. */
typedef struct {
    double beta;      /* Strength of the preference term, over 0. */
    double smoothing; /* Probability that a pair's label is wrong, at least 0 and below 0.5. */
    double margin;    /* Target margin, at least 0: SimPO's gamma, or that of a pair of scores. */
    double center;    /* Weight of (c + r)^2, at least 0: keeps the scores around 0. */
    double good, bad; /* Weights of good and of bad completions, at least 0, not both 0. */
} lt_align_options;

/* One completion. Only its own tokens count, without the prompt's. */
typedef struct {
    const float *logp;     /* (n) natural logarithms of the model's probabilities, at most 0. */
    const float *ref;      /* (n): the same under the reference model; NULL if no row reads it, */
    const double *ref_sum; /* or if only this, their sum, is known; otherwise NULL. */
    double *dlogp;         /* (n) out: derivative of the loss by logp; may be NULL. */
    int64_t n;             /* Tokens, at least 1. */
} lt_align_side;

/* A completion, and what its row reads. */
typedef struct {
    lt_align_side side;
    bool good;       /* KTO, APO: the label. */
    double point;    /* KTO: lt_align_kto_point. */
    double quantile; /* QRPO: lt_align_quantile, of n_refs rewards. */
    int64_t n_refs;
} lt_align_sample;

typedef enum { LT_ALIGN_PAIR, LT_ALIGN_SCORES, LT_ALIGN_SINGLE, LT_ALIGN_STEPS } lt_align_given;

/* Number of token rows per example. */
static inline int64_t lt_align_rows(lt_align_given given) {
    return given == LT_ALIGN_PAIR || given == LT_ALIGN_SCORES ? 2 : 1;
}

/* The names of the rows, in the order of the table, and the kind of their input. */
#define LT_ALIGN_OBJECTIVE_MAP(X)                                                                  \
    X(dpo, PAIR)                                                                                   \
    X(dpo_robust, PAIR)                                                                            \
    X(dpo_norm, PAIR)                                                                              \
    X(ipo, PAIR)                                                                                   \
    X(ipo_norm, PAIR)                                                                              \
    X(simpo, PAIR)                                                                                 \
    X(orpo, PAIR)                                                                                  \
    X(reward, SCORES)                                                                              \
    X(kto, SINGLE)                                                                                 \
    X(apo_zero, SINGLE)                                                                            \
    X(qrpo, SINGLE)                                                                                \
    X(qrpo_norm, SINGLE)                                                                           \
    X(qrpo_log, SINGLE)                                                                            \
    X(qrpo_normal, SINGLE)                                                                         \
    X(prm, STEPS)

/* What a row's function returns: the loss, and its derivatives by the two statistics. For a single
 * completion and for a step there is only the first. */
typedef struct {
    double loss, dchosen, drejected;
} lt_align_value;

/* A row of the table. The statistic of a side is the sum of logp (minus ref if `reference`),
 * divided by the number of tokens if `mean`. */
typedef struct {
    const char *name;
    lt_align_given given;
    bool reference, mean;
    bool beta, smoothing, margin, center, weights; /* Options that it reads. */
    lt_align_value (*value)(double chosen, double rejected, const lt_align_options *o);
    lt_align_value (*single)(double statistic, const lt_align_sample *s, const lt_align_options *o);
} lt_align_objective;

/* The table and its number of rows. */
const lt_align_objective *lt_align_objectives(size_t *n);

/* Find the row of a name. The message of LT_ERR_NOT_FOUND lists the names. */
LT_MUST_USE lt_err lt_align_find(const lt_align_objective **out, const char *name);

/* The loss of one pair (nats or their squares) and, where dlogp is given, its gradients. Sums are
 * in double, in the order of the tokens. Nothing is written on failure: LT_ERR_ARG for an option
 * out of range, one that the row does not read, or a missing reference; LT_ERR_FORMAT for a
 * completion without tokens; LT_ERR_NUMERIC for a log-probability that is not finite or is over 0,
 * or a result that is not finite (ORPO where every token of a completion has probability 1).
 *
 * A pair with the same text on both sides is not an error: the gradients of the preference term are
 * equal and opposite. */
LT_MUST_USE lt_err lt_align_pair(const lt_align_objective *row, const lt_align_options *o,
                                 const lt_align_side *chosen, const lt_align_side *rejected,
                                 double *loss);

/* The loss of a pair of scores and its derivatives by them. LT_ERR_ARG as above; LT_ERR_NUMERIC for
 * a score or a result that is not finite. */
LT_MUST_USE lt_err lt_align_scores(const lt_align_objective *row, const lt_align_options *o,
                                   double chosen, double rejected, lt_align_value *out);

/* The loss of one completion, with the gradients of its tokens. Errors as of lt_align_pair, and
 * LT_ERR_ARG for a KTO point below 0, a quantile outside of [0, 1] or n_refs below 1 (below 2 for
 * qrpo_normal). */
LT_MUST_USE lt_err lt_align_single(const lt_align_objective *row, const lt_align_options *o,
                                   const lt_align_sample *sample, double *loss);

/* The loss of n steps of a completion, their sum, and its derivatives (n; may be NULL). logp: the
 * log-probability of each step's label. A step, not a completion, counts as an example: the loss of
 * an update is the mean over all steps. Errors as of lt_align_pair. */
LT_MUST_USE lt_err lt_align_steps(const lt_align_objective *row, const lt_align_options *o,
                                  const float *logp, int64_t n, double *loss, double *dlogp);

/* KTO's reference point: the mean over the whole batch of the log-ratios (n) of mismatched
 * completions, each scored after another row's prompt; at least 0. The loss has no gradient through
 * it. LT_ERR_FORMAT for n below 1, LT_ERR_NUMERIC for a log-ratio that is not finite. */
LT_MUST_USE lt_err lt_align_kto_point(const double *log_ratios, int64_t n, double *point);

/* QRPO's quantile: the fraction of the n rewards of the reference model's completions that are at
 * most `reward`. Errors as for lt_align_kto_point. */
LT_MUST_USE lt_err lt_align_quantile(double reward, const double *refs, int64_t n,
                                     double *quantile);

/* How the rewards of a group, several completions of one prompt, become advantages. */
typedef enum {
    LT_ALIGN_GRPO,    /* (r - mean) / (std + 1e-4), std with n - 1: TRL. */
    LT_ALIGN_DR_GRPO, /* r - mean. */
    LT_ALIGN_RLOO,    /* r - mean of the other rewards. */
    LT_ALIGN_ADVANTAGES
} lt_align_advantage;

/* Advantages (n) of one group with rewards (n); they may be the same array. *equal says that all
 * rewards are the same: then every advantage is exactly 0 and the group teaches nothing (dynamic
 * sampling drops it). Nothing is written on failure: LT_ERR_FORMAT for a group of fewer than two
 * completions, LT_ERR_NUMERIC for a reward that is not finite or rewards whose spread overflows. */
LT_MUST_USE lt_err lt_align_advantages(lt_align_advantage kind, const double *rewards, int64_t n,
                                       double *advantages, bool *equal);

/* Estimators of the divergence KL(model, reference) from one sampled token, with x = logp - ref. */
typedef enum {
    LT_ALIGN_K1, /* x: unbiased, may be negative. */
    LT_ALIGN_K2, /* x^2 / 2: biased, but its gradient is right on policy. */
    LT_ALIGN_K3, /* exp(-x) - 1 + x: unbiased, never negative. */
    LT_ALIGN_KLS
} lt_align_kl_kind;

/* The estimate in nats and its derivative by logp. LT_ERR_NUMERIC: a log-probability or the
 * estimate is not finite; nothing is written. */
LT_MUST_USE lt_err lt_align_kl(lt_align_kl_kind kind, double logp, double ref, double *value,
                               double *dlogp);

/* THE POLICY'S LOSS. Tokens were drawn by a sampler, perhaps another engine or older weights; `old`
 * are their log-probabilities under the weights before the update, logp those under the weights
 * that are updated. The ratio of a token is exp(logp - old); that of a sequence is the exponential
 * of the mean of logp - old over its tokens, and is the ratio of each of them. */
typedef enum { LT_ALIGN_TOKEN_RATIO, LT_ALIGN_SEQUENCE_RATIO, LT_ALIGN_RATIOS } lt_align_ratio;

/* A token's loss, with the ratio p and the advantage A. */
typedef enum {
    LT_ALIGN_CLIP,  /* -min(p A, clip(p, 1 - low, 1 + high) A); dual > 0 bounds the first p. */
    LT_ALIGN_CISPO, /* -min(p, cap) A logp, without a gradient through min(p, cap). */
    LT_ALIGN_SURROGATES
} lt_align_surrogate;

/* How the losses of tokens become one number. N completions and T tokens are those of the whole
 * step, over all micro-batches and ranks. */
typedef enum {
    LT_ALIGN_SEQUENCE_MEAN, /* Mean of each completion, summed / N. TRL's "grpo". */
    LT_ALIGN_FIXED_LENGTH,  /* Sum / (N max_tokens). TRL's "dr_grpo". */
    LT_ALIGN_TOKEN_MEAN,    /* Sum / T. TRL's "dapo"; "bnpo" where T is that of a micro-batch. */
    LT_ALIGN_SEQUENCE_SUM,  /* Sum / N. TRL's "luspo". */
    LT_ALIGN_REDUCTIONS
} lt_align_reduction;

/* The correction for a sampler whose probabilities are not those of `old`: each token gets a weight
 * w = exp(old - sampler), or the product of these over its sequence. It is not differentiated, and
 * not applied to the divergence. */
typedef enum {
    LT_ALIGN_NO_CORRECTION,
    LT_ALIGN_TOKEN_TRUNCATE, /* w clipped to [weight_low, weight_high]. */
    LT_ALIGN_SEQUENCE_TRUNCATE,
    LT_ALIGN_TOKEN_MASK, /* w if it is in that range, else 0. */
    LT_ALIGN_SEQUENCE_MASK,
    LT_ALIGN_CORRECTIONS
} lt_align_correction;

/* Numbers that the chosen method does not read must be 0. */
typedef struct {
    lt_align_ratio ratio;
    lt_align_surrogate surrogate;
    lt_align_reduction reduction;
    double low, high;   /* CLIP: at least 0, low at most 1. */
    double dual;        /* CLIP: 0, or a bound on the ratio, over 1 + high. TRL's delta. */
    double cap;         /* CISPO: over 0. */
    int64_t max_tokens; /* FIXED_LENGTH: at least the length of each completion. */
    double kl;          /* Weight of the divergence from the reference, at least 0. */
    lt_align_kl_kind kl_kind;
    /* The divergence is multiplied by the ratio, which makes its gradient unbiased. */
    bool kl_ratio;
    lt_align_correction correction;
    double weight_low, weight_high; /* With a correction: 0 <= low < high. */
} lt_align_policy_options;

/* The published methods, in the order of their table, and their advantages. */
#define LT_ALIGN_METHOD_MAP(X)                                                                     \
    X(grpo, GRPO)                                                                                  \
    X(dr_grpo, DR_GRPO)                                                                            \
    X(dapo, GRPO)                                                                                  \
    X(gspo, GRPO)                                                                                  \
    X(cispo, GRPO)                                                                                 \
    X(luspo, GRPO)                                                                                 \
    X(rloo, RLOO)

/* The options of a published method, and its advantages (may be NULL). For dr_grpo the caller sets
 * max_tokens. The message of LT_ERR_NOT_FOUND lists the names. */
LT_MUST_USE lt_err lt_align_policy_find(lt_align_policy_options *out, lt_align_advantage *advantage,
                                        const char *name);

/* ARG: an option is out of range, or one that is not read is not 0. */
LT_MUST_USE lt_err lt_align_policy_check(const lt_align_policy_options *o);

/* A sampled completion, with only the tokens that the model wrote. */
typedef struct {
    const float *logp;    /* (n) at most 0, like the others. */
    const float *old;     /* (n) or NULL: the same as logp, so that each ratio is exactly 1. */
    const float *ref;     /* (n) if kl > 0. */
    const float *sampler; /* (n) if there is a correction. */
    double *dlogp;        /* (n) out: derivative of the loss by logp; may be NULL. */
    int64_t n;            /* 0: the completion counts, but teaches nothing. */
    double advantage;
} lt_align_rollout;

/* Totals of the whole step; a call may see only a part of it. */
typedef struct {
    int64_t completions, tokens;
} lt_align_step;

/* Statistics, to be summed over calls. */
typedef struct {
    int64_t tokens;
    int64_t clipped_low, clipped_high; /* Tokens whose gradient the clip removed. */
    int64_t off_policy;                /* Tokens whose ratio is not exactly 1. */
    int64_t mismatched;                /* Tokens whose sampler's probability is not exactly old. */
    double kl_sum;                     /* The estimates, without weights. */
    double ratio_max;
} lt_align_policy_stats;

/* The part of the loss that n completions contribute, and its gradients. Losses and gradients of
 * parts add up to those of the step. Sums are in double, in order. stats may be NULL, and is not
 * reset.
 * Nothing is written on failure: LT_ERR_ARG for an option out of range or not read, missing
 * log-probabilities, totals below what is given, or a completion over max_tokens; LT_ERR_NUMERIC
 * for a number that is not finite, a log-probability over 0, or a ratio that overflows. */
LT_MUST_USE lt_err lt_align_policy(const lt_align_policy_options *o, const lt_align_step *step,
                                   const lt_align_rollout *rollouts, int64_t n, double *loss,
                                   lt_align_policy_stats *stats);

#endif

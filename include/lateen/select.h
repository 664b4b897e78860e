/* select.h: which of n sampled continuations is the answer.
 *
 * Here a model is aligned while it generates: n candidates are drawn from it and one is kept, by
 * their scores. A rule is a row of one table; its function turns the scores into the probability of
 * each candidate, and one is drawn. So the distribution of the answer, given the scores, is known:
 *
 *     best_of_n        the highest score; candidates with equal scores are equally likely
 *     soft_best_of_n   weights exp(score / temperature): Verdun et al. 2025, arXiv:2505.03156
 *     best_of_poisson  best_of_n over n = 1 + Poisson(mu): Khalaf et al. 2025, arXiv:2506.19248
 *     best_of_tails    weights [1 + (alpha - 1) score / temperature]_+ ^ (1 / (alpha - 1)), where
 *                      the tail of the scores gives alpha: Hsu et al. 2026, arXiv:2603.06797
 *     rejection        the first whose score is at least the threshold; the best if there is none
 *     self_consistency one of the candidates that agree with most others: Wang et al. 2023,
 *                      arXiv:2203.11171; weights, if scores are given, are summed by answer
 *
 * arXiv:2505.03156 writes the temperature as lambda and divides by it, arXiv:2506.19248 multiplies
 * by a lambda; here it is always divided by, and called temperature. */
#ifndef LATEEN_SELECT_H
#define LATEEN_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/base.h"

#define LT_SELECT_MOST 1024 /* Most candidates of one selection. */

/* A parameter that a rule does not read must be 0. */
typedef struct {
    double temperature; /* Over 0, in units of the score. */
    double mu;          /* Over 0, at most LT_SELECT_MOST / 2: the mean number besides the first. */
    double threshold;   /* Finite. */
    /* best_of_tails. The share of the candidates that counts as the tail, in (0, 1], and the tail
     * index at which alpha is 1.5, over 0. The paper's values are not published; docs/alignment.md
     * says what the server's defaults are. */
    double tail, half_tail;
} lt_select_options;

typedef enum {
    LT_SELECT_TEMPERATURE = 1,
    LT_SELECT_MU = 2,
    LT_SELECT_THRESHOLD = 4,
    LT_SELECT_TAIL = 8
} lt_select_reads;

typedef struct lt_select_rule {
    const char *name;
    unsigned reads; /* lt_select_reads. */
    bool groups;    /* It reads the candidates' answers, and scores are optional. */
    /* p (n) out: the probability that each candidate is kept. scores (n), NULL only if groups;
     * answers (n): equal numbers are equal answers, -1 none; NULL unless groups. */
    void (*weigh)(const double *scores, const int32_t *answers, int64_t n,
                  const lt_select_options *o, double *p);
} lt_select_rule;

/* The rule of a name (NOT_FOUND, with the nearest one). */
LT_MUST_USE lt_err lt_select_find(const lt_select_rule **out, const char *name);

/* ARG: an option is out of range, or the rule does not read it. */
LT_MUST_USE lt_err lt_select_check(const lt_select_rule *rule, const lt_select_options *o);

/* Number of candidates to draw: n, or for best_of_poisson a random number, at most LT_SELECT_MOST,
 * from the stream of (seed), as is the choice below. */
int64_t lt_select_draws(const lt_select_rule *rule, const lt_select_options *o, int64_t n,
                        uint64_t seed);

typedef struct {
    int64_t chosen;     /* Index of the candidate. */
    double probability; /* Probability that this rule keeps it among these candidates. */
    /* Nats: on average over requests, an upper bound of the divergence of the answer from one plain
     * sample, if the candidates are independent. The smaller of lt_select_kl and of log n less the
     * entropy of the probabilities. */
    double kl;
} lt_selection;

/* Keep one of the candidates. p (n) may be NULL; it gets the probability of each. FORMAT: no
 * candidate, or more than LT_SELECT_MOST; NUMERIC: a score that is not finite, or for best_of_tails
 * one outside [0, 1]. */
LT_MUST_USE lt_err lt_select(const lt_select_rule *rule, const lt_select_options *o,
                             const double *scores, const int32_t *answers, int64_t n, uint64_t seed,
                             lt_selection *out, double *p);

/* Is the choice decided before every candidate has ended? rejection: by the first n_scored of n
 * candidates, in the order of their indices. self_consistency: by the count of answers, if the
 * leader's lead exceeds the number of candidates that are still to come. False for other rules.
 * ended (n): which candidates count. */
bool lt_select_decided(const lt_select_rule *rule, const lt_select_options *o, const double *scores,
                       const int32_t *answers, const bool *ended, int64_t n);

/* The fraction of the votes for the answer with the most votes: weights (n) over 0, answers (n) as
 * above. 0: there are no votes. */
double lt_select_consensus(const double *weights, const int32_t *answers, int64_t n);

/* The divergence in nats of the kept answer from a plain sample, when scores have no ties: log n -
 * 1 + 1/n for best_of_n, which bounds every rule that keeps one of n independent candidates, and an
 * integral for best_of_poisson. With ties both are upper bounds. */
double lt_select_kl(const lt_select_rule *rule, const lt_select_options *o, int64_t n);

/* ---- Tuning against reward hacking ----
 *
 * HedgeTune (Khalaf et al. 2025, arXiv:2506.19248): the score is a proxy of what is wanted; beyond
 * some n, mu or temperature more selection makes the true reward worse. From calibration prompts,
 * each with m scored samples, the expected true reward of a parameter is computed without
 * resampling, and the best parameter found. */
typedef struct {
    const double *proxy, *truth; /* (m) of one prompt. */
    int64_t m;
} lt_hedge_prompt;

/* The mean over prompts of the expected true reward of the kept answer. best_of_n with parameter n
 * in [1, m]; best_of_poisson with mu over 0, where n is cut at m; soft_best_of_n with parameter
 * temperature, over all m samples. Ties of the proxy share their probability. ARG: another rule, or
 * a parameter out of range. */
LT_MUST_USE lt_err lt_hedge_value(const lt_select_rule *rule, const lt_hedge_prompt *prompts,
                                  int64_t n_prompts, double parameter, double *value);

typedef struct {
    double parameter, value; /* The best one and its expected true reward. */
    /* The best parameter of 90 % of bootstrap resamples is between these. */
    double low, high;
    bool at_edge; /* It is the first or the last of those tried. */
} lt_hedge;

/* Find the best of the parameters (n_parameters, rising). resamples 0: low and high are the
 * parameter itself. means (n_parameters) may be NULL; it gets lt_hedge_value of each. */
LT_MUST_USE lt_err lt_hedge_tune(const lt_select_rule *rule, const lt_hedge_prompt *prompts,
                                 int64_t n_prompts, const double *parameters, int64_t n_parameters,
                                 int64_t resamples, uint64_t seed, lt_hedge *out, double *means);

#endif

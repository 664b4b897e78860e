/* watermark.h: watermarks in generated text: marks that a reader does not see, and that anyone who
 * knows the key can find. Every token is drawn with pseudo-random numbers u(state, id) in (0, 1);
 * the state is made of the key and of what the detector can see as well:
 *
 *     GREEN        the `context` tokens before it. Ids with u < gamma are green: delta is added to
 *                  their logits (Kirchenbauer et al. 2023, arXiv:2301.10226). The text shows more
 *                  green tokens than gamma of all, and its distribution changes.
 *     GUMBEL       the same tokens. Of ids with probabilities p, the one with the largest u^(1/p)
 *                  is chosen (Aaronson 2022). Over random keys each id has its probability p, so
 *                  the distribution is kept. If the context occurred before in the output, the
 *                  token is drawn as without a watermark, because equal numbers would make the
 *                  text repeat itself.
 *     EXPONENTIAL  the place in a cycle of `length` places, which begins at a place drawn by the
 *                  request's seed; the choice is that of GUMBEL (Kuditipudi et al. 2023,
 *                  arXiv:2307.15593). The distribution is kept, of the whole text as well.
 *
 * In the paper of GREEN the green ids of a state are exactly gamma V; here each is green with
 * probability gamma, so a detector needs no list and its test is exact, too.
 *
 *     lt_watermark w = lt_watermark_defaults(LT_WATERMARK_GUMBEL);
 *     w.key = lt_watermark_key("secret", 6);
 *     sampling.watermark = w; ... later, with the text's ids:
 *     LT_TRY(lt_watermark_detect(&w, ids, n, 0, 0, &found));    found.p: chance without a mark */
#ifndef LATEEN_WATERMARK_H
#define LATEEN_WATERMARK_H

#include <stdbool.h>
#include <stdint.h>

#include "lateen/base.h"

typedef enum {
    LT_WATERMARK_NONE,
    LT_WATERMARK_GREEN,
    LT_WATERMARK_GUMBEL,
    LT_WATERMARK_EXPONENTIAL
} lt_watermark_scheme;

typedef struct {
    lt_watermark_scheme scheme;
    uint64_t key;
    double gamma, delta; /* GREEN: 0 < gamma < 1; 0 < delta <= 1000. */
    int64_t context;     /* GREEN, GUMBEL: 1 to LT_WATERMARK_CONTEXT tokens. */
    int64_t length;      /* EXPONENTIAL: 1 to LT_WATERMARK_LENGTH positions. */
} lt_watermark;

#define LT_WATERMARK_CONTEXT 16
#define LT_WATERMARK_LENGTH  65536

/* "green", "gumbel", "exponential". NOT_FOUND for other names. */
LT_MUST_USE lt_err lt_watermark_find(lt_watermark_scheme *out, const char *name);
/* gamma 0.25, delta 2, context 1 (GUMBEL: 4), length 256; key 0. */
lt_watermark lt_watermark_defaults(lt_watermark_scheme scheme);
uint64_t lt_watermark_key(const char *text, size_t n);
/* ARG: a parameter is out of range. */
LT_MUST_USE lt_err lt_watermark_check(const lt_watermark *w);

/* The state of output token n_output of choice `choice`, after tokens (n_prompt + n_output). seed
 * and choice determine where the cycle of EXPONENTIAL begins. False: the token carries no mark. */
bool lt_watermark_state(const lt_watermark *w, const int32_t *tokens, int64_t n_prompt,
                        int64_t n_output, uint64_t seed, int32_t choice, uint64_t *state);
/* u(state, id) in (0, 1). */
double lt_watermark_uniform(uint64_t state, int32_t id);

/* What a text shows. Under the null hypothesis, a text that was written without knowledge of the
 * key, p is the probability of a statistic at least as extreme:
 *
 *     GREEN        statistic: green tokens of the scored ones; Binomial(n_scored, gamma)
 *     GUMBEL       statistic: sum of -log(1 - u); Gamma(n_scored, 1)
 *     EXPONENTIAL  statistic: the largest of those sums over all places where the cycle may begin;
 *                  p is (1 + keys that do as well) / (1 + resamples), of random keys
 *
 * A context that occurs again is scored once (GREEN: once with the same token), so that the scored
 * tokens are independent. z: the statistic's distance from its mean in standard deviations. */
typedef struct {
    int64_t n_scored;
    double statistic, z, p;
    int64_t begin; /* EXPONENTIAL: the position of the first token; otherwise -1. */
} lt_watermark_report;

/* ARG: no token can be scored, or resamples < 1 for EXPONENTIAL. OOM. */
LT_MUST_USE lt_err lt_watermark_detect(const lt_watermark *w, const int32_t *ids, int64_t n,
                                       int64_t resamples, uint64_t seed, lt_watermark_report *out);

#endif

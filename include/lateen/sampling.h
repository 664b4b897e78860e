/* sampling.h: how tokens are chosen from logits. `generate`, `chat` and `serve` read these options
 * and share one implementation (model/sampler.h), so the same options, seed and prompt give the
 * same tokens from each of them. */
#ifndef LATEEN_SAMPLING_H
#define LATEEN_SAMPLING_H

#include <stdint.h>

typedef struct {
    int32_t id;
    float bias; /* Added to the logit: -LT_BIAS_MOST (never) to LT_BIAS_MOST. */
} lt_logit_bias;
#define LT_BIAS_MOST 1e9F

/* Order: grammar, bias, penalties, DRY, temperature, top-k, typical, top-p, min-p, XTC. */
typedef struct {
    double temperature;  /* 0: the most likely token (lowest id of ties). */
    int64_t top_k;       /* 0: all. */
    double top_p, min_p; /* 1, 0: all. */
    double typical_p;    /* 1: all (Meister et al. 2023, arXiv:2202.00666). */
    /* 1: none. Logits of tokens seen (prompt and output) are divided (> 0) or multiplied by it
     * (Keskar et al. 2019). */
    double repetition;
    double frequency, presence; /* 0: none. Of output tokens, as OpenAI defines them. */
    /* The draw of output token p of choice c is a pure function of (seed, c, p). `generate` and
     * `chat` have one choice, number 0. */
    uint64_t seed;
    const lt_logit_bias *bias; /* Each id once: lt_sampling_merge_bias. */
    int64_t n_bias;
    /* DRY (p-e-w, oobabooga/text-generation-webui#5677): the logit of a token that would go on with
     * what stands before for the last m >= dry_allowed tokens, loses dry_multiplier * dry_base^(m -
     * dry_allowed); m counts up to 50 and not over a breaker. Of the last dry_last_n tokens, prompt
     * and output; -1: all. Multiplier 0: none. */
    double dry_multiplier, dry_base;
    int64_t dry_allowed, dry_last_n;
    const int32_t *dry_breakers;
    int64_t n_dry_breakers;
    /* XTC (p-e-w, #6335): with this probability all tokens of at least xtc_threshold but the least
     * likely of them are left out. 0: never. */
    double xtc_probability, xtc_threshold;
} lt_sampling;

/* Temperature 1, and nothing else: the model's own distribution. */
lt_sampling lt_sampling_defaults(void);

/* Sort by id and sum what stands more than once, within LT_BIAS_MOST. Returns how many are left. */
int64_t lt_sampling_merge_bias(lt_logit_bias *bias, int64_t n);

#endif

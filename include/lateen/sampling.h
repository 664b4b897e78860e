/* sampling.h: how tokens are chosen from logits. `generate`, `chat` and `serve` read these options
 * and share one implementation (model/infer/sampler.h), so the same options, seed and prompt give
 * the same tokens from each of them. */
#ifndef LATEEN_SAMPLING_H
#define LATEEN_SAMPLING_H

#include <stdint.h>

#include "lateen/watermark.h"

typedef struct {
    int32_t id;
    float bias; /* Added to the logit: -LT_BIAS_MOST (never) to LT_BIAS_MOST. */
} lt_logit_bias;
#define LT_BIAS_MOST 1e9F

/* They are applied in this order: grammar, bias, penalties, DRY, temperature, top-k, typical,
 * top-p, min-p, XTC. */
typedef struct {
    double temperature;  /* 0: greedy, the lowest id of ties. */
    int64_t top_k;       /* 0: all. */
    double top_p, min_p; /* 1, 0: all. */
    double typical_p;    /* 1: all (Meister et al. 2023, arXiv:2202.00666). */
    /* Logits of tokens that occur in prompt or output are divided by it if positive, else
     * multiplied (Keskar et al. 2019). 1: off. */
    double repetition;
    double frequency, presence; /* For output tokens, as OpenAI defines them. 0: off. */
    /* > 0: all three penalties count the last tokens of prompt and output, at most this many, as
     * llama-server does. 0: as said above, like vLLM. */
    int64_t penalty_window;
    /* The draw of output token p of choice c is a pure function of (seed, c, p). `generate` and
     * `chat` have one choice, number 0. */
    uint64_t seed;
    const lt_logit_bias *bias; /* Each id at most once: see lt_sampling_merge_bias. */
    int64_t n_bias;
    /* DRY (p-e-w, oobabooga/text-generation-webui#5677): a token that would repeat an earlier
     * passage, after the last m >= dry_allowed tokens have already repeated it, loses
     * dry_multiplier * dry_base^(m - dry_allowed) of its logit. m is at most 50 and does not reach
     * across a breaker. Passages are searched for in the last dry_last_n tokens of prompt and
     * output; -1: in all. Multiplier 0: off. */
    double dry_multiplier, dry_base;
    int64_t dry_allowed, dry_last_n;
    const int32_t *dry_breakers;
    int64_t n_dry_breakers;
    /* XTC (p-e-w, #6335): with this probability, all tokens of probability at least xtc_threshold
     * except the least likely of them are excluded. 0: off. */
    double xtc_probability, xtc_threshold;
    /* GREEN is a bias; the other schemes replace the draw among the remaining tokens, for which the
     * temperature must be over 0. NONE: off. */
    lt_watermark watermark;
} lt_sampling;

/* Temperature 1 and nothing else: the distribution of the model. */
lt_sampling lt_sampling_defaults(void);

/* Sort by id and sum the biases of one id, clamped to LT_BIAS_MOST. Returns the number of ids
 * left. */
int64_t lt_sampling_merge_bias(lt_logit_bias *bias, int64_t n);

#endif

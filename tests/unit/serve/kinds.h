/* kinds.h: requests of all kinds: those whose tokens a device can choose, and those that need the
 * host; each writes at most 57 tokens. */
#ifndef TESTS_SERVE_KINDS_H
#define TESTS_SERVE_KINDS_H

#include "unit/serve/fleet.h"

enum { KINDS = 16, DRY = 14, XTC = 15 };

static const int32_t think_end[] = {7, 9};
static const lt_logit_bias bias[] = {{11, 4.0f}, {12, -100.0f}};

/* A request of one of KINDS kinds. */
static inline lt_request request_of(int64_t i, int32_t *prompt, int64_t vocab_size,
                                    const lt_grammar *grammar) {
    lt_request r = lt_request_defaults();
    lt_sampling *how = &r.sampling;
    r.n_prompt = 1 + i * 5 % 29;
    fill_prompt(prompt, r.n_prompt, vocab_size, (uint64_t)i);
    r.prompt = prompt;
    r.max_tokens = 12 + i * 3 % 17;
    r.ignore_eos = i % 3 != 0;
    how->seed = (uint64_t)(100 + i);
    /* Those two kinds delay the next step of all requests, so they are rare: other kinds replace
     * most of them. */
    switch (i % KINDS >= DRY && i / KINDS % 4 != 1 ? KINDS : i % KINDS) {
    case 0:
        how->temperature = 0;
        break;
    case 1:
        how->top_p = 0.9;
        r.logprobs = 0;
        break;
    case 2:
        how->top_k = 40;
        r.logprobs = 5;
        break;
    case 3:
        how->repetition = 1.2;
        how->frequency = 0.3;
        break;
    case 4:
        how->bias = bias;
        r.sampling.n_bias = 2;
        break;
    case 5:
        r.grammar = grammar;
        how->temperature = 0.7;
        break;
    case 6:
        how->typical_p = 0.8;
        break;
    case 7:
        r.min_tokens = 6;
        r.ignore_eos = false;
        break;
    case 8:
        r.n_choices = FLEET_CHOICES;
        how->temperature = 1.3;
        how->top_p = 0.97;
        how->top_k = 100;
        r.logprobs = 20;
        break;
    case 9:
        r.prompt_logprobs = 3;
        how->min_p = 0.05;
        break;
    case 10:
        how->temperature = 0;
        r.logprobs = 20;
        break;
    case 11:
        r.think_end = think_end;
        r.n_think_end = 2;
        r.think_budget = 4;
        break;
    case 12:
        how->temperature = 0.5;
        how->top_p = 0.5;
        break;
    case 13:
        r.n_choices = 3;
        how->presence = 0.5;
        break;
    case DRY:
        how->dry_multiplier = 0.8;
        how->dry_base = 1.75;
        how->dry_allowed = 1;
        how->dry_last_n = -1;
        how->dry_breakers = think_end;
        how->n_dry_breakers = 2;
        r.n_choices = 2;
        break;
    case XTC:
        how->temperature = 1.2;
        how->xtc_probability = 0.5;
        how->xtc_threshold = 0.02;
        break;
    default:
        how->temperature = 0.8 + (double)(i % 5) / 4;
        break;
    }
    return r;
}

#endif

/* sampler.h: chooses one token from one row of logits: which tokens may be chosen, their
 * probabilities, and the draw. There is one sampler: `generate` and `chat` (generate.c) and the
 * serving engine (serve/step_pick.c) call it, and a device does the same with the op choose
 * (tensor/ops.h).
 *
 *     logits ─ mask (grammar) ─ bias ─ banned ids ─ penalties ─ DRY ─ green ids ─┐
 *        │   ┌──────────────────────────────────────────────────────────────────┘
 *        │   └▶ ÷ temperature ─ top-k ─ typical ─ top-p ─ min-p ─ XTC ─▶ draw
 *        └────▶ log-probabilities: of the model's own distribution, before all of this
 *
 * The draw is a pure function of (seed, choice, number of output tokens before it): it takes the
 * kept tokens by ascending id and chooses the one at which the running sum of weights exceeds the
 * drawn share of the total; a watermark may choose by its key instead (lateen/watermark.h).
 *
 * A token that a draft model drew from q is accepted with probability min(1, p/q), p being the
 * distribution of the draw; otherwise the token is drawn from (p - q)+, normalised. The result is
 * distributed as p (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318).
 * The draft's draw, the acceptance and the second draw use separate random numbers.
 *
 * Ids are sorted only as far as necessary: top-k selects; top-p and typical pop the kept ids from
 * a heap. Of equal weights the lower id is kept, so results do not depend on the sorting method.
 * A device gets the options (lt_sampler_as_op) and, once for each sequence, its penalty state
 * (lt_sampler_penalty_state), which the device updates from then on. */
#ifndef LT_MODEL_SAMPLER_H
#define LT_MODEL_SAMPLER_H

#include "base/arena.h"
#include "lateen/sampling.h"
#include "model/infer/logits.h"
#include "tensor/ops.h"

/* Scratch of one thread, for a vocabulary. */
typedef struct {
    int64_t vocab_size;    /* Set before carving. */
    float *work, *weights; /* (V) logits with masks, bias and penalties; weights of a draw */
    double *sums;          /* (V / LT_LOGITS_BLOCK + 1) of weights */
    lt_candidate *candidates, *order; /* (V) */
    /* (V) which ids were seen in this pick; how often each is in the output */
    uint32_t *stamp, *count;
    int32_t *seen; /* (V) */
    uint32_t now;
    lt_arena own; /* Memory of lt_sampler_open. */
} lt_sampler;

void lt_sampler_carve(lt_sampler *p, lt_arena *a);
/* The same, in memory that it allocates. */
LT_MUST_USE lt_err lt_sampler_open(lt_sampler *p, int64_t vocab_size);
void lt_sampler_close(lt_sampler *p); /* Accepts one that was never opened. */

/* ARG: an option, or an id of the biases, is outside its range. */
LT_MUST_USE lt_err lt_sampling_check(const lt_sampling *s, int64_t vocab_size);

typedef struct {
    const lt_sampling *how;
    const int32_t *tokens; /* (n_prompt + n_output): the text so far. */
    int64_t n_prompt, n_output;
    int32_t choice;        /* Index among the request's choices (n). */
    const int32_t *banned; /* Ids that cannot be chosen. */
    int64_t n_banned;
    const uint32_t *mask; /* Bit id % 32 of mask[id / 32]: the id may be chosen. NULL: all. */
    int32_t forced;       /* The only id that may be chosen; -1: any. */
    int n_top;            /* Log-probabilities: -1 none, else this many alternatives. */
    /* With log-probabilities, report the entropy of the model's distribution, too. */
    bool entropy;
    /* proposed (V): a draft model drew the token `proposal` from this distribution; it is accepted
     * or replaced such that the result has the distribution of a plain draw. NULL: a plain draw. */
    const float *proposed;
    int32_t proposal;
    /* Further proposals, which the draft model drew after it without replacement
     * (lt_sampler_propose_other); they are tried in order. */
    const int32_t *others;
    int n_others;
} lt_sampler_args;

typedef struct {
    int32_t id, rank; /* rank: number of more likely ids; with log-probabilities only. */
    float logprob, entropy;
    int n_top;
    lt_candidate top[LT_CHOOSE_TOP]; /* p is the log-probability; the most likely first. */
} lt_pick;

/* NUMERIC: a logit is not a number, or nothing may be chosen. */
LT_MUST_USE lt_err lt_sampler_pick(lt_sampler *p, const float *logits, const lt_sampler_args *a,
                                   lt_pick *out);

/* Draw the token of a draft from a draft model's logits: as lt_sampler_pick does, but with separate
 * random numbers. proposed (V) gets the distribution from which it was drawn; it may be the memory
 * of the logits. n_top is not read. NULL: the token that lt_sampler_pick would choose, with its
 * random numbers. */
LT_MUST_USE lt_err lt_sampler_propose(lt_sampler *p, const float *logits, const lt_sampler_args *a,
                                      float *proposed, int32_t *id);
/* Another first token, not one of taken (n): drawn from proposed (V) without these; NULL: the
 * most likely one. -1: there is none. */
LT_MUST_USE lt_err lt_sampler_propose_other(lt_sampler *p, const float *logits,
                                            const lt_sampler_args *a, const float *proposed,
                                            const int32_t *taken, int n, int32_t *id);
/* Whether another draw from the same distribution could give another token: not at temperature 0,
 * and not if a watermark replaces the draw. */
bool lt_sampler_draws(const lt_sampling *how);

/* Fail with NUMERIC and the reason why nothing was chosen: a logit is not a number, or all are
 * -inf. */
LT_MUST_USE lt_err lt_sampler_failure(bool nan);

/* The same as options of the op choose; SLOT, NEW and MASK are left to the caller. */
void lt_sampler_as_op(const lt_sampler_args *a, double how[LT_CHOOSE_HOW_COUNT]);
/* Whether the op can serve a request. A penalty state holds a limited number of biases and
 * tokens, and the op has neither a window of penalties nor DRY, XTC or a watermark. */
bool lt_sampler_suits_op(const lt_sampling *how, int64_t max_tokens);
/* Whether the choice needs a penalty state (penalties, bias, bans). */
bool lt_sampler_needs_penalty_state(const lt_sampler_args *a);
/* The penalty state of these tokens, as edits of the op penalty_set: (place, word) of each that is
 * not 0, at most V + LT_PENALTY_BIASES. endings: the ids that BANS bans. Returns the number of
 * edits. */
int64_t lt_sampler_penalty_state(lt_sampler *p, const lt_sampler_args *a, const int32_t *endings,
                                 int64_t n_endings, int32_t *edits);

/* Log-probability of id and the n_top most likely ids, for prompts. */
LT_MUST_USE lt_err lt_sampler_logprob(lt_sampler *p, const float *logits, int32_t id, int n_top,
                                      lt_pick *out);

#endif

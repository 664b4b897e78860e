/* pick.h: one token from one row of logits, for one sample of a request: what may be chosen, how
 * likely, and the draw.
 *
 *     logits ─ mask (grammar) ─ bias ─ banned ids ─ penalties ─ DRY ─▶ ÷ temperature ─ top-k ─ typical ─ top-p ─ min-p ─ XTC ─▶ draw
 *        └──▶ log-probabilities: of the model's own distribution, before all of this
 *
 * The draw is a pure function of (seed, sample, number of tokens before it): of what is kept, by
 * rising id, the token at which the sum of weights exceeds that share of the whole. Nothing is
 * sorted that is not wanted: top-k selects; top-p and typical pop from a heap what they keep. Ties
 * keep the lower id, so results depend on no sorting method; a device, with the op choose
 * (tensor/ops.h), picks the same: it is told the options (lt_pick_as_op), and of a sequence what
 * they are about (lt_pick_notes), once; then it counts by itself. */
#ifndef LT_SERVE_PICK_H
#define LT_SERVE_PICK_H

#include "base/arena.h"
#include "lateen/serve.h"
#include "serve/row.h"
#include "tensor/ops.h"

/* Scratch of one thread, for a vocabulary. */
typedef struct {
    int64_t vocab_size;    /* Set before carving. */
    float *work, *weights; /* (V) logits with masks, bias and penalties; weights of a draw */
    double *sums;          /* (V / LT_ROW_BLOCK + 1) of weights */
    lt_candidate *candidates, *order; /* (V) */
    uint32_t *stamp, *count; /* (V) which ids were seen in this pick, how often in the output */
    int32_t *seen;           /* (V) */
    uint32_t now;
} lt_picker;

void lt_picker_carve(lt_picker *p, lt_arena *a);

typedef struct {
    const lt_serve_sampling *how;
    const int32_t *tokens; /* (n_prompt + n_output): what stands before. */
    int64_t n_prompt, n_output;
    int32_t sample;
    const int32_t *banned; /* Cannot be chosen. */
    int64_t n_banned;
    const uint32_t *mask; /* Bit id % 32 of mask[id / 32]: may be chosen. NULL: all. */
    int32_t forced;       /* This id and no other; -1: free. */
    int n_top;            /* Log-probabilities: -1 none, else so many alternatives. */
} lt_pick_args;

typedef struct {
    int32_t id,
        rank; /* rank: how many ids the model finds likelier; with log-probabilities only. */
    float logprob;
    int n_top;
    lt_candidate top[LT_ENGINE_TOP]; /* p: log-probability; likeliest first. */
} lt_pick;

/* NUMERIC: a logit is not a number, or nothing may be chosen. */
LT_MUST_USE lt_err lt_pick_token(lt_picker *p, const float *logits, const lt_pick_args *a,
                                 lt_pick *out);

/* NUMERIC, and why nothing was chosen: a logit is not a number, or all are -inf. */
LT_MUST_USE lt_err lt_pick_failure(bool nan);

/* The same as options of the op choose; SLOT, NEW and MASK are left to the caller. */
void lt_pick_as_op(const lt_pick_args *a, double how[LT_CHOOSE_HOW_COUNT]);
/* Whether the op can serve a request: how many biases and tokens a note can tell; it knows neither
 * DRY nor XTC. */
bool lt_pick_suits_op(const lt_serve_sampling *how, int64_t max_tokens);
/* Whether choosing asks what stands in notes: penalties, bias, bans. */
bool lt_pick_needs_notes(const lt_pick_args *a);
/* The row of notes of these tokens, as edits of the op note: (place, word) of each that is not 0,
 * at most V + LT_NOTE_BIASES. endings: what BANS bans. Returns how many. */
int64_t lt_pick_notes(lt_picker *p, const lt_pick_args *a, const int32_t *endings,
                      int64_t n_endings, int32_t *edits);

/* Log-probability of id and the n_top likeliest: for prompts. */
LT_MUST_USE lt_err lt_pick_logprob(lt_picker *p, const float *logits, int32_t id, int n_top,
                                   lt_pick *out);

#endif

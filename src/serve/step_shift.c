/* step_shift.c: context shift: a sequence that has reached the longest length drops its oldest
 * tokens after the first `keep`, and goes on.
 *
 * The keys and values of the remaining tokens are computed again, as those of a prompt of these
 * tokens, because they depended on the dropped tokens and on positions. So the next tokens are
 * those that the model predicts after the shorter text, for every model and kind of position.
 * Rotating the stored keys to their new positions, as llama.cpp does, is cheaper, but keeps the
 * influence of the dropped tokens, and works only where positions are rotations. The cost: each
 * shift computes the remaining tokens (less the whole pages of the first `keep`, which the prefix
 * cache has). With the default, which drops half of the tokens that are not kept, this is about one
 * token of a prompt for each token of the answer.
 *
 * All output stays in the choice's tokens, so penalties, grammar, draws and log-probabilities are
 * not affected. The sequence reads a window of them. A shift happens when no step has the choice:
 * the token that fills the window is not foreseen (step.c). */
#include <string.h>

#include "base/error.h"
#include "serve/engine_impl.h"

void lt_step_shift(lt_engine *e, lt_job_choice *s) {
    lt_seq *seq = &s->seq;
    const lt_shift *how = &s->job->r.shift;
    const int64_t most = seq->n_tokens - LT_SHIFT_LEFT;
    const int64_t asked = how->keep < 0 ? s->job->r.n_prompt : how->keep;
    const int64_t keep = asked < most ? asked : most;
    const int64_t left = seq->n_tokens - 1 - keep; /* The newest token has no key yet. */
    int64_t drop = how->discard > 0 ? how->discard : left / 2;

    drop = drop < left ? drop : left;
    LT_ASSERT(s->window != NULL && seq->n_ahead == 0 && drop > 0);
    lt_sched_again(&e->sched, seq);
    memmove(s->window + keep, s->window + keep + drop,
            (size_t)(seq->n_tokens - keep - drop) * sizeof *s->window);
    seq->n_tokens -= drop;
    s->n_dropped += drop;
    lt_job_choice_rope(s, &e->limits);
}

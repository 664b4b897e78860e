/* step_penalties.c: the penalty state that a device keeps for a choice with penalties, biases or
 * bans: a row of the table of the op penalty_set (tensor/ops.h), in one of as many slots as
 * sequences can run. A choice without any of these has none.
 *
 *     its first pick ── a slot is taken, all its tokens are counted (op penalty_set)
 *     each further pick ── counts the token before it (NEW: the token, or the number of its pick)
 *
 * n_counted is the number of tokens that the state counts. Each pick adds one token, so a pick
 * knows which one is new. Steps that are queued ahead need nothing else: the device knows a token
 * before the host does. A step that was queued in vain leaves a wrong count, but only in the state
 * of a choice that has ended. A preempted choice keeps its slot, and its state stays valid while
 * its tokens are computed again; if another choice needs the slot first, the preempted one gets a
 * new slot later and its tokens are counted again. Forks have separate rows. The queue keeps the
 * order: a slot is set after the last pick of the choice that had it before.
 *
 * Draft tokens (draft.h) are counted as they stand, each by the pick of its row, in turn. If one
 * was rejected, the state is dropped after the step, and the next pick sets a new one. */
#include "base/error.h"
#include "serve/engine_impl.h"

bool lt_step_counts(const lt_job_choice *s) {
    const lt_request *r = &s->job->r;
    const lt_sampler_args args = {.how = &r->sampling, .n_banned = r->min_tokens};
    return lt_sampler_needs_penalty_state(&args);
}

bool lt_step_on_device(const lt_engine *e, const lt_job_choice *s) {
    const lt_request *r = &s->job->r;
    return !e->model->backend->host_memory && !r->score && !r->guidance.on && r->blend.n == 0 &&
           !r->entropy && lt_sampler_suits_op(&r->sampling, r->max_tokens) &&
           (e->n_penalty_slots > 0 || !lt_step_counts(s));
}

void lt_step_drop_penalties(lt_engine *e, lt_job_choice *s) {
    if (s->slot >= 0) {
        e->penalty_owners[s->slot] = NULL;
        s->slot = -1;
    }
}

/* A free slot, or the slot of a choice that does not run: there are as many as can run. */
static void take_slot(lt_engine *e, lt_job_choice *s) {
    for (int64_t i = 0; i < e->n_penalty_slots; i++) {
        lt_job_choice *owner = e->penalty_owners[i];
        if (owner == NULL || owner->seq.state != LT_SEQ_RUNNING) {
            if (owner != NULL) {
                lt_step_drop_penalties(e, owner);
            }
            e->penalty_owners[i] = s;
            s->slot = (int32_t)i;
            return;
        }
    }
    LT_ASSERT(!"more sequences run than have slots");
}

lt_err lt_step_begin_penalties(lt_engine *e) {
    lt_step_room *r = &e->room;
    const int64_t n = r->n_penalty_states;
    r->n_penalty_states = 0;
    return n > 0 ? lt_paged_forward_begin_penalties(e->forward, n, r->penalty_slots,
                                                    r->penalty_starts, r->edits)
                 : LT_OK;
}

/* At the next call, build the penalty state from all known tokens of the choice. */
static lt_err begin(lt_engine *e, lt_job_choice *s, const lt_sampler_args *args) {
    lt_step_room *r = &e->room;
    const lt_job *j = s->job;
    lt_sampler_args known = *args;
    int64_t most;
    known.n_output = s->n_out;
    most = known.n_prompt + known.n_output + j->n_endings + 2 * args->how->n_bias;
    most = most < e->max_edits ? most : e->max_edits;
    if (r->n_penalty_states > 0 && r->penalty_starts[r->n_penalty_states] + most > e->max_edits) {
        LT_TRY(lt_step_begin_penalties(e));
    }
    r->penalty_starts[0] = 0;
    take_slot(e, s);
    s->n_counted = known.n_prompt + known.n_output;
    r->penalty_slots[r->n_penalty_states] = s->slot;
    r->penalty_starts[r->n_penalty_states + 1] =
        r->penalty_starts[r->n_penalty_states] +
        (int32_t)lt_sampler_penalty_state(&e->samplers[0], &known, j->endings, j->n_endings,
                                          r->edits + 2 * r->penalty_starts[r->n_penalty_states]);
    r->n_penalty_states++;
    return LT_OK;
}

lt_err lt_step_how(lt_engine *e, lt_job_choice *s, const lt_sampler_args *args, int64_t mask_row,
                   double how[LT_CHOOSE_HOW_COUNT]) {
    const int64_t n = args->n_prompt + args->n_output;
    lt_sampler_as_op(args, how);
    how[LT_CHOOSE_MASK] = args->mask != NULL ? (double)mask_row : -1.0;
    if (!lt_sampler_needs_penalty_state(args)) {
        lt_step_drop_penalties(e, s);
        return LT_OK;
    }
    if (s->slot < 0) {
        LT_TRY(begin(e, s, args));
    }
    LT_ASSERT(n - s->n_counted == 0 || n - s->n_counted == 1);
    how[LT_CHOOSE_SLOT] = (double)s->slot;
    if (s->n_counted < n) {
        how[LT_CHOOSE_NEW] = args->n_output <= s->n_out + s->n_draft ? (double)s->tokens[n - 1]
                                                                     : (double)(-1 - s->late);
        s->n_counted = n;
    }
    return LT_OK;
}

/* step_note.c: what a device knows of the sequences whose tokens it chooses with penalties, bias or
 * bans: a row of notes each (tensor/ops.h), in one of as many slots as sequences run. A choice
 * without any of these never has one.
 *
 *     its first pick ── slot taken, all its tokens noted (op note) ──▶ each further pick counts the token before it (NEW: known, or the number of a pick)
 *
 * n_noted says up to which token, so a pick knows what is new: one token, for each pick adds
 * one. Steps ahead need nothing else: what is not known here is known there. A step run in vain
 * leaves a wrong count behind, but only in the notes of a choice that has ended. A preempted choice
 * keeps its slot, and its notes stay right while its tokens run again; if another needs the slot
 * first, it will get a new one, and its tokens are noted anew. Forks have rows of their own. All of
 * it is in the order of the queue, where a slot's new notes stand behind the last pick of its old
 * owner. */
#include "base/error.h"
#include "serve/engine_impl.h"

bool lt_step_on_device(const lt_engine *e, const lt_job_choice *s) {
    const lt_request *r = &s->job->r;
    const lt_sampler_args args = {.how = &r->sampling, .n_banned = r->min_tokens};
    return !e->model->backend->host_memory && lt_sampler_suits_op(&r->sampling, r->max_tokens) &&
           (e->n_note_slots > 0 || !lt_sampler_needs_notes(&args));
}

void lt_step_drop_notes(lt_engine *e, lt_job_choice *s) {
    if (s->slot >= 0) {
        e->note_owners[s->slot] = NULL;
        s->slot = -1;
    }
}

/* A free slot, or that of a choice that does not run: there are as many as can run. */
static void take_slot(lt_engine *e, lt_job_choice *s) {
    for (int64_t i = 0; i < e->n_note_slots; i++) {
        lt_job_choice *owner = e->note_owners[i];
        if (owner == NULL || owner->seq.state != LT_SEQ_RUNNING) {
            if (owner != NULL) {
                lt_step_drop_notes(e, owner);
            }
            e->note_owners[i] = s;
            s->slot = (int32_t)i;
            return;
        }
    }
    LT_ASSERT(!"more sequences run than have slots");
}

lt_err lt_step_begin_notes(lt_engine *e) {
    lt_step_room *r = &e->room;
    const int64_t n = r->n_notes;
    r->n_notes = 0;
    return n > 0 ? lt_paged_forward_note(e->forward, n, r->note_slots, r->note_starts, r->edits)
                 : LT_OK;
}

/* Notes of all that is known of the choice, at the next call. */
static lt_err begin(lt_engine *e, lt_job_choice *s, const lt_sampler_args *args) {
    lt_step_room *r = &e->room;
    const lt_job *j = s->job;
    lt_sampler_args known = *args;
    int64_t most;
    known.n_output = s->n_out;
    most = known.n_prompt + known.n_output + j->n_endings + 2 * args->how->n_bias;
    most = most < e->max_edits ? most : e->max_edits;
    if (r->n_notes > 0 && r->note_starts[r->n_notes] + most > e->max_edits) {
        LT_TRY(lt_step_begin_notes(e));
    }
    r->note_starts[0] = 0;
    take_slot(e, s);
    s->n_noted = known.n_prompt + known.n_output;
    r->note_slots[r->n_notes] = s->slot;
    r->note_starts[r->n_notes + 1] = r->note_starts[r->n_notes] +
                                     (int32_t)lt_sampler_notes(
                                         &e->samplers[0], &known, j->endings, j->n_endings,
                                         r->edits + 2 * r->note_starts[r->n_notes]);
    r->n_notes++;
    return LT_OK;
}

lt_err lt_step_how(lt_engine *e, lt_job_choice *s, const lt_sampler_args *args, int64_t mask_row,
                   double how[LT_CHOOSE_HOW_COUNT]) {
    const int64_t n = args->n_prompt + args->n_output;
    lt_sampler_as_op(args, how);
    how[LT_CHOOSE_MASK] = args->mask != NULL ? (double)mask_row : -1.0;
    if (!lt_sampler_needs_notes(args)) {
        lt_step_drop_notes(e, s);
        return LT_OK;
    }
    if (s->slot < 0) {
        LT_TRY(begin(e, s, args));
    }
    LT_ASSERT(n - s->n_noted == 0 || n - s->n_noted == 1);
    how[LT_CHOOSE_SLOT] = (double)s->slot;
    if (s->n_noted < n) {
        how[LT_CHOOSE_NEW] = n <= s->seq.n_tokens ? (double)s->tokens[n - 1]
                                                  : (double)(-1 - s->late);
        s->n_noted = n;
    }
    return LT_OK;
}

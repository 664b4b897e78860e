/* step_draft.c: draft tokens of the engine's steps (draft.h): before the plan they are written
 * behind the tokens of sequences that decode, after the step it is counted how many were accepted.
 */
#include "base/error.h"
#include "serve/engine_impl.h"

/* Draft tokens that the sequence may have at most. Where the host chooses tokens from the
 * logits, one by one; not over the length from which a text is rotated otherwise. */
static int64_t most_draft(const lt_seq *seq) {
    const lt_job_choice *s = seq->owner;
    const lt_job *j = s->job;
    int64_t most = j->r.max_tokens - s->n_out - 1;
    if (seq->n_done + 1 != seq->n_tokens || s->n_out == 0 || j->r.embed || j->beam != NULL ||
        j->guide != NULL || j->r.blend.n > 0 || s->shift_at > 0) {
        return 0;
    }
    if (seq->again_at > 0 && seq->again_at - seq->n_tokens < most) {
        most = seq->again_at - seq->n_tokens;
    }
    return most < LT_DRAFT_MOST ? most : LT_DRAFT_MOST;
}

void lt_step_draft(lt_engine *e) {
    const lt_draft_acceptance *rates[LT_DRAFT_ROWS];
    int64_t n_texts = 0, n_rows = 0, n_seqs = 0, most;
    if (!e->o.speculate || !e->model->backend->host_memory) {
        return;
    }
    for (lt_seq *seq = e->sched.running.first; seq != NULL; seq = seq->next) {
        n_seqs += !lt_sched_pauses(&e->sched, seq);
    }
    for (lt_seq *seq = e->sched.running.first; seq != NULL; seq = seq->next) {
        lt_job_choice *s = seq->owner;
        const bool pauses = lt_sched_pauses(&e->sched, seq);
        seq->n_draft = pauses || n_seqs > LT_DRAFT_ROWS ? 0 : most_draft(seq);
        s->match = seq->n_draft > 0 ? lt_draft_find(s->tokens, seq->n_tokens) : -1;
        if (s->match < 0) {
            seq->n_draft = 0;
        }
        if (seq->n_draft > 0) {
            rates[n_texts++] = &s->acceptance;
        }
        n_rows += pauses ? 0 : seq->n_tokens - seq->n_done;
    }
    most = n_texts == 0            ? 0
           : e->o.draft_tokens > 0 ? e->o.draft_tokens
                                   : lt_draft_choose(&e->times, n_rows, rates, n_texts);
    for (lt_seq *seq = e->sched.running.first; seq != NULL; seq = seq->next) {
        lt_job_choice *s = seq->owner;
        seq->n_draft = seq->n_draft < most ? seq->n_draft : most;
        lt_draft_write(s->tokens, seq->n_tokens, s->match, seq->n_draft);
    }
}

void lt_step_settle(lt_engine *e, const lt_step *s, double seconds) {
    if (!e->o.speculate || !e->model->backend->host_memory) {
        return;
    }
    lt_draft_times_note(&e->times, s->n_rows, seconds);
    for (int64_t i = 0; i < s->n_items; i++) {
        lt_job_choice *c = s->items[i].choice;
        int64_t n;
        if (c == NULL) { /* It has ended. */
            continue;
        }
        n = c->seq.n_draft > 0 ? s->items[i].n - 1 : 0;
        lt_draft_acceptance_note(&c->acceptance, n, n - c->n_unchecked);
        e->n_drafts += n > 0;
        e->n_drafted += n;
        e->n_accepted += n - c->n_unchecked;
        c->seq.n_draft = c->n_unchecked = 0;
    }
}

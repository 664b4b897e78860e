/* step_draft_head.c: drafts of a head of the served model (model/infer/draft_head.h), where they
 * are not those of a draft model (step_draft_model.c).
 *
 * ROWS      The row of position p is that of token p + 1 and of the hidden state that the served
 *           model had at p, so a head runs a text up to its last token but one, and its call k the
 *           row behind those of call k - 1. Rows with hidden states of its own do not count as run.
 *           What it keeps at the end of a page also depends on the first token of the next page:
 *           texts that share a page may find there what another one wrote, which can only make a
 *           draft worse.
 * DEVICES   Hidden states stay on the device, from the served model's rows to those of the next
 *           call. The device chooses each draft token as a draft model's (step_draft_chain.c), but
 *           from the head's own ids, and the host waits for it before it queues the next call:
 *           4 bytes a text. Queueing calls one behind the other would need the map of ids, which
 *           only the host has, in the device's memory, too. */
#include "base/error.h"
#include "serve/engine_impl.h"

lt_err lt_step_open_head(lt_engine *e, const lt_paged_forward_options *o) {
    return lt_draft_pass_open(&e->drafter.pass, e->drafter.head,
                              &(lt_draft_pass_options){.target_rows = o->max_rows,
                                                       .max_rows = e->drafter.max_rows,
                                                       .max_seqs = LT_DRAFT_ROWS,
                                                       .max_out = LT_DRAFT_ROWS / 2,
                                                       .max_seq = o->max_seq,
                                                       .n_pages = o->n_pages,
                                                       .page_tokens = o->page_tokens,
                                                       .cache_dtype = o->cache_dtype,
                                                       .value_dtype = o->value_dtype,
                                                       .fixed_order = o->fixed_order});
}

void lt_step_head_row(lt_engine *e, const lt_seq *seq, int64_t row, int64_t p) {
    const int64_t size = e->o.page_tokens;
    const lt_job_choice *s = seq->owner;
    lt_step_drafter *d = &e->drafter;
    lt_page *page = &e->sched.pages.page[seq->table[p / size]];
    const int32_t slot = (int32_t)(seq->table[p / size] * size + p % size);
    d->rows.ids[row] = seq->tokens[p + 1];
    if (p < seq->n_tokens - 1) {
        d->hidden[row] = slot;
        /* What stands there is of this row, too; another text may write it in the same call. */
        d->rows.slots[row] = page->n_drafted > p % size ? -1 : slot;
        page->n_drafted = page->n_drafted > p % size ? page->n_drafted : (int32_t)(p % size + 1);
    } else {
        d->hidden[row] = -1 - s->head_row;
        d->rows.slots[row] = slot;
        page->n_drafted = page->n_drafted < p % size ? page->n_drafted : (int32_t)(p % size);
    }
}

void lt_step_head_chooses(lt_engine *e, lt_paged_forward_rows *call, int64_t place) {
    lt_step_drafter *d = &e->drafter;
    for (int64_t i = 0; i < call->n_out; i++) {
        lt_step_draft_how(d->choices[i], place, d->how + i * LT_CHOOSE_HOW_COUNT);
    }
    call->n_choose = call->n_out;
    call->how = d->how;
}

lt_err lt_step_take_head(lt_engine *e, const lt_paged_forward_rows *call, int64_t place) {
    const int32_t *ids;
    LT_TRY(lt_draft_pass_chosen(e->drafter.pass, &ids));
    for (int64_t i = 0; i < call->n_out; i++) {
        lt_job_choice *s = e->drafter.choices[i];
        if (ids[i] >= 0) { /* Else the token that stands there stays: it will be rejected. */
            s->tokens[s->seq.n_tokens + place] = ids[i];
        }
    }
    return LT_OK;
}

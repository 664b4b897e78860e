/* step_draft_head.c: drafts of a head of the served model (model/infer/draft_head.h), where they
 * are not those of a draft model (step_draft_model.c).
 *
 * ROWS      The row of position p reads token p + 1 and the hidden state of the served model at p.
 *           So a head runs a text up to its second-to-last token, and call k runs the row after
 *           those of call k - 1. Rows with hidden states of the head itself do not count as run.
 *           The keys and values at the end of a page also depend on the first token of the next
 *           page: texts that share a page may find there those of another text, which can only
 *           make a draft worse.
 * LAYERS    Layer k of a head with several (of multi-token prediction) makes draft token k. It runs
 *           the rows of layer 0 one after another in call k, with the tokens k places further on,
 *           from the output of layer k - 1 in the call before, so only keys and values of a layer
 *           are kept. In layer k the last k rows read draft tokens. So the last rows of a text,
 *           one fewer than there are layers, do not count as run: the next first call begins with
 *           them. A text with a draft runs all layers, even if its draft is shorter, so that all
 *           layers have the keys of all tokens. Calls after the last layer repeat the last layer,
 *           as a head of one layer does.
 *
 *               text  a b c d e f      the model has run a to e; draft tokens x y z
 *               layer 0  a/b  b/c  c/d  d/e  e/f ─▶ x   row of a token / token it reads
 *               layer 1  a/c  b/d  c/e  d/f  e/x ─▶ y
 *               layer 2  a/d  b/e  c/f  d/x  e/y ─▶ z       rows a to c count as run
 * DEVICES   Hidden states stay on the device, from the served model's rows to those of the next
 *           call. The device chooses each draft token as a draft model's (step_draft_chain.c), but
 *           from the head's own ids, and the host waits for it before it queues the next call:
 *           4 bytes a text. To queue calls one after another, the device's memory would need the
 *           map of ids, which only the host has. */
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

int64_t lt_step_head_layer(const lt_engine *e, int64_t place) {
    return place < e->drafter.n_layers ? place : e->drafter.n_layers - 1;
}

/* Whether an earlier row of the first call has this slot. */
static bool is_taken(const lt_step_drafter *d, int64_t n_rows, int32_t slot) {
    for (int64_t i = 0; i < n_rows; i++) {
        if (d->first_slots[i] == slot) {
            return true;
        }
    }
    return false;
}

/* Where the row of position p, behind n_rows of the first call, writes its keys, -1: nowhere; its
 * page is told what counts as run. In a page of several texts a row that does not count gives way
 * to one that does, and to one of another text in the same call. */
static int32_t slot_of(lt_engine *e, const lt_seq *seq, int64_t p, int64_t n_rows) {
    const int64_t size = e->o.page_tokens;
    lt_page *page = &e->sched.pages.page[seq->table[p / size]];
    const int32_t slot = (int32_t)(seq->table[p / size] * size + p % size);
    const bool counts = p + e->drafter.n_layers < seq->n_tokens, alone = page->refs == 1;
    if (!counts && alone) {
        page->n_drafted = page->n_drafted < p % size ? page->n_drafted : (int32_t)(p % size);
    }
    /* The slot may already hold this row's values, or another text may write it in the same
     * call. */
    if (page->n_drafted > p % size || (!counts && !alone && is_taken(&e->drafter, n_rows, slot))) {
        return -1;
    }
    page->n_drafted = counts ? (int32_t)(p % size + 1) : page->n_drafted;
    return slot;
}

void lt_step_head_rows(lt_engine *e, const lt_seq *seq, int64_t place, int64_t row, int64_t first,
                       int64_t n) {
    const int64_t size = e->o.page_tokens, layer = lt_step_head_layer(e, place);
    lt_job_choice *s = seq->owner;
    lt_step_drafter *d = &e->drafter;
    /* Rows after those of the first call read `last` of the row before them. */
    const int64_t back = place > layer;
    for (int64_t k = 0; k < n; k++) {
        const int64_t p = first + k;
        LT_ASSERT(p + layer + 1 < seq->n_tokens + seq->n_draft); /* The token is known. */
        d->rows.ids[row + k] = seq->tokens[p + layer + 1];
        if (place > 0) {
            d->hidden[row + k] = (int32_t)(-1 - (s->last_row + p - back - s->last_first));
        } else {
            d->hidden[row + k] = (int32_t)(seq->table[p / size] * size + p % size);
            d->first_slots[row + k] = slot_of(e, seq, p, row + k);
        }
        d->rows.slots[row + k] = place > layer
                                     ? slot_of(e, seq, p, 0)
                                     : d->first_slots[(place > 0 ? s->first_row : row) + k];
    }
    s->last_first = first;
    s->last_row = (int32_t)row;
    s->first_row = place > 0 ? s->first_row : (int32_t)row;
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
    if (call->n_out == 0) {
        return LT_OK;
    }
    LT_TRY(lt_draft_pass_chosen(e->drafter.pass, &ids));
    for (int64_t i = 0; i < call->n_out; i++) {
        lt_job_choice *s = e->drafter.choices[i];
        if (ids[i] >= 0) { /* Otherwise the present token is kept, and will be rejected. */
            s->tokens[s->seq.n_tokens + place] = ids[i];
        }
    }
    return LT_OK;
}

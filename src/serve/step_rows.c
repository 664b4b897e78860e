/* step_rows.c: the plan of a step as rows for the forward: tokens, positions, slots, pages; which logits are wanted and how a token is chosen of each.
 *
 * A token that is not known yet (seq.n_ahead) is named by the number of the choice that it will be, of the step before (forward.h). */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "serve/engine_impl.h"

/* Rows of logits at a time. On a host 64: the head's weights are read once for so many, and what they say stays in cache. On a device those of all
 * running sequences, so that a step is one graph, as long as they fit LOGITS_BYTES. */
#define LOGITS_ROWS  64
#define LOGITS_BYTES ((int64_t)1 << 30)

static void carve_pickers(lt_engine *e, lt_arena *a) {
    e->pickers = lt_arena_take(a, (size_t)e->n_pickers * sizeof *e->pickers, LT_ARENA_ALIGN);
    for (int64_t i = 0; i < e->n_pickers; i++) {
        lt_picker dummy, *p = e->pickers != NULL ? &e->pickers[i] : &dummy;
        p->vocab_size = e->spec->vocab_size;
        lt_picker_carve(p, a);
    }
}

void lt_step_carve(lt_engine *e, lt_arena *a) {
    lt_step_room *s = &e->room;
    const size_t rows = (size_t)e->o.step_tokens, seqs = (size_t)e->o.max_running;
    const size_t width = (size_t)e->spec->width;

    e->out_rows = LOGITS_ROWS;
    if (!e->model->backend->host_memory) {
        const int64_t most = LOGITS_BYTES / (e->spec->vocab_size * 4);
        e->out_rows = e->o.max_running < most ? e->o.max_running : most > 0 ? most : 1;
    }
    e->out_rows = e->out_rows < e->o.step_tokens ? e->out_rows : e->o.step_tokens;
    e->mask_words = (e->spec->vocab_size + 31) / 32;
    for (int i = 0; i < LT_STEPS_QUEUED; i++) {
        lt_step *q = &e->steps[i];
        q->items = lt_arena_take(a, seqs * sizeof *q->items, LT_ARENA_ALIGN);
        q->wanted = lt_arena_take(a, rows * sizeof *q->wanted, LT_ARENA_ALIGN);
    }
    s->ids = lt_arena_take(a, rows * sizeof *s->ids, LT_ARENA_ALIGN);
    s->positions = lt_arena_take(a, rows * sizeof *s->positions, LT_ARENA_ALIGN);
    s->slots = lt_arena_take(a, rows * sizeof *s->slots, LT_ARENA_ALIGN);
    s->out_rows = lt_arena_take(a, rows * sizeof *s->out_rows, LT_ARENA_ALIGN);
    s->q_start = lt_arena_take(a, (seqs + 1) * sizeof *s->q_start, LT_ARENA_ALIGN);
    s->kv_len = lt_arena_take(a, (seqs + 1) * sizeof *s->kv_len, LT_ARENA_ALIGN);
    s->table = lt_arena_take(a, seqs * (size_t)e->max_pages * sizeof *s->table, LT_ARENA_ALIGN);
    s->on_device = lt_arena_take(a, rows * sizeof *s->on_device, LT_ARENA_ALIGN);
    s->on_host = lt_arena_take(a, (size_t)e->out_rows * sizeof *s->on_host, LT_ARENA_ALIGN);
    s->how = lt_arena_take(a, rows * LT_CHOOSE_HOW_COUNT * sizeof *s->how, LT_ARENA_ALIGN);
    s->more_rows = lt_arena_take(a, (size_t)e->out_rows * sizeof *s->more_rows, LT_ARENA_ALIGN);
    s->more_how = lt_arena_take(a, (size_t)e->out_rows * LT_CHOOSE_HOW_COUNT * sizeof *s->more_how,
                                LT_ARENA_ALIGN);
    s->choices = lt_arena_take(a, seqs * sizeof *s->choices, LT_ARENA_ALIGN);
    s->masks = lt_arena_take(a, seqs * (size_t)e->mask_words * sizeof *s->masks, LT_ARENA_ALIGN);
    s->hidden = lt_arena_take(a, rows * width * sizeof *s->hidden, LT_ARENA_ALIGN);
    carve_pickers(e, a);
}

/* The logits of row `row`, token p of item i, are wanted. */
static void want(lt_engine *e, lt_step *s, int64_t i, int64_t p, int64_t row, bool next) {
    lt_step_room *r = &e->room;
    lt_sample *sample = s->items[i].sample;
    const lt_job *j = sample->job;
    const int64_t at = s->n_logits++;
    r->on_device[at] = next && lt_step_on_device(e, sample, r->how + at * LT_CHOOSE_HOW_COUNT);
    r->out_rows[at] = (int32_t)row;
    s->wanted[at] = (lt_wanted){i, p, next, r->on_device[at]};
    /* Forks would choose from the same row. */
    s->sent = s->sent && r->on_device[at] && (j->forked || j->r.n_samples == 1);
}

/* The request's prompt begins to run. */
static void start(lt_engine *e, lt_job *j, const lt_seq *seq) {
    j->start_s = lt_clock_s();
    j->n_cached = seq->n_cached;
    e->n_prompt_tokens += j->r.n_prompt;
    e->n_cached_tokens += j->n_cached;
    j->n_prompt_out = j->r.prompt_logprobs >= 0 ? 1 : 0;
}

/* Rows of one item: tokens, positions, slots; which logits it wants. */
static void lay_out_item(lt_engine *e, lt_step *s, int64_t i, int64_t row) {
    lt_step_room *r = &e->room;
    const lt_step_item *item = &s->items[i];
    const lt_sample *sample = item->sample;
    const lt_seq *seq = &sample->seq;
    lt_job *j = sample->job;
    const int64_t page = e->o.page_tokens, end = item->first + item->n;
    const bool judged = j->r.prompt_logprobs >= 0 && j->n_prompt_out < j->r.n_prompt;

    for (int64_t k = 0; k < item->n; k++) {
        const int64_t p = item->first + k;
        const bool next = p + 1 == seq->n_tokens + seq->n_ahead && !j->r.embed;
        r->ids[row + k] = p < seq->n_tokens ? sample->tokens[p] : -1 - sample->late;
        r->positions[row + k] = (int32_t)p;
        r->slots[row + k] = (int32_t)(seq->table[p / page] * page + p % page);
        if (next || (judged && p + 1 < j->r.n_prompt && p + 1 >= j->n_prompt_out)) {
            want(e, s, i, p, row + k, next);
        }
    }
    r->q_start[i + 1] = (int32_t)(row + item->n);
    r->kv_len[i] = (int32_t)end;
    if (j->start_s == 0.0) {
        start(e, j, seq);
    }
}

/* The plan's items are the step's. */
static void take_items(lt_engine *e, lt_step *s) {
    const int32_t place = (int32_t)(s - e->steps);
    s->n_items = e->sched.n_items;
    s->n_rows = e->sched.n_rows;
    for (int64_t i = 0; i < s->n_items; i++) {
        const lt_sched_item *item = &e->sched.items[i];
        lt_sample *sample = item->seq->owner;
        LT_ASSERT(sample->place[place] < 0);
        s->items[i] = (lt_step_item){sample, item->first, item->n, sample->job->r.embed};
        sample->place[place] = (int32_t)i;
    }
}

void lt_step_lay_out(lt_engine *e, lt_step *s, lt_forward_rows *out) {
    lt_step_room *r = &e->room;
    int64_t row = 0, most = 1;

    take_items(e, s);
    *out = (lt_forward_rows){.n_seqs = s->n_items,
                             .ids = r->ids,
                             .positions = r->positions,
                             .slots = r->slots,
                             .q_start = r->q_start,
                             .kv_len = r->kv_len,
                             .table = r->table,
                             .out_rows = r->out_rows};
    s->n_logits = s->n_hidden = 0;
    s->sent = e->o.ahead && !e->model->backend->host_memory;
    r->q_start[0] = 0;
    for (int64_t i = 0; i < s->n_items; i++) {
        const lt_step_item *item = &s->items[i];
        lay_out_item(e, s, i, row);
        row += item->n;
        out->q_max = item->n > out->q_max ? item->n : out->q_max;
        out->kv_max = r->kv_len[i] > out->kv_max ? r->kv_len[i] : out->kv_max;
        most = item->sample->seq.n_pages > most ? item->sample->seq.n_pages : most;
    }
    for (int64_t i = 0; i < s->n_items; i++) {
        const lt_step_item *item = &s->items[i];
        memcpy(r->table + i * most, item->sample->seq.table,
               (size_t)item->sample->seq.n_pages * sizeof *r->table);
        for (int64_t k = 0; k < item->n && item->embed; k++) {
            r->out_rows[s->n_logits + s->n_hidden++] = r->q_start[i] + (int32_t)k;
        }
    }
    s->sent = s->sent && s->n_hidden == 0 && s->n_logits <= e->out_rows;
    out->max_pages = most;
    out->n_rows = row;
    out->n_out = s->n_logits + s->n_hidden;
    out->n_choose = s->n_logits;
    out->choose = r->on_device;
    out->how = r->how;
}

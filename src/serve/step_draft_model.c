/* step_draft_model.c: drafts of a second, smaller model of the same vocabulary, or of a head of the
 * served model (model/infer/draft_head.h).
 *
 * Its keys and values lie in a separate pool, in pages with the same numbers as the served model's,
 * so the scheduler decides for both, and prompts that share pages share them here. A page knows how
 * many of its tokens the draft model has run (lt_page.n_drafted): it runs a text only when that
 * pays, and then from where it stopped.
 *
 *     plan ─▶ catch up: tokens of texts that will have drafts, LT_DRAFT_ROWS a step, on a
 *             device as many as the served model runs
 *          ─▶ call 1: each text's last token (and one before it, if the last draft was accepted
 *             whole) ─▶ draft token 1
 *          ─▶ call k: draft token k - 1 of each text that has k or more ─▶ draft token k
 *             (the layers of a head run the rows of call 1 one after another: step_draft_head.c)
 *          ─▶ the step of the served model verifies them
 *
 * Draft tokens are chosen as the request says: temperature, cuts, penalties, biases, grammar. Where
 * they are drawn, the distribution of each is kept for its acceptance (model/infer/sampler.h). A
 * request with fixed_text, and a deterministic engine, accept a token if it is the one that is
 * drawn without drafts; the draft model then draws with the same random numbers. On a device
 * (step_draft_chain.c; a head: step_draft_head.c) this holds for all requests.
 *
 * A wrong draft does not change a text, so a failure here only ends the drafts. The draft model
 * ignores adapters and steering vectors. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "model/blocks/exec.h"
#include "serve/engine_impl.h"

#define FEW_ROWS 2 /* Rows of a text in a call if its last draft was fully accepted; otherwise 1. */

static lt_err open_model(lt_engine *e, const lt_paged_forward_options *o) {
    const lt_model_spec *spec = lt_model_get_spec(e->drafter.model);
    lt_paged_forward_options own = *o;
    LT_TRY(lt_model_spec_writes(spec, "a draft model"));
    if (e->drafter.model->backend != e->model->backend) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "a draft model on %s for a model on %s: both must be on the same kind of device",
                e->drafter.model->backend->name, e->model->backend->name);
    }
    if ((spec->pos == LT_POS_LEARNED && spec->max_seq < e->o.max_seq) || lt_rope_switch(spec) > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "the draft model: it needs positions for %lld tokens that do not depend on the "
                "length of the text",
                (long long)e->o.max_seq);
    }
    own.max_rows = e->drafter.max_rows;
    own.max_seqs = LT_DRAFT_ROWS;
    /* A text with a draft has two rows in a step. On a device the logits of all rows of a call are
     * needed. */
    own.max_out = own.out_rows = lt_step_drafts_on_device(e) ? LT_DRAFT_ROWS : LT_DRAFT_ROWS / 2;
    own.few_rows = lt_step_drafts_on_device(e) ? FEW_ROWS : 1;
    own.n_penalty_states = 0;
    return lt_paged_forward_open(&e->drafter.forward, e->drafter.model, &own);
}

lt_err lt_step_open_drafter(lt_engine *e, const lt_paged_forward_options *o) {
    return e->drafter.head != NULL ? lt_step_open_head(e, o) : open_model(e, o);
}

void lt_step_carve_drafter(lt_engine *e, lt_arena *a) {
    lt_step_drafter *d = &e->drafter;
    const size_t rows = lt_engine_has_drafter(e) ? LT_DRAFT_ROWS : 0;
    const size_t on_device = lt_step_drafts_on_device(e) ? rows : 0, on_host = rows - on_device;
    size_t most;
    d->max_rows = on_device > 0 && e->o.step_tokens > LT_DRAFT_ROWS ? e->o.step_tokens
                                                                    : (int64_t)rows;
    most = (size_t)d->max_rows;
    d->n_layers = d->head != NULL ? lt_draft_head_layers(d->head) : 1;
    d->hidden = lt_arena_take(a, (d->head != NULL ? most : 0) * sizeof *d->hidden, LT_ARENA_ALIGN);
    d->first_slots = lt_arena_take(a, (d->head != NULL ? most : 0) * sizeof *d->first_slots,
                                   LT_ARENA_ALIGN);
    d->rows.ids = lt_arena_take(a, most * sizeof(int32_t), LT_ARENA_ALIGN);
    d->rows.positions = lt_arena_take(a, most * sizeof(int32_t), LT_ARENA_ALIGN);
    d->rows.slots = lt_arena_take(a, most * sizeof(int32_t), LT_ARENA_ALIGN);
    d->rows.out_rows = lt_arena_take(a, rows * sizeof(int32_t), LT_ARENA_ALIGN);
    d->rows.q_start = lt_arena_take(a, (rows + 1) * sizeof(int32_t), LT_ARENA_ALIGN);
    d->rows.kv_len = lt_arena_take(a, rows * sizeof(int32_t), LT_ARENA_ALIGN);
    d->rows.table = lt_arena_take(a, rows * (size_t)e->max_pages * sizeof(int32_t), LT_ARENA_ALIGN);
    d->choices = lt_arena_take(a, 2 * rows * sizeof(lt_job_choice *), LT_ARENA_ALIGN);
    d->proposed = lt_arena_take(a, on_host * (size_t)e->spec->vocab_size * sizeof(float),
                                LT_ARENA_ALIGN);
    d->choose = lt_arena_take(a, on_device * sizeof *d->choose, LT_ARENA_ALIGN);
    d->how = lt_arena_take(a, on_device * LT_CHOOSE_HOW_COUNT * sizeof *d->how, LT_ARENA_ALIGN);
}

/* Number of tokens whose rows can run: without the last, whose hidden state a head does not
 * have. */
static int64_t most_rows(const lt_engine *e, const lt_seq *seq) {
    return seq->n_tokens - (e->drafter.head != NULL);
}

/* Number of those that catching up may run: without the last, which makes a draft token, and those
 * that read a draft token in a head's last layer. */
static int64_t most_known(const lt_engine *e, const lt_seq *seq) {
    const int64_t n_layers = e->drafter.n_layers,
                  n = most_rows(e, seq) - (n_layers > 2 ? n_layers - 1 : 1);
    return n > 0 ? n : 0;
}

int64_t lt_step_draft_known(const lt_engine *e, const lt_seq *seq) {
    const int64_t size = e->o.page_tokens, most = most_known(e, seq);
    int64_t known = 0;
    for (int64_t i = 0; i < seq->n_pages && known == i * size; i++) {
        known += e->sched.pages.page[seq->table[i]].n_drafted;
    }
    return known < most ? known : most;
}

int64_t lt_step_draft_behind(const lt_engine *e, const lt_seq *seq) {
    return most_rows(e, seq) - lt_step_draft_known(e, seq);
}

/* The last token was not in the draft, or was not run. */
void lt_step_draft_cut(lt_engine *e, const lt_seq *seq) {
    const int64_t size = e->o.page_tokens, end = seq->n_tokens - 1;
    for (int64_t i = end / size; i < seq->n_pages; i++) {
        int32_t *n = &e->sched.pages.page[seq->table[i]].n_drafted;
        const int32_t known = (int32_t)(i == end / size ? end % size : 0);
        *n = *n < known ? *n : known;
    }
}

lt_paged_forward_rows lt_step_draft_call(lt_engine *e) {
    const lt_step_beside_rows *b = &e->drafter.rows;
    b->q_start[0] = 0;
    return (lt_paged_forward_rows){.ids = b->ids,
                                   .positions = b->positions,
                                   .slots = b->slots,
                                   .q_start = b->q_start,
                                   .kv_len = b->kv_len,
                                   .table = b->table,
                                   .max_pages = e->max_pages,
                                   .out_rows = b->out_rows};
}

static void model_row(lt_engine *e, const lt_seq *seq, int64_t row, int64_t p) {
    const int64_t size = e->o.page_tokens;
    const int32_t n_ids = (int32_t)lt_model_get_spec(e->drafter.model)->vocab_size;
    const int32_t page = seq->table[p / size];
    /* An id that only the served model has becomes 0. */
    e->drafter.rows.ids[row] = seq->tokens[p] < n_ids ? seq->tokens[p] : 0;
    e->drafter.rows.slots[row] = (int32_t)(page * size + p % size);
    e->sched.pages.page[page].n_drafted = (int32_t)(p % size + 1);
}

void lt_step_draft_rows(lt_engine *e, lt_paged_forward_rows *call, const lt_seq *seq, int64_t place,
                        int64_t first, int64_t n, bool wanted) {
    const int64_t at = call->n_seqs++, row = call->n_rows;
    lt_step_drafter *d = &e->drafter;
    LT_ASSERT(row + n <= d->max_rows && at < LT_DRAFT_ROWS);
    for (int64_t k = 0; k < n; k++) {
        d->rows.positions[row + k] = (int32_t)(first + k);
        if (d->head == NULL) {
            model_row(e, seq, row + k, first + k);
        }
    }
    if (d->head != NULL) {
        lt_step_head_rows(e, seq, place, row, first, n);
    }
    memcpy(d->rows.table + at * call->max_pages, seq->table,
           (size_t)seq->n_pages * sizeof *d->rows.table);
    d->rows.kv_len[at] = (int32_t)(first + n);
    call->n_rows += n;
    d->rows.q_start[at + 1] = (int32_t)call->n_rows;
    call->q_max = n > call->q_max ? n : call->q_max;
    call->kv_max = first + n > call->kv_max ? first + n : call->kv_max;
    if (wanted) {
        d->choices[call->n_out] = seq->owner;
        d->rows.out_rows[call->n_out++] = (int32_t)(call->n_rows - 1);
    }
}

static lt_err run_call(lt_engine *e, const lt_paged_forward_rows *call, int64_t place) {
    const lt_step_drafter *d = &e->drafter;
    return d->head != NULL
               ? lt_draft_pass_run(d->pass, lt_step_head_layer(e, place), call, d->hidden)
               : lt_paged_forward_run(d->forward, call);
}

/* Wait until the device has run it, to measure its time. */
static lt_err wait_for_call(lt_engine *e) {
    lt_paged_forward_picks nothing;
    if (e->drafter.head != NULL) {
        return lt_draft_pass_wait(e->drafter.pass);
    }
    LT_TRY(lt_paged_forward_send_picks(e->drafter.forward, 0));
    return lt_paged_forward_take_picks(e->drafter.forward, &nothing);
}

/* The rows of the texts that catch up: in the first layer as many as there is room for, in a
 * further one the same rows. */
static lt_paged_forward_rows rows_to_catch_up(lt_engine *e, int64_t layer) {
    lt_paged_forward_rows call = lt_step_draft_call(e);
    for (int64_t i = 0; i < e->sched.n_items; i++) {
        const lt_seq *seq = e->sched.items[i].seq;
        lt_job_choice *s = seq->owner;
        const int64_t room = e->drafter.max_rows - call.n_rows;
        if (layer == 0) {
            s->run_first = s->catches_up ? lt_step_draft_known(e, seq) : 0;
            s->run_n = s->catches_up ? most_known(e, seq) - s->run_first : 0;
            s->run_n = s->run_n < room ? s->run_n : room;
            /* A step that is queued ahead does not decide this again. */
            s->catches_up = s->catches_up && room == 0;
        }
        if (s->run_n > 0) {
            lt_step_draft_rows(e, &call, seq, layer, s->run_first, s->run_n, false);
        }
    }
    return call;
}

static lt_err catch_up(lt_engine *e) {
    const double start_s = lt_clock_s();
    int64_t n_rows = 0;
    for (int64_t layer = 0; layer < e->drafter.n_layers; layer++) {
        const lt_paged_forward_rows call = rows_to_catch_up(e, layer);
        n_rows = call.n_rows;
        if (n_rows == 0) {
            return LT_OK;
        }
        LT_TRY(run_call(e, &call, layer));
    }
    LT_TRY(lt_step_drafts_on_device(e) ? wait_for_call(e) : LT_OK);
    e->drafter.catch_up_s = lt_draft_catch_up_note(&e->drafter.caught_up, lt_clock_s() - start_s,
                                                   n_rows);
    e->drafter.row_s = e->drafter.catch_up_s / (double)n_rows;
    return LT_OK;
}

/* The draft model or head has logits for its own ids; other ids are impossible. */
static const float *widen(const lt_engine *e, const float *logits, float *room) {
    const int64_t V = e->spec->vocab_size;
    int64_t own;
    if (e->drafter.head != NULL) {
        lt_draft_head_widen(e->drafter.head, logits, room);
        return room;
    }
    own = lt_model_get_spec(e->drafter.model)->vocab_size;
    if (own >= V) {
        return logits;
    }
    memcpy(room, logits, (size_t)own * sizeof *room);
    for (int64_t i = own; i < V; i++) {
        room[i] = -INFINITY;
    }
    return room;
}

/* First tokens of the branches of a choice, from the logits or from the distribution that its draft
 * token was drawn from; if it has no branches, the next most probable token, to learn how often
 * it is right. */
static void propose_others(lt_engine *e, lt_job_choice *s, const float *logits,
                           const lt_sampler_args *args, const float *drawn_from) {
    lt_sampler *p = &e->samplers[omp_get_thread_num()];
    int32_t taken[LT_DRAFT_BRANCHES] = {s->tokens[s->seq.n_tokens]};
    for (int64_t i = 0; i < e->n_branches; i++) {
        lt_step_branch *b = &e->branches[i];
        int32_t id;
        if (b->of != s || b->as.seq.state != LT_SEQ_BRANCH) {
            continue;
        }
        if (lt_sampler_propose_other(p, logits, args, drawn_from, taken, s->n_others + 1, &id) !=
                LT_OK ||
            id < 0) {
            return;
        }
        b->tokens[s->seq.n_tokens] = id;
        b->begins = true;
        b->as.n_drawn = drawn_from != NULL;
        s->other[s->n_others++] = id;
        taken[s->n_others] = id;
        s->n_tried += drawn_from != NULL;
    }
    if (s->n_others == 0 && drawn_from == NULL &&
        lt_sampler_propose_other(p, logits, args, NULL, taken, 1, &s->other[0]) == LT_OK) {
        s->n_others = s->other[0] >= 0;
    }
}

/* Choose the draft token at this position. If that is impossible, as at the end of a grammar, the
 * present token is kept: it will be rejected. */
static void propose_one(lt_engine *e, lt_job_choice *s, int64_t place, const float *logits,
                        uint32_t *mask) {
    const int64_t V = e->spec->vocab_size;
    float *room = s->proposed + place * V;
    const bool drawn = !s->job->r.fixed_text && !e->o.deterministic &&
                       lt_sampler_draws(&s->job->r.sampling);
    const float *wide = widen(e, logits, room);
    lt_sampler_args args;
    int32_t id;
    if (lt_job_choice_draft_args(s, place, V, mask, &args) != LT_OK ||
        lt_sampler_propose(&e->samplers[omp_get_thread_num()], wide, &args, drawn ? room : NULL,
                           &id) != LT_OK) {
        return;
    }
    s->tokens[s->seq.n_tokens + place] = id;
    s->n_drawn += drawn && s->n_drawn == place;
    if (place == 0 && lt_step_may_branch(e, s)) {
        propose_others(e, s, wide, &args, drawn ? room : NULL);
    }
}

int64_t lt_step_draft_planned(const lt_sched_item *item) {
    const lt_job_choice *s = item->seq->owner;
    return item->seq->n_draft > 0 && s->draft_from == NULL ? item->n - 1 : 0;
}

/* Choose on the host, from the logits of the last call. */
static lt_err propose_all(lt_engine *e, const lt_paged_forward_rows *call, int64_t place) {
    float *const *rows = NULL;
    const float *all = NULL;
    const int64_t own = e->drafter.head != NULL ? lt_draft_head_vocab(e->drafter.head) : 0;
    LT_TRY(e->drafter.head != NULL
               ? lt_draft_pass_logits(e->drafter.pass, &all)
               : lt_paged_forward_logits(e->drafter.forward, 0, call->n_out, NULL, &rows));
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)e->n_samplers) if (call->n_out > 1)
    for (int64_t i = 0; i < call->n_out; i++) {
        propose_one(e, e->drafter.choices[i], place, all != NULL ? all + i * own : rows[i],
                    e->room.masks + i * e->mask_words);
    }
    return LT_OK;
}

/* The rows of an item's text in the call that makes draft tokens `place`: what is not run, or the
 * draft token of the call before. Each layer of a head runs the rows of its first one; of a text
 * whose draft is shorter those that will not be written again. */
static void add_item(lt_engine *e, lt_paged_forward_rows *call, const lt_sched_item *item,
                     int64_t place) {
    const int64_t again = e->drafter.n_layers - 1, planned = lt_step_draft_planned(item);
    const int64_t n_rows = most_rows(e, item->seq);
    lt_job_choice *s = item->seq->owner;
    if (planned > 0 && place == 0) {
        s->run_first = lt_step_draft_known(e, item->seq);
        s->run_n = n_rows - s->run_first;
    }
    /* The first token of a branch comes from the row of the draft. */
    const bool wanted = place > 0 || item->seq->state != LT_SEQ_BRANCH;
    if (planned > place && place <= again) {
        lt_step_draft_rows(e, call, item->seq, place, s->run_first, s->run_n, wanted);
    } else if (planned > place) {
        lt_step_draft_rows(e, call, item->seq, place, n_rows + place - again - 1, 1, true);
    } else if (planned > 0 && place <= again && s->run_n > again) {
        lt_step_draft_rows(e, call, item->seq, place, s->run_first, s->run_n - again, false);
    }
}

/* Draft token `place` of all texts that have one. *any: there are rows to run for it. */
static lt_err propose_at(lt_engine *e, int64_t place, bool *any) {
    lt_paged_forward_rows call = lt_step_draft_call(e);
    const double start_s = lt_clock_s();
    const bool on_device = lt_step_drafts_on_device(e);
    for (int64_t i = 0; i < e->sched.n_items; i++) {
        add_item(e, &call, &e->sched.items[i], place);
    }
    *any = call.n_rows > 0;
    if (!*any) {
        return LT_OK;
    }
    if (on_device) {
        lt_step_head_chooses(e, &call, place);
    }
    LT_TRY(run_call(e, &call, place));
    LT_TRY(on_device ? lt_step_take_head(e, &call, place) : propose_all(e, &call, place));
    lt_draft_times_note(&e->drafter.times, call.n_rows, lt_clock_s() - start_s);
    return LT_OK;
}

/* Give each text's draft room for its distributions, and placeholder tokens. */
static void make_room(lt_engine *e) {
    float *room = e->drafter.proposed;
    for (int64_t i = 0; i < e->sched.n_items; i++) {
        lt_job_choice *s = e->sched.items[i].seq->owner;
        const int64_t n = lt_step_draft_planned(&e->sched.items[i]);
        for (int64_t k = 0; k < n; k++) {
            s->tokens[s->seq.n_tokens + k] = s->tokens[s->seq.n_tokens - 1];
        }
        s->proposed = room;
        room += lt_step_drafts_on_device(e) ? 0 : n * e->spec->vocab_size;
    }
}

static lt_err propose(lt_engine *e) {
    bool any = true;
    for (int64_t i = 0; i < e->sched.n_copies; i++) {
        const lt_page_copy *c = &e->sched.copies[i];
        lt_page *page = e->sched.pages.page;
        LT_TRY(e->drafter.head != NULL
                   ? lt_draft_pass_copy_page(e->drafter.pass, c->dst, c->src)
                   : lt_paged_forward_copy_page(e->drafter.forward, c->dst, c->src));
        page[c->dst].n_drafted = page[c->src].n_drafted;
    }
    LT_TRY(catch_up(e));
    make_room(e);
    if (lt_step_drafts_on_device(e) && e->drafter.head == NULL) {
        return lt_step_propose_chain(e);
    }
    for (int64_t place = 0; place < LT_DRAFT_MOST && any; place++) {
        LT_TRY(propose_at(e, place, &any));
    }
    return LT_OK;
}

void lt_step_propose(lt_engine *e) {
    const double start_s = lt_clock_s();
    if (!lt_engine_has_drafter(e) || e->o.speculate == LT_SPECULATE_NONE) {
        return;
    }
    if (propose(e) != LT_OK) {
        lt_log_error("the drafts failed; from now on there are no drafts: %s", lt_error_message());
        lt_log_trace();
        e->o.speculate = LT_SPECULATE_NONE;
    }
    e->drafter.seconds = lt_clock_s() - start_s;
}

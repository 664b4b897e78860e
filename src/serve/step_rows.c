/* step_rows.c: turns the plan of a step into rows for the forward pass: tokens, positions, slots,
 * pages; which logits are wanted, and how a token is chosen from each.
 *
 * A token in flight (seq.n_ahead) is represented by the number of its pick in the previous step
 * (paged_forward.h). */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "serve/engine_impl.h"

/* Rows of logits at a time. On a CPU 64, for which the head's weights are read once and the logits
 * stay in cache. On a GPU those of all running sequences, so that a step is one graph, as long as
 * they fit in LOGITS_BYTES. */
#define LOGITS_ROWS  64
#define LOGITS_BYTES ((int64_t)1 << 30)

/* Limit for the penalty states of all running sequences on a device; beyond it, the host picks
 * tokens with penalties. The decision must not depend on the other requests. 64 sequences of
 * 128,256 ids need 33 MB. */
#define PENALTY_BYTES ((int64_t)2 << 30)

static void carve_samplers(lt_engine *e, lt_arena *a) {
    e->samplers = lt_arena_take(a, (size_t)e->n_samplers * sizeof *e->samplers, LT_ARENA_ALIGN);
    for (int64_t i = 0; i < e->n_samplers; i++) {
        lt_sampler dummy, *p = e->samplers != NULL ? &e->samplers[i] : &dummy;
        p->vocab_size = e->spec->vocab_size;
        lt_sampler_carve(p, a);
    }
}

static void carve_penalty_states(lt_engine *e, lt_arena *a) {
    lt_step_room *s = &e->room;
    const size_t seqs = (size_t)e->o.max_running, slots = (size_t)e->n_penalty_slots;
    const size_t edits = slots > 0 ? (size_t)e->max_edits : 0;
    e->penalty_owners = lt_arena_take(a, slots * sizeof(lt_job_choice *), LT_ARENA_ALIGN);
    s->penalty_slots = lt_arena_take(a, seqs * sizeof *s->penalty_slots, LT_ARENA_ALIGN);
    s->penalty_starts = lt_arena_take(a, (seqs + 1) * sizeof *s->penalty_starts, LT_ARENA_ALIGN);
    s->edits = lt_arena_take(a, 2 * edits * sizeof *s->edits, LT_ARENA_ALIGN);
}

void lt_step_carve(lt_engine *e, lt_arena *a) {
    lt_step_room *s = &e->room;
    const size_t rows = (size_t)e->o.step_tokens;
    const size_t seqs = (size_t)(e->o.max_running + e->most_branches);
    const size_t width = (size_t)e->spec->width, groups = (size_t)lt_pages_groups(&e->sched.pages);

    e->out_rows = LOGITS_ROWS;
    if (!e->model->backend->host_memory) {
        const int64_t most = LOGITS_BYTES / (e->spec->vocab_size * 4);
        const int64_t drafts = lt_step_drafts_on_device(e) ? (1 + LT_DRAFT_MOST) * (int64_t)seqs
                                                           : 0;
        const int64_t bound = drafts < LT_DRAFT_ROWS ? drafts : LT_DRAFT_ROWS;
        const int64_t wanted = bound > e->o.max_running ? bound : e->o.max_running;
        e->out_rows = wanted < most ? wanted : most > 0 ? most : 1;
    }
    e->out_rows = e->out_rows < e->o.step_tokens ? e->out_rows : e->o.step_tokens;
    e->mask_words = (e->spec->vocab_size + 31) / 32;
    e->max_edits = e->spec->vocab_size + LT_PENALTY_BIASES;
    e->n_penalty_slots = 0;
    if (!e->model->backend->host_memory && e->max_edits * e->o.max_running <= PENALTY_BYTES / 4) {
        e->n_penalty_slots = e->o.max_running;
    }
    for (int i = 0; i < LT_STEPS_QUEUED; i++) {
        lt_step *q = &e->steps[i];
        q->items = lt_arena_take(a, seqs * sizeof *q->items, LT_ARENA_ALIGN);
        q->wanted = lt_arena_take(a, rows * sizeof *q->wanted, LT_ARENA_ALIGN);
    }
    s->ids = lt_arena_take(a, rows * sizeof *s->ids, LT_ARENA_ALIGN);
    s->positions = lt_arena_take(a, rows * sizeof *s->positions, LT_ARENA_ALIGN);
    s->slots = lt_arena_take(a, groups * rows * sizeof *s->slots, LT_ARENA_ALIGN);
    s->out_rows = lt_arena_take(a, rows * sizeof *s->out_rows, LT_ARENA_ALIGN);
    const size_t steered = e->model->steering != NULL ? rows : 0;
    s->steer = lt_arena_take(a, steered * sizeof *s->steer, LT_ARENA_ALIGN);
    s->steer_scale = lt_arena_take(a, steered * sizeof *s->steer_scale, LT_ARENA_ALIGN);
    lt_step_carve_order(e, a);
    s->q_start = lt_arena_take(a, (seqs + 1) * sizeof *s->q_start, LT_ARENA_ALIGN);
    s->kv_len = lt_arena_take(a, (seqs + 1) * sizeof *s->kv_len, LT_ARENA_ALIGN);
    s->table = lt_arena_take(a, groups * seqs * (size_t)e->max_pages * sizeof *s->table,
                             LT_ARENA_ALIGN);
    s->choose = lt_arena_take(a, rows * sizeof *s->choose, LT_ARENA_ALIGN);
    s->on_host = lt_arena_take(a, (size_t)e->out_rows * sizeof *s->on_host, LT_ARENA_ALIGN);
    s->how = lt_arena_take(a, rows * LT_CHOOSE_HOW_COUNT * sizeof *s->how, LT_ARENA_ALIGN);
    s->more_rows = lt_arena_take(a, (size_t)e->out_rows * sizeof *s->more_rows, LT_ARENA_ALIGN);
    s->more_how = lt_arena_take(a, (size_t)e->out_rows * LT_CHOOSE_HOW_COUNT * sizeof *s->more_how,
                                LT_ARENA_ALIGN);
    carve_penalty_states(e, a);
    const size_t picks = seqs > (size_t)e->out_rows ? seqs : (size_t)e->out_rows;
    s->picks = lt_arena_take(a, picks * sizeof *s->picks, LT_ARENA_ALIGN);
    s->turns = lt_arena_take(a, (size_t)e->out_rows * sizeof *s->turns, LT_ARENA_ALIGN);
    s->masks = lt_arena_take(a, seqs * (size_t)e->mask_words * sizeof *s->masks, LT_ARENA_ALIGN);
    s->hidden = lt_arena_take(a, rows * width * sizeof *s->hidden, LT_ARENA_ALIGN);
    carve_samplers(e, a);
}

/* Get the log-probability of the prompt's token after p from the device, by a forced pick. */
static void judge(const lt_job *j, int64_t p, double how[LT_CHOOSE_HOW_COUNT]) {
    const lt_sampling greedy = {.top_p = 1.0, .typical_p = 1.0, .repetition = 1.0};
    const lt_sampler_args args = {
        .how = &greedy, .forced = j->r.prompt[p + 1], .n_top = j->r.prompt_logprobs};
    lt_sampler_as_op(&args, how);
}

/* Request the logits of row `row`, token p of item i. */
static lt_err want(lt_engine *e, lt_step *s, int64_t i, int64_t p, int64_t row, bool next) {
    lt_step_room *r = &e->room;
    lt_job_choice *choice = s->items[i].choice;
    const lt_job *j = choice->job;
    const bool on_device = lt_step_on_device(e, choice);
    const bool drafted = next && choice->n_draft > 0;
    const int64_t place = drafted ? p + 1 - choice->seq.n_tokens : 0;
    const bool late = on_device && next &&
                      (lt_job_choice_is_late(choice) || (place > 0 && lt_step_counts(choice)));
    const int64_t at = s->n_logits++;
    double *how = r->how + at * LT_CHOOSE_HOW_COUNT;
    lt_sampler_args args;
    r->choose[at] = on_device && !late;
    r->out_rows[at] = (int32_t)row;
    s->wanted[at] = (lt_wanted){.item = i,
                                .position = p,
                                .next = next,
                                .draft = place > 0 || s->items[i].branch,
                                .verifies = drafted && on_device,
                                .on_device = on_device,
                                .late = late};
    s->late = s->late || late;
    /* It is not for forks, which would choose from the same row, nor for beams, which wait for each
     * other. */
    s->sent = s->sent && on_device && (!next || j->forked || j->r.n_choices == 1) &&
              j->beam == NULL;
    if (!r->choose[at]) {
        return LT_OK;
    }
    if (!next) {
        judge(j, p, how);
        return LT_OK;
    }
    LT_TRY(place > 0 ? lt_job_choice_draft_args(choice, place, e->spec->vocab_size, NULL, &args)
                     : lt_job_choice_sampler_args(choice, e->spec->vocab_size, NULL, &args));
    return lt_step_how(e, choice, &args, -1, how);
}

/* The request's prompt begins to run. */
static void start(lt_engine *e, lt_job *j, const lt_seq *seq) {
    j->start_s = lt_clock_s();
    j->n_cached = seq->n_cached;
    e->n_prompt_tokens += j->r.n_prompt;
    e->n_cached_tokens += j->n_cached;
    j->n_prompt_out = j->r.prompt_logprobs >= 0 ? 1 : 0;
}

/* Rows of one item: tokens, positions, slots, and the logits that it needs. */
static lt_err lay_out_item(lt_engine *e, lt_step *s, int64_t i, int64_t row) {
    lt_step_room *r = &e->room;
    const lt_step_item *item = &s->items[i];
    const lt_job_choice *choice = item->choice;
    const lt_seq *seq = &choice->seq;
    lt_job *j = choice->job;
    const int64_t page = e->o.page_tokens, groups = lt_pages_groups(&e->sched.pages),
                  end = item->first + item->n,
                  rope = seq->long_text ? lt_paged_forward_rope_rows(e->forward, seq->n_tokens) : 0;
    const bool shadow = j->guide != NULL && choice == &j->guide->shadow;
    const bool judged = j->r.prompt_logprobs >= 0 && j->n_prompt_out < j->r.n_prompt && !shadow;

    for (int64_t k = 0; k < item->n; k++) {
        const int64_t p = item->first + k;
        const bool next = j->r.score ? lt_job_score_place(&j->r, p) >= 0
                                     : p + 1 >= seq->n_tokens + seq->n_ahead && !j->r.embed;
        r->ids[row + k] = p < seq->n_tokens + seq->n_draft ? seq->tokens[p] : -1 - choice->late;
        r->positions[row + k] = (int32_t)(p + rope);
        for (int64_t g = 0; g < groups; g++) {
            r->slots[g * s->n_rows + row + k] = (int32_t)(seq->table[p / page * groups + g] * page +
                                                          p % page);
        }
        /* The token after the last one is known before a branch is; on a device the logits of all
         * rows are needed. */
        if (item->branch && p + 1 == seq->n_tokens && e->model->backend->host_memory) {
            continue;
        }
        if (next || (judged && p + 1 < j->r.n_prompt && p + 1 >= j->n_prompt_out)) {
            LT_TRY(want(e, s, i, p, row + k, next));
        }
    }
    r->q_start[i + 1] = (int32_t)(row + item->n);
    r->kv_len[i] = (int32_t)end;
    if (j->start_s == 0.0 && !shadow) {
        start(e, j, seq);
    }
    return LT_OK;
}

/* The steering vector of each row of an item. True: there is one. */
static bool steer_item(lt_engine *e, const lt_step_item *item, int64_t row) {
    const lt_request *r = &item->choice->job->r;
    for (int64_t k = row; e->model->steering != NULL && k < row + item->n; k++) {
        e->room.steer[k] = r->steer;
        e->room.steer_scale[k] = r->steer_scale;
    }
    return r->steer > 0;
}

/* The pages of item i in all groups, in tables of `most` columns. */
static void put_tables(lt_engine *e, const lt_step *s, int64_t i, int64_t most) {
    const int64_t groups = lt_pages_groups(&e->sched.pages);
    const lt_seq *seq = &s->items[i].choice->seq;
    if (groups == 1) {
        memcpy(e->room.table + i * most, seq->table, (size_t)seq->n_pages * sizeof *seq->table);
        return;
    }
    for (int64_t g = 0; g < groups; g++) {
        int32_t *table = e->room.table + (g * s->n_items + i) * most;
        for (int64_t k = 0; k < seq->n_pages; k++) {
            table[k] = seq->table[k * groups + g];
        }
    }
}

/* The plan's items are the step's. */
static void take_items(lt_engine *e, lt_step *s) {
    const int32_t place = (int32_t)(s - e->steps);
    s->n_items = e->sched.n_items;
    s->n_rows = e->sched.n_rows;
    s->n_draft = s->longest = 0;
    lt_step_order(e);
    for (int64_t k = 0; k < s->n_items; k++) {
        const lt_sched_item *item = &e->sched.items[k];
        const int64_t i = e->room.item_at[k];
        lt_job_choice *choice = item->seq->owner;
        lt_step_branch *branch = lt_step_branch_of(item);
        LT_ASSERT(choice->place[place] < 0);
        s->items[i] = (lt_step_item){.choice = choice,
                                     .first = item->first,
                                     .n = item->n,
                                     .branch = branch != NULL,
                                     .embed = choice->job->r.embed && !choice->job->r.score};
        choice->place[place] = (int32_t)i;
        choice->n_draft = choice->n_unchecked = item->seq->n_draft > 0 ? item->n - 1 : 0;
        choice->rejected = false;
        choice->branch = -1;
        choice->n_first = choice->n_draft;
        choice->n_in_branches = 0;
        if (branch != NULL) {
            branch->step = s;
            branch->item = i;
            branch->of->n_in_branches += choice->n_draft;
        }
        s->n_draft += choice->n_draft;
        s->longest = choice->n_draft > s->longest ? choice->n_draft : s->longest;
    }
}

lt_err lt_step_lay_out(lt_engine *e, lt_step *s, lt_paged_forward_rows *out) {
    lt_step_room *r = &e->room;
    int64_t row = 0, most = 1;

    take_items(e, s);
    *out = (lt_paged_forward_rows){.n_seqs = s->n_items,
                                   .ids = r->ids,
                                   .positions = r->positions,
                                   .slots = r->slots,
                                   .q_start = r->q_start,
                                   .kv_len = r->kv_len,
                                   .table = r->table,
                                   .out_rows = r->out_rows};
    s->n_logits = s->n_hidden = 0;
    s->sent = e->o.ahead && !e->model->backend->host_memory;
    s->late = s->whole = false;
    r->q_start[0] = 0;
    for (int64_t i = 0; i < s->n_items; i++) {
        const lt_step_item *item = &s->items[i];
        LT_TRY(lay_out_item(e, s, i, row));
        if (steer_item(e, item, row)) {
            out->steer = r->steer;
            out->steer_scale = r->steer_scale;
        }
        row += item->n;
        out->q_max = item->n > out->q_max ? item->n : out->q_max;
        out->kv_max = r->kv_len[i] > out->kv_max ? r->kv_len[i] : out->kv_max;
        most = item->choice->seq.n_pages > most ? item->choice->seq.n_pages : most;
    }
    for (int64_t i = 0; i < s->n_items; i++) {
        const lt_step_item *item = &s->items[i];
        put_tables(e, s, i, most);
        for (int64_t k = 0; k < item->n && item->embed; k++) {
            r->out_rows[s->n_logits + s->n_hidden++] = r->q_start[i] + (int32_t)k;
        }
    }
    lt_step_adapt(e, s, out);
    for (int64_t i = 0; i < s->n_items; i++) { /* It is not read before it is accepted. */
        s->items[i].choice = s->items[i].branch ? NULL : s->items[i].choice;
    }
    s->sent = s->sent && s->n_hidden == 0 && s->n_logits <= e->out_rows;
    out->max_pages = most;
    out->n_rows = row;
    out->n_out = s->n_logits + s->n_hidden;
    out->n_choose = s->n_logits;
    out->choose = r->choose;
    out->how = r->how;
    return LT_OK;
}

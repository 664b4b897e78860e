/* step.c: one step of the engine.
 *
 *     schedule ─▶ copies of shared pages ─▶ lay out rows ─▶ forward ─▶ count and publish pages ─▶ for some rows of logits at a time: step_pick.c
 *
 * A sample is up to date when all its tokens have keys and values: then the logits of its last row choose the next.
 * Nothing is allocated. A failure of the forward fails the requests of this step, not the engine. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/engine_impl.h"

/* Rows of logits at a time. On a host 64: the head's weights are read once for so many, and what they say stays in cache. On a device those of all
 * running sequences, so that a step is one graph, as long as they fit LOGITS_BYTES. */
#define LOGITS_ROWS  64
#define LOGITS_BYTES ((int64_t)1 << 30)

void lt_step_carve(lt_engine *e, lt_arena *a) {
    lt_step *s = &e->step;
    const size_t rows = (size_t)e->o.step_tokens, seqs = (size_t)e->o.max_running;
    const size_t width = (size_t)e->spec->width;

    e->out_rows = LOGITS_ROWS;
    if (!e->model->backend->host_memory) {
        const int64_t most = LOGITS_BYTES / (e->spec->vocab_size * 4);
        e->out_rows = e->o.max_running < most ? e->o.max_running : most > 0 ? most : 1;
    }
    e->out_rows = e->out_rows < e->o.step_tokens ? e->out_rows : e->o.step_tokens;
    e->mask_words = (e->spec->vocab_size + 31) / 32;
    s->ids = lt_arena_take(a, rows * sizeof *s->ids, LT_ARENA_ALIGN);
    s->positions = lt_arena_take(a, rows * sizeof *s->positions, LT_ARENA_ALIGN);
    s->slots = lt_arena_take(a, rows * sizeof *s->slots, LT_ARENA_ALIGN);
    s->out_rows = lt_arena_take(a, rows * sizeof *s->out_rows, LT_ARENA_ALIGN);
    s->q_start = lt_arena_take(a, (seqs + 1) * sizeof *s->q_start, LT_ARENA_ALIGN);
    s->kv_len = lt_arena_take(a, (seqs + 1) * sizeof *s->kv_len, LT_ARENA_ALIGN);
    s->table = lt_arena_take(a, seqs * (size_t)e->max_pages * sizeof *s->table, LT_ARENA_ALIGN);
    s->wanted = lt_arena_take(a, rows * sizeof *s->wanted, LT_ARENA_ALIGN);
    s->on_device = lt_arena_take(a, rows * sizeof *s->on_device, LT_ARENA_ALIGN);
    s->on_host = lt_arena_take(a, (size_t)e->out_rows * sizeof *s->on_host, LT_ARENA_ALIGN);
    s->how = lt_arena_take(a, rows * LT_CHOOSE_HOW_COUNT * sizeof *s->how, LT_ARENA_ALIGN);
    s->more_rows = lt_arena_take(a, (size_t)e->out_rows * sizeof *s->more_rows, LT_ARENA_ALIGN);
    s->more_how = lt_arena_take(a, (size_t)e->out_rows * LT_CHOOSE_HOW_COUNT * sizeof *s->more_how,
                                LT_ARENA_ALIGN);
    s->choices = lt_arena_take(a, seqs * sizeof *s->choices, LT_ARENA_ALIGN);
    s->masks = lt_arena_take(a, seqs * (size_t)e->mask_words * sizeof *s->masks, LT_ARENA_ALIGN);
    s->hidden = lt_arena_take(a, rows * width * sizeof *s->hidden, LT_ARENA_ALIGN);
    e->pickers = lt_arena_take(a, (size_t)e->n_pickers * sizeof *e->pickers, LT_ARENA_ALIGN);
    for (int64_t i = 0; i < e->n_pickers; i++) {
        lt_picker dummy, *p = e->pickers != NULL ? &e->pickers[i] : &dummy;
        p->vocab_size = e->spec->vocab_size;
        lt_picker_carve(p, a);
    }
}

void lt_step_touch(lt_engine *e, lt_job *j) {
    if (!j->touched) {
        j->touched = true;
        j->next_touched = e->touched;
        e->touched = j;
    }
}

void lt_step_finish(lt_engine *e, lt_sample *s, lt_finish why, lt_err failure) {
    if (s->finish == LT_FINISH_NONE) {
        lt_sample_finish(s, why, failure);
    }
    if (s->seq.state != LT_SEQ_IDLE) {
        lt_sched_remove(&e->sched, &s->seq);
    }
    if (s->job->n_finished == s->job->r.n_samples) {
        s->job->end_s = lt_clock_s();
    }
    lt_step_touch(e, s->job);
}

void lt_step_fail(lt_engine *e, lt_sample *s, lt_err failure) {
    lt_job *j = s->job;
    lt_step_finish(e, s, LT_FINISH_FAILED, failure);
    for (int64_t i = 0; i < j->r.n_samples && !j->forked; i++) {
        lt_step_finish(e, &j->samples[i], LT_FINISH_FAILED, failure);
    }
}

/* A sample that leads its request into the scheduler: the first that is not finished. */
static void start_leader(lt_engine *e, lt_job *j) {
    for (int64_t i = 0; i < j->r.n_samples; i++) {
        lt_sample *s = &j->samples[i];
        if (s->finish == LT_FINISH_NONE) {
            s->started = true;
            lt_sched_add(&e->sched, &s->seq);
            return;
        }
    }
}

static void cancel(lt_engine *e, lt_job *j) {
    bool had_leader = false, has_leader = false;
    for (int64_t i = 0; i < j->r.n_samples; i++) {
        lt_sample *s = &j->samples[i];
        had_leader |= s->started;
        if ((j->cancel || s->cancel) && s->finish == LT_FINISH_NONE) {
            lt_step_finish(e, s, LT_FINISH_CANCELLED, LT_OK);
        }
        has_leader |= s->started && s->finish == LT_FINISH_NONE;
    }
    if (!j->forked && had_leader && !has_leader) {
        start_leader(e, j);
    }
}

/* What the front asked for since the last step. False: to end. */
static bool take_in(lt_engine *e) {
    lt_job *submitted, *cancelled;
    bool closing;
    pthread_mutex_lock(&e->lock);
    submitted = e->submitted;
    cancelled = e->cancelled;
    e->submitted = e->submitted_last = e->cancelled = NULL;
    e->stats.waiting = e->sched.waiting.n + e->n_submitted;
    e->n_submitted = 0;
    closing = e->closing;
    for (lt_job *j = cancelled; j != NULL; j = j->next_cancel) {
        j->in_cancelled = false; /* A later call may put it there again. */
    }
    pthread_mutex_unlock(&e->lock);
    for (lt_job *j = submitted; j != NULL; j = j->next) {
        start_leader(e, j);
    }
    for (lt_job *j = cancelled; j != NULL; j = j->next_cancel) {
        cancel(e, j);
    }
    return !closing;
}

/* Rows of one item: tokens, positions, slots; which logits or hidden states it wants. */
static void lay_out_item(lt_engine *e, int64_t i, int64_t row) {
    lt_step *s = &e->step;
    const lt_sched_item *item = &e->sched.items[i];
    lt_sample *sample = item->seq->owner;
    lt_job *j = sample->job;
    const int64_t page = e->o.page_tokens, end = item->first + item->n;
    const bool judged = j->r.prompt_logprobs >= 0 && j->n_prompt_out < j->r.n_prompt;

    for (int64_t k = 0; k < item->n; k++) {
        const int64_t p = item->first + k;
        s->ids[row + k] = sample->tokens[p];
        s->positions[row + k] = (int32_t)p;
        s->slots[row + k] = (int32_t)(item->seq->table[p / page] * page + p % page);
        const bool next = p + 1 == item->seq->n_tokens && !j->r.embed;
        if (next || (judged && p + 1 < j->r.n_prompt && p + 1 >= j->n_prompt_out)) {
            s->wanted[s->n_logits] = (lt_wanted){sample, p, next};
            s->on_device[s->n_logits] =
                next && lt_step_on_device(e, sample, s->how + s->n_logits * LT_CHOOSE_HOW_COUNT);
            s->out_rows[s->n_logits++] = (int32_t)(row + k);
        }
    }
    s->q_start[i + 1] = (int32_t)(row + item->n);
    s->kv_len[i] = (int32_t)end;
    if (j->start_s == 0.0) {
        j->start_s = lt_clock_s();
        j->n_cached = item->seq->n_cached;
        e->n_prompt_tokens += j->r.n_prompt;
        e->n_cached_tokens += j->n_cached;
        j->n_prompt_out = j->r.prompt_logprobs >= 0 ? 1 : 0;
    }
}

/* The plan as the forward's arrays; wanted rows: those whose logits are, then those whose hidden states are. */
static void lay_out(lt_engine *e, lt_forward_rows *out) {
    lt_step *s = &e->step;
    int64_t row = 0, most = 1;

    *out = (lt_forward_rows){.n_seqs = e->sched.n_items,
                             .ids = s->ids,
                             .positions = s->positions,
                             .slots = s->slots,
                             .q_start = s->q_start,
                             .kv_len = s->kv_len,
                             .table = s->table,
                             .out_rows = s->out_rows};
    s->n_logits = s->n_hidden = 0;
    s->q_start[0] = 0;
    for (int64_t i = 0; i < e->sched.n_items; i++) {
        const lt_sched_item *item = &e->sched.items[i];
        lay_out_item(e, i, row);
        row += item->n;
        out->q_max = item->n > out->q_max ? item->n : out->q_max;
        out->kv_max = s->kv_len[i] > out->kv_max ? s->kv_len[i] : out->kv_max;
        most = item->seq->n_pages > most ? item->seq->n_pages : most;
    }
    for (int64_t i = 0; i < e->sched.n_items; i++) {
        const lt_sched_item *item = &e->sched.items[i];
        memcpy(s->table + i * most, item->seq->table,
               (size_t)item->seq->n_pages * sizeof *s->table);
        for (int64_t k = 0; k < item->n && ((lt_sample *)item->seq->owner)->job->r.embed; k++) {
            s->out_rows[s->n_logits + s->n_hidden++] = s->q_start[i] + (int32_t)k;
        }
    }
    out->max_pages = most;
    out->n_rows = row;
    out->n_out = s->n_logits + s->n_hidden;
    out->n_choose = s->n_logits;
    out->choose = s->on_device;
    out->how = s->how;
}

/* The mean of the prompt's hidden states, to length 1. */
static void finish_embedding(lt_engine *e, lt_sample *s) {
    lt_job *j = s->job;
    double square = 0.0;
    for (int64_t c = 0; c < e->spec->width; c++) {
        square += j->hidden_sum[c] * j->hidden_sum[c];
    }
    for (int64_t c = 0; c < e->spec->width; c++) {
        j->embedding[c] = (float)(square > 0.0 ? j->hidden_sum[c] / sqrt(square) : 0.0);
    }
    lt_step_finish(e, s, LT_FINISH_LENGTH, LT_OK);
}

static lt_err use_hidden(lt_engine *e, const lt_sched_item *items, int64_t n_items) {
    const int64_t C = e->spec->width;
    const float *h = e->step.hidden;
    if (e->step.n_hidden == 0) {
        return LT_OK;
    }
    LT_TRY(lt_forward_hidden(e->forward, e->step.n_logits, e->step.n_hidden, e->step.hidden));
    for (int64_t i = 0; i < n_items; i++) {
        lt_sample *s = items[i].seq->owner;
        if (!s->job->r.embed) {
            continue;
        }
        for (int64_t k = 0; k < items[i].n; k++, h += C) {
            /* After a preemption tokens run again, but count once. */
            const double weight = items[i].first + k == s->job->n_embedded ? 1.0 : 0.0;
            s->job->n_embedded += weight > 0.0;
            for (int64_t c = 0; c < C; c++) {
                s->job->hidden_sum[c] += weight * (double)h[c];
            }
        }
        if (s->seq.n_done == s->seq.n_tokens) {
            finish_embedding(e, s);
        }
    }
    return LT_OK;
}

/* Copies and the forward of the plan; then its tokens count. */
static lt_err run_plan(lt_engine *e, int64_t n_items) {
    lt_forward_rows rows;
    for (int64_t i = 0; i < e->sched.n_copies; i++) {
        LT_TRY(lt_forward_copy_page(e->forward, e->sched.copies[i].dst, e->sched.copies[i].src));
    }
    lay_out(e, &rows);
    LT_TRY(lt_forward_run(e->forward, &rows));
    lt_sched_done(&e->sched);
    for (int64_t i = 0; i < e->step.n_logits; i += e->out_rows) {
        const int64_t left = e->step.n_logits - i;
        LT_TRY(lt_step_pick(e, i, left < e->out_rows ? left : e->out_rows));
    }
    return use_hidden(e, e->sched.items, n_items); /* done() leaves the items in place. */
}

static void fail_plan(lt_engine *e, int64_t n_items, lt_err err) {
    lt_log_error("a step of %lld sequences failed: %s", (long long)n_items, lt_error_message());
    for (int64_t i = 0; i < n_items; i++) {
        lt_sample *s = e->sched.items[i].seq->owner;
        if (s->finish == LT_FINISH_NONE) {
            lt_step_fail(e, s, err);
        }
    }
}

/* A finished job leaves the list of cancellations, which may have come too late: its memory is the front's from now on. */
static void retire(lt_engine *e, lt_job *j) {
    lt_job **link = &e->cancelled;
    int64_t n_cancelled = 0, n_failed = 0;
    while (j->in_cancelled && *link != j) {
        link = &(*link)->next_cancel;
    }
    if (j->in_cancelled) {
        *link = j->next_cancel;
        j->in_cancelled = false;
    }
    for (int64_t i = 0; i < j->r.n_samples; i++) {
        n_cancelled += j->samples[i].finish == LT_FINISH_CANCELLED;
        n_failed += j->samples[i].finish == LT_FINISH_FAILED;
    }
    *(n_failed > 0                    ? &e->stats.failed
      : n_cancelled == j->r.n_samples ? &e->stats.cancelled
                                      : &e->stats.finished) += 1;
}

/* What changed becomes visible; the front is woken. */
static void publish(lt_engine *e, double start_s, int64_t n_rows, int64_t n_items) {
    lt_engine_stats *st = &e->stats;
    bool news = false;
    pthread_mutex_lock(&e->lock);
    while (e->touched != NULL) {
        lt_job *j = e->touched;
        e->touched = j->next_touched;
        j->touched = false;
        if (lt_job_publish(j) && !j->ready) {
            j->ready = true;
            j->next_ready = NULL;
            *(e->ready == NULL ? &e->ready : &e->ready_last->next_ready) = j;
            e->ready_last = j;
            news = true;
        }
        if (j->done) {
            retire(e, j);
        }
    }
    st->running = e->sched.running.n;
    st->waiting = e->sched.waiting.n;
    st->pages_cached = e->sched.pages.n_cached;
    st->pages_used = st->pages - lt_pages_available(&e->sched.pages);
    st->steps += n_items > 0;
    st->new_tokens = e->n_new_tokens;
    st->prompt_tokens = e->n_prompt_tokens;
    st->cached_tokens = e->n_cached_tokens;
    st->preemptions = e->sched.n_preemptions;
    if (n_items > 0) {
        st->step_s = lt_clock_s() - start_s;
        st->step_tokens = n_rows;
        st->step_sequences = n_items;
    }
    pthread_mutex_unlock(&e->lock);
    if (news) {
        lt_engine_signal(e);
    }
}

bool lt_engine_step(lt_engine *e) {
    const double start_s = lt_clock_s();
    int64_t n_items, n_rows;
    lt_err err = LT_OK;

    if (!take_in(e)) {
        return false;
    }
    lt_sched_plan(&e->sched);
    n_items = e->sched.n_items;
    n_rows = e->sched.n_rows;
    if (n_items > 0) {
        err = run_plan(e, n_items);
    }
    if (err != LT_OK) {
        fail_plan(e, n_items, err);
    }
    publish(e, start_s, n_rows, n_items);
    return n_items > 0;
}

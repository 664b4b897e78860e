/* step_pick.c: what a step does with its rows of logits, some at a time: log-probabilities of prompts, a token for every sample that is up to date; and with
 * its hidden states.
 *
 *     row of a sample whose options the device knows ── chosen where it lies: 12 bytes come back (with likeliest ids 172)
 *     any other row (grammar, penalties, bias, bans, typical, a forced id, a prompt that is judged) ── its V logits come back ─▶ pick.h, a thread a row
 *
 * Row by row, not batch by batch: one penalised request costs the copy of its own row. On a host's backend all rows are of the second kind. The first
 * sample of a request to come so far takes the others with it: they fork and choose from the same row. Where all rows of a step are of the first kind,
 * and none forks, nothing is asked for: what was chosen is on its way (sent), and another step may stand behind it. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/engine_impl.h"

bool lt_step_on_device(const lt_engine *e, lt_sample *s, double how[LT_CHOOSE_HOW_COUNT]) {
    lt_pick_args args;
    return !e->model->backend->host_memory && s->grammar == NULL &&
           lt_sample_pick_args(s, e->spec->vocab_size, NULL, &args) == LT_OK &&
           lt_pick_as_op(&args, how);
}

/* The sample is up to date: it, and at its request's first time the others, choose from this row. */
static int64_t add_choices(lt_engine *e, lt_sample *s, int64_t row, bool on_device, int64_t n) {
    lt_job *j = s->job;
    e->room.choices[n++] = (lt_choosing){
        .sample = s, .row = row, .on_device = on_device, .leads = true};
    s->seq.fresh = false; /* Its prompt is judged: preempted, it may come back from the cache. */
    if (j->forked) {
        return n;
    }
    j->forked = true;
    for (int64_t i = 0; i < j->r.n_samples; i++) {
        lt_sample *other = &j->samples[i];
        if (other->started || other->finish != LT_FINISH_NONE) {
            continue;
        }
        other->started = true;
        other->seq.fresh = false;
        if (lt_sched_fork(&e->sched, &s->seq, &other->seq)) {
            e->room.choices[n++] = (lt_choosing){
                .sample = other, .row = row, .on_device = on_device};
        } else {
            lt_sched_add(&e->sched, &other->seq);
        }
    }
    return n;
}

static void choose_here(lt_engine *e, lt_choosing *c, uint32_t *mask, const float *logits) {
    c->err = lt_sample_pick_args(c->sample, e->spec->vocab_size, mask, &c->args);
    if (c->err == LT_OK) {
        c->err = lt_pick_token(&e->pickers[omp_get_thread_num()], logits, &c->args, &c->pick);
    }
    if (c->err != LT_OK) {
        lt_log_warn("request %llu: %s", (unsigned long long)c->sample->job->id, lt_error_message());
    }
}

/* What the device chose, as number i. */
static void take(lt_choosing *c, const lt_forward_choice *from, int64_t i) {
    const int n_top = c->sample->job->r.logprobs;
    lt_pick *p = &c->pick;
    *p = (lt_pick){.id = from->id[i], .rank = from->rank[i], .logprob = from->logprob[i]};
    for (; p->n_top < n_top && from->top_id[i * LT_CHOOSE_TOP + p->n_top] >= 0; p->n_top++) {
        const int64_t at = i * LT_CHOOSE_TOP + p->n_top;
        p->top[p->n_top] = (lt_candidate){from->top_logprob[at], from->top_id[at]};
    }
    c->err = LT_OK;
    if (p->id < 0) {
        c->err = lt_pick_failure(p->id == LT_CHOOSE_NAN);
        lt_log_warn("request %llu: %s", (unsigned long long)c->sample->job->id, lt_error_message());
    }
}

/* Forks choose from the rows of others: not before the step knows that there is room for them. */
static lt_err take_forks(lt_engine *e, int64_t n_choices) {
    lt_step_room *s = &e->room;
    lt_forward_choice more;
    int64_t i = 0;
    while (i < n_choices) {
        const int64_t first = i;
        int64_t n = 0;
        for (; i < n_choices && n < e->out_rows; i++) {
            const lt_choosing *c = &s->choices[i];
            lt_pick_args args;
            if (c->on_device && !c->leads) {
                LT_TRY(lt_sample_pick_args(c->sample, e->spec->vocab_size, NULL, &args));
                (void)lt_pick_as_op(&args, s->more_how + n * LT_CHOOSE_HOW_COUNT);
                s->more_rows[n++] = (int32_t)c->row;
            }
        }
        if (n > 0) {
            LT_TRY(lt_forward_choose_more(e->forward, n, s->more_rows, s->more_how, &more));
        }
        n = 0;
        for (int64_t k = first; k < i; k++) {
            if (s->choices[k].on_device && !s->choices[k].leads) {
                take(&s->choices[k], &more, n++);
            }
        }
    }
    return LT_OK;
}

static void judge_prompt(lt_engine *e, lt_sample *s, const lt_wanted *w, const float *logits) {
    lt_job *j = s->job;
    const int64_t at = w->position + 1;
    lt_logprobs *l = &j->prompt_logprobs;
    lt_pick pick;
    const lt_err err = lt_pick_logprob(&e->pickers[0], logits, j->r.prompt[at],
                                       j->r.prompt_logprobs, &pick);
    if (err != LT_OK) {
        lt_step_fail(e, s, err);
        return;
    }
    l->logprob[at] = pick.logprob;
    l->n_top[at] = pick.n_top;
    memcpy(l->top + at * j->r.prompt_logprobs, pick.top, (size_t)pick.n_top * sizeof *l->top);
    j->n_prompt_out = at + 1;
    lt_step_touch(e, j);
}

static void append(lt_engine *e, lt_choosing *c) {
    lt_sample *s = c->sample;
    if (s->finish != LT_FINISH_NONE) {
        return;
    }
    if (c->err != LT_OK) {
        lt_step_fail(e, s, c->err);
        return;
    }
    c->err = lt_sample_append(s, &c->pick);
    if (c->err != LT_OK) {
        lt_log_warn("request %llu: %s", (unsigned long long)s->job->id, lt_error_message());
        lt_step_fail(e, s, c->err);
        return;
    }
    e->n_new_tokens++;
    if (s->job->first_s == 0.0) {
        s->job->first_s = lt_clock_s();
    }
    if (s->finish != LT_FINISH_NONE) {
        lt_step_finish(e, s, s->finish, LT_OK);
    } else {
        lt_sched_learn(&e->sched, &s->seq);
    }
    lt_step_touch(e, s->job);
}

lt_err lt_step_take(lt_engine *e, const lt_step *s) {
    lt_forward_choice chosen;
    LT_TRY(lt_forward_take_choices(e->forward, &chosen));
    for (int64_t i = 0; i < s->n_logits; i++) {
        lt_choosing *c = &e->room.choices[0];
        c->sample = s->items[s->wanted[i].item].sample;
        if (c->sample != NULL) {
            c->sample->seq.fresh = false;
            c->sample->job->forked = true;
            take(c, &chosen, i);
            append(e, c);
        }
    }
    return LT_OK;
}

/* Who chooses from these rows; prompts are judged on the way. */
static int64_t collect(lt_engine *e, const lt_step *s, int64_t first, int64_t n,
                       float *const *logits) {
    int64_t n_choices = 0;
    for (int64_t i = 0; i < n; i++) {
        const lt_wanted *w = &s->wanted[first + i];
        lt_sample *sample = s->items[w->item].sample;
        if (sample == NULL) {
            continue;
        }
        if (w->next) {
            n_choices = add_choices(e, sample, i, w->on_device, n_choices);
        } else {
            judge_prompt(e, sample, w, logits[i]);
        }
    }
    return n_choices;
}

/* Of wanted rows [first, first + n): what the device chose; logits of the others, so that on_host says which. */
static lt_err fetch(lt_engine *e, const lt_step *s, int64_t first, int64_t n,
                    lt_forward_choice *chosen, float *const **logits) {
    bool *on_host = e->room.on_host;
    int64_t n_device = 0, n_host = 0;
    for (int64_t i = 0; i < n; i++) {
        const lt_wanted *w = &s->wanted[first + i];
        on_host[i] = !w->on_device && s->items[w->item].sample != NULL;
        n_device += w->on_device;
        n_host += on_host[i];
    }
    if (n_device > 0) {
        LT_TRY(lt_forward_choices(e->forward, first, n, chosen));
    }
    return n_host > 0 ? lt_forward_logits(e->forward, first, n, on_host, logits) : LT_OK;
}

lt_err lt_step_pick(lt_engine *e, const lt_step *s, int64_t first, int64_t n) {
    lt_choosing *choices = e->room.choices;
    lt_forward_choice chosen = {0};
    float *const *logits = NULL;
    int64_t n_forks = 0, n_host = 0, n_choices;
    lt_err err;

    LT_TRY(fetch(e, s, first, n, &chosen, &logits));
    n_choices = collect(e, s, first, n, logits);
    for (int64_t i = 0; i < n_choices; i++) {
        lt_choosing *c = &choices[i];
        n_host += !c->on_device;
        n_forks += c->on_device && !c->leads;
        if (c->on_device && c->leads) {
            take(c, &chosen, c->row);
        }
    }
    if (n_forks > 0) {
        err = take_forks(e, n_choices);
        for (int64_t i = 0; i < n_choices && err != LT_OK; i++) {
            lt_step_fail(e, choices[i].sample, err); /* Forks have no item that would fail them. */
        }
        LT_TRY(err);
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)e->n_pickers) if (n_host > 1)
    for (int64_t i = 0; i < n_choices; i++) {
        lt_choosing *c = &choices[i];
        if (!c->on_device) {
            choose_here(e, c, e->room.masks + i * e->mask_words, logits[c->row]);
        }
    }
    for (int64_t i = 0; i < n_choices; i++) {
        append(e, &choices[i]);
    }
    return LT_OK;
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

/* h (n, C): of the item's rows. */
static void add_hidden(lt_engine *e, const lt_step_item *item, const float *h) {
    const int64_t C = e->spec->width;
    lt_job *j = item->sample->job;
    for (int64_t k = 0; k < item->n; k++, h += C) {
        /* After a preemption tokens run again, but count once. */
        const double weight = item->first + k == j->n_embedded ? 1.0 : 0.0;
        j->n_embedded += weight > 0.0;
        for (int64_t c = 0; c < C; c++) {
            j->hidden_sum[c] += weight * (double)h[c];
        }
    }
    if (item->sample->seq.n_done == item->sample->seq.n_tokens) {
        finish_embedding(e, item->sample);
    }
}

lt_err lt_step_use_hidden(lt_engine *e, const lt_step *s) {
    const float *h = e->room.hidden;
    if (s->n_hidden == 0) {
        return LT_OK;
    }
    LT_TRY(lt_forward_hidden(e->forward, s->n_logits, s->n_hidden, e->room.hidden));
    for (int64_t i = 0; i < s->n_items; i++) {
        const lt_step_item *item = &s->items[i];
        if (item->embed) {
            if (item->sample != NULL) {
                add_hidden(e, item, h);
            }
            h += item->n * e->spec->width;
        }
    }
    return LT_OK;
}

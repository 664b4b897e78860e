/* step_pick.c: what a step does with its rows of logits, some at a time: log-probabilities of prompts, a token for every sample that is up to date.
 *
 *     row of a sample whose options the device knows ── chosen where it lies: 12 bytes come back (with likeliest ids 172)
 *     any other row (grammar, penalties, bias, bans, typical, a forced id, a prompt that is judged) ── its V logits come back ─▶ pick.h, a thread a row
 *
 * Row by row, not batch by batch: one penalised request costs the copy of its own row. On a host's backend all rows are of the second kind. The first
 * sample of a request to come so far takes the others with it: they fork and choose from the same row. */
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
    e->step.choices[n++] = (lt_choosing){
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
            e->step.choices[n++] = (lt_choosing){
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
    lt_step *s = &e->step;
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

static void judge_prompt(lt_engine *e, const lt_wanted *w, const float *logits) {
    lt_job *j = w->sample->job;
    const int64_t at = w->position + 1;
    lt_logprobs *l = &j->prompt_logprobs;
    lt_pick pick;
    const lt_err err = lt_pick_logprob(&e->pickers[0], logits, j->r.prompt[at],
                                       j->r.prompt_logprobs, &pick);
    if (err != LT_OK) {
        lt_step_fail(e, w->sample, err);
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
    }
    lt_step_touch(e, s->job);
}

/* Who chooses from these rows; prompts are judged on the way. */
static int64_t collect(lt_engine *e, int64_t first, int64_t n, float *const *logits) {
    int64_t n_choices = 0;
    for (int64_t i = 0; i < n; i++) {
        const lt_wanted *w = &e->step.wanted[first + i];
        if (w->sample->finish != LT_FINISH_NONE) {
            continue;
        }
        if (w->next) {
            n_choices = add_choices(e, w->sample, i, e->step.on_device[first + i], n_choices);
        } else {
            judge_prompt(e, w, logits[i]);
        }
    }
    return n_choices;
}

lt_err lt_step_pick(lt_engine *e, int64_t first, int64_t n) {
    lt_step *s = &e->step;
    lt_forward_choice chosen = {0};
    float *const *logits = NULL;
    int64_t n_device = 0, n_forks = 0, n_choices;

    for (int64_t i = 0; i < n; i++) {
        s->on_host[i] = !s->on_device[first + i];
        n_device += s->on_device[first + i];
    }
    if (n_device > 0) {
        LT_TRY(lt_forward_choices(e->forward, first, n, &chosen));
    }
    if (n_device < n) {
        LT_TRY(lt_forward_logits(e->forward, first, n, s->on_host, &logits));
    }
    n_choices = collect(e, first, n, logits);
    for (int64_t i = 0; i < n_choices; i++) {
        lt_choosing *c = &s->choices[i];
        n_forks += c->on_device && !c->leads;
        if (c->on_device && c->leads) {
            take(c, &chosen, c->row);
        }
    }
    if (n_forks > 0) {
        LT_TRY(take_forks(e, n_choices));
    }
#pragma omp parallel for schedule(dynamic, 1)                                                      \
    num_threads((int)e->n_pickers) if (n_choices > 1 && n_device < n)
    for (int64_t i = 0; i < n_choices; i++) {
        lt_choosing *c = &s->choices[i];
        if (!c->on_device) {
            choose_here(e, c, s->masks + i * e->mask_words, logits[c->row]);
        }
    }
    for (int64_t i = 0; i < n_choices; i++) {
        append(e, &s->choices[i]);
    }
    return LT_OK;
}

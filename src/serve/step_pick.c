/* step_pick.c: what a step does with its hidden states and, in batches, with its rows of logits:
 * log-probabilities of prompts, and a token for every choice that is up to date.
 *
 *     a host's backend ── the row's V logits ─▶ model/infer/sampler.h, a thread a row
 *     a device         ── picked on the device: 12 bytes come back (172 with the most likely ids);
 *                         the log-probability of a prompt's token is that of a forced pick
 *
 * On a device, a row for which the host must say how to choose (a grammar's mask, step.c) is chosen
 * late, by a separate call. If no penalty state can hold a choice's options (over 1,023 biases),
 * its logits come to the host, row by row, not batch by batch. When the first choice of a request
 * has its logits, the other choices fork and choose from the same row. Where all rows of a step are
 * chosen on the device, and none forks, the device sends the tokens without a request (sent), and
 * another step may be queued. */
#include <math.h>
#include <omp.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "model/pass/score_ends.h"
#include "serve/engine_impl.h"

_Static_assert(LT_ENGINE_TOP == LT_CHOOSE_TOP, "a token has as many alternatives on a device");

/* Add the picks of a choice that is up to date; at the first token of its request, the other
 * choices pick from the same row. */
static int64_t add_picks(lt_engine *e, lt_job_choice *s, int64_t row, bool on_device, int64_t n) {
    lt_job *j = s->job;
    e->room.picks[n++] = (lt_token_pick){
        .choice = s, .from = s, .row = row, .on_device = on_device, .leads = true};
    /* The log-probabilities of its prompt are done, so after a preemption it may use the prefix
     * cache. */
    s->seq.fresh = false;
    if (j->forked || j->beam != NULL) {
        j->forked = true;
        return n;
    }
    j->forked = true;
    for (int64_t i = 0; i < j->r.n_choices; i++) {
        lt_job_choice *other = &j->choices[i];
        if (other->started || other->finish != LT_FINISH_NONE) {
            continue;
        }
        other->started = true;
        other->seq.fresh = false;
        if (lt_sched_fork(&e->sched, &s->seq, &other->seq)) {
            e->room.picks[n++] = (lt_token_pick){
                .choice = other, .from = s, .row = row, .on_device = on_device};
        } else {
            lt_sched_add(&e->sched, &other->seq);
        }
    }
    return n;
}

/* The next token may be that of a draft which was drawn from a distribution. */
static void name_proposal(const lt_job_choice *s, int64_t V, lt_sampler_args *args) {
    const int64_t place = s->n_draft - s->n_unchecked;
    if (s->n_unchecked > 0 && !s->rejected && place < s->n_drawn) {
        args->proposed = s->proposed + place * V;
        args->proposal = s->tokens[s->seq.n_tokens];
        args->others = s->other;
        args->n_others = s->n_unchecked == s->n_draft && s->branch < 0 ? s->n_tried : 0;
    }
}

static void choose_here(lt_engine *e, lt_token_pick *c, uint32_t *mask, const float *logits) {
    const int64_t V = e->spec->vocab_size;
    lt_sampler *p = &e->samplers[omp_get_thread_num()];
    const lt_blend *m = &c->choice->job->r.blend;
    float *mixed = m->n > 0 ? c->choice->beside + m->n * V : NULL;
    c->err = lt_job_choice_sampler_args(c->choice, V, mask, &c->args);
    name_proposal(c->choice, V, &c->args);
    if (c->err == LT_OK && mixed != NULL) {
        c->err = lt_step_blend(e, c->from, logits, mixed);
    }
    if (c->err == LT_OK) {
        c->err = lt_sampler_pick(p, mixed != NULL ? mixed : logits, &c->args, &c->pick);
    }
    if (c->err == LT_OK && mixed != NULL && c->args.n_top >= 0) {
        c->err = lt_sampler_logprob(p, logits, c->pick.id, c->args.n_top, &c->pick);
    }
    if (c->err != LT_OK) {
        lt_log_warn("request %llu: %s", (unsigned long long)c->choice->job->id, lt_error_message());
    }
}

/* Take the device's pick number i. */
static void take(lt_token_pick *c, const lt_paged_forward_picks *from, int64_t i, int n_top) {
    lt_pick *p = &c->pick;
    *p = (lt_pick){.id = from->id[i], .rank = from->rank[i], .logprob = from->logprob[i]};
    for (; p->n_top < n_top && from->top_id[i * LT_CHOOSE_TOP + p->n_top] >= 0; p->n_top++) {
        const int64_t at = i * LT_CHOOSE_TOP + p->n_top;
        p->top[p->n_top] = (lt_candidate){from->top_logprob[at], from->top_id[at]};
    }
    c->err = LT_OK;
    if (p->id < 0) {
        c->err = lt_sampler_failure(p->id == LT_CHOOSE_NAN);
        lt_log_warn("request %llu: %s", (unsigned long long)c->choice->job->id, lt_error_message());
    }
}

/* Prepare the picks of one choice, several if it has a draft. After a draft token that the grammar
 * does not allow nothing is picked: that token will be rejected. */
static void prepare_choice(lt_engine *e, lt_token_pick *picks, int64_t n, uint32_t *masks) {
    lt_job_choice *s = picks[0].choice;
    for (int64_t i = 0; i < n; i++) {
        lt_token_pick *c = &picks[i];
        uint32_t *mask = masks + i * e->mask_words;
        if (i > 0 && picks[i - 1].err != LT_OK) {
            c->err = picks[i - 1].err;
            continue;
        }
        c->err = s->n_draft > 0
                     ? lt_job_choice_draft_args(s, c->place, e->spec->vocab_size, mask, &c->args)
                     : lt_job_choice_sampler_args(s, e->spec->vocab_size, mask, &c->args);
        if (c->err != LT_OK && c->place == 0) {
            lt_log_warn("request %llu: %s", (unsigned long long)s->job->id, lt_error_message());
        }
    }
}

/* Prepare picks on the device: the masks of grammars, on several threads. Returns the number of
 * lt_paged_forward_masks. */
static int64_t prepare(lt_engine *e, lt_token_pick *picks, int64_t n) {
    uint32_t *masks = lt_paged_forward_masks(e->forward);
    int64_t n_masks = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)e->n_samplers) if (n > 1)
    for (int64_t i = 0; i < n; i++) {
        int64_t end = i + 1;
        while (end < n && picks[end].choice == picks[i].choice) {
            end++;
        }
        if (i == 0 || picks[i - 1].choice != picks[i].choice) {
            prepare_choice(e, picks + i, end - i, masks + i * e->mask_words);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        n_masks = picks[i].err == LT_OK && picks[i].args.mask != NULL ? i + 1 : n_masks;
    }
    return n_masks;
}

lt_err lt_step_choose_late(lt_engine *e, const lt_step *s, int64_t first, int64_t n) {
    lt_step_room *r = &e->room;
    double *how = r->how + first * LT_CHOOSE_HOW_COUNT;
    int64_t n_late = 0, n_masks;
    for (int64_t i = 0; i < n; i++) {
        const lt_wanted *w = &s->wanted[first + i];
        lt_job_choice *choice = s->items[w->item].choice;
        r->choose[first + i] = false;
        r->turns[i] = 0;
        if (w->late && choice != NULL && !(w->draft && choice->rejected)) {
            r->picks[n_late++] = (lt_token_pick){
                .choice = choice,
                .row = i,
                .place = w->verifies ? w->position + 1 - choice->seq.n_tokens : 0};
        }
    }
    if (n_late == 0) {
        return LT_OK;
    }
    n_masks = prepare(e, r->picks, n_late);
    for (int64_t i = 0; i < n_late; i++) {
        const lt_token_pick *c = &r->picks[i];
        if (c->err != LT_OK && c->place == 0) {
            lt_step_fail(e, c->choice, c->err);
        }
        if (c->err != LT_OK) {
            continue;
        }
        LT_TRY(lt_step_how(e, c->choice, &c->args, i, how + c->row * LT_CHOOSE_HOW_COUNT));
        r->choose[first + c->row] = true;
        r->turns[c->row] = lt_step_counts(c->choice) ? (int32_t)c->place : 0;
    }
    LT_TRY(lt_step_begin_penalties(e));
    return lt_paged_forward_choose_late(e->forward, first, n, r->choose + first, how, r->turns,
                                        n_masks);
}

/* Choose the tokens of at most as many forks as there are rows of logits; they read their leaders'
 * rows, in order. */
static lt_err choose_forks(lt_engine *e, lt_token_pick *forks, int64_t n) {
    lt_step_room *r = &e->room;
    lt_paged_forward_picks more;
    const int64_t n_masks = prepare(e, forks, n);
    int64_t n_chosen = 0;
    for (int64_t i = 0; i < n; i++) {
        lt_token_pick *c = &forks[i];
        if (c->err == LT_OK) {
            LT_TRY(lt_step_how(e, c->choice, &c->args, i,
                               r->more_how + n_chosen * LT_CHOOSE_HOW_COUNT));
            r->more_rows[n_chosen++] = (int32_t)c->row;
        }
    }
    if (n_chosen == 0) {
        return LT_OK;
    }
    LT_TRY(lt_step_begin_penalties(e));
    LT_TRY(lt_paged_forward_choose_more(e->forward, n_chosen, r->more_rows, r->more_how, n_masks,
                                        &more));
    n_chosen = 0;
    for (int64_t i = 0; i < n; i++) {
        if (forks[i].err == LT_OK) {
            take(&forks[i], &more, n_chosen++, lt_job_n_top(forks[i].choice->job));
        }
    }
    return LT_OK;
}

/* Forks choose from the rows of others, but only when the step knows that there is room for them.
 * They follow their leaders, in runs. */
static lt_err take_forks(lt_engine *e, int64_t n_picks) {
    lt_token_pick *picks = e->room.picks;
    int64_t i = 0;
    while (i < n_picks) {
        int64_t n = 0;
        while (i + n < n_picks && n < e->out_rows && picks[i + n].on_device &&
               !picks[i + n].leads) {
            n++;
        }
        LT_TRY(n > 0 ? choose_forks(e, picks + i, n) : LT_OK);
        i += n > 0 ? n : 1;
    }
    return LT_OK;
}

static void keep_judgement(lt_engine *e, lt_job_choice *s, const lt_wanted *w,
                           const lt_pick *pick) {
    lt_job *j = s->job;
    const int64_t at = w->position + 1;
    lt_logprobs *l = &j->prompt_logprobs;
    l->logprob[at] = pick->logprob;
    l->n_top[at] = pick->n_top;
    l->rank[at] = pick->rank;
    memcpy(l->top + at * j->r.prompt_logprobs, pick->top, (size_t)pick->n_top * sizeof *l->top);
    j->n_prompt_out = at + 1;
    lt_step_touch(e, j);
}

static void judge_prompt(lt_engine *e, lt_job_choice *s, const lt_wanted *w, const float *logits) {
    lt_pick pick;
    const lt_err err = lt_sampler_logprob(&e->samplers[0], logits,
                                          s->job->r.prompt[w->position + 1],
                                          s->job->r.prompt_logprobs, &pick);
    if (err != LT_OK) {
        lt_step_fail(e, s, err);
        return;
    }
    keep_judgement(e, s, w, &pick);
}

/* The same, for the device's judgement number i. */
static void take_judgement(lt_engine *e, lt_job_choice *s, const lt_wanted *w,
                           const lt_paged_forward_picks *from, int64_t i) {
    lt_token_pick c = {.choice = s};
    take(&c, from, i, s->job->r.prompt_logprobs);
    if (c.err != LT_OK) {
        lt_step_fail(e, s, c.err);
        return;
    }
    keep_judgement(e, s, w, &c.pick);
}

/* Check whether the next token is the draft's. If not, only the tokens before it count. */
static void check_draft(lt_engine *e, lt_job_choice *s, int32_t id) {
    if (s->n_unchecked == 0 || s->rejected) {
        return;
    }
    if (s->n_unchecked == s->n_draft && s->tokens[s->seq.n_tokens] != id) {
        lt_step_miss(e, s, id);
    }
    s->rejected = s->tokens[s->seq.n_tokens] != id;
    if (s->rejected) {
        s->seq.n_done = s->seq.n_tokens;
    } else {
        s->n_unchecked--;
    }
}

void lt_step_append(lt_engine *e, lt_token_pick *c) {
    lt_job_choice *s = c->choice;
    if (s->finish != LT_FINISH_NONE) {
        return;
    }
    if (c->err != LT_OK) {
        lt_step_fail(e, s, c->err);
        return;
    }
    if (s->job->beam != NULL) {
        lt_step_beam(e, s, &c->pick);
        return;
    }
    check_draft(e, s, c->pick.id);
    c->err = lt_job_choice_append(s, &c->pick, e->version);
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
        if (s->seq.n_tokens == s->shift_at) {
            lt_step_shift(e, s);
        }
    }
    lt_step_touch(e, s->job);
}

/* Whether the row is that of its choice's last token. With a draft it is not if an earlier token
 * was rejected. */
static bool is_last(const lt_job_choice *choice, const lt_wanted *w) {
    return !w->draft || (!choice->rejected && choice->seq.n_tokens == w->position + 1);
}

/* Append the device's pick number i, if the choice has not ended and the row counts. */
static void take_next(lt_engine *e, const lt_step *s, const lt_wanted *w,
                      const lt_paged_forward_picks *chosen, int64_t i) {
    lt_token_pick c = {.choice = s->items[w->item].choice};
    if (c.choice == NULL || !is_last(c.choice, w)) {
        return;
    }
    c.choice->seq.fresh = false;
    c.choice->job->forked = true;
    take(&c, chosen, i, lt_job_n_top(c.choice->job));
    lt_step_append(e, &c);
}

lt_err lt_step_take(lt_engine *e, const lt_step *s) {
    lt_paged_forward_picks chosen;
    LT_TRY(lt_paged_forward_take_picks(e->forward, &chosen));
    for (int64_t i = 0; i < s->n_logits; i++) {
        const lt_wanted *w = &s->wanted[i];
        lt_job_choice *choice = s->items[w->item].choice;
        if (choice != NULL && !w->next) {
            take_judgement(e, choice, w, &chosen, i);
        } else {
            take_next(e, s, w, &chosen, i);
        }
    }
    return LT_OK;
}

/* The values of the score head at a token. */
static void take_scores(lt_engine *e, lt_job_choice *s, int64_t token, const float *values) {
    const int64_t place = lt_job_score_place(&s->job->r, token);
    lt_score_ends_of(e->model, values, s->job->embedding + place * lt_model_spec_says(e->spec));
    if (token == s->job->r.n_prompt - 1) {
        lt_step_finish(e, s, LT_FINISH_LENGTH, LT_OK);
    }
}

/* Collect the picks from these rows, and record the log-probabilities of prompts. */
static int64_t collect(lt_engine *e, const lt_step *s, int64_t first, int64_t n,
                       const lt_paged_forward_picks *chosen, float *const *logits) {
    int64_t n_picks = 0;
    for (int64_t i = 0; i < n; i++) {
        const lt_wanted *w = &s->wanted[first + i];
        lt_job_choice *choice = s->items[w->item].choice;
        if (choice == NULL) {
            continue;
        }
        if (w->verifies) {
            take_next(e, s, w, chosen, i); /* Take it now, because forks overwrite the pick. */
            continue;
        }
        if (w->draft) {
            continue; /* collect_draft evaluates it once the tokens before it are known. */
        }
        if (choice->job->r.score) {
            take_scores(e, choice, w->position, logits[i]);
        } else if (w->next && choice->job->guide != NULL) {
            lt_step_guide(e, choice, logits[i]);
        } else if (w->next) {
            n_picks = add_picks(e, choice, i, w->on_device, n_picks);
        } else if (w->on_device) {
            take_judgement(e, choice, w, chosen, i);
        } else {
            judge_prompt(e, choice, w, logits[i]);
        }
    }
    return n_picks;
}

/* Fetch wanted rows [first, first + n): the device's picks, and the logits of the other rows, which
 * on_host marks. */
static lt_err fetch(lt_engine *e, const lt_step *s, int64_t first, int64_t n,
                    lt_paged_forward_picks *chosen, float *const **logits) {
    bool *on_host = e->room.on_host;
    int64_t n_device = 0, n_host = 0;
    LT_TRY(s->late ? lt_step_choose_late(e, s, first, n) : LT_OK);
    for (int64_t i = 0; i < n; i++) {
        const lt_wanted *w = &s->wanted[first + i];
        on_host[i] = !w->on_device &&
                     (s->items[w->item].choice != NULL || s->items[w->item].branch);
        n_device += w->on_device;
        n_host += on_host[i];
    }
    if (n_device > 0) {
        LT_TRY(lt_paged_forward_read_picks(e->forward, first, n, chosen));
    }
    return n_host > 0 ? lt_paged_forward_logits(e->forward, first, n, on_host, logits) : LT_OK;
}

/* Choose tokens from rows on the host, and append all picks. */
static void choose_on_host(lt_engine *e, lt_token_pick *picks, int64_t n_picks, int64_t n_host,
                           float *const *logits) {
#pragma omp parallel for schedule(dynamic, 1) num_threads((int)e->n_samplers) if (n_host > 1)
    for (int64_t i = 0; i < n_picks; i++) {
        lt_token_pick *c = &picks[i];
        if (!c->on_device) {
            choose_here(e, c, e->room.masks + i * e->mask_words, logits[c->row]);
        }
    }
    for (int64_t i = 0; i < n_picks; i++) {
        lt_step_append(e, &picks[i]);
    }
}

/* Picks from the rows of accepted draft tokens: for each choice the one after its last token, if it
 * has not ended. */
static int64_t collect_draft(lt_engine *e, const lt_step *s, int64_t first, int64_t n) {
    int64_t n_picks = 0;
    for (int64_t i = 0; i < n; i++) {
        const lt_wanted *w = &s->wanted[first + i];
        lt_job_choice *choice = s->items[w->item].choice;
        if (w->draft && !w->verifies && choice != NULL && is_last(choice, w)) {
            e->room.picks[n_picks++] = (lt_token_pick){
                .choice = choice, .from = choice, .row = i, .leads = true};
        }
    }
    return n_picks;
}

lt_err lt_step_pick(lt_engine *e, const lt_step *s, int64_t first, int64_t n) {
    lt_token_pick *picks = e->room.picks;
    lt_paged_forward_picks chosen = {0};
    float *const *logits = NULL;
    int64_t n_forks = 0, n_host = 0, n_picks;
    lt_err err;

    LT_TRY(fetch(e, s, first, n, &chosen, &logits));
    n_picks = collect(e, s, first, n, &chosen, logits);
    for (int64_t i = 0; i < n_picks; i++) {
        lt_token_pick *c = &picks[i];
        n_host += !c->on_device;
        n_forks += c->on_device && !c->leads;
        if (c->on_device && c->leads) {
            take(c, &chosen, c->row, lt_job_n_top(c->choice->job));
        }
    }
    if (n_forks > 0) {
        err = take_forks(e, n_picks);
        for (int64_t i = 0; i < n_picks && err != LT_OK; i++) {
            lt_step_fail(e, picks[i].choice, err); /* Forks have no item that would fail them. */
        }
        LT_TRY(err);
    }
    choose_on_host(e, picks, n_picks, n_host, logits);
    do { /* A draft may begin in these rows, or continue from the rows before them. */
        n_picks = collect_draft(e, s, first, n);
        choose_on_host(e, picks, n_picks, n_picks, logits);
    } while (n_picks > 0);
    return LT_OK;
}

/* The mean of the prompt's hidden states, or the last of them, scaled to length 1. */
static void finish_embedding(lt_engine *e, lt_job_choice *s) {
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
    lt_job *j = item->choice->job;
    for (int64_t k = 0; k < item->n; k++, h += C) {
        /* After a preemption tokens run again, but are counted only once. */
        const int64_t counts = j->r.last ? j->r.n_prompt - 1 : j->n_embedded;
        const double weight = item->first + k == counts ? 1.0 : 0.0;
        j->n_embedded += weight > 0.0;
        for (int64_t c = 0; c < C; c++) {
            j->hidden_sum[c] += weight * (double)h[c];
        }
    }
    if (item->choice->seq.n_done == item->choice->seq.n_tokens) {
        finish_embedding(e, item->choice);
    }
}

lt_err lt_step_use_hidden(lt_engine *e, const lt_step *s) {
    const float *h = e->room.hidden;
    if (s->n_hidden == 0) {
        return LT_OK;
    }
    LT_TRY(lt_paged_forward_hidden(e->forward, s->n_logits, s->n_hidden, e->room.hidden));
    for (int64_t i = 0; i < s->n_items; i++) {
        const lt_step_item *item = &s->items[i];
        if (item->embed) {
            if (item->choice != NULL) {
                add_hidden(e, item, h);
            }
            h += item->n * e->spec->width;
        }
    }
    return LT_OK;
}

/* step.c: the steps of the engine. The next step can be queued before the tokens of the current one
 * are known.
 *
 *     launch    schedule ─▶ copies of shared pages ─▶ lay out rows (step_rows.c)
 *                 ─▶ queue the forward pass ─▶ count and publish pages
 *     collect   wait for the forward pass ─▶ a token for each choice that is up to date
 *                 (step_pick.c): append it, or finish the choice
 *
 * A choice is up to date when all its tokens have keys and values, at the latest once the queue has
 * reached this point: then the logits of its last row give the next token.
 *
 * STATES of lt_engine_step. Each call collects one step; a step is queued once and collected once,
 * in order.
 *
 *     nothing queued ──launch 1──▶ 1 is queued ──launch 2, ahead of 1's tokens──▶ 1 and 2 are
 *            ▲                          │                                           │
 *            └─collect 1: there is no───┘        2 becomes the next 1 ◀──collect 1──┘
 *              step 2, or it cannot run ahead
 *
 * AHEAD      The next step can be queued ahead of a step that was sent, that is, whose tokens are
 *            all chosen on the device and copied back without a request (engine_impl.h). A step is
 *            not sent if a choice forks, is embedded, or needs the host (over 1,023 biases); then
 *            the next step waits until this one is collected. While the engine is ahead, the host's
 *            work from the picks of one step to the rows of the next overlaps with the device.
 * LATE       Some picks depend on the token before them in ways that only the host can evaluate:
 *            which ids a grammar allows, whether a thinking budget is used up. Only the pick of
 *            such a row depends on it, not its forward pass. So step 2 is queued without those
 *            picks. When step 1 is collected, the host computes their masks while the device runs
 *            the layers of 2, and queues the picks after them (choose_late); then 2 is sent, and 3
 *            may be queued:
 *
 *       host    ... │ collect 1, masks of 2 │ launch 3 │ wait ...  │ collect 2, masks of 3 │
 *       device  ... │ layers, head, other picks of 2 │ late picks of 2 │ layers of 3 ...
 *
 *            So a row with a grammar costs the upload of its mask (16 KB for 128k ids, and under
 *            100 us on the host, hidden by the layers of 2). Its logits are not downloaded (512 KB
 *            and a wait), the other rows still go ahead, and no row skips a step. Rejected: such
 *            rows in every other step (half their speed), a step split in two (the weights are read
 *            twice), masks for all possible tokens (as many as the mask allows).
 * DRAFTS     (draft.h) follow known tokens. So the next step is not queued ahead of one that has
 *            drafts, nor where a draft is expected to pay (lt_step_waits): it waits until the
 *            tokens of this one are known.
 * FORESEEN   Before 2 is planned, each choice that picks a token in 1 gets seq.n_ahead, unless that
 *            token is certainly its last. Step 2 refers to the token by the number of its pick and
 *            draws by its position, so the tokens are those of one step at a time, bit for bit
 *            where rows do not depend on each other (deterministic).
 * IN VAIN    A choice that ends with 1, or is cancelled, leaves 2: its item becomes empty and its
 *            pick there is discarded. Its pages are free at once; their next user writes to them
 *            after its last row, because the queue runs in order.
 * ARRIVALS   New requests are in the next launch, a step later than without going ahead.
 *            Cancellations take effect at once; a job that is done is in no step, so it can be
 *            freed.
 *
 * Nothing is allocated. A failure of the forward pass fails the requests of the steps in flight,
 * not the engine. */
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/engine_impl.h"

#define USUAL 0.1 /* Weight of a choice's length in the mean. */

void lt_step_touch(lt_engine *e, lt_job *j) {
    if (!j->touched) {
        j->touched = true;
        j->next_touched = e->touched;
        e->touched = j;
    }
}

/* Remove the choice from the steps in flight, whose results for it are discarded. */
static void leave_steps(lt_engine *e, lt_job_choice *s) {
    for (int i = 0; i < LT_STEPS_QUEUED; i++) {
        if (s->place[i] >= 0) {
            e->steps[i].items[s->place[i]].choice = NULL;
            s->place[i] = -1;
        }
    }
}

static void drop_shadow(lt_engine *e, lt_job_choice *shadow) {
    if (shadow->seq.state != LT_SEQ_IDLE) {
        lt_sched_remove(&e->sched, &shadow->seq);
    }
    leave_steps(e, shadow);
}

void lt_step_finish(lt_engine *e, lt_job_choice *s, lt_finish why, lt_err failure) {
    if (s->finish == LT_FINISH_NONE) {
        lt_job_choice_finish(s, why, failure);
    }
    if (s->seq.state != LT_SEQ_IDLE) {
        lt_sched_remove(&e->sched, &s->seq);
    }
    lt_step_count_draft(e, s);
    e->usual_tokens += s->n_out > 0 ? USUAL * ((double)s->n_out - e->usual_tokens) : 0;
    leave_steps(e, s);
    lt_step_drop_penalties(e, s);
    if (s->job->guide != NULL) {
        drop_shadow(e, &s->job->guide->shadow);
    }
    if (s->job->n_finished == s->job->r.n_choices) {
        s->job->end_s = lt_clock_s();
    }
    lt_step_touch(e, s->job);
}

void lt_step_fail(lt_engine *e, lt_job_choice *s, lt_err failure) {
    lt_job *j = s->job;
    s = j->guide != NULL ? &j->choices[0] : s; /* If a shadow fails, the choice fails. */
    lt_step_finish(e, s, LT_FINISH_FAILED, failure);
    for (int64_t i = 0; i < j->r.n_choices && (!j->forked || j->beam != NULL); i++) {
        lt_step_finish(e, &j->choices[i], LT_FINISH_FAILED, failure);
    }
}

/* Put the leader of a request into the scheduler: its first unfinished choice. */
static void start_leader(lt_engine *e, lt_job *j) {
    for (int64_t i = 0; i < j->r.n_choices; i++) {
        lt_job_choice *s = &j->choices[i];
        if (s->finish == LT_FINISH_NONE) {
            s->started = true;
            lt_engine_bring(e, &s->seq);
            lt_sched_add(&e->sched, &s->seq);
            if (j->guide != NULL) {
                lt_sched_add(&e->sched, &j->guide->shadow.seq);
            }
            return;
        }
    }
}

/* The job ended before it began: remove it from held_back. */
static void let_go(lt_engine *e, const lt_job *j) {
    lt_job **link = &e->held_back;
    e->held_back_last = NULL;
    while (*link != NULL) {
        if (*link == j) {
            *link = j->next;
            e->n_held_back--;
        } else {
            e->held_back_last = *link;
            link = &(*link)->next;
        }
    }
}

/* A beam search is cancelled as a whole, because its choices only continue together. */
static bool beam_cancelled(const lt_job *j) {
    bool any = false;
    for (int64_t i = 0; j->beam != NULL && i < j->r.n_choices; i++) {
        any |= j->choices[i].cancel;
    }
    return any;
}

/* The cancellation of a parked job waits until it begins. */
static void cancel(lt_engine *e, lt_job *j) {
    bool had_leader = false, has_leader = false;
    if (j->parked) {
        return;
    }
    for (int64_t i = 0; i < j->r.n_choices; i++) {
        lt_job_choice *s = &j->choices[i];
        had_leader |= s->started;
        if ((j->cancel || s->cancel || beam_cancelled(j)) && s->finish == LT_FINISH_NONE) {
            lt_step_finish(e, s, LT_FINISH_CANCELLED, LT_OK);
        }
        has_leader |= s->started && s->finish == LT_FINISH_NONE;
    }
    if (!j->forked && had_leader && !has_leader) {
        start_leader(e, j);
    }
    if (!had_leader && j->n_finished == j->r.n_choices) {
        let_go(e, j);
    }
}

void lt_step_begin_parked(lt_engine *e, lt_job *j) {
    start_leader(e, j);
    cancel(e, j);
}

/* Put jobs into the scheduler, or into held_back if the engine is held and they came later. */
static void begin(lt_engine *e, lt_job *submitted, uint64_t last_id) {
    lt_job *j = e->held_back;
    while (e->taken_hold == LT_HOLD_NONE && j != NULL) {
        lt_job *next = j->next;
        start_leader(e, j);
        j = next;
    }
    if (e->taken_hold == LT_HOLD_NONE) {
        e->held_back = e->held_back_last = NULL;
        e->n_held_back = 0;
    }
    for (lt_job *next; submitted != NULL; submitted = next) {
        next = submitted->next;
        if (e->taken_hold == LT_HOLD_NONE || submitted->id <= last_id) {
            if (!lt_engine_park(e, submitted)) {
                start_leader(e, submitted);
            }
        } else {
            submitted->next = NULL;
            *(e->held_back == NULL ? &e->held_back : &e->held_back_last->next) = submitted;
            e->held_back_last = submitted;
            e->n_held_back++;
        }
    }
}

/* The jobs of the list of cancellations as it is now, and what is asked of each; under the lock.
 * Afterwards the front may cancel more of these jobs, and so put them into the list again. */
static lt_job *take_cancelled(lt_engine *e) {
    lt_job *first = e->cancelled;
    for (lt_job *j = first; j != NULL; j = j->next_taken) {
        j->in_cancelled = false;
        j->next_taken = j->next_cancel;
        j->cancel = j->cancel_asked;
        for (int64_t i = 0; i < j->r.n_choices; i++) {
            j->choices[i].cancel = j->choices[i].front.cancel;
        }
    }
    e->cancelled = NULL;
    return first;
}

/* Take the front's requests since the last step. False: the engine must end. */
static bool take_in(lt_engine *e) {
    lt_job *submitted, *cancelled;
    uint64_t last_id;
    bool closing;
    pthread_mutex_lock(&e->lock);
    e->taken_hold = e->hold;
    last_id = e->hold_last_id;
    submitted = e->submitted;
    cancelled = take_cancelled(e);
    e->submitted = e->submitted_last = NULL;
    e->stats.waiting = e->sched.waiting.n + e->n_held_back + e->n_parked + e->n_submitted;
    e->stats.background_waiting = e->sched.waiting.n_background + e->n_submitted_background;
    e->n_submitted = e->n_submitted_background = 0;
    closing = e->closing;
    pthread_mutex_unlock(&e->lock);
    lt_engine_answer(e);
    begin(e, submitted, last_id);
    for (lt_job *j = cancelled; j != NULL; j = j->next_taken) {
        cancel(e, j);
    }
    return !closing;
}

static void fail_step(lt_engine *e, const lt_step *s, lt_err err) {
    lt_log_error("a step of %lld sequences failed: %s", (long long)s->n_items, lt_error_message());
    lt_log_trace();
    for (int64_t i = 0; i < s->n_items; i++) {
        lt_job_choice *choice = s->items[i].choice;
        if (choice != NULL && choice->seq.state != LT_SEQ_BRANCH) {
            lt_step_fail(e, choice, err);
        }
    }
    lt_step_drop_branches(e);
    e->room.n_penalty_states = 0;
}

/* Queue the plan's copies, penalty states and forward pass; then its tokens count. */
static lt_err queue_plan(lt_engine *e, lt_step *s) {
    lt_paged_forward_rows rows;
    lt_step_propose(e);
    LT_TRY(lt_step_lay_out(e, s, &rows));
    for (int64_t i = 0; i < e->sched.n_copies; i++) {
        const lt_page_copy *c = &e->sched.copies[i];
        LT_TRY(lt_paged_forward_copy_page(e->forward, c->dst, c->src));
        LT_TRY(lt_step_copy_page_beside(e, c->dst, c->src));
    }
    LT_TRY(lt_step_begin_penalties(e));
    LT_TRY(lt_paged_forward_run(e->forward, &rows));
    s->usual = s->as_usual = lt_paged_forward_usual(e->forward);
    LT_TRY(lt_step_run_beside(e, s, &rows));
    lt_sched_done(&e->sched);
    return LT_OK;
}

/* Queue the rest of a step once the tokens of the previous one are known: late picks, and the copy
 * of all picks to the host. */
static lt_err queue_rest(lt_engine *e, lt_step *s) {
    if (s->whole || !s->sent) { /* For a step that is not sent, read_step does it. */
        return LT_OK;
    }
    s->whole = true;
    LT_TRY(s->late ? lt_step_choose_late(e, s, 0, s->n_logits) : LT_OK);
    return lt_paged_forward_send_picks(e->forward, s->n_logits);
}

/* Plan a step and queue it. False: there is nothing to run. */
static bool launch(lt_engine *e) {
    lt_step *s = &e->steps[(e->oldest + e->n_queued) % LT_STEPS_QUEUED];
    const bool waited = e->waited;
    lt_err err;
    LT_ASSERT(e->n_queued < LT_STEPS_QUEUED);
    e->waited = false;
    lt_step_draft(e);
    e->sched.pages.now_s = lt_clock_s();
    lt_sched_plan(&e->sched);
    while (e->n_queued == 0 && lt_sched_unblock(&e->sched)) {}
    if (e->sched.n_items == 0) {
        return false;
    }
    err = queue_plan(e, s);
    s->in_vain = waited && s->n_draft == 0 && e->drafter.catch_up_s == 0;
    s->ahead = e->n_queued > 0;
    if (err == LT_OK && (e->n_queued == 0 || !s->late)) {
        err = queue_rest(e, s);
    }
    if (err != LT_OK) {
        fail_step(e, s, err);
        return true;
    }
    e->n_queued++;
    return true;
}

/* Whether the choice continues after its next token without a shift of its context. */
static bool goes_on(const lt_job_choice *choice) {
    return choice != NULL && choice->n_out + 1 < choice->job->r.max_tokens &&
           (choice->shift_at == 0 || choice->seq.n_tokens + 1 < choice->shift_at);
}

/* Allow choices with tokens in flight to be planned as if the tokens were known. */
static void foresee(const lt_step *s) {
    for (int64_t i = 0; i < s->n_logits; i++) {
        lt_job_choice *choice = s->items[s->wanted[i].item].choice;
        if (s->wanted[i].next && goes_on(choice)) {
            choice->seq.n_ahead = 1;
            choice->late = (int32_t)i;
        }
    }
}

static lt_err read_step(lt_engine *e, const lt_step *s) {
    if (s->sent) {
        return lt_step_take(e, s);
    }
    LT_TRY(lt_step_read_beside(e, s));
    for (int64_t i = 0; i < s->n_logits; i += e->out_rows) {
        const int64_t left = s->n_logits - i;
        LT_TRY(lt_step_pick(e, s, i, left < e->out_rows ? left : e->out_rows));
    }
    return lt_step_use_hidden(e, s);
}

/* Discard the work that was queued on the device. */
static void fail_queued(lt_engine *e, lt_err err) {
    for (int i = 0; i < e->n_queued; i++) {
        fail_step(e, &e->steps[(e->oldest + i) % LT_STEPS_QUEUED], err);
    }
    lt_paged_forward_drop(e->forward);
    for (int k = 0; k < e->o.n_beside; k++) {
        lt_paged_forward_drop(e->beside[k].forward);
    }
}

/* Collect the oldest step; then the rest of the next one can be queued. If a step failed, the steps
 * after it have failed, too. */
static void collect(lt_engine *e) {
    const int first = e->oldest;
    lt_err err = read_step(e, &e->steps[first]);
    if (err != LT_OK) {
        fail_queued(e, err);
        e->n_queued = 1;
    }
    for (int64_t i = 0; i < e->steps[first].n_items; i++) {
        lt_job_choice *choice = e->steps[first].items[i].choice;
        if (choice != NULL) {
            choice->place[first] = -1;
        }
    }
    lt_step_count_branches(e);
    lt_step_drop_branches(e);
    e->oldest = (first + 1) % LT_STEPS_QUEUED;
    e->n_queued--;
    err = e->n_queued > 0 ? queue_rest(e, &e->steps[e->oldest]) : LT_OK;
    if (err != LT_OK) {
        fail_queued(e, err);
        e->n_queued = 0;
    }
}

/* Remove a finished job from the list of cancellations, which may have come too late: its memory
 * belongs to the front from now on. */
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
    lt_job_release_adapter(j);
    for (int64_t i = 0; i < j->r.n_choices; i++) {
        n_cancelled += j->choices[i].finish == LT_FINISH_CANCELLED;
        n_failed += j->choices[i].finish == LT_FINISH_FAILED;
    }
    *(n_failed > 0                    ? &e->stats.failed
      : n_cancelled == j->r.n_choices ? &e->stats.cancelled
                                      : &e->stats.finished) += 1;
}

/* The least k with n <= 2^k. */
static int size_class(int64_t n) {
    int k = 0;
    while (k < LT_STEP_SIZES - 1 && ((int64_t)1 << k) < n) {
        k++;
    }
    return k;
}

/* Make changes visible and wake the front. */
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
    st->waiting = e->sched.waiting.n + e->n_held_back + e->n_parked;
    st->background_running = e->sched.running.n_background;
    st->background_waiting = e->sched.waiting.n_background;
    lt_engine_count_pages(e);
    st->steps += n_items > 0;
    st->steps_ahead = e->n_steps_ahead;
    st->drafts = e->n_drafts;
    st->drafted = e->n_drafted;
    st->accepted = e->n_accepted;
    memcpy(st->accepted_at, e->n_accepted_at, sizeof st->accepted_at);
    st->branches = e->n_all_branches;
    st->branch_drafted = e->n_branch_drafted;
    st->branch_accepted = e->n_branch_accepted;
    st->new_tokens = e->n_new_tokens;
    st->prompt_tokens = e->n_prompt_tokens;
    st->cached_tokens = e->n_cached_tokens;
    st->disk_tokens = e->n_disk_tokens;
    st->host_pages = e->host.index.n_used;
    st->host_written = e->host.n_written;
    st->host_read = e->host.n_read;
    st->host_tokens = e->host.n_tokens;
    st->preemptions = e->sched.n_preemptions;
    if (n_items > 0) {
        st->step_s = lt_clock_s() - start_s;
        st->step_tokens = n_rows;
        st->step_sequences = n_items;
        st->steps_of[size_class(n_rows)]++;
        st->steps_tokens += n_rows;
    }
    pthread_mutex_unlock(&e->lock);
    if (news) {
        lt_engine_signal(e);
    }
}

/* Queue the next step ahead of s, the only one in flight, if that is possible and useful. */
static void go_ahead(lt_engine *e, lt_step *s) {
    bool ahead;
    if (!s->sent || s->n_draft > 0 || lt_step_waits(e)) {
        s->usual = s->usual && (s->n_draft > 0 || !e->o.ahead);
        return;
    }
    foresee(s);
    ahead = launch(e);
    e->n_steps_ahead += ahead;
    s->usual = s->usual && s->ahead && ahead;
}

bool lt_engine_step(lt_engine *e) {
    const double start_s = lt_clock_s(), since_s = e->settled_s > 0 ? e->settled_s : start_s;
    lt_step *s = &e->steps[e->oldest];
    int64_t n_items = 0, n_rows = 0;
    bool any;

    e->settled_s = 0;
    if (!take_in(e)) {
        return false;
    }
    if (e->taken_hold == LT_HOLD_TO_PREEMPT) {
        while (e->n_queued > 0) {
            collect(e);
        }
        lt_step_preempt_all(e);
        publish(e, start_s, 0, 0);
        return false;
    }
    any = e->n_queued > 0 || launch(e);
    if (e->n_queued > 0) {
        n_items = s->n_items;
        n_rows = s->n_rows;
        go_ahead(e, s);
        collect(e);
        e->settled_s = lt_clock_s();
        lt_step_settle(e, s, e->settled_s - since_s);
    }
    publish(e, start_s, n_rows, n_items);
    return any;
}

/* step_draft.c: draft tokens of the engine's steps (draft.h). Before the plan it decides how many
 * each running sequence gets, and after the step it counts how many were accepted. Copied drafts
 * are written after the sequence's tokens at once, those of a draft model (step_draft_model.c) when
 * the plan has given them pages. step_branch.c has the branches.
 *
 * On a device a step is usually queued before the tokens of the one before it are known (step.c). A
 * step with drafts is not: it waits for them, and the time in which the device idles is part of the
 * time of such steps. Whether to wait is decided by the drafts that would be chosen for the known
 * tokens; if the next token ends the match, the wait was in vain, and counts as a cost of drafts.
 * The step after one with drafts is not queued ahead, either, and the cost of that is added to the
 * time of the step with drafts. A step is timed from the end of the one before it, because the
 * device hides the host's work between two steps only where steps are queued ahead. */
#include "base/error.h"
#include "serve/engine_impl.h"

#define SHORT (LT_PAGED_FORWARD_FEW - 1) /* Most tokens of a short draft. */
/* Most tokens that the draft model runs together with its first draft token. */
#define BEHIND_MOST 16

bool lt_step_drafts_on_device(const lt_engine *e) {
    return e->o.speculate != LT_SPECULATE_NONE && !e->model->backend->host_memory;
}

/* A device chooses all tokens of a step at once, all in the same way. So a draft ends before a
 * thinking budget does, behind which tokens are forced, and before the first min_tokens tokens are
 * over, behind which the text may end. */
static int64_t most_on_device(const lt_engine *e, const lt_job_choice *s, int64_t most) {
    const lt_request *r = &s->job->r;
    if (!lt_step_on_device(e, s) || s->n_forced >= 0) {
        return 0;
    }
    if (r->think_budget >= 0 && (s->thinking || s->n_out < r->n_think_begin)) {
        const int64_t left = s->thinking ? r->think_budget - (s->n_out - s->think_from) - 1 : 0;
        most = left < most ? left : most;
    }
    if (s->n_out < r->min_tokens && r->min_tokens - s->n_out - 1 < most) {
        most = r->min_tokens - s->n_out - 1;
    }
    return most;
}

/* The most draft tokens that the sequence may have in the next step: none unless that step runs its
 * last token alone, and tokens are chosen from the logits one by one. A draft does not cross the
 * length from which all positions of a text are rotated by other angles. */
static int64_t most_draft(const lt_engine *e, const lt_seq *seq) {
    const lt_job_choice *s = seq->owner;
    const lt_job *j = s->job;
    int64_t most = j->r.max_tokens - s->n_out - 1;
    if (seq->n_done + 1 - e->n_queued != seq->n_tokens || s->n_out == 0 || j->r.embed ||
        j->beam != NULL || j->guide != NULL || j->r.blend.n > 0 || s->shift_at > 0) {
        return 0;
    }
    most = e->model->backend->host_memory ? most : most_on_device(e, s, most);
    if (seq->again_at > 0 && seq->again_at - seq->n_tokens < most) {
        most = seq->again_at - seq->n_tokens;
    }
    most = most < j->r.most_drafts ? most : j->r.most_drafts;
    return most < LT_DRAFT_MOST ? most : LT_DRAFT_MOST;
}

/* ---- Proposers: can they say what follows? They may lower text->most. ---- */

/* Number of matches to find: for the draft and for branches. */
static int most_matches(const lt_engine *e) {
    return e->most_branches == 0     ? 1
           : e->o.draft_branches > 0 ? (int)e->o.draft_branches
                                     : LT_DRAFT_BRANCHES;
}

/* The draft and its branches begin at these positions of `from`, which has n tokens. n 0: `from` is
 * the text itself, and a draft that reaches its end continues itself. */
static void take_matches(lt_job_choice *s, const int32_t *from, int64_t n, const int64_t *at,
                         int n_found) {
    s->draft_from = from + at[0];
    s->n_others = n_found - 1;
    for (int i = 1; i < n_found; i++) {
        s->other[i - 1] = from[at[i]];
        s->other_from[i - 1] = from + at[i];
        s->other_left[i - 1] = n > 0 ? n - at[i] : LT_DRAFT_MOST;
    }
}

static bool look_at_prediction(lt_engine *e, lt_job_choice *s, lt_draft_text *text) {
    const lt_request *r = &s->job->r;
    const int64_t n = s->seq.n_tokens;
    int64_t at[LT_DRAFT_BRANCHES] = {1};
    int n_found = 1;
    if (r->n_predicted == 0) {
        return false;
    }
    if (s->n_out != 1 || s->tokens[n - 1] != r->predicted[0]) {
        n_found = lt_draft_find_all(r->predicted, r->n_predicted, s->tokens, n, most_matches(e),
                                    at);
    }
    if (n_found == 0 || at[0] >= r->n_predicted) {
        return false;
    }
    take_matches(s, r->predicted, r->n_predicted, at, n_found);
    text->most = text->most < r->n_predicted - at[0] ? text->most : r->n_predicted - at[0];
    return true;
}

/* If the match reaches the end of the text, the draft continues itself. */
static bool look_for_ngram(lt_engine *e, lt_job_choice *s, lt_draft_text *text) {
    int64_t at[LT_DRAFT_BRANCHES];
    const int n = lt_draft_find_all(s->tokens, s->seq.n_tokens, s->tokens, s->seq.n_tokens,
                                    most_matches(e), at);
    (void)text;
    if (n > 0) {
        take_matches(s, s->tokens, 0, at, n);
    }
    return n > 0;
}

/* A text that is far behind is considered as if it were not, to see whether catching up pays. */
static bool look_at_model(lt_engine *e, lt_job_choice *s, lt_draft_text *text) {
    const int64_t behind = lt_step_draft_behind(e, &s->seq);
    s->catches_up = behind > BEHIND_MOST;
    text->behind = s->catches_up ? 1 : behind;
    return true;
}

typedef bool (*proposer)(lt_engine *e, lt_job_choice *s, lt_draft_text *text);
static const proposer proposers[] = {[LT_SPECULATE_NONE] = NULL,
                                     [LT_SPECULATE_NGRAM] = look_for_ngram,
                                     [LT_SPECULATE_MODEL] = look_at_model,
                                     [LT_SPECULATE_HEAD] = look_at_model};

/* Texts that may have drafts, and their choices; the rows of the step without drafts; the share of
 * time that drafts save a token. */
typedef struct {
    lt_draft_text text[LT_DRAFT_ROWS];
    lt_job_choice *choice[LT_DRAFT_ROWS];
    int64_t n, n_rows;
    double saved;
} candidates;

static void consider(lt_engine *e, lt_job_choice *s, candidates *c) {
    const proposer own = proposers[e->o.speculate];
    lt_draft_text text = {.own = &s->acceptance, .most = most_draft(e, &s->seq)};
    if (text.most > 0 && (look_at_prediction(e, s, &text) || (own != NULL && own(e, s, &text)))) {
        text.all = &e->acceptance[s->draft_from == NULL];
        text.runs = &e->runs[s->draft_from == NULL];
        text.own_others = &s->others;
        text.all_others = &e->others[s->draft_from == NULL];
        text.n_others = !lt_step_may_branch(e, s) ? 0
                        : s->draft_from != NULL   ? s->n_others
                                                  : most_matches(e) - 1;
        text.run = s->run;
        text.pace = s->pace;
        c->choice[c->n] = s;
        c->text[c->n++] = text;
    }
}

/* Draft as many tokens as the options say, in order, while there is room. */
static void choose_fixed(const lt_engine *e, candidates *c) {
    /* first: number of rows of the first call. */
    int64_t room = LT_DRAFT_ROWS - c->n_rows, first = LT_DRAFT_ROWS;
    for (int64_t i = 0; i < c->n; i++) {
        lt_draft_text *t = &c->text[i];
        const int64_t most = t->behind > first ? 0 : t->most < room ? t->most : room;
        t->n = most < e->o.draft_tokens ? most : e->o.draft_tokens;
        room -= t->n;
        first -= t->n > 0 ? t->behind : 0;
    }
}

/* Each draft gets as many branches of its length as the options say, while there is room. */
static void branch_fixed(const lt_engine *e, candidates *c) {
    int64_t room = LT_DRAFT_ROWS - c->n_rows, first = LT_DRAFT_ROWS, left = e->most_branches;
    for (int64_t i = 0; i < c->n; i++) {
        room -= c->text[i].n;
        first -= c->text[i].n > 0 ? c->text[i].behind : 0;
    }
    for (int64_t i = 0; i < c->n; i++) {
        lt_draft_text *t = &c->text[i];
        for (int k = 0;
             k < t->n_others && t->n > 0 && left > 0 && t->n < room && t->behind <= first;
             k++, left--) {
            t->branch[k] = t->n;
            room -= t->n + 1;
            first -= t->behind;
        }
    }
}

/* The draft model is far behind the text, as after its prompt. Does it pay to catch up? Drafts save
 * a share of the time of each token that may still come; the step's time is that of all its
 * rows. */
static bool pays_to_catch_up(const lt_engine *e, const lt_job_choice *s, const candidates *c) {
    const int64_t behind = lt_step_draft_behind(e, &s->seq);
    const double left = (double)(s->job->r.max_tokens - s->n_out);
    const double more = left < e->usual_tokens ? left : e->usual_tokens;
    return e->o.draft_tokens > 0 ||
           (double)behind * e->drafter.row_s <= more * c->saved * e->plain_s / (double)c->n_rows;
}

/* On a device the times of steps with drafts include a wait, so they are kept separate; and steps
 * with short drafts run fewer rows per text than others. */
static lt_draft_known known_times(const lt_engine *e) {
    const bool host = e->model->backend->host_memory;
    return (lt_draft_known){.plain = &e->times[0],
                            .drafted = {&e->times[host ? 0 : 1], &e->times[host ? 0 : 2]},
                            .few = host ? LT_DRAFT_MOST : SHORT,
                            .model = &e->drafter.times,
                            .model_layers = e->drafter.n_layers,
                            .most_branches = e->o.draft_branches == 0 ? e->most_branches : 0};
}

/* Examine all running texts, and choose the drafts of the next step. */
static void look(lt_engine *e, candidates *c) {
    bool is_small;
    c->n = c->n_rows = 0;
    c->saved = 0;
    for (lt_seq *seq = e->sched.running.first; seq != NULL; seq = seq->next) {
        lt_job_choice *s = seq->owner;
        const bool pauses = lt_sched_pauses(&e->sched, seq);
        seq->n_draft = s->n_drawn = 0;
        seq->branches = NULL;
        s->draft_from = NULL;
        s->n_others = s->n_tried = 0;
        s->catches_up = false;
        c->n_rows += pauses ? 0 : seq->n_tokens + e->n_queued - seq->n_done;
        if (!pauses && c->n < LT_DRAFT_ROWS) {
            consider(e, s, c);
        }
    }
    is_small = c->n > 0 && c->n_rows < LT_DRAFT_ROWS;
    e->plain_s = lt_draft_times_of(&e->times[0], c->n_rows);
    if (is_small && e->o.draft_tokens > 0) {
        choose_fixed(e, c);
    } else if (is_small && e->account.balance >= 0) {
        const lt_draft_known known = known_times(e);
        c->saved = lt_draft_choose(&known, c->n_rows, c->text, c->n);
    }
    if (is_small && e->o.draft_branches > 1) {
        branch_fixed(e, c);
    }
    for (int64_t i = 0; i < c->n; i++) {
        lt_job_choice *s = c->choice[i];
        if (s->catches_up) {
            s->catches_up = c->text[i].n > 0 && pays_to_catch_up(e, s, c);
            c->text[i].n = 0;
        }
    }
}

/* Make branches of a chosen draft; a copied one is at most as long as its source. */
static void branch(lt_engine *e, lt_job_choice *s, const lt_draft_text *t) {
    for (int k = 0; k < t->n_others && t->n > 0 && t->branch[k] > 0; k++) {
        const int64_t left = s->draft_from != NULL ? s->other_left[k] : LT_DRAFT_MOST;
        lt_step_branch_off(e, s, k, t->branch[k] < left ? t->branch[k] : left);
    }
}

bool lt_step_waits(lt_engine *e) {
    candidates c;
    if (!lt_step_drafts_on_device(e) || (e->o.draft_tokens == 0 && e->account.balance < 0)) {
        return false;
    }
    look(e, &c);
    for (int64_t i = 0; i < c.n && !e->waited; i++) {
        e->waited = c.text[i].n > 0 || c.choice[i]->catches_up;
    }
    return e->waited;
}

/* After tokens in flight there are no drafts. */
void lt_step_draft(lt_engine *e) {
    candidates c;
    if (!e->model->backend->host_memory && (!lt_step_drafts_on_device(e) || e->n_queued > 0)) {
        return;
    }
    look(e, &c);
    for (int64_t i = 0; i < c.n; i++) {
        lt_job_choice *s = c.choice[i];
        const lt_draft_text *t = &c.text[i];
        s->seq.n_draft = t->n;
        for (int64_t k = 0; k < t->n && s->draft_from != NULL; k++) {
            s->tokens[s->seq.n_tokens + k] = s->draft_from[k];
        }
        branch(e, s, t);
    }
}

/* If a branch was accepted, the draft's first token was wrong. */
void lt_step_count_draft(lt_engine *e, lt_job_choice *c) {
    const int64_t n = c->n_first, all = c->n_draft - c->n_unchecked,
                  accepted = c->branch >= 0 && n > 0 ? 0 : all;
    const int from = c->draft_from == NULL;
    const lt_draft_text text = {.own = &c->acceptance,
                                .all = &e->acceptance[from],
                                .runs = &e->runs[from],
                                .run = c->run,
                                .n = n};
    c->run = lt_draft_run_after(&text, accepted);
    c->pace = c->n_out > 0 ? lt_draft_pace_after(c->pace, all + 1) : 0;
    lt_draft_runs_note(&e->runs[from], &text, accepted);
    c->n_verified += n + c->n_in_branches;
    c->n_accepted += all;
    c->n_draft = c->n_unchecked = c->n_first = c->n_in_branches = 0;
    e->n_drafts += n > 0;
    e->n_drafted += n;
    e->n_accepted += all;
    e->n_branch_accepted += all - accepted;
    for (int64_t i = 0; i < all; i++) {
        e->n_accepted_at[i]++;
    }
    lt_draft_acceptance_note(&c->acceptance, LT_DRAFT_KEPT, n, accepted);
    if (n > 0) {
        lt_draft_acceptance_note(&e->acceptance[from], LT_DRAFT_KEPT_ALL, n, accepted);
        e->step_drafted += n;
        e->step_accepted += all;
    }
}

/* How much longer a step without drafts took because it could not be queued ahead: it follows one
 * with drafts, or waited for drafts and got none. */
static double longer_by_drafts(const lt_engine *e, const lt_step *s, double seconds) {
    const bool by_drafts = e->behind_drafts || s->in_vain;
    if (e->model->backend->host_memory || !by_drafts || s->n_draft > 0 || s->ahead ||
        !s->as_usual || !lt_draft_times_know(&e->times[0], s->n_rows)) {
        return 0;
    }
    return seconds > e->plain_s ? seconds - e->plain_s : 0;
}

static void note_times(lt_engine *e, const lt_step *s, double seconds, double longer_s) {
    const bool plain = s->n_draft == 0 && s->usual;
    if (e->model->backend->host_memory) {
        lt_draft_times_note(&e->times[0], s->n_rows, seconds);
        return;
    }
    /* A note of 0 rows only ages what is known. */
    for (int i = 1; i <= 2; i++) {
        lt_draft_times_note(&e->times[i], e->held_long == (i == 2) ? e->held_rows : 0,
                            e->held_s + longer_s);
    }
    lt_draft_times_note(&e->times[0], plain ? s->n_rows : 0, seconds);
    e->behind_drafts = s->n_draft > 0;
    e->held_rows = s->n_draft > 0 && s->usual ? s->n_rows : 0;
    e->held_long = s->longest > SHORT;
    e->held_s = seconds;
}

/* The times of the step and what its drafts gained. */
static void keep_account(lt_engine *e, const lt_step *s, double seconds) {
    const double longer_s = longer_by_drafts(e, s, seconds);
    const bool host = e->model->backend->host_memory,
               costs = longer_s > 0 ||
                       ((s->usual || host) && !e->drafter.recorded && e->step_drafted > 0);
    const int64_t n_plain = s->n_rows - e->step_drafted;
    note_times(e, s, seconds - e->drafter.seconds, longer_s);
    lt_draft_account_borrow(&e->account, e->drafter.catch_up_s, e->plain_s);
    if (s->n_draft > 0 && (!s->as_usual || e->drafter.recorded)) {
        e->n_unusual++;
        e->unusual_s += seconds - e->plain_s;
    }
    lt_draft_account_note(&e->account, costs, seconds - e->drafter.catch_up_s, e->plain_s,
                          e->step_accepted, n_plain > 0 ? n_plain : 1);
    if (e->step_drafted == 0) { /* This only ages what is known. */
        lt_draft_acceptance_note(&e->acceptance[0], LT_DRAFT_KEPT_ALL, 0, 0);
        lt_draft_acceptance_note(&e->acceptance[1], LT_DRAFT_KEPT_ALL, 0, 0);
        lt_draft_times_note(&e->drafter.times, 0, 0);
    }
    e->step_drafted = e->step_accepted = 0;
    e->drafter.seconds = e->drafter.catch_up_s = e->plain_s = 0;
    e->drafter.recorded = false;
}

void lt_step_settle(lt_engine *e, const lt_step *s, double seconds) {
    if (!e->model->backend->host_memory && !lt_step_drafts_on_device(e)) {
        return;
    }
    for (int64_t i = 0; i < s->n_items; i++) {
        lt_job_choice *c = s->items[i].choice;
        if (c == NULL) { /* It has ended, and was counted before. */
            continue;
        }
        if (c->n_unchecked > 0) { /* Its penalty state counts rejected tokens. */
            lt_step_drop_penalties(e, c);
        }
        lt_step_count_draft(e, c);
        if (c->seq.n_draft > 0 && c->draft_from == NULL) {
            lt_step_draft_cut(e, &c->seq);
        }
        c->seq.n_draft = 0;
    }
    keep_account(e, s, seconds);
}

/* step_draft.c: draft tokens of the engine's steps (draft.h): before the plan it is decided which
 * running sequences get how many, after the step it is counted how many were accepted. What is
 * copied is written behind the sequence's tokens at once, what a draft model says
 * (step_draft_model.c) when the plan has given it pages. */
#include "base/error.h"
#include "serve/engine_impl.h"

#define BEHIND_MOST 16 /* Tokens that the draft model runs together with its first draft token. */

/* Draft tokens that the sequence may have at most. Where the host chooses tokens from the
 * logits, one by one; not over the length from which a text is rotated otherwise. */
static int64_t most_draft(const lt_seq *seq) {
    const lt_job_choice *s = seq->owner;
    const lt_job *j = s->job;
    int64_t most = j->r.max_tokens - s->n_out - 1;
    if (seq->n_done + 1 != seq->n_tokens || s->n_out == 0 || j->r.embed || j->beam != NULL ||
        j->guide != NULL || j->r.blend.n > 0 || s->shift_at > 0) {
        return 0;
    }
    if (seq->again_at > 0 && seq->again_at - seq->n_tokens < most) {
        most = seq->again_at - seq->n_tokens;
    }
    most = most < j->r.most_drafts ? most : j->r.most_drafts;
    return most < LT_DRAFT_MOST ? most : LT_DRAFT_MOST;
}

/* ---- Proposers: can they say what follows? They may lower text->most. ---- */

static bool look_at_prediction(lt_engine *e, lt_job_choice *s, lt_draft_text *text) {
    const lt_request *r = &s->job->r;
    const int64_t n = s->seq.n_tokens;
    int64_t match;
    (void)e;
    if (r->n_predicted == 0) {
        return false;
    }
    match = s->n_out == 1 && s->tokens[n - 1] == r->predicted[0]
                ? 1
                : lt_draft_find_in(r->predicted, r->n_predicted, s->tokens, n);
    if (match < 0 || match >= r->n_predicted) {
        return false;
    }
    s->draft_from = r->predicted + match;
    text->most = text->most < r->n_predicted - match ? text->most : r->n_predicted - match;
    return true;
}

/* Where the match reaches the end of the text, the draft continues itself. */
static bool look_for_ngram(lt_engine *e, lt_job_choice *s, lt_draft_text *text) {
    const int64_t match = lt_draft_find(s->tokens, s->seq.n_tokens);
    (void)e;
    (void)text;
    s->draft_from = match >= 0 ? s->tokens + match : NULL;
    return match >= 0;
}

/* A text that is far behind is chosen as if it were not, to see whether it pays to catch up. */
static bool look_at_model(lt_engine *e, lt_job_choice *s, lt_draft_text *text) {
    const int64_t behind = s->seq.n_tokens - lt_step_draft_known(e, &s->seq);
    s->catches_up = behind > BEHIND_MOST;
    text->behind = s->catches_up ? 1 : behind;
    return true;
}

typedef bool (*proposer)(lt_engine *e, lt_job_choice *s, lt_draft_text *text);
static const proposer proposers[] = {[LT_SPECULATE_NONE] = NULL,
                                     [LT_SPECULATE_NGRAM] = look_for_ngram,
                                     [LT_SPECULATE_MODEL] = look_at_model};

/* Texts that may have drafts, and their choices. */
typedef struct {
    lt_draft_text text[LT_DRAFT_ROWS];
    lt_job_choice *choice[LT_DRAFT_ROWS];
    int64_t n;
} candidates;

static void consider(lt_engine *e, lt_job_choice *s, candidates *c) {
    const proposer own = proposers[e->o.speculate];
    lt_draft_text text = {.own = &s->acceptance, .most = most_draft(&s->seq)};
    if (text.most > 0 && (look_at_prediction(e, s, &text) || (own != NULL && own(e, s, &text)))) {
        text.all = &e->acceptance[s->draft_from == NULL];
        c->choice[c->n] = s;
        c->text[c->n++] = text;
    }
}

/* As many as the options say, in order, while there is room. */
static void choose_fixed(const lt_engine *e, int64_t n_rows, candidates *c) {
    int64_t room = LT_DRAFT_ROWS - n_rows, first = LT_DRAFT_ROWS; /* first: of the first call. */
    for (int64_t i = 0; i < c->n; i++) {
        lt_draft_text *t = &c->text[i];
        const int64_t most = t->behind > first ? 0 : t->most < room ? t->most : room;
        t->n = most < e->o.draft_tokens ? most : e->o.draft_tokens;
        room -= t->n;
        first -= t->n > 0 ? t->behind : 0;
    }
}

/* The draft model is far behind the text, as after its prompt. Does it pay to catch up? Drafts save
 * a share of the time of each token that may still come; the step's time is that of all its
 * rows. */
static bool pays_to_catch_up(const lt_engine *e, const lt_job_choice *s, double saved,
                             int64_t n_rows) {
    const int64_t behind = s->seq.n_tokens - lt_step_draft_known(e, &s->seq);
    const double left = (double)(s->job->r.max_tokens - s->n_out);
    const double more = left < e->usual_tokens ? left : e->usual_tokens;
    return e->o.draft_tokens > 0 ||
           (double)behind * e->drafter.row_s <= more * saved * e->plain_s / (double)n_rows;
}

void lt_step_draft(lt_engine *e) {
    candidates c = {.n = 0};
    int64_t n_rows = 0;
    double saved = 0;
    if (!e->model->backend->host_memory) {
        return;
    }
    for (lt_seq *seq = e->sched.running.first; seq != NULL; seq = seq->next) {
        lt_job_choice *s = seq->owner;
        const bool pauses = lt_sched_pauses(&e->sched, seq);
        seq->n_draft = s->n_drawn = 0;
        s->draft_from = NULL;
        s->catches_up = false;
        n_rows += pauses ? 0 : seq->n_tokens - seq->n_done;
        if (!pauses && c.n < LT_DRAFT_ROWS) {
            consider(e, s, &c);
        }
    }
    if (c.n == 0 || n_rows >= LT_DRAFT_ROWS) {
        return;
    }
    e->plain_s = lt_draft_times_of(&e->times, n_rows);
    if (e->o.draft_tokens > 0) {
        choose_fixed(e, n_rows, &c);
    } else if (e->account.balance >= 0) {
        saved = lt_draft_choose(&e->times, &e->drafter.times, n_rows, c.text, c.n);
    }
    for (int64_t i = 0; i < c.n; i++) {
        lt_job_choice *s = c.choice[i];
        const lt_draft_text *t = &c.text[i];
        if (s->catches_up) {
            s->catches_up = t->n > 0 && pays_to_catch_up(e, s, saved, n_rows);
            continue;
        }
        s->seq.n_draft = t->n;
        for (int64_t k = 0; k < t->n && s->draft_from != NULL; k++) {
            s->tokens[s->seq.n_tokens + k] = s->draft_from[k];
        }
    }
}

void lt_step_count_draft(lt_engine *e, lt_job_choice *c) {
    const int64_t n = c->n_draft, accepted = n - c->n_unchecked;
    c->n_draft = c->n_unchecked = 0;
    c->n_verified += n;
    c->n_accepted += accepted;
    e->n_drafts += n > 0;
    e->n_drafted += n;
    e->n_accepted += accepted;
    for (int64_t i = 0; i < accepted; i++) {
        e->n_accepted_at[i]++;
    }
    lt_draft_acceptance_note(&c->acceptance, LT_DRAFT_KEPT, n, accepted);
    if (n > 0) {
        lt_draft_acceptance_note(&e->acceptance[c->draft_from == NULL], LT_DRAFT_KEPT_ALL, n,
                                 accepted);
        e->step_drafted += n;
        e->step_accepted += accepted;
    }
}

/* The times of the step and what its drafts gained. */
static void keep_account(lt_engine *e, int64_t n_rows, double seconds) {
    const int64_t n_plain = n_rows - e->step_drafted;
    lt_draft_times_note(&e->times, n_rows, seconds - e->drafter.seconds);
    lt_draft_account_borrow(&e->account, e->drafter.catch_up_s, e->plain_s);
    lt_draft_account_note(&e->account, e->step_drafted > 0, seconds - e->drafter.catch_up_s,
                          e->plain_s, e->step_accepted, n_plain > 0 ? n_plain : 1);
    if (e->step_drafted == 0) { /* What is known gets older. */
        lt_draft_acceptance_note(&e->acceptance[0], LT_DRAFT_KEPT_ALL, 0, 0);
        lt_draft_acceptance_note(&e->acceptance[1], LT_DRAFT_KEPT_ALL, 0, 0);
        lt_draft_times_note(&e->drafter.times, 0, 0);
    }
    e->step_drafted = e->step_accepted = 0;
    e->drafter.seconds = e->drafter.catch_up_s = e->plain_s = 0;
}

void lt_step_settle(lt_engine *e, const lt_step *s, double seconds) {
    if (!e->model->backend->host_memory) {
        return;
    }
    for (int64_t i = 0; i < s->n_items; i++) {
        lt_job_choice *c = s->items[i].choice;
        if (c == NULL) { /* It has ended, and was counted then. */
            continue;
        }
        lt_step_count_draft(e, c);
        if (c->seq.n_draft > 0 && c->draft_from == NULL) {
            lt_step_draft_cut(e, &c->seq);
        }
        c->seq.n_draft = 0;
    }
    keep_account(e, s->n_rows, seconds);
}

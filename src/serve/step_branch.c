/* step_branch.c: branches of drafts (draft.h): other drafts of a text in the same step.
 *
 *     lt_step_draft ─▶ branch_off: a copy of the choice with a sequence of its own
 *     plan          ─▶ pages (scheduler.h)
 *     propose       ─▶ a draft model or head writes the branch's tokens (step_draft_model.c)
 *     lay out       ─▶ rows like any other's; the item's choice is then NULL
 *     collect       ─▶ miss: the next token is not the draft's first one. If it is that of a
 *                      branch, the pages, rows and tokens of the branch become those of the
 *                      choice, and its other tokens are verified like those of any draft
 *     step's end    ─▶ all are dropped
 *
 * Only one step is in flight while branches exist, because none is queued ahead of one with drafts.
 * A text has no branches if a device chooses its tokens with a grammar, a budget or penalties,
 * which the host sets row by row, or if a draft model or head drafts it with a grammar, because a
 * choice has only one state of its grammar for drafts. */
#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "serve/engine_impl.h"

#define MOST_BRANCHES 16 /* Of a step. */
/* Number of last tokens that a draft may read. */
#define COPIED (LT_DRAFT_ROWS + LT_DRAFT_MOST)

lt_err lt_step_size_branches(lt_engine *e) {
    const bool able = e->model->backend->host_memory || !lt_engine_has_drafter(e);
    const bool may = able && e->o.speculate != LT_SPECULATE_NONE && e->o.draft_branches != 1;
    const int64_t each = e->o.draft_branches > 0 ? e->o.draft_branches - 1 : LT_DRAFT_OTHERS;
    const int64_t all = e->o.max_running < MOST_BRANCHES ? e->o.max_running * each : MOST_BRANCHES;
    e->most_branches = !may ? 0 : all < MOST_BRANCHES ? all : MOST_BRANCHES;
    e->sched.max_branches = e->most_branches;
    if (!able && e->o.draft_branches > 1) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "engine: %lld drafts of a text in a step, made by a draft model or head on %s: "
                "only a CPU can, or with drafts that are copied (speculate ngram)",
                (long long)e->o.draft_branches, e->model->backend->name);
    }
    return LT_OK;
}

void lt_step_carve_branches(lt_engine *e, lt_arena *a) {
    const size_t tokens = (size_t)(e->o.max_seq + LT_DRAFT_MOST),
                 pages = (size_t)(e->max_pages * lt_pages_groups(&e->sched.pages));
    e->branches = lt_arena_take(a, (size_t)e->most_branches * sizeof *e->branches, LT_ARENA_ALIGN);
    for (int64_t i = 0; i < e->most_branches; i++) {
        lt_step_branch dummy, *b = e->branches != NULL ? &e->branches[i] : &dummy;
        b->tokens = lt_arena_take(a, tokens * sizeof *b->tokens, LT_ARENA_ALIGN);
        b->table = lt_arena_take(a, pages * sizeof *b->table, LT_ARENA_ALIGN);
    }
}

bool lt_step_may_branch(const lt_engine *e, const lt_job_choice *s) {
    const bool by_host = s->draft_from == NULL && s->grammar != NULL;
    return e->most_branches > 0 && !by_host &&
           (e->model->backend->host_memory || (!lt_job_choice_is_late(s) && !lt_step_counts(s)));
}

/* Copy the draft of a branch: if the match reaches the end of the text, the draft continues
 * itself. */
static void copy_draft(const lt_job_choice *s, lt_step_branch *b, int64_t n) {
    const int32_t *from = s->other_from[b->number];
    const bool own = from >= s->tokens && from < s->tokens + s->seq.n_tokens;
    for (int64_t k = 0; k < n; k++) {
        const int64_t at = own ? from - s->tokens + k : -1;
        b->tokens[s->seq.n_tokens + k] = at >= s->seq.n_tokens ? b->tokens[at] : from[k];
    }
}

void lt_step_branch_off(lt_engine *e, lt_job_choice *s, int number, int64_t n) {
    const int64_t n_tokens = s->seq.n_tokens, from = n_tokens > COPIED ? n_tokens - COPIED : 0;
    lt_step_branch *b = &e->branches[e->n_branches];
    lt_seq **link = &s->seq.branches;
    if (e->n_branches == e->most_branches || n < 1) {
        return;
    }
    e->n_branches++;
    memcpy(&b->as, s, offsetof(lt_job_choice, front));
    b->of = s;
    b->number = number;
    b->begins = s->draft_from != NULL;
    b->step = NULL;
    b->item = -1;
    b->as.tokens = b->tokens;
    b->as.catches_up = false;
    b->as.seq = (lt_seq){.tokens = b->tokens,
                         .n_tokens = n_tokens,
                         .n_draft = n,
                         .table = b->table,
                         .long_text = s->seq.long_text,
                         .owner = &b->as};
    memcpy(b->tokens + from, s->tokens + from, (size_t)(n_tokens - from) * sizeof *b->tokens);
    if (b->begins) {
        copy_draft(s, b, n);
    }
    while (*link != NULL) {
        link = &(*link)->next_branch;
    }
    *link = &b->as.seq;
}

lt_step_branch *lt_step_branch_of(const lt_sched_item *item) {
    lt_job_choice *as = item->seq->owner;
    return item->seq->state == LT_SEQ_BRANCH ? (lt_step_branch *)(void *)as : NULL;
}

static void note_others(lt_engine *e, lt_job_choice *s, int32_t id) {
    int right = 0;
    while (right < s->n_others && s->other[right] != id) {
        right++;
    }
    lt_draft_others_note(&s->others, LT_DRAFT_KEPT, s->n_others, right);
    lt_draft_others_note(&e->others[s->draft_from == NULL], LT_DRAFT_KEPT_ALL, s->n_others, right);
}

/* The rows of the branch become those of the choice, and the others are discarded. */
static void adopt(lt_engine *e, lt_job_choice *s, lt_step_branch *b) {
    const int64_t n = s->seq.n_tokens, place = b->step - e->steps;
    LT_ASSERT(b->step->items[b->item].choice == NULL && s->place[place] >= 0);
    b->step->items[s->place[place]].choice = NULL;
    b->step->items[b->item].choice = s;
    s->place[place] = (int32_t)b->item;
    lt_sched_adopt(&e->sched, &s->seq, &b->as.seq);
    s->n_draft = s->n_unchecked = b->as.n_draft;
    s->branch = b->number;
    s->proposed = b->as.proposed;
    s->n_drawn = b->as.n_drawn;
    memcpy(s->tokens + n, b->tokens + n, (size_t)s->n_draft * sizeof *s->tokens);
}

void lt_step_miss(lt_engine *e, lt_job_choice *s, int32_t id) {
    if (s->branch >= 0) {
        return;
    }
    note_others(e, s, id);
    for (int64_t i = 0; i < e->n_branches; i++) {
        lt_step_branch *b = &e->branches[i];
        if (b->of == s && b->item >= 0 && b->begins && b->tokens[s->seq.n_tokens] == id) {
            adopt(e, s, b);
            return;
        }
    }
}

void lt_step_count_branches(lt_engine *e) {
    for (int64_t i = 0; i < e->n_branches; i++) {
        const lt_step_branch *b = &e->branches[i];
        if (b->item >= 0) {
            e->n_all_branches++;
            e->n_branch_drafted += b->as.n_draft;
            e->n_drafted += b->as.n_draft;
            e->step_drafted += b->as.n_draft + 1;
        }
    }
}

void lt_step_drop_branches(lt_engine *e) {
    lt_sched_drop_branches(&e->sched);
    e->n_branches = 0;
}

/* scheduler.c: see scheduler.h. */
#include "serve/scheduler.h"

#include <string.h>

#include "base/error.h"

void lt_sched_carve(lt_sched *s, lt_arena *a) {
    const int64_t most = s->max_running + s->max_branches;
    LT_ASSERT(s->max_running > 0 && s->step_tokens >= s->max_running && s->max_branches >= 0);
    lt_pages_carve(&s->pages, a);
    s->items = lt_arena_take(a, (size_t)most * sizeof *s->items, LT_ARENA_ALIGN);
    s->copies = lt_arena_take(a, (size_t)(most * lt_pages_groups(&s->pages)) * sizeof *s->copies,
                              LT_ARENA_ALIGN);
}

void lt_sched_reset(lt_sched *s) {
    lt_pages_reset(&s->pages);
    s->running = s->waiting = (lt_seq_list){0};
    s->branches = NULL;
    s->n_items = s->n_copies = s->n_rows = 0;
    s->n_steps = s->n_added = s->n_preemptions = 0;
}

static bool before(const lt_seq *a, const lt_seq *b) {
    if (a->background != b->background) {
        return b->background;
    }
    return a->key != b->key ? a->key < b->key : a->serial < b->serial;
}

/* Insert it in order, searching from the end, where the newest belong. */
static void insert(lt_seq_list *list, lt_seq *seq) {
    lt_seq *after = list->last;
    while (after != NULL && before(seq, after)) {
        after = after->prev;
    }
    seq->prev = after;
    seq->next = after == NULL ? list->first : after->next;
    *(after == NULL ? &list->first : &after->next) = seq;
    *(seq->next == NULL ? &list->last : &seq->next->prev) = seq;
    list->n++;
    list->n_background += seq->background;
}

static void take_out(lt_seq_list *list, lt_seq *seq) {
    *(seq->prev == NULL ? &list->first : &seq->prev->next) = seq->next;
    *(seq->next == NULL ? &list->last : &seq->next->prev) = seq->prev;
    seq->prev = seq->next = NULL;
    list->n--;
    list->n_background -= seq->background;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t pages_for(const lt_sched *s, int64_t n_tokens) {
    return (n_tokens + s->pages.page_tokens - 1) / s->pages.page_tokens;
}

/* Pages besides those of a window and a step: a partial page at both ends, and the last published
 * page together with the next, unpublished one. */
#define PAGES_BESIDE 3

int64_t lt_sched_near_pages(const lt_sched *s, int64_t n_tokens) {
    return least(pages_for(s, n_tokens),
                 pages_for(s, s->pages.window + s->step_tokens) + PAGES_BESIDE);
}

int64_t lt_sched_most_pages(const lt_sched *s, int64_t n_tokens) {
    return s->pages.n_full * pages_for(s, n_tokens) +
           s->pages.n_windowed * lt_sched_near_pages(s, n_tokens);
}

int64_t lt_sched_longest(const lt_sched *s, int64_t n_pages) {
    const lt_pages *p = &s->pages;
    const int64_t near = pages_for(s, p->window + s->step_tokens) + PAGES_BESIDE;
    int64_t sets = n_pages / lt_pages_groups(p);
    if (p->n_full > 0 && p->n_windowed > 0 && sets > near) {
        sets = (n_pages - p->n_windowed * near) / p->n_full;
    }
    return sets * p->page_tokens;
}

static void drop_pages(lt_sched *s, lt_seq *seq) {
    lt_pages_drop_text(&s->pages, seq->table, seq->n_behind, seq->n_pages);
    seq->n_pages = seq->n_behind = seq->n_done = seq->n_published = 0;
}

/* Return the pages that no row from n_done on reads. */
static void drop_behind(lt_sched *s, lt_seq *seq) {
    const lt_pages *p = &s->pages;
    int64_t end = least(lt_pages_behind(p, seq->n_done), seq->n_pages);
    if (s->caching) {
        end = least(end, seq->n_published - 1);
    }
    for (; seq->n_behind < end; seq->n_behind++) {
        for (int64_t g = p->n_full; g < lt_pages_groups(p); g++) {
            lt_pages_drop(&s->pages, seq->table[seq->n_behind * lt_pages_groups(p) + g]);
        }
    }
}

/* Give a sequence its place in the order, followed by its family. */
static void place(lt_sched *s, lt_seq *seq, int64_t key) {
    const lt_seq *first = seq->family;
    if (first != NULL && first->placed) {
        seq->key = first->key;
        seq->serial = first->serial + seq->member;
        return;
    }
    LT_ASSERT(first == NULL || first == seq);
    seq->key = key;
    seq->serial = s->n_added;
    seq->placed = true;
    s->n_added += first != NULL ? seq->n_members : 1;
}

void lt_sched_add(lt_sched *s, lt_seq *seq) {
    LT_ASSERT(seq->state == LT_SEQ_IDLE && seq->n_tokens > 0);
    LT_ASSERT(lt_sched_most_pages(s, seq->n_tokens) <= s->pages.n_pages);
    place(s, seq, s->n_steps - (int64_t)seq->priority * LT_SCHED_AGE);
    seq->n_done = seq->n_pages = seq->n_published = seq->n_cached = seq->n_preempted = 0;
    seq->n_behind = 0;
    seq->n_ahead = seq->n_draft = 0;
    seq->branches = NULL;
    seq->state = LT_SEQ_WAITING;
    insert(&s->waiting, seq);
}

bool lt_sched_fork(lt_sched *s, const lt_seq *seq, lt_seq *child) {
    LT_ASSERT(seq->state == LT_SEQ_RUNNING && child->state == LT_SEQ_IDLE);
    LT_ASSERT(child->n_tokens >= seq->n_done && seq->n_ahead == 0 && child->n_ahead == 0);
    if (s->running.n == s->max_running) {
        return false;
    }
    memcpy(child->table, seq->table,
           (size_t)(seq->n_pages * lt_pages_groups(&s->pages)) * sizeof *seq->table);
    lt_pages_hold_text(&s->pages, seq->table, seq->n_behind, seq->n_pages);
    place(s, child, seq->key);
    child->n_done = seq->n_done;
    child->n_pages = seq->n_pages;
    child->n_behind = seq->n_behind;
    child->n_published = seq->n_published;
    child->n_cached = seq->n_cached;
    child->n_preempted = 0;
    child->long_text = seq->long_text;
    child->again_at = seq->again_at;
    child->state = LT_SEQ_RUNNING;
    insert(&s->running, child);
    return true;
}

void lt_sched_remove(lt_sched *s, lt_seq *seq) {
    LT_ASSERT(seq->state != LT_SEQ_IDLE);
    take_out(seq->state == LT_SEQ_RUNNING ? &s->running : &s->waiting, seq);
    drop_pages(s, seq);
    seq->state = LT_SEQ_IDLE;
}

/* Long texts have other rotations, so they share no pages with short ones. */
#define LONG_TEXT UINT64_C(0x4C4F4E4754455854)
static uint64_t salt_of(const lt_seq *seq) {
    return seq->long_text ? seq->salt ^ LONG_TEXT : seq->salt;
}

static void preempt(lt_sched *s, lt_seq *seq) {
    take_out(&s->running, seq);
    drop_pages(s, seq);
    seq->n_preempted++;
    seq->n_draft = 0;
    seq->branches = NULL;
    s->n_preemptions++;
    seq->state = LT_SEQ_WAITING;
    insert(&s->waiting, seq);
}

void lt_sched_again(lt_sched *s, lt_seq *seq) {
    LT_ASSERT(seq->n_ahead == 0);
    if (seq->state == LT_SEQ_RUNNING) {
        preempt(s, seq);
    }
}

void lt_sched_preempt_all(lt_sched *s) {
    while (s->running.last != NULL) {
        LT_ASSERT(s->running.last->n_ahead == 0);
        preempt(s, s->running.last);
    }
}

/* A page for seq, if necessary by preempting the last in the order; LT_NO_PAGE if that is seq
 * itself. */
static int32_t take_page(lt_sched *s, const lt_seq *seq, bool may_preempt) {
    int32_t page = lt_pages_take(&s->pages);
    while (page == LT_NO_PAGE && may_preempt && s->running.last != seq) {
        preempt(s, s->running.last);
        page = lt_pages_take(&s->pages);
    }
    return page;
}

/* If the page of the next token in a group is shared, give seq a copy. False: there is no page. */
static bool own_page(lt_sched *s, const lt_seq *seq, int32_t *place) {
    int32_t page;
    if (s->pages.page[*place].refs == 1) {
        return true;
    }
    page = take_page(s, seq, true);
    if (page == LT_NO_PAGE) {
        return false;
    }
    /* The sequence that shared it was preempted for this page. */
    if (s->pages.page[*place].refs == 1) {
        lt_pages_drop(&s->pages, page);
        return true;
    }
    s->copies[s->n_copies++] = (lt_page_copy){page, *place};
    lt_pages_drop(&s->pages, *place);
    *place = page;
    return true;
}

/* The same in all groups. If there is no page for the rest of a set, the copied pages remain the
 * sequence's own. */
static bool own_set(lt_sched *s, const lt_seq *seq) {
    const int64_t groups = lt_pages_groups(&s->pages), at = seq->n_done / s->pages.page_tokens;
    bool own = true;
    if (seq->n_done % s->pages.page_tokens == 0 || at >= seq->n_pages) {
        return true;
    }
    for (int64_t g = 0; g < groups && own; g++) {
        own = own_page(s, seq, &seq->table[at * groups + g]);
    }
    return own;
}

/* Append a set of pages to those of seq. False: there are too few pages. */
static bool take_set(lt_sched *s, lt_seq *seq, bool may_preempt) {
    const int64_t groups = lt_pages_groups(&s->pages);
    int32_t *set = &seq->table[seq->n_pages * groups];
    for (int64_t g = 0; g < groups; g++) {
        set[g] = take_page(s, seq, may_preempt);
        if (set[g] == LT_NO_PAGE) {
            while (g > 0) {
                lt_pages_drop(&s->pages, set[--g]);
            }
            return false;
        }
    }
    seq->n_pages++;
    return true;
}

/* Plan up to n rows of seq, as many as there are pages for. */
static void plan_rows(lt_sched *s, lt_seq *seq, int64_t n) {
    const int64_t size = s->pages.page_tokens;
    int64_t room;
    if (seq->max_rows > 0 && n > seq->max_rows) {
        n = seq->max_rows;
    }
    if (n <= 0) {
        return;
    }
    drop_behind(s, seq);
    if (!own_set(s, seq)) {
        return;
    }
    while (seq->n_pages < pages_for(s, seq->n_done + n)) {
        /* There is not even room for one token. */
        const bool stuck = seq->n_pages * size <= seq->n_done;
        if (!take_set(s, seq, stuck)) {
            break;
        }
    }
    room = seq->n_pages * size - seq->n_done;
    n = n < room ? n : room;
    if (n > 0) {
        s->items[s->n_items++] = (lt_sched_item){seq, seq->n_done, n};
        s->n_rows += n;
    }
}

/* Tokens that must still be run. */
static int64_t left_of(const lt_seq *seq) {
    return seq->n_tokens + seq->n_ahead - seq->n_done;
}

/* The pages that seq holds of its published set k remain cached for the time that it requests. */
static void keep_set(lt_sched *s, const lt_seq *seq, int64_t k) {
    const int64_t groups = lt_pages_groups(&s->pages),
                  held = k < seq->n_behind ? s->pages.n_full : groups;
    if (seq->keep_s > 0.0 && k * s->pages.page_tokens < seq->n_keep) {
        for (int64_t g = 0; g < held; g++) {
            lt_pages_keep(&s->pages, seq->table[k * groups + g], s->pages.now_s + seq->keep_s);
        }
    }
}

/* One more page in each group for each running sequence. */
static int64_t spare_pages(const lt_sched *s) {
    return s->running.n * lt_pages_groups(&s->pages);
}

/* Start the first sequence of the queue if there are free pages for all its tokens and the next
 * one. */
static bool admit(lt_sched *s) {
    lt_seq *seq = s->waiting.first;
    const int64_t need = least(lt_sched_most_pages(s, seq->n_tokens + 1), s->pages.n_pages);

    /* At least one token must run to give logits, so the last page of a cached prompt is not
     * taken. */
    seq->n_pages = seq->fresh ? 0
                              : lt_pages_match(&s->pages, salt_of(seq), seq->tokens,
                                               seq->n_tokens - 1, seq->table, &seq->n_behind);
    if (lt_pages_available(&s->pages) <
        need - lt_pages_held(&s->pages, seq->n_behind, seq->n_pages) + spare_pages(s)) {
        drop_pages(s, seq);
        return false;
    }
    seq->n_published = seq->n_pages;
    seq->n_done = seq->n_cached = seq->n_pages * s->pages.page_tokens;
    for (int64_t k = 0; k < seq->n_pages; k++) {
        keep_set(s, seq, k);
    }
    take_out(&s->waiting, seq);
    seq->state = LT_SEQ_RUNNING;
    insert(&s->running, seq);
    return true;
}

/* Sequences that have become long texts discard their results as short ones. */
static void begin_again(lt_sched *s) {
    lt_seq *next;
    for (lt_seq *seq = s->running.first; seq != NULL; seq = next) {
        next = seq->next;
        if (seq->again_at > 0 && seq->n_tokens + seq->n_ahead > seq->again_at) {
            seq->again_at = 0;
            seq->long_text = true;
            preempt(s, seq);
        }
    }
}

/* Preempt background sequences until the first of the queue has a slot, and pages for all its
 * tokens. */
static void make_way(lt_sched *s) {
    const int64_t need = lt_sched_most_pages(s, s->waiting.first->n_tokens + 1);
    while (s->running.n_background > 0 && (s->running.n == s->max_running ||
                                           lt_pages_available(&s->pages) < need + spare_pages(s))) {
        preempt(s, s->running.last);
    }
}

/* Plan rows of the running sequences in the background, or of the others, until the step has `end`
 * rows: one token of those that decode, then pieces of prompts. */
static void plan_running(lt_sched *s, bool background, int64_t end) {
    int64_t n_decoding = 0;
    for (const lt_seq *seq = s->running.first; seq != NULL; seq = seq->next) {
        n_decoding += seq->background == background && left_of(seq) == 1;
    }
    for (lt_seq *seq = s->running.first; seq != NULL; seq = seq->next) {
        const bool decodes = left_of(seq) == 1;
        int64_t room = end - s->n_rows;
        if (seq->background != background || room <= 0) {
            continue;
        }
        n_decoding -= decodes;
        room = decodes && room <= n_decoding ? 1 : room - n_decoding;
        plan_rows(s, seq, least(decodes ? 1 + seq->n_draft : left_of(seq), room));
    }
}

/* Start sequences of the queue in the same way. One that was preempted while it was ahead of a
 * token waits for the next plan. */
static void plan_waiting(lt_sched *s, bool background, int64_t end) {
    lt_seq *seq = s->waiting.first;
    while (seq != NULL && seq->background == background && seq->n_ahead == 0 && s->n_rows < end) {
        if (!background) {
            make_way(s);
        }
        if (s->running.n == s->max_running || !admit(s)) {
            break;
        }
        plan_rows(s, seq, least(seq->n_tokens - seq->n_done, end - s->n_rows));
        seq = s->waiting.first;
    }
}

static int64_t count_of(const lt_seq_list *list, bool background) {
    return background ? list->n_background : list->n - list->n_background;
}

static bool has_others(const lt_sched *s) {
    return count_of(&s->running, false) + count_of(&s->waiting, false) > 0;
}

bool lt_sched_pauses(const lt_sched *s, const lt_seq *seq) {
    return seq->background && s->background_rows == 0 && has_others(s);
}

/* Plan a branch of an item's sequence, if there is room for all of it. */
static void plan_branch(lt_sched *s, const lt_sched_item *item, lt_seq *branch) {
    const int64_t size = s->pages.page_tokens, groups = lt_pages_groups(&s->pages);
    const int64_t at = item->first / size, n = 1 + branch->n_draft;
    const lt_seq *seq = item->seq;
    LT_ASSERT(branch->state == LT_SEQ_IDLE && branch->n_draft > 0);
    if (n > s->step_tokens - s->n_rows || (seq->max_rows > 0 && n > seq->max_rows) ||
        (pages_for(s, item->first + n) - at) * groups > lt_pages_available(&s->pages) ||
        s->n_items == s->max_running + s->max_branches) {
        return;
    }
    memcpy(branch->table, seq->table, (size_t)(at * groups) * sizeof *seq->table);
    lt_pages_hold_text(&s->pages, seq->table, seq->n_behind, at);
    branch->n_pages = at;
    branch->n_behind = seq->n_behind;
    branch->n_done = item->first;
    branch->long_text = seq->long_text;
    while (branch->n_pages < pages_for(s, item->first + n)) {
        const bool taken = take_set(s, branch, false);
        LT_ASSERT(taken);
    }
    for (int64_t g = 0; g < groups && item->first % size > 0; g++) {
        const int64_t place = at * groups + g;
        s->copies[s->n_copies++] = (lt_page_copy){branch->table[place], seq->table[place]};
    }
    branch->state = LT_SEQ_BRANCH;
    branch->next = s->branches;
    s->branches = branch;
    s->items[s->n_items++] = (lt_sched_item){branch, item->first, n};
    s->n_rows += n;
}

/* Plan branches of sequences with drafts in the plan, but not of background ones while others
 * run. */
static void plan_branches(lt_sched *s) {
    const int64_t n_items = s->n_items;
    for (int64_t i = 0; i < n_items; i++) {
        lt_seq *seq = s->items[i].seq;
        const bool may = seq->n_draft > 0 && s->items[i].n > 1 &&
                         (!seq->background || !has_others(s));
        for (lt_seq *branch = seq->branches; may && branch != NULL; branch = branch->next_branch) {
            plan_branch(s, &s->items[i], branch);
        }
        seq->branches = NULL;
    }
}

void lt_sched_adopt(const lt_sched *s, lt_seq *seq, lt_seq *branch) {
    const int64_t groups = lt_pages_groups(&s->pages), n_pages = seq->n_pages, n_done = seq->n_done;
    /* Published pages are equal in both. */
    const int64_t end = n_pages > branch->n_pages ? n_pages : branch->n_pages;
    LT_ASSERT(seq->state == LT_SEQ_RUNNING && branch->state == LT_SEQ_BRANCH);
    LT_ASSERT(seq->n_published <= branch->n_pages && seq->n_behind == branch->n_behind);
    for (int64_t i = seq->n_published * groups; i < end * groups; i++) {
        const int32_t page = seq->table[i];
        seq->table[i] = branch->table[i];
        branch->table[i] = page;
    }
    seq->n_pages = branch->n_pages;
    seq->n_done = branch->n_done;
    seq->n_draft = branch->n_draft;
    branch->n_pages = n_pages;
    branch->n_done = n_done;
}

void lt_sched_drop_branches(lt_sched *s) {
    while (s->branches != NULL) {
        lt_seq *branch = s->branches;
        s->branches = branch->next;
        drop_pages(s, branch);
        branch->next = NULL;
        branch->state = LT_SEQ_IDLE;
    }
}

void lt_sched_plan(lt_sched *s) {
    LT_ASSERT(s->branches == NULL);
    s->n_items = s->n_copies = s->n_rows = 0;
    begin_again(s);
    for (int background = 0; background <= 1; background++) {
        const int64_t waiting = count_of(&s->waiting, background);
        int64_t end = s->step_tokens;
        if (background && has_others(s)) {
            end = least(end, s->n_rows + s->background_rows);
        }
        plan_running(s, background, end);
        /* No sequence was preempted for a page. */
        if (count_of(&s->waiting, background) == waiting) {
            plan_waiting(s, background, end);
        }
    }
    plan_branches(s);
    s->n_steps++;
}

bool lt_sched_unblock(lt_sched *s) {
    if (s->n_items > 0 || s->running.last == NULL || s->waiting.first == NULL) {
        return false;
    }
    preempt(s, s->running.last);
    lt_sched_plan(s);
    return true;
}

void lt_sched_learn(lt_sched *s, lt_seq *seq) {
    const int64_t size = s->pages.page_tokens, groups = lt_pages_groups(&s->pages);
    const int64_t known = seq->n_done < seq->n_tokens ? seq->n_done : seq->n_tokens;
    while (s->caching && (seq->n_published + 1) * size <= known) {
        const int64_t k = seq->n_published++;
        int32_t *set = seq->table + k * groups;
        lt_pages_publish(&s->pages, set, k > 0 ? set - groups : NULL, salt_of(seq),
                         seq->tokens + k * size);
        keep_set(s, seq, k);
    }
}

void lt_sched_done(lt_sched *s) {
    for (int64_t i = 0; i < s->n_items; i++) {
        lt_seq *seq = s->items[i].seq;
        const bool branch = seq->state == LT_SEQ_BRANCH;
        LT_ASSERT((branch || seq->state == LT_SEQ_RUNNING) && seq->n_done == s->items[i].first);
        seq->n_done += s->items[i].n;
        if (!branch) {
            lt_sched_learn(s, seq);
        }
    }
    s->n_items = s->n_copies = s->n_rows = 0;
}

static const char *check_list(const lt_sched *s, const lt_seq_list *list, lt_seq_state state,
                              int64_t *n_refs) {
    int64_t n = 0;
    for (const lt_seq *seq = list->first; seq != NULL; seq = seq->next, n++) {
        if (seq->state != state || (seq->next != NULL && !before(seq, seq->next)) ||
            (seq->next == NULL) != (list->last == seq)) {
            return "a list out of order";
        }
        if (state == LT_SEQ_WAITING && seq->n_pages != 0) {
            return "a waiting sequence holds pages";
        }
        if (seq->n_pages * s->pages.page_tokens < seq->n_done ||
            seq->n_done > seq->n_tokens + seq->n_ahead + seq->n_draft) {
            return "a sequence has more done than it has";
        }
        if (seq->n_ahead < 0 || seq->n_ahead > 1 ||
            seq->n_published * s->pages.page_tokens > seq->n_tokens) {
            return "a page is published whose tokens are not known";
        }
        if (seq->n_behind > lt_pages_behind(&s->pages, seq->n_done) ||
            lt_pages_held(&s->pages, seq->n_behind, seq->n_pages) >
                lt_sched_most_pages(s, seq->n_pages * s->pages.page_tokens)) {
            return "a sequence gave back a page that it reads, or holds too many";
        }
        *n_refs += lt_pages_held(&s->pages, seq->n_behind, seq->n_pages);
    }
    return n == list->n ? NULL : "a list miscounted";
}

const char *lt_sched_check(const lt_sched *s) {
    const char *why = lt_pages_check(&s->pages);
    int64_t n_refs = 0;
    why = why != NULL ? why : check_list(s, &s->running, LT_SEQ_RUNNING, &n_refs);
    why = why != NULL ? why : check_list(s, &s->waiting, LT_SEQ_WAITING, &n_refs);
    for (const lt_seq *seq = s->branches; seq != NULL; seq = seq->next) {
        n_refs += lt_pages_held(&s->pages, seq->n_behind, seq->n_pages);
    }
    for (int64_t i = 0; i < s->pages.n_pages; i++) {
        n_refs -= s->pages.page[i].refs;
    }
    return why != NULL ? why : n_refs != 0 ? "references that no sequence has" : NULL;
}

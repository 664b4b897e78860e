/* scheduler.h: decides which sequences run in the next step, how many tokens of each, and in which
 * pages. A plain struct over pages.h: no threads, clocks or device, so that a seeded simulation
 * drives it through millions of steps.
 *
 *                 add                  plan: a slot and pages are free
 *     (owner) ──────────▶ WAITING ───────────────────────────────▶ RUNNING ──remove──▶ (owner)
 *                            ▲      plan: pages ran out, and it is the     │
 *                            └────── last in order: its pages are dropped ◀┘
 *     fork: a second continuation of a running sequence, RUNNING at once on the same pages
 *
 * ORDER     All sequences have a total order, by (key, serial). The key is the step of arrival
 *           minus LT_SCHED_AGE steps per level of priority: of two requests, the one with higher
 *           priority is first unless the other has waited that much longer. The order never
 *           changes, so the first sequence is never preempted and always runs: no sequence starves.
 * STEP      First one token of every running sequence that decodes, in order; then pieces of
 *           prompts up to step_tokens, so that long prompts delay no sequence's next token. Then
 *           sequences are admitted from the queue, in order and without overtaking, while slots,
 *           pages for the whole prompt, and one more page for each running sequence are free.
 * BEHIND    Background sequences come after all others in this order, whatever their age, so they
 *           may wait without bound. While there are others, at most background_rows rows of a step
 *           belong to background sequences, and the rest of these pause: they keep slot and pages
 *           until another sequence needs them. When no slot, or no page for a whole prompt, is free
 *           for the first of the queue, running background sequences are preempted for it, the last
 *           first.
 * AGAIN     A sequence that grows longer than again_at is preempted there, once, and all its tokens
 *           are computed again as those of a long text.
 * PAGES     When a sequence needs a page and none is left, the last running sequence is preempted:
 *           it gives up its pages and later recomputes its tokens, mostly from the prefix cache. A
 *           prompt uses the pages that are left before it preempts another sequence.
 * WINDOW    In groups of layers with a sliding window (pages.h) a sequence gives back the pages
 *           that none of its rows reads any more, before it takes new ones; it holds at most
 *           lt_sched_most_pages at once. Rows of drafts that are not accepted yet count as not run,
 *           so the pages that are needed after a rejection are still there. A sequence keeps its
 *           last published set, the parent of the next.
 * WRITING   A shared page is copied before a token is written to it (copies); full pages are
 *           published for others to find.
 *
 * AHEAD     done only means that the step is in the device's queue, which runs in order. So the
 *           owner may plan the next step before the tokens of this one are known: n_ahead says that
 *           a token is in flight, which has a place, is run and may need a page like any other.
 *           Publishing a page needs the value of each of its tokens, so it waits for
 *           lt_sched_learn. A sequence that turns out to have ended is removed, and its pages are
 *           free at once: their next user writes to them after the discarded row has been computed.
 *
 * DRAFT     A step may run draft tokens after the last token of a sequence (draft.h): n_draft.
 *           Their pages are taken like any others and kept; they are not published before the owner
 *           has said which tokens were accepted.
 *
 * BRANCH    A sequence with a draft may have other drafts beside it: its branches. Each is a
 *           sequence of one step, which shares the whole pages, has a copy of the last page, and
 *           runs the last known token once more and then its own draft. Branches come last in a
 *           plan, with the rows and pages that no other sequence needs. If the owner adopts one, it
 *           exchanges its pages with the sequence; all are dropped before the next plan.
 *
 * One step:  plan ─▶ [copies, forward of items by the owner] ─▶ done
 *                ─▶ [owner: append a token to, or remove, those with n_done == n_tokens]
 * Ahead:     plan ─▶ [...] ─▶ done ─▶ [n_ahead = 1 for those with n_done == n_tokens that go on]
 *                ─▶ plan ─▶ [...] ─▶ done ─▶ [append the token, n_ahead = 0, learn; or remove] */
#ifndef LT_SERVE_SCHEDULER_H
#define LT_SERVE_SCHEDULER_H

#include "serve/pages.h"

#define LT_SCHED_AGE 4096 /* This many steps of waiting weigh as much as one level of priority. */

typedef enum { LT_SEQ_IDLE, LT_SEQ_WAITING, LT_SEQ_RUNNING, LT_SEQ_BRANCH } lt_seq_state;

typedef struct lt_seq lt_seq;
struct lt_seq {
    /* Set by the owner before add; it appends to tokens between steps. */
    const int32_t *tokens; /* (n_tokens) prompt and what was sampled */
    int64_t n_tokens;
    int64_t n_ahead; /* 0, or 1: the next token is being chosen, and not yet known. */
    /* Draft tokens after the known ones, also in tokens. They run with the last known token if it
     * is the only one left, as far as there is room; then the owner sets n_done to the number of
     * right tokens, before lt_sched_learn. */
    int64_t n_draft;
    /* The first of its branches that the next plan may run, idle until then; for a branch the next
     * one. A branch needs tokens, n_draft and a table; the plan then clears the list. */
    lt_seq *branches, *next_branch;
    int32_t *table;   /* Room for the sets of pages (pages.h) of its longest state. */
    int64_t max_rows; /* Most rows of a step; 0: no limit. */
    bool fresh;       /* All its tokens must be computed, without the prefix cache. */
    uint64_t salt;    /* Pages are shared by sequences of the same salt. */
    /* > 0: its first n_keep tokens remain cached for this time after their last use
     * (lt_pages_keep). */
    double keep_s;
    int64_t n_keep;
    int priority;
    bool background;
    /* For models whose rotation depends on the length of the text (lt_rope_switch): whether it runs
     * as a long text, and the number of tokens beyond which it must be computed again as one, or 0.
     */
    bool long_text;
    int64_t again_at;
    void *owner;
    /* Sequences that wait for each other are adjacent in the order: `member` places after that of
     * family, which is added first and is its own family. NULL: none. */
    lt_seq *family;
    int64_t member, n_members;
    /* Used by the scheduler. */
    bool placed; /* It has its place in the order, which it keeps. */
    lt_seq_state state;
    int64_t key, serial;
    int64_t n_done;  /* Number of tokens whose keys and values are in its pages. */
    int64_t n_pages; /* Number of sets in table. */
    /* The window has moved past the first n_behind of them, whose pages in windowed groups are not
     * held: kernels may read them, and ignore the values. */
    int64_t n_behind;
    int64_t n_published; /* The first ones of all. */
    int64_t n_cached;    /* Number of tokens found in the prefix cache when it was last admitted. */
    int64_t n_preempted; /* Number of preemptions. */
    lt_seq *prev, *next; /* In the list of its state; branches have only next. */
};

typedef struct {
    lt_seq *first, *last;
    int64_t n, n_background;
} lt_seq_list;

/* Tokens [first, first + n) of seq run in this step. */
typedef struct {
    lt_seq *seq;
    int64_t first, n;
} lt_sched_item;

typedef struct {
    int32_t dst, src;
} lt_page_copy;

typedef struct {
    lt_pages pages;
    int64_t max_running, step_tokens; /* Set before carving; step_tokens >= max_running. */
    int64_t max_branches;             /* Per step; also set before carving. */
    /* Most background rows in a step that has others; also set before carving. */
    int64_t background_rows;
    bool caching; /* Publish full pages. */
    lt_seq_list running, waiting;
    lt_seq *branches;     /* Branches that run. */
    lt_sched_item *items; /* (max_running + max_branches) the plan */
    /* (max_running + max_branches, groups): copies to make before it, in order */
    lt_page_copy *copies;
    int64_t n_items, n_copies, n_rows;
    int64_t n_steps, n_added, n_preemptions;
} lt_sched;

/* n_pages, page_tokens and the groups of pages must be set. */
void lt_sched_carve(lt_sched *s, lt_arena *a);
void lt_sched_reset(lt_sched *s);

/* Most pages that a sequence of n_tokens holds at once, in all groups; sets of which it holds the
 * pages of windowed groups. */
int64_t lt_sched_most_pages(const lt_sched *s, int64_t n_tokens);
int64_t lt_sched_near_pages(const lt_sched *s, int64_t n_tokens);
/* Tokens of the longest sequence that holds at most this many pages. */
int64_t lt_sched_longest(const lt_sched *s, int64_t n_pages);

/* The sequence must fit in the pool alone: lt_sched_most_pages of its longest state <=
 * pages.n_pages. */
void lt_sched_add(lt_sched *s, lt_seq *seq);
/* Start child, which is idle and has the same first n_done tokens, on the pages of seq. False: no
 * slot is free, and nothing was changed. */
bool lt_sched_fork(lt_sched *s, const lt_seq *seq, lt_seq *child);
void lt_sched_remove(lt_sched *s, lt_seq *seq); /* Waiting or running; its pages are dropped. */

/* Its tokens change: if it runs, it is preempted, and all tokens are computed again. It must not
 * have a token in flight. */
void lt_sched_again(lt_sched *s, lt_seq *seq);

/* Preempt all running sequences; none may have a token in flight. */
void lt_sched_preempt_all(lt_sched *s);

/* Fill items, copies, n_rows. Without items there is nothing to run. */
void lt_sched_plan(lt_sched *s);
/* If nothing could be planned because running sequences wait for others of their family that do not
 * run: preempt the last in order, and plan again. False: this is not the case. */
bool lt_sched_unblock(lt_sched *s);
/* Whether the next plan omits this running sequence because it is in the background. */
bool lt_sched_pauses(const lt_sched *s, const lt_seq *seq);
/* The plan was run: count its tokens, and publish full pages. */
void lt_sched_done(lt_sched *s);

/* A token of seq that was in flight is now known: publish full pages. */
void lt_sched_learn(lt_sched *s, lt_seq *seq);

/* The draft of a branch of seq, which has run, is right, and that of seq is wrong: exchange their
 * pages and progress. Drop all branches before the next plan. */
void lt_sched_adopt(const lt_sched *s, lt_seq *seq, lt_seq *branch);
void lt_sched_drop_branches(lt_sched *s);

/* NULL, or the violated invariant, including those of the pages. For tests. */
const char *lt_sched_check(const lt_sched *s);

#endif

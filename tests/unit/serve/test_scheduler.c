/* Scheduler and pages in a seeded simulation of a million steps: requests of any length and
 * priority arrive, fork, are cancelled, run out of pages; steps are planned one by one or ahead,
 * before the tokens of the previous step are known, some of which end their sequence. A shadow
 * memory keeps, for each row of each page, a hash of the tokens up to it, in the order in which
 * steps are queued; every key that a sequence would read must belong to its own tokens. With
 * drafts a step also computes proposed tokens, and a random number of those of the draft, or of
 * one of its branches, is accepted. With a sliding window only the keys in the window are read,
 * and a sequence holds few pages however long it is. With groups of layers (pages.h) each token
 * has a row in a page of each group, whose hash includes the group. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "serve/scheduler.h"

enum { UNKNOWN = -12345 }; /* In place of a token that only the device knows. */
enum { PAGE = 4, N_PAGES = 48, MAX_LEN = 96, MAX_PAGES = MAX_LEN / PAGE, N_SEQS = 40 };
enum { MAX_GROUPS = 3 };

typedef struct {
    lt_seq seq; /* The first field, so that a sequence leads to its life. */
    int32_t tokens[MAX_LEN], table[MAX_PAGES * MAX_GROUPS];
    uint64_t prefix[MAX_LEN]; /* Hash of tokens[0..i]. */
    int64_t target, n_prompt, born, last_progress;
    int32_t coming; /* What the device chose, while the step is in flight. */
    int n_forks;
    struct branch *branch; /* For the step: (BRANCHES), or NULL. */
} life;

enum { BRANCHES = 2 };
/* Another draft of a life, with the tokens before it. */
typedef struct branch {
    life of;
} branch;

/* A step that was planned and run, and whose tokens were not read. */
typedef struct {
    life *ran[N_SEQS]; /* NULL: it is gone. */
    bool due[N_SEQS];  /* It chooses a token. */
    int64_t n;
} queued;

typedef struct {
    lt_sched s;
    lt_arena arena;
    life lives[N_SEQS];
    branch branches[N_SEQS][BRANCHES];
    uint64_t memory[N_PAGES * PAGE];
    lt_rng rng;
    queued steps[2]; /* The older one first. */
    int n_steps;
    bool drafts;
    int64_t n_right, n_wrong, n_behind, n_branches, n_adopted;
    /* Sequences with a window: how often they gave back pages, and how often they began after
     * given-back ones. */
    int64_t n_slid, n_found_behind;
    int64_t n_finished, n_cancelled, n_forked, n_cached, age_max, n_tokens, n_ahead, n_vain;
} world;

static uint64_t chance(world *w, uint64_t n) {
    return lt_rng_below(&w->rng, n);
}

static void put_token(life *l, int64_t i, int32_t token) {
    l->tokens[i] = token;
    l->prefix[i] = lt_rng_mix((i > 0 ? l->prefix[i - 1] : 1) * 31 + (uint64_t)token);
}

static void open_groups(world *w, uint64_t seed, int64_t max_running, int64_t step_tokens,
                        int64_t n_full, int64_t n_windowed, int64_t window) {
    *w = (world){.s = {.pages = {.n_pages = N_PAGES,
                                 .page_tokens = PAGE,
                                 .n_full = n_full,
                                 .n_windowed = n_windowed,
                                 .window = window,
                                 .most_cached = seed % 2 == 1 ? N_PAGES : N_PAGES / 4,
                                 .most_kept = N_PAGES / 3},
                       .max_running = max_running,
                       .step_tokens = step_tokens,
                       .max_branches = 10,
                       .caching = true},
                 .rng = {.seed = seed}};
    lt_sched_carve(&w->s, &w->arena);
    assert_int_equal(lt_arena_open(&w->arena, "world"), LT_OK);
    lt_sched_carve(&w->s, &w->arena);
    lt_sched_reset(&w->s);
}

static void open_world(world *w, uint64_t seed, int64_t max_running, int64_t step_tokens) {
    open_groups(w, seed, max_running, step_tokens, 1, 0, 0);
}

static life *idle_life(world *w) {
    for (int i = 0; i < N_SEQS; i++) {
        if (w->lives[i].seq.state == LT_SEQ_IDLE) {
            return &w->lives[i];
        }
    }
    return NULL;
}

/* A prompt that shares its beginning with many others: one of four texts, then tokens of its
 * own. */
static void be_born(world *w) {
    life *l = idle_life(w);
    int64_t n, shared;
    uint64_t text;
    if (l == NULL) {
        return;
    }
    n = 1 + (int64_t)chance(w, chance(w, 4) == 0 ? MAX_LEN - 2 : 24);
    text = chance(w, 4);
    shared = (int64_t)chance(w, (uint64_t)n + 1);
    for (int64_t i = 0; i < n; i++) {
        put_token(l, i,
                  (int32_t)(i < shared ? lt_rng_mix(text * 100 + (uint64_t)i) % 5 : chance(w, 5)));
    }
    l->seq = (lt_seq){.tokens = l->tokens,
                      .n_tokens = n,
                      .table = l->table,
                      .max_rows = chance(w, 8) == 0 ? 3 : 0,
                      .fresh = chance(w, 8) == 0,
                      .keep_s = chance(w, 3) == 0 ? (double)(1 + chance(w, 40)) : 0.0,
                      .n_keep = n,
                      .priority = (int)chance(w, 3),
                      .background = w->s.background_rows > 0 && chance(w, 2) == 0};
    l->n_prompt = n;
    l->target = n + 1 + (int64_t)chance(w, (uint64_t)(MAX_LEN - n));
    l->seq.again_at = chance(w, 4) == 0 ? n + (int64_t)chance(w, (uint64_t)(l->target - n)) : 0;
    l->n_forks = chance(w, 6) == 0 ? (int)chance(w, 4) : 0;
    l->born = w->s.n_steps;
    lt_sched_add(&w->s, &l->seq);
}

/* The row of token p in the shadow memory of a group, and its contents. */
static uint64_t *row_of(world *w, const life *l, int64_t p, int64_t g) {
    const int32_t page = l->table[p / PAGE * lt_pages_groups(&w->s.pages) + g];
    return &w->memory[page * PAGE + p % PAGE];
}

static uint64_t key_of(const life *l, int64_t p, int64_t g) {
    return l->prefix[p] + (uint64_t)g;
}

/* Check that the keys which tokens from `first` to `end` read in a group are the sequence's
 * own. */
static void read_keys(world *w, const life *l, int64_t first, int64_t end, int64_t g) {
    const lt_pages *pages = &w->s.pages;
    const bool windowed = g >= pages->n_full;
    for (int64_t p = windowed && first >= pages->window ? first - pages->window + 1 : 0; p < end;
         p++) {
        assert_true(*row_of(w, l, p, g) == key_of(l, p, g));
    }
}

/* Run the plan on the shadow memory. */
static void run_plan(world *w) {
    const int64_t groups = lt_pages_groups(&w->s.pages);
    int64_t rows = 0;
    for (int64_t i = 0; i < w->s.n_copies; i++) {
        memcpy(w->memory + w->s.copies[i].dst * PAGE, w->memory + w->s.copies[i].src * PAGE,
               PAGE * sizeof *w->memory);
    }
    for (int64_t i = 0; i < w->s.n_items; i++) {
        const lt_sched_item *item = &w->s.items[i];
        const life *l = (const life *)item->seq;
        assert_true(item->n > 0 && item->first == l->seq.n_done);
        assert_true(l->seq.max_rows == 0 || item->n <= l->seq.max_rows);
        for (int64_t p = item->first; p < item->first + item->n; p++) {
            for (int64_t g = 0; g < groups; g++) {
                const int32_t page = l->table[p / PAGE * groups + g];
                /* No row is written where others read. */
                assert_int_equal(w->s.pages.page[page].refs, 1);
                *row_of(w, l, p, g) = key_of(l, p, g);
            }
        }
        rows += item->n;
    }
    assert_int_equal(rows, w->s.n_rows);
    assert_true(rows <= w->s.step_tokens);
    for (int64_t i = 0; i < w->s.n_items; i++) {
        const lt_sched_item *item = &w->s.items[i];
        const life *l = (const life *)item->seq;
        for (int64_t g = 0; g < groups; g++) {
            read_keys(w, l, item->first, item->first + item->n, g);
        }
        w->n_slid += l->seq.n_behind > 0;
        w->n_found_behind += l->seq.n_behind > 0 && item->first == l->seq.n_cached;
    }
}

static void end(world *w, life *l) {
    const int64_t age = w->s.n_steps - l->born;
    w->age_max = age > w->age_max && !l->seq.background ? age : w->age_max;
    lt_sched_remove(&w->s, &l->seq);
    for (int i = 0; i < w->n_steps; i++) {
        for (int64_t k = 0; k < w->steps[i].n; k++) {
            if (w->steps[i].ran[k] == l) {
                w->steps[i].ran[k] = NULL;
                w->n_vain += i > 0;
            }
        }
    }
}

static void fork_life(world *w, life *parent) {
    life *l = idle_life(w);
    if (l == NULL) {
        return;
    }
    memcpy(l->tokens, parent->tokens, sizeof l->tokens);
    memcpy(l->prefix, parent->prefix, sizeof l->prefix);
    l->seq = (lt_seq){.tokens = l->tokens,
                      .n_tokens = parent->seq.n_tokens,
                      .table = l->table,
                      .background = parent->seq.background};
    l->n_prompt = parent->n_prompt;
    l->target = parent->target;
    l->n_forks = 0;
    l->born = w->s.n_steps;
    if (lt_sched_fork(&w->s, &parent->seq, &l->seq)) {
        put_token(l, l->seq.n_tokens++, (int32_t)chance(w, 5));
        w->n_forked++;
        if (l->seq.n_tokens == l->target) {
            end(w, l);
        }
    }
}

/* The first in order must run. NULL: it waits for its last token, and its pages are not free
 * yet. */
static const lt_seq *first_to_run(const world *w) {
    const lt_seq *seq = w->s.running.first, *next = w->s.waiting.first;
    if (seq != NULL && seq->background && next != NULL && !next->background) {
        return next->n_ahead == 0 ? next : NULL;
    }
    return seq == NULL                                  ? w->s.waiting.first
           : seq->n_tokens + seq->n_ahead > seq->n_done ? seq
                                                        : NULL;
}

/* Add other drafts to a sequence, none or some of which will run. */
static void branch_off(world *w, life *l, int64_t most) {
    const int64_t n = l->seq.n_tokens;
    l->branch = w->branches[l - w->lives];
    for (uint64_t k = chance(w, BRANCHES + 1); k-- > 0;) {
        life *b = &l->branch[k].of;
        assert_int_equal(b->seq.state, LT_SEQ_IDLE);
        memcpy(b->tokens, l->tokens, (size_t)n * sizeof *b->tokens);
        memcpy(b->prefix, l->prefix, (size_t)n * sizeof *b->prefix);
        b->seq = (lt_seq){.tokens = b->tokens,
                          .n_tokens = n,
                          .n_draft = 1 + (int64_t)chance(w, (uint64_t)most),
                          .table = b->table,
                          .next_branch = l->seq.branches};
        for (int64_t i = 0; i < b->seq.n_draft; i++) {
            put_token(b, n + i, (int32_t)chance(w, 5));
        }
        l->seq.branches = &b->seq;
    }
}

/* Add drafts to sequences that decode. */
static void draft(world *w) {
    for (lt_seq *seq = w->s.running.first; seq != NULL; seq = seq->next) {
        life *l = (life *)seq;
        int64_t most = l->target - seq->n_tokens - 1;
        if (seq->again_at > 0 && seq->again_at - seq->n_tokens < most) {
            most = seq->again_at - seq->n_tokens;
        }
        seq->n_draft = 0;
        seq->branches = NULL;
        l->branch = NULL;
        if (seq->n_done + 1 == seq->n_tokens && seq->n_tokens > l->n_prompt && most > 0) {
            seq->n_draft = (int64_t)chance(w, (uint64_t)(most < 8 ? most : 8) + 1);
        }
        for (int64_t i = 0; i < seq->n_draft; i++) {
            put_token(l, seq->n_tokens + i, (int32_t)chance(w, 5));
        }
        if (seq->n_draft > 0) {
            branch_off(w, l, most < 8 ? most : 8);
        }
    }
}

/* In the plan, background requests come last, and have few rows if there are others. */
static void background_is_behind(world *w) {
    int64_t rows = 0, others = 0;
    for (int64_t i = 0; i < w->s.n_items; i++) {
        const lt_sched_item *item = &w->s.items[i];
        /* After all others, which only the end of the plan has. */
        if (item->seq->state == LT_SEQ_BRANCH) {
            w->n_branches++;
            continue;
        }
        assert_true(i == 0 || item[-1].seq->state != LT_SEQ_BRANCH);
        assert_true(item->seq->background || rows == 0);
        *(item->seq->background ? &rows : &others) += item->n;
    }
    assert_true(others == 0 || rows <= w->s.background_rows);
    w->n_behind += others > 0 && rows > 0;
    for (const lt_seq *seq = w->s.waiting.first; seq != NULL; seq = seq->next) {
        assert_true(rows == 0 || seq->background || w->s.running.n < w->s.max_running ||
                    w->s.waiting.first->n_ahead > 0);
    }
}

/* Plan a step and run it, as the engine queues it. */
static void launch(world *w) {
    queued *q = &w->steps[w->n_steps];
    const lt_seq *first = first_to_run(w);
    const bool again = first != NULL && first->again_at > 0 &&
                       first->n_tokens + first->n_ahead > first->again_at;
    if (w->drafts) {
        draft(w);
    }
    w->s.pages.now_s += 0.3;
    lt_sched_plan(&w->s);
    for (const lt_seq *seq = w->s.running.first; seq != NULL; seq = seq->next) {
        if (seq->again_at > 0 && seq->n_tokens + seq->n_ahead > seq->again_at) {
            fail_msg("%lld tokens run on beyond %lld", (long long)seq->n_tokens,
                     (long long)seq->again_at);
        }
    }
    /* again: the request queues once more. */
    assert_true(first == NULL || again || (w->s.n_items > 0 && w->s.items[0].seq == first));
    background_is_behind(w);
    run_plan(w);
    q->n = 0;
    for (int64_t i = 0; i < w->s.n_items; i++) {
        if (w->s.items[i].seq->state != LT_SEQ_BRANCH) {
            q->ran[q->n++] = (life *)w->s.items[i].seq;
        }
    }
    lt_sched_done(&w->s);
    for (int64_t i = 0; i < q->n; i++) {
        q->due[i] = q->ran[i]->seq.n_done >= q->ran[i]->seq.n_tokens + q->ran[i]->seq.n_ahead;
    }
    w->n_steps += q->n > 0;
}

/* The device knows the tokens of the step in flight; the host only knows that they will come. */
static void foresee(world *w, const queued *q) {
    for (int64_t i = 0; i < q->n; i++) {
        life *l = q->ran[i];
        if (l != NULL && q->due[i] && l->n_forks == 0 && l->seq.n_tokens + 1 < l->target) {
            l->coming = (int32_t)chance(w, 5);
            put_token(l, l->seq.n_tokens, l->coming);
            l->tokens[l->seq.n_tokens] = UNKNOWN;
            l->seq.n_ahead = 1;
            w->n_ahead++;
        }
    }
}

static void finish(world *w, life *l) {
    w->n_cached += l->seq.n_cached;
    w->n_finished++;
    end(w, l);
}

/* A branch that ran may replace the draft: at least one of its tokens is right. */
static int64_t adopt(world *w, life *l) {
    life *b = l->branch != NULL ? &l->branch[chance(w, BRANCHES)].of : NULL;
    if (b == NULL || b->seq.state != LT_SEQ_BRANCH || chance(w, 2) == 0) {
        return 0;
    }
    for (int64_t i = 0; i < b->seq.n_draft; i++) {
        put_token(l, l->seq.n_tokens + i, b->tokens[l->seq.n_tokens + i]);
    }
    lt_sched_adopt(&w->s, &l->seq, &b->seq);
    w->n_adopted++;
    return 1;
}

/* Some draft tokens that ran are accepted, then comes one that was not in the draft. */
static void read_draft(world *w, life *l) {
    const int64_t least = adopt(w, l), ran = l->seq.n_done - l->seq.n_tokens;
    const int64_t right = least + (int64_t)chance(w, (uint64_t)(ran - least) + 1);
    for (int64_t i = 0; i < right; i++) {
        l->seq.n_tokens++;
        lt_sched_learn(&w->s, &l->seq);
    }
    l->seq.n_done = l->seq.n_tokens;
    l->seq.n_draft = 0;
    w->n_right += right;
    w->n_wrong += ran - right;
    put_token(l, l->seq.n_tokens++, (int32_t)chance(w, 5));
    lt_sched_learn(&w->s, &l->seq);
}

static void read_token(world *w, life *l) {
    w->n_tokens++;
    if (l->seq.n_ahead > 0) {
        l->tokens[l->seq.n_tokens++] = l->coming;
        l->seq.n_ahead = 0;
        if (chance(w, 30) == 0) { /* It ended, which was not known. */
            finish(w, l);
        } else {
            lt_sched_learn(&w->s, &l->seq);
        }
        return;
    }
    for (; l->n_forks > 0; l->n_forks--) {
        fork_life(w, l);
    }
    if (l->seq.n_draft > 0) {
        read_draft(w, l);
    } else {
        put_token(l, l->seq.n_tokens++, (int32_t)chance(w, 5));
    }
    if (l->seq.n_tokens == l->target) {
        finish(w, l);
    }
}

static void check(world *w, int64_t at) {
    const char *why = lt_sched_check(&w->s);
    if (why != NULL) {
        fail_msg("step %lld: %s", (long long)at, why);
    }
    for (int64_t i = 0; i < N_PAGES * PAGE; i++) {
        assert_true(!w->s.pages.page[i / PAGE].published || w->s.pages.tokens[i] != UNKNOWN);
    }
}

/* What the engine does after a step: new tokens, forks, ends. */
static void collect(world *w) {
    queued *q = &w->steps[0];
    for (int64_t i = 0; i < q->n; i++) {
        life *l = q->ran[i];
        if (l == NULL || !q->due[i] || (l->seq.n_ahead == 0 && l->seq.n_done < l->seq.n_tokens)) {
            continue; /* The last one: it was preempted before its forks; it will choose again. */
        }
        read_token(w, l);
    }
    if (w->s.branches != NULL && chance(w, 8) == 0) {
        check(w, 0);
    }
    lt_sched_drop_branches(&w->s);
    w->steps[0] = w->steps[1];
    w->n_steps--;
}

/* ahead: of 100 steps this many are queued before the tokens of the previous one are read. */
static void step(world *w, int64_t at, uint64_t births, uint64_t ahead) {
    if (chance(w, births) == 0) {
        be_born(w);
    }
    if (chance(w, 50) == 0) {
        life *l = &w->lives[chance(w, N_SEQS)];
        if (l->seq.state != LT_SEQ_IDLE) {
            w->n_cancelled++;
            end(w, l);
        }
    }
    if (w->n_steps == 0) {
        launch(w);
    }
    if (w->n_steps > 0) {
        if (chance(w, 100) < ahead) {
            foresee(w, &w->steps[0]);
            launch(w);
            if (at % 8 == 0) {
                check(w, at);
            }
        }
        collect(w);
    }
}

typedef struct {
    int64_t n_full, n_windowed, window;
} groups;

static const groups one = {1, 0, 0};

/* The first in order always runs; at the end all pages are free. By default a quarter of the
 * steps: faults show in the first thousands. LATEEN_TEST_ALL=1: all of them
 * (tests/long/worlds.sh). */
static void simulate(uint64_t seed, int64_t all_steps, int64_t max_running, int64_t step_tokens,
                     uint64_t births, uint64_t ahead, bool drafts, int64_t background_rows,
                     groups of) {
    static world w;
    const int64_t steps = getenv("LATEEN_TEST_ALL") != NULL ? all_steps : all_steps / 4;
    open_groups(&w, seed, max_running, step_tokens, of.n_full, of.n_windowed, of.window);
    w.s.background_rows = background_rows;
    w.drafts = drafts;
    for (int64_t i = 0; i < steps; i++) {
        step(&w, i, births, ahead);
        if (i % 4 == 0) {
            check(&w, i);
        }
    }
    print_message("seed %llu: %lld finished, %lld cancelled, %lld forks, %lld preemptions, %lld "
                  "tokens from the prefix cache, oldest %lld steps, %lld tokens run ahead, %lld in "
                  "vain\n",
                  (unsigned long long)seed, (long long)w.n_finished, (long long)w.n_cancelled,
                  (long long)w.n_forked, (long long)w.s.n_preemptions, (long long)w.n_cached,
                  (long long)w.age_max, (long long)w.n_ahead, (long long)w.n_vain);
    assert_true(!drafts || (w.n_right > steps / 10 && w.n_wrong > steps / 10));
    /* Without a budget beyond the decoding there are none. */
    if (drafts && step_tokens > max_running &&
        (w.n_branches < steps / 100 || w.n_adopted < w.n_branches / 10)) {
        fail_msg("%lld branches, %lld adopted", (long long)w.n_branches, (long long)w.n_adopted);
    }
    assert_true(background_rows == 0 || w.n_behind > steps / 100);
    assert_true(of.window == 0 || (w.n_slid > steps / 10 && w.n_found_behind > 0));
    assert_true(ahead == 0 || (w.n_ahead > steps / 2 && w.n_vain > steps / 1000));
    assert_true(w.n_finished > steps / 200 && w.n_forked > 0 && w.s.n_preemptions > 0);
    assert_true(w.n_cached > 0 && w.s.pages.n_evicted > 0);
    /* Two levels of priority, and everything that was before it. */
    assert_true(w.age_max < 20000);
    for (int i = 0; i < N_SEQS; i++) {
        if (w.lives[i].seq.state != LT_SEQ_IDLE) {
            end(&w, &w.lives[i]);
        }
    }
    check(&w, steps);
    assert_int_equal(lt_pages_available(&w.s.pages), N_PAGES);
    lt_arena_close(&w.arena);
}

static void a_million_steps(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 2; i++) { /* One by one, and ahead. */
        /* More pages are needed than there are. */
        simulate(1 + i, 400000, 12, 24, 4, 99 * i, false, 0, one);
        /* Few slots, no budget beyond the decoding. */
        simulate(3 + i, 300000, 4, 4, 12, 99 * i, false, 0, one);
        simulate(5 + i, 200000, 30, 64, 3, 99 * i, false, 0, one);  /* Overload. */
        simulate(7 + i, 100000, 12, 200, 8, 60 * i, false, 0, one); /* Whole prompts in a step. */
    }
    simulate(9, 100000, 12, 24, 4, 0, true, 0, one);
    simulate(10, 100000, 4, 4, 12, 0, true, 0, one);
    simulate(11, 100000, 30, 64, 3, 0, true, 0, one);
    simulate(12, 100000, 12, 24, 6, 0, false, 5, one); /* Half of them in the background. */
    simulate(13, 100000, 4, 4, 12, 99, false, 1, one);
    simulate(14, 100000, 12, 200, 8, 60, false, 200, one);
    simulate(15, 100000, 12, 24, 6, 0, true, 8, one);
}

/* Windows of one token, of less than a page, of some pages; pieces of prompts longer than the
 * window. */
static void sequences_with_a_window_hold_few_pages(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 2; i++) {
        simulate(16 + i, 100000, 12, 24, 4, 99 * i, false, 0, (groups){0, 1, 9});
        simulate(18 + i, 50000, 12, 64, 3, 99 * i, false, 0, (groups){0, 1, 1});
        simulate(20 + i, 50000, 30, 64, 3, 60 * i, false, 0, (groups){0, 1, 30});
    }
    simulate(22, 100000, 12, 24, 4, 0, true, 0, (groups){0, 1, 7});
    simulate(23, 100000, 12, 24, 6, 0, true, 8, (groups){0, 1, 16});
}

/* One group of layers that see all tokens and one or two groups with a window share a pool for a
 * million random steps. A sequence that ends after any step leaves no page in use. */
static void groups_of_layers_give_back_their_pages(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 2; i++) {
        simulate(24 + i, 200000, 12, 24, 6, 99 * i, false, 0, (groups){1, 1, 9});
        simulate(26 + i, 100000, 12, 64, 6, 99 * i, false, 0, (groups){1, 1, 1});
        simulate(28 + i, 100000, 12, 24, 8, 60 * i, false, 0, (groups){1, 2, 6});
    }
    simulate(30, 100000, 12, 24, 6, 0, true, 0, (groups){1, 1, 7});
    simulate(31, 100000, 12, 24, 8, 0, true, 8, (groups){1, 1, 16});
}

/* ---- Single steps ---- */

static life *add(world *w, int64_t n, int priority, int32_t token) {
    life *l = idle_life(w);
    for (int64_t i = 0; i < n; i++) {
        put_token(l, i, token);
    }
    l->seq = (lt_seq){.tokens = l->tokens, .n_tokens = n, .table = l->table, .priority = priority};
    lt_sched_add(&w->s, &l->seq);
    return l;
}

static void plan_and_run(world *w) {
    w->s.pages.now_s += 0.3;
    lt_sched_plan(&w->s);
    run_plan(w);
    lt_sched_done(&w->s);
    check(w, 0);
}

static void decoding_comes_before_prompts(void **state) {
    static world w;
    life *a, *b;
    (void)state;
    open_world(&w, 1, 8, 10);
    a = add(&w, 4, 0, 1);
    plan_and_run(&w);
    put_token(a, a->seq.n_tokens++, 2);
    b = add(&w, 30, 5, 3); /* Of higher priority, but its prompt must not delay a's token. */
    lt_sched_plan(&w.s);
    assert_int_equal(w.s.n_items, 2);
    assert_int_equal(w.s.n_rows, 10);
    run_plan(&w);
    lt_sched_done(&w.s);
    assert_int_equal(a->seq.n_done, 5);
    assert_int_equal(b->seq.n_done, 9);
    lt_arena_close(&w.arena);
}

static void priority_then_arrival(void **state) {
    static world w;
    life *low, *early, *late;
    (void)state;
    open_world(&w, 1, 8, 64);
    low = add(&w, 4, 0, 1);
    early = add(&w, 4, 1, 2);
    late = add(&w, 4, 1, 3);
    assert_ptr_equal(w.s.waiting.first, &early->seq);
    assert_ptr_equal(early->seq.next, &late->seq);
    assert_ptr_equal(late->seq.next, &low->seq);
    w.s.n_steps += LT_SCHED_AGE + 1; /* A request that has waited long enough is not overtaken. */
    late = add(&w, 4, 1, 3);
    assert_ptr_equal(w.s.waiting.last, &late->seq);
    lt_arena_close(&w.arena);
}

static void a_prompt_seen_before_is_not_run_again(void **state) {
    static world w;
    life *a, *b;
    (void)state;
    open_world(&w, 1, 8, 64);
    a = add(&w, 12, 0, 1);
    plan_and_run(&w);
    b = add(&w, 12, 0, 1);
    plan_and_run(&w);
    assert_int_equal(b->seq.n_cached, 8); /* Its last token runs, and so does its page. */
    assert_int_equal(b->seq.n_done, 12);
    assert_int_equal(b->table[0], a->table[0]);
    assert_int_equal(b->table[2], a->table[2]); /* Equal pages become one. */
    lt_sched_remove(&w.s, &a->seq);
    lt_sched_remove(&w.s, &b->seq);
    assert_int_equal(w.s.pages.n_cached, 3);
    lt_arena_close(&w.arena);
}

/* Prompts of other texts that need more than all pages. */
static void press(world *w) {
    for (int32_t i = 0; i < 8; i++) {
        life *l = add(w, 40, 0, 1000 * (1 + (int32_t)w->s.n_steps) + i);
        plan_and_run(w);
        lt_sched_remove(&w->s, &l->seq);
    }
}

/* Number of tokens of a prompt of twenty 1 that are found; it keeps n_keep of them for keep_s. */
static int64_t found(world *w, double keep_s, int64_t n_keep) {
    life *l = add(w, 20, 0, 1);
    l->seq.keep_s = keep_s;
    l->seq.n_keep = n_keep;
    plan_and_run(w);
    lt_sched_remove(&w->s, &l->seq);
    return l->seq.n_cached;
}

/* At most 16 of 48 pages are kept; the others make room. A page is kept if its first token is
 * among those that a request asks to keep, whether the request computes it or finds it. */
static void pages_are_kept_for_their_time(void **state) {
    static world w;
    (void)state;
    open_world(&w, 1, 8, 64);
    assert_int_equal(found(&w, 100.0, 9), 0);
    assert_int_equal(w.s.pages.n_kept, 3);
    press(&w);
    assert_int_equal(found(&w, 0.0, 20), 12);
    assert_int_equal(w.s.pages.n_kept, 3);
    assert_int_equal(found(&w, 200.0, 16), 16); /* All but the page of its last token. */
    assert_int_equal(w.s.pages.n_kept, 4);
    w.s.pages.now_s += 150.0; /* The time of the first request is over. */
    press(&w);
    assert_int_equal(found(&w, 0.0, 0), 16);
    w.s.pages.now_s += 60.0;
    press(&w);
    assert_int_equal(w.s.pages.n_kept, 0);
    assert_int_equal(found(&w, 0.0, 0), 0);
    lt_arena_close(&w.arena);
}

static void forks_copy_a_page_when_they_write(void **state) {
    static world w;
    life *a, *b = NULL;
    (void)state;
    open_world(&w, 1, 8, 64);
    a = add(&w, 6, 0, 1);
    plan_and_run(&w);
    b = &w.lives[1];
    memcpy(b->tokens, a->tokens, sizeof b->tokens);
    memcpy(b->prefix, a->prefix, sizeof b->prefix);
    b->seq = (lt_seq){.tokens = b->tokens, .n_tokens = 6, .table = b->table};
    assert_true(lt_sched_fork(&w.s, &a->seq, &b->seq));
    put_token(a, a->seq.n_tokens++, 2);
    put_token(b, b->seq.n_tokens++, 3);
    lt_sched_plan(&w.s);
    assert_int_equal(w.s.n_copies, 1);
    run_plan(&w);
    lt_sched_done(&w.s);
    check(&w, 0);
    assert_int_equal(a->table[0], b->table[0]);
    assert_int_not_equal(a->table[1], b->table[1]);
    lt_arena_close(&w.arena);
}

/* Beside a running sequence, another one starts only if a page of each group is left for the
 * former. A sequence of k sets, at least 12, holds k + 12 pages: 12 sets are those of 9 + 24
 * tokens and 3. */
static void one_more_page_is_left_in_each_group(void **state) {
    (void)state;
    for (int64_t left = 1; left <= 2; left++) {
        static world w;
        const life *b;
        int64_t sets;
        open_groups(&w, 1, 8, 24, 1, 1, 9);
        (void)add(&w, 60, 0, 1);
        for (int i = 0; i < 3; i++) { /* In steps of 24 tokens. */
            plan_and_run(&w);
        }
        sets = lt_pages_available(&w.s.pages) - left - 12;
        assert_in_range(sets, 12, MAX_PAGES);
        b = add(&w, sets * PAGE - 1, 0, 2);
        assert_int_equal(lt_sched_most_pages(&w.s, sets * PAGE), sets + 12);
        plan_and_run(&w);
        assert_int_equal(b->seq.state, left == 2 ? LT_SEQ_RUNNING : LT_SEQ_WAITING);
        lt_arena_close(&w.arena);
    }
}

/* Two families of two sequences of 16 pages, in 48 pages: the first members are done and wait for
 * the second ones, for which there is no room. The members of a family are adjacent in the order,
 * so the later family gives way. */
static void a_family_that_waits_gives_way(void **state) {
    enum { A0, B0, A1, B1, N = 64 };
    static world w;
    life *l = w.lives;
    (void)state;
    open_world(&w, 4, 8, 256);
    for (int i = A0; i <= B1; i++) {
        for (int64_t k = 0; k < N; k++) {
            put_token(&l[i], k, 10 * i + (int32_t)k % 7);
        }
        l[i].seq = (lt_seq){.tokens = l[i].tokens,
                            .n_tokens = N,
                            .table = l[i].table,
                            .family = &l[i % 2 == 0 ? A0 : B0].seq,
                            .member = i / 2,
                            .n_members = 2};
    }
    lt_sched_add(&w.s, &l[A0].seq);
    lt_sched_add(&w.s, &l[B0].seq);
    lt_sched_plan(&w.s);
    assert_int_equal(w.s.n_items, 2);
    assert_false(lt_sched_unblock(&w.s)); /* There is something to run. */
    run_plan(&w);
    lt_sched_done(&w.s);
    lt_sched_plan(&w.s);
    assert_false(lt_sched_unblock(&w.s)); /* No family waits. */
    lt_sched_add(&w.s, &l[B1].seq);
    lt_sched_add(&w.s, &l[A1].seq);
    assert_ptr_equal(w.s.waiting.first, &l[A1].seq);
    lt_sched_plan(&w.s);
    assert_int_equal(w.s.n_items, 0);
    assert_true(lt_sched_unblock(&w.s));
    assert_int_equal(w.s.n_items, 1);
    assert_ptr_equal(w.s.items[0].seq, &l[A1].seq);
    assert_int_equal(l[B0].seq.state, LT_SEQ_WAITING);
    run_plan(&w);
    lt_sched_done(&w.s);
    lt_sched_remove(&w.s, &l[A0].seq);
    assert_true(lt_sched_check(&w.s) == NULL);
    lt_arena_close(&w.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decoding_comes_before_prompts),
        cmocka_unit_test(priority_then_arrival),
        cmocka_unit_test(a_prompt_seen_before_is_not_run_again),
        cmocka_unit_test(pages_are_kept_for_their_time),
        cmocka_unit_test(forks_copy_a_page_when_they_write),
        cmocka_unit_test(a_family_that_waits_gives_way),
        cmocka_unit_test(one_more_page_is_left_in_each_group),
        cmocka_unit_test(a_million_steps),
        cmocka_unit_test(sequences_with_a_window_hold_few_pages),
        cmocka_unit_test(groups_of_layers_give_back_their_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

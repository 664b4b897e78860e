/* Lengths of drafts that the engine chooses, in simulated worlds, beside the best fixed length.
 *
 * The times are those of one NVIDIA H200 with a model of Llama-1B's shape (bench/results/
 * speculation.md): 0.72 ms a step, 0.99 ms one with drafts, for which the host waits, and 0.147 ms
 * a call of an EAGLE-3 head; a model of 23 million parameters takes 0.21 ms for 16 streams, and
 * 0.38 ms with drafts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "serve/draft.h"

enum { STREAMS = 16, TOKENS = 1500, SEEDS = 3, SHORT_ROWS = 4, RECORDED = 3 };

/* Times in ms. A draft token is accepted with probability rate * decay^place, or where the circle
 * has a 1 at its position in the text. least: of the speed of the best fixed length; of the speed
 * without drafts. A step runs as many rows as the next bucket has, and `wide` times as long where a
 * text has more rows than SHORT_ROWS. Each first use of a bucket takes `record` longer, RECORDED
 * times. */
typedef struct {
    const char *name;
    int n;
    double step, with_drafts, row, call, rate, decay;
    const char *circle;
    double least, wide, record;
} world;

/* The times that all worlds of one text, and all of 16, have. */
#define ONE  1, 0.719, 0.99, 0.005
#define MANY STREAMS, 0.92, 1.19, 0.0096
#define TINY STREAMS, 0.208, 0.38, 0.0015

#define CIRCLE      "11111111110"
#define LONG_CIRCLE "11111111011111111101110"

static const world worlds[] = {
    {"the bench's text: a circle of 11 words, one of which the head does not know", ONE, 0.147, 0,
     1, CIRCLE, 0.98, 1.1, 0},
    {"a circle with two unknown words", ONE, 0.147, 0, 1, LONG_CIRCLE, 0.98, 1.1, 0},
    {"all right", ONE, 0.147, 1, 1, NULL, 0.98, 1.1, 0},
    {"independent, 0.85", ONE, 0.147, 0.85, 1, NULL, 0.98, 1.1, 0},
    {"independent, 0.7", ONE, 0.147, 0.7, 1, NULL, 0.96, 1.1, 0},
    {"independent, 0.5: no draft pays", ONE, 0.147, 0.5, 1, NULL, 0.98, 1.1, 0},
    {"worse by place", ONE, 0.147, 0.85, 0.9, NULL, 0.97, 1.1, 0},
    {"a small draft model, 0.85", ONE, 0.06, 0.85, 1, NULL, 0.98, 1.1, 0},
    {"copies, 0.85", ONE, 0, 0.85, 1, NULL, 0.97, 1.1, 0},
    {"16 texts, the bench's circle", MANY, 0.22, 0, 1, CIRCLE, 0.85, 1.1, 4},
    {"16 texts, independent, 0.85", MANY, 0.22, 0.85, 1, NULL, 0.97, 1.1, 4},
    {"16 texts, independent, 0.85, where long drafts cost much", MANY, 0.22, 0.85, 1, NULL, 0.97,
     1.6, 4},
    {"16 texts, all right, where long drafts cost much", MANY, 0.22, 1, 1, NULL, 0.97, 1.6, 4},
    {"16 texts, worse by place", MANY, 0.22, 0.85, 0.9, NULL, 0.97, 1.1, 4},
    {"16 texts, a small draft model, 0.7", MANY, 0.08, 0.7, 1, NULL, 0.97, 1.1, 4},
    {"16 texts, a small draft model, 0.5", MANY, 0.08, 0.5, 1, NULL, 0.97, 1.1, 4},
    {"16 texts, a small draft model, always wrong", MANY, 0.08, 0, 1, NULL, 0.98, 1.1, 4},
    {"16 texts, copies, 0.85", MANY, 0, 0.85, 1, NULL, 0.97, 1.1, 4},
    {"a tiny model, copies of 0.35", TINY, 0, 0.35, 1, NULL, 0.98, 1.1, 2},
    {"a tiny model, copies that are wrong", TINY, 0, 0, 1, NULL, 0.98, 1.1, 2},
};

/* What the engine knows of one text. */
typedef struct {
    lt_draft_acceptance own;
    int64_t run, behind, position;
} text;

typedef struct {
    const world *w;
    lt_draft_times plain, drafted[2], calls; /* drafted: short, long. */
    lt_draft_acceptance all;
    lt_draft_runs runs;
    lt_draft_account account;
    lt_rng rng;
    int used[2][LT_DRAFT_ROWS + 1], used_call[4 * LT_DRAFT_ROWS]; /* Buckets, how often. */
    text text[STREAMS];
    lt_draft_text chosen[STREAMS];
} game;

/* fixed < 0: the engine chooses. */
static void choose(game *g, int fixed) {
    const int n = g->w->n;
    int64_t room = LT_DRAFT_ROWS - n;
    for (int i = 0; i < n; i++) {
        const text *t = &g->text[i];
        g->chosen[i] = (lt_draft_text){.own = &t->own,
                                       .all = &g->all,
                                       .runs = &g->runs,
                                       .run = t->run,
                                       .most = LT_DRAFT_MOST,
                                       .behind = g->w->call > 0 ? t->behind : 0,
                                       .n = 0};
        if (fixed > 0) {
            g->chosen[i].n = fixed < room ? fixed : room;
            room -= g->chosen[i].n;
        }
    }
    if (fixed < 0 && g->account.balance >= 0) {
        const lt_draft_known known = {.plain = &g->plain,
                                      .drafted = {&g->drafted[0], &g->drafted[1]},
                                      .few = SHORT_ROWS - 1,
                                      .model = g->w->call > 0 ? &g->calls : NULL};
        (void)lt_draft_choose(&known, n, g->chosen, n);
    }
}

static bool is_right(game *g, const text *t, int64_t place) {
    const world *w = g->w;
    return w->circle != NULL ? w->circle[(size_t)(t->position + place) % strlen(w->circle)] == '1'
                             : lt_rng_uniform(&g->rng) < w->rate * pow(w->decay, (double)place);
}

/* Verify the draft of text i; rows[k]: rows of call k of the draft model. Returns how many tokens
 * were accepted. */
static int64_t verify(game *g, int i, int64_t rows[LT_DRAFT_MOST]) {
    text *t = &g->text[i];
    const lt_draft_text *c = &g->chosen[i];
    int64_t right = 0;
    while (right < c->n && is_right(g, t, right)) {
        right++;
    }
    for (int64_t k = 0; k < c->n; k++) {
        rows[k] += k == 0 ? t->behind : 1;
    }
    t->run = lt_draft_run_after(c, right);
    lt_draft_runs_note(&g->runs, c, right);
    lt_draft_acceptance_note(&t->own, LT_DRAFT_KEPT, c->n, right);
    if (c->n > 0) {
        lt_draft_acceptance_note(&g->all, LT_DRAFT_KEPT_ALL, c->n, right);
    }
    t->position += right + 1;
    t->behind = c->n > 0 ? right + 1 : t->behind < 16 ? t->behind + 1 : 1;
    return right;
}

/* 1, 2, 3, 4, 6, 8, 12, 16, ...: the rows that a step with so many has when it is padded. */
static int64_t padded(int64_t rows) {
    int64_t power = 1;
    while (power * 2 <= rows) {
        power *= 2;
    }
    return rows == power ? rows : rows <= power + power / 2 ? power + power / 2 : 2 * power;
}

/* What the first uses of a bucket take longer. */
static double recording(const world *w, int *used) {
    return *used < RECORDED ? ((*used)++, w->record) : 0;
}

/* The calls of the draft model, which are recorded if it is not a head. */
static double run_calls(game *g, const int64_t rows[LT_DRAFT_MOST], double noise) {
    const world *w = g->w;
    double all = 0;
    for (int k = 0; k < LT_DRAFT_MOST && rows[k] > 0 && w->call > 0; k++) {
        const double took = w->call * (1 + 0.004 * (double)padded(rows[k])) * noise;
        const double first = w->call < 0.1 ? recording(w, &g->used_call[padded(rows[k])]) : 0;
        lt_draft_times_note(&g->calls, first > 0 ? 0 : rows[k], took);
        all += took + first;
    }
    return all;
}

/* One step; returns its time. */
static double step(game *g, int fixed, int64_t *tokens) {
    const world *w = g->w;
    const double noise = 0.97 + 0.06 * lt_rng_uniform(&g->rng);
    const double known = lt_draft_times_of(&g->plain, w->n);
    int64_t rows[LT_DRAFT_MOST] = {0}, n_rows = w->n, accepted = 0, longest = 0;
    double of_model, took, first = 0;
    bool drafted;
    choose(g, fixed);
    for (int i = 0; i < w->n; i++) {
        n_rows += g->chosen[i].n;
        longest = g->chosen[i].n > longest ? g->chosen[i].n : longest;
        accepted += verify(g, i, rows);
    }
    drafted = n_rows > w->n;
    of_model = run_calls(g, rows, noise);
    took = ((drafted ? w->with_drafts : w->step) + w->row * (double)(padded(n_rows) - w->n)) *
           (longest >= SHORT_ROWS ? w->wide : 1) * noise;
    if (drafted) {
        first = recording(w, &g->used[longest >= SHORT_ROWS][padded(n_rows)]);
    }
    for (int i = 0; i < 3; i++) { /* Of 0 rows: what is known gets older. */
        lt_draft_times *t = i < 2 ? &g->drafted[i] : &g->plain;
        const bool own = i == (drafted ? longest >= SHORT_ROWS : 2);
        lt_draft_times_note(t, own && first == 0 ? n_rows : 0, took);
    }
    if (!drafted) {
        lt_draft_times_note(&g->calls, 0, 0);
        lt_draft_acceptance_note(&g->all, LT_DRAFT_KEPT_ALL, 0, 0);
    }
    lt_draft_account_note(&g->account, drafted && first == 0, took + first + of_model, known,
                          accepted, w->n);
    *tokens += w->n + accepted;
    return took + first + of_model;
}

/* Tokens a ms of texts of TOKENS tokens; those before them, in which the engine measures, do not
 * count. */
static double play(const world *w, int fixed) {
    double seconds = 0;
    int64_t tokens = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        game g = {.w = w,
                  .plain = {.recent = 512, .padded = true},
                  .drafted = {{.padded = true}, {.padded = true}},
                  .calls = {.padded = w->record > 0},
                  .rng = {.seed = seed}};
        lt_draft_account_begin(&g.account);
        for (int turn = 0; turn < 2; turn++) {
            int64_t made = 0;
            double s = 0;
            for (int i = 0; i < w->n; i++) {
                g.text[i] = (text){.behind = 1, .position = 7 * i};
            }
            while (made < TOKENS * w->n) {
                s += step(&g, fixed, &made);
            }
            seconds += turn > 0 ? s : 0;
            tokens += turn > 0 ? made : 0;
        }
    }
    return (double)tokens / seconds;
}

static void the_chosen_length_is_nearly_the_best(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        const world *w = &worlds[i];
        const double none = play(w, 0), chosen = play(w, -1);
        double best = none;
        for (int fixed = 1; fixed <= LT_DRAFT_MOST; fixed++) {
            const double x = play(w, fixed);
            best = x > best ? x : best;
        }
        if (chosen < w->least * best || chosen < 0.98 * none) {
            fail_msg("%s: %.3f of the best fixed length, %.3f of none", w->name, chosen / best,
                     chosen / none);
        }
    }
}

/* Drafts that pay on average do not pause after some bad ones: their gains are saved, but only up
 * to 16 steps; what is allowed is not. */
static void gains_are_saved(void **state) {
    lt_draft_account a;
    (void)state;
    lt_draft_account_begin(&a);
    for (int i = 0; i < 1000; i++) {
        lt_draft_account_note(&a, false, 1, 1, 0, 1);
    }
    assert_true(a.balance == 2);
    for (int i = 0; i < 100; i++) {
        lt_draft_account_note(&a, true, 1, 1, 1, 1);
    }
    assert_true(a.balance == 16);
    for (int i = 0; i < 10; i++) {
        lt_draft_account_note(&a, true, 2, 1, 0, 1);
    }
    assert_true(a.balance > 6 && a.balance < 6.2);
    lt_draft_account_note(&a, false, 1, 1, 0, 1); /* A step without drafts takes nothing away. */
    assert_true(a.balance > 6.1);
}

/* A text that repeats 5 tokens, the last of which the drafter does not know, with drafts of two:
 * every other second token is wrong, and the run says which. */
static void runs_correct_the_rates_of_places(void **state) {
    lt_draft_acceptance own, all;
    lt_draft_runs runs;
    lt_draft_text t = {.own = &own, .all = &all, .runs = &runs, .most = LT_DRAFT_MOST, .n = 2};
    int64_t position = 0;
    (void)state;
    memset(&own, 0, sizeof own);
    memset(&all, 0, sizeof all);
    memset(&runs, 0, sizeof runs);
    for (int i = 0; i < 401; i++) {
        const int64_t right = position % 5 == 3 ? 1 : 2, run = lt_draft_run_after(&t, right);
        assert_int_equal(t.run, position % 5);
        lt_draft_runs_note(&runs, &t, right);
        lt_draft_acceptance_note(&own, LT_DRAFT_KEPT, 2, right);
        lt_draft_acceptance_note(&all, LT_DRAFT_KEPT_ALL, 2, right);
        t.run = run;
        position += right + 1;
    }
    assert_in_range(1000 * lt_draft_acceptance_at(&own, &all, 1), 400, 600);
    t.run = 0;
    assert_true(lt_draft_text_accepts(&t, 0) > 0.9 && lt_draft_text_accepts(&t, 1) > 0.9);
    t.run = 3;
    assert_true(lt_draft_text_accepts(&t, 0) > 0.9 && lt_draft_text_accepts(&t, 1) < 0.1);
    t.n = 1; /* Nobody sees the token behind an accepted draft: it is believed to be wrong. */
    assert_int_equal(lt_draft_run_after(&t, 1), 0);
    t.run = 0;
    assert_int_equal(lt_draft_run_after(&t, 1), 2);
    assert_int_equal(lt_draft_run_after(&t, 0), 0);
    t.run = 3;
    t.runs = NULL;
    assert_true(lt_draft_text_accepts(&t, 1) > 0.4);
}

/* A place that is not tried is forgotten, until it is tried again. */
static void untried_places_come_back(void **state) {
    lt_draft_acceptance l;
    (void)state;
    memset(&l, 0, sizeof l);
    for (int i = 0; i < 50; i++) {
        lt_draft_acceptance_note(&l, LT_DRAFT_KEPT, 2, 1);
    }
    assert_true(lt_draft_acceptance_at(&l, NULL, 1) < 0.3);
    for (int i = 0; i < 400; i++) {
        lt_draft_acceptance_note(&l, LT_DRAFT_KEPT, 1, 1);
    }
    assert_true(lt_draft_acceptance_at(&l, NULL, 1) > 0.8); /* As the place before it. */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_chosen_length_is_nearly_the_best),
                                       cmocka_unit_test(gains_are_saved),
                                       cmocka_unit_test(runs_correct_the_rates_of_places),
                                       cmocka_unit_test(untried_places_come_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

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

enum { STREAMS = 16, TOKENS = 1500, SEEDS = 3 };

/* Times in ms. A draft token is accepted with probability rate * decay^place, or where the circle
 * has a 1 at its position in the text. least: of the speed of the best fixed length; of the speed
 * without drafts. */
typedef struct {
    const char *name;
    int n;
    double step, with_drafts, row, call, rate, decay;
    const char *circle;
    double least;
} world;

static const world worlds[] = {
    {"the bench's text: a circle of 11 words, one of which the head does not know", 1, 0.719, 0.99,
     0.005, 0.147, 0, 1, "11111111110", 0.98},
    {"a circle with two unknown words", 1, 0.719, 0.99, 0.005, 0.147, 0, 1,
     "11111111011111111101110", 0.98},
    {"all right", 1, 0.719, 0.99, 0.005, 0.147, 1, 1, NULL, 0.98},
    {"independent, 0.85", 1, 0.719, 0.99, 0.005, 0.147, 0.85, 1, NULL, 0.98},
    {"independent, 0.7", 1, 0.719, 0.99, 0.005, 0.147, 0.7, 1, NULL, 0.96},
    {"independent, 0.5: no draft pays", 1, 0.719, 0.99, 0.005, 0.147, 0.5, 1, NULL, 0.98},
    {"worse by place", 1, 0.719, 0.99, 0.005, 0.147, 0.85, 0.9, NULL, 0.97},
    {"a small draft model, 0.85", 1, 0.719, 0.99, 0.005, 0.06, 0.85, 1, NULL, 0.98},
    {"copies, 0.85", 1, 0.719, 0.99, 0.005, 0, 0.85, 1, NULL, 0.97},
    {"a tiny model, copies of 0.35", STREAMS, 0.208, 0.38, 0.0015, 0, 0.35, 1, NULL, 0.98},
    {"a tiny model, copies that are wrong", STREAMS, 0.208, 0.38, 0.0015, 0, 0, 1, NULL, 0.98},
};

/* What the engine knows of one text. */
typedef struct {
    lt_draft_acceptance own;
    int64_t run, behind, position;
} text;

typedef struct {
    const world *w;
    lt_draft_times plain, drafted, calls;
    lt_draft_acceptance all;
    lt_draft_runs runs;
    lt_draft_account account;
    lt_rng rng;
    text text[STREAMS];
    lt_draft_text chosen[STREAMS];
} game;

/* fixed < 0: the engine chooses. */
static void choose(game *g, int fixed) {
    const int n = g->w->n;
    for (int i = 0; i < n; i++) {
        const text *t = &g->text[i];
        g->chosen[i] = (lt_draft_text){.own = &t->own,
                                       .all = &g->all,
                                       .runs = &g->runs,
                                       .run = t->run,
                                       .most = LT_DRAFT_MOST,
                                       .behind = g->w->call > 0 ? t->behind : 0,
                                       .n = fixed > 0 ? fixed : 0};
    }
    if (fixed < 0 && g->account.balance >= 0) {
        (void)lt_draft_choose(&g->plain, &g->drafted, g->w->call > 0 ? &g->calls : NULL, n,
                              g->chosen, n);
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

/* One step; returns its time. */
static double step(game *g, int fixed, int64_t *tokens) {
    const world *w = g->w;
    const double noise = 0.97 + 0.06 * lt_rng_uniform(&g->rng);
    const double known = lt_draft_times_of(&g->plain, w->n);
    int64_t rows[LT_DRAFT_MOST] = {0}, n_rows = w->n, accepted = 0;
    double of_model = 0, took;
    bool drafted;
    choose(g, fixed);
    for (int i = 0; i < w->n; i++) {
        n_rows += g->chosen[i].n;
        accepted += verify(g, i, rows);
    }
    drafted = n_rows > w->n;
    for (int k = 0; k < LT_DRAFT_MOST && rows[k] > 0 && w->call > 0; k++) {
        const double call = w->call * (1 + 0.004 * (double)rows[k]) * noise;
        lt_draft_times_note(&g->calls, rows[k], call);
        of_model += call;
    }
    took = ((drafted ? w->with_drafts : w->step) + w->row * (double)(n_rows - w->n)) * noise;
    lt_draft_times_note(drafted ? &g->drafted : &g->plain, n_rows, took);
    lt_draft_times_note(drafted ? &g->plain : &g->drafted, 0, 0);
    if (!drafted) {
        lt_draft_times_note(&g->calls, 0, 0);
        lt_draft_acceptance_note(&g->all, LT_DRAFT_KEPT_ALL, 0, 0);
    }
    lt_draft_account_note(&g->account, drafted, took + of_model, known, accepted, w->n);
    *tokens += w->n + accepted;
    return took + of_model;
}

/* Tokens a ms of texts of TOKENS tokens; those before them, in which the engine measures, do not
 * count. */
static double play(const world *w, int fixed) {
    double seconds = 0;
    int64_t tokens = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        game g = {.w = w, .plain = {.recent = 512}, .rng = {.seed = seed}};
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
        for (int fixed = 1; fixed <= LT_DRAFT_MOST && w->n == 1; fixed++) {
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

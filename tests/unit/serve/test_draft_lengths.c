/* Lengths of drafts that the engine chooses, in simulated worlds, beside the best fixed length.
 *
 * The times are those of one NVIDIA H200 (bench/results/speculation.md). A step runs as many rows
 * as the next bucket has (model/infer/paged_forward.c), whose first uses are recorded. All texts
 * have the same length, so those with bad drafts run alone in the end. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "serve/draft.h"

enum {
    STREAMS = 64,
    MANY = 16,
    TOKENS = 512,
    SEEDS = 3,
    SHORT_ROWS = 4,
    RECORDED = 3,
    CLASSES = 512
};

/* Times in ms of a step with this many rows, with drafts and without, and of a call of the
 * drafter. Above 64 rows products have other kernels. `wide`: a step with a draft that is not
 * short takes this many times as long. Each of the first RECORDED uses of a bucket takes `record`
 * longer. */
typedef struct {
    double plain, plain_row, drafts, row, behind_64, wide, call, call_row, record;
} machine;

static const machine with_head = {0.72, 0.013, 0.98, 0.0055, 0.28, 1, 0.147, 0.0006, 0},
                     with_heads = {0.72, 0.013, 0.92, 0.0055, 0.28, 1, 0.19, 0.0008, 0},
                     with_wide = {0.72, 0.013, 0.92, 0.0055, 0.28, 1.5, 0.19, 0.0008, 0},
                     with_small = {0.72, 0.013, 0.92, 0.0055, 0.28, 1, 0.09, 0.002, 0},
                     with_copies = {0.72, 0.013, 0.92, 0.0055, 0.28, 1, 0, 0, 0},
                     with_unwarmed = {0.72, 0.013, 0.92, 0.0055, 0.28, 1, 0.09, 0.002, 2},
                     with_64 = {0.72, 0.007, 0.92, 0.0055, 0.28, 1, 0.19, 0.0008, 0},
                     small_64 = {0.72, 0.007, 0.92, 0.0055, 0.28, 1, 0.09, 0.002, 0},
                     copies_64 = {0.72, 0.007, 0.92, 0.0055, 0.28, 1, 0, 0, 0},
                     tiny = {0.12, 0.0055, 0.2, 0.002, 0, 1, 0, 0, 0};

/* A draft token is accepted with probability rate * decay^place; or, with a cycle, if it has a 1
 * at the token's position in the text; or, "map", if the drafter knows what follows the text's
 * class, as it does for that share of the classes (bench/successor_models.py). least: the lowest
 * accepted speed, relative to the best fixed length and to no drafts. */
typedef struct {
    const char *name;
    int n;
    const machine *m;
    double rate, decay;
    const char *circle;
    double least;
} world;

#define CIRCLE      "11111111110"
#define LONG_CIRCLE "11111111011111111101110"
#define MAP         "map"

static const world worlds[] = {
    {"a circle of 11 words, one of which the head does not know", 1, &with_head, 0, 1, CIRCLE,
     0.97},
    {"a circle with two unknown words", 1, &with_head, 0, 1, LONG_CIRCLE, 0.98},
    {"all right", 1, &with_head, 1, 1, NULL, 0.98},
    {"independent, 0.85", 1, &with_head, 0.85, 1, NULL, 0.97},
    {"independent, 0.7", 1, &with_head, 0.7, 1, NULL, 0.96},
    {"independent, 0.5: no draft pays", 1, &with_head, 0.5, 1, NULL, 0.98},
    {"worse by place", 1, &with_head, 0.85, 0.9, NULL, 0.97},
    {"a small draft model, 0.85", 1, &with_small, 0.85, 1, NULL, 0.97},
    {"copies, 0.85", 1, &with_copies, 0.85, 1, NULL, 0.97},
    {"16 texts, circles", MANY, &with_heads, 0, 1, CIRCLE, 0.92},
    {"16 texts, the bench's head", MANY, &with_heads, 0.85, 1, MAP, 0.97},
    {"16 texts, the bench's draft model", MANY, &with_small, 0.85, 1, MAP, 0.97},
    {"16 texts, the bench's draft model, drawn", MANY, &with_small, 0.73, 1, NULL, 0.97},
    {"16 texts, independent, 0.85", MANY, &with_heads, 0.85, 1, NULL, 0.97},
    {"16 texts, independent, 0.85, long drafts cost much", MANY, &with_wide, 0.85, 1, NULL, 0.97},
    {"16 texts, all right, long drafts cost much", MANY, &with_wide, 1, 1, NULL, 0.97},
    {"16 texts, worse by place", MANY, &with_heads, 0.85, 0.9, NULL, 0.96},
    {"16 texts, a small draft model, 0.5", MANY, &with_small, 0.5, 1, NULL, 0.96},
    {"16 texts, a small draft model, always wrong", MANY, &with_small, 0, 1, NULL, 0.98},
    {"16 texts, copies, 0.85", MANY, &with_copies, 0.85, 1, NULL, 0.97},
    {"16 texts, copies, the bench's", MANY, &with_copies, 1, 1, MAP, 0.97},
    {"4 texts, the bench's head", 4, &with_heads, 0.85, 1, MAP, 0.96},
    {"64 texts, the bench's head", STREAMS, &with_64, 0.85, 1, MAP, 0.90},
    {"64 texts, the bench's draft model", STREAMS, &small_64, 0.85, 1, MAP, 0.94},
    {"64 texts, always wrong", STREAMS, &small_64, 0, 1, NULL, 0.98},
    {"64 texts, copies, 0.85", STREAMS, &copies_64, 0.85, 1, NULL, 0.96},
    {"16 texts, steps are recorded", MANY, &with_unwarmed, 0.85, 1, MAP, 0.97},
    {"a tiny model, copies of 0.35", MANY, &tiny, 0.35, 1, NULL, 0.98},
    {"a tiny model, copies that are wrong", MANY, &tiny, 0, 1, NULL, 0.98},
};

/* What the engine knows about one text. */
typedef struct {
    lt_draft_acceptance own;
    double pace;
    int64_t run, behind, position, left; /* left: tokens that it will still have. */
} text;

typedef struct {
    const world *w;
    const machine *m;
    lt_draft_times plain, drafted[2], calls; /* drafted: with short drafts, with long ones. */
    lt_draft_acceptance all;
    lt_draft_runs runs;
    lt_draft_account account;
    lt_rng rng;
    /* How often each bucket was used. */
    int used[2][LT_DRAFT_ROWS + 1], used_call[4 * LT_DRAFT_ROWS];
    int16_t after[CLASSES]; /* Of a map. */
    bool knows[CLASSES];
    text text[STREAMS];
    int64_t n;                     /* Texts that have not ended come first; */
    lt_draft_text chosen[STREAMS]; /* their drafts. */
} game;

/* fixed < 0: the engine chooses. */
static void choose(game *g, int fixed) {
    const bool model = g->m->call > 0;
    int64_t room = LT_DRAFT_ROWS - g->n;
    for (int64_t i = 0; i < g->n; i++) {
        const text *t = &g->text[i];
        const int64_t most = t->left - 1 < LT_DRAFT_MOST ? t->left - 1 : LT_DRAFT_MOST;
        g->chosen[i] = (lt_draft_text){.own = &t->own,
                                       .all = &g->all,
                                       .runs = &g->runs,
                                       .run = t->run,
                                       .most = most,
                                       .pace = t->pace,
                                       .behind = model ? t->behind : 0,
                                       .n = 0};
        if (fixed > 0) {
            const int64_t n = fixed < most ? fixed : most;
            g->chosen[i].n = n < room ? n : room;
            room -= g->chosen[i].n;
        }
    }
    if (fixed < 0 && g->account.balance >= 0) {
        const lt_draft_known known = {.plain = &g->plain,
                                      .drafted = {&g->drafted[0], &g->drafted[1]},
                                      .few = SHORT_ROWS - 1,
                                      .model = model ? &g->calls : NULL};
        (void)lt_draft_choose(&known, g->n, g->chosen, g->n);
    }
}

static bool is_map(const world *w) {
    return w->circle != NULL && strcmp(w->circle, MAP) == 0;
}

/* at: the position of the guessed token. */
static bool is_right(game *g, int64_t at, int64_t place) {
    const world *w = g->w;
    return is_map(w)           ? g->knows[at]
           : w->circle != NULL ? w->circle[(size_t)at % strlen(w->circle)] == '1'
                               : lt_rng_uniform(&g->rng) < w->rate * pow(w->decay, (double)place);
}

static int64_t next_position(const game *g, int64_t at) {
    return is_map(g->w) ? g->after[at] : at + 1;
}

/* Verify the draft of text i; rows[k]: rows of call k of the draft model. Returns how many tokens
 * were accepted. */
static int64_t verify(game *g, int64_t i, int64_t rows[LT_DRAFT_MOST]) {
    text *t = &g->text[i];
    const lt_draft_text *c = &g->chosen[i];
    int64_t right = 0;
    while (right < c->n && is_right(g, t->position, right)) {
        t->position = next_position(g, t->position);
        right++;
    }
    t->position = next_position(g, t->position);
    for (int64_t k = 0; k < c->n; k++) {
        rows[k] += k == 0 ? t->behind : 1;
    }
    t->run = lt_draft_run_after(c, right);
    lt_draft_runs_note(&g->runs, c, right);
    lt_draft_acceptance_note(&t->own, LT_DRAFT_KEPT, c->n, right);
    if (c->n > 0) {
        lt_draft_acceptance_note(&g->all, LT_DRAFT_KEPT_ALL, c->n, right);
    }
    t->left -= right + 1;
    t->pace = lt_draft_pace_after(t->pace, right + 1);
    t->behind = c->n > 0 ? right + 1 : t->behind < 16 ? t->behind + 1 : 1;
    return right;
}

/* 1, 2, 3, 4, 6, 8, 12, 16, ...: the rows of a step with this many when it is padded. */
static int64_t padded(int64_t rows) {
    int64_t power = 1;
    while (power * 2 <= rows) {
        power *= 2;
    }
    return rows == power ? rows : rows <= power + power / 2 ? power + power / 2 : 2 * power;
}

/* The extra time of the first uses of a bucket. */
static double recording(const game *g, int *used) {
    return g->m->record > 0 && *used < RECORDED ? ((*used)++, g->m->record) : 0;
}

/* The calls of the draft model, which are recorded if it is not a head. */
static double run_calls(game *g, const int64_t rows[LT_DRAFT_MOST], double noise, double *first_s) {
    const machine *m = g->m;
    double all = 0;
    for (int k = 0; k < LT_DRAFT_MOST && rows[k] > 0 && m->call > 0; k++) {
        const double took = (m->call + m->call_row * (double)padded(rows[k])) * noise;
        const double first = g->calls.padded ? recording(g, &g->used_call[padded(rows[k])]) : 0;
        lt_draft_times_note(&g->calls, first > 0 ? 0 : rows[k], took);
        all += took;
        *first_s += first;
    }
    return all;
}

static double time_of(const machine *m, bool drafted, int64_t longest, int64_t n_rows) {
    const double rows = (double)padded(n_rows);
    return drafted ? (m->drafts + m->row * (rows < 64 ? rows : 64) + (rows > 64) * m->behind_64) *
                         (longest >= SHORT_ROWS ? m->wide : 1)
                   : m->plain + m->plain_row * (rows - 1);
}

/* Remove texts that have ended. */
static void drop_ended(game *g) {
    int64_t n = 0;
    for (int64_t i = 0; i < g->n; i++) {
        if (g->text[i].left > 0) {
            g->text[n++] = g->text[i];
        }
    }
    g->n = n;
}

/* One step; returns its time. */
static double step(game *g, int fixed) {
    const double noise = 0.97 + 0.06 * lt_rng_uniform(&g->rng);
    const double known = lt_draft_times_of(&g->plain, g->n);
    int64_t rows[LT_DRAFT_MOST] = {0}, n_rows = g->n, accepted = 0, longest = 0;
    double of_model, took, first = 0, first_calls = 0;
    bool drafted;
    choose(g, fixed);
    for (int64_t i = 0; i < g->n; i++) {
        n_rows += g->chosen[i].n;
        longest = g->chosen[i].n > longest ? g->chosen[i].n : longest;
        accepted += verify(g, i, rows);
    }
    drafted = n_rows > g->n;
    of_model = run_calls(g, rows, noise, &first_calls);
    took = time_of(g->m, drafted, longest, n_rows) * noise;
    if (drafted) {
        first = recording(g, &g->used[longest >= SHORT_ROWS][padded(n_rows)]);
    }
    for (int i = 0; i < 3; i++) { /* With 0 rows, so that what is known gets older. */
        lt_draft_times *t = i < 2 ? &g->drafted[i] : &g->plain;
        const bool own = i == (drafted ? longest >= SHORT_ROWS : 2);
        lt_draft_times_note(t, own && first == 0 ? n_rows : 0, took);
    }
    if (!drafted) {
        lt_draft_times_note(&g->calls, 0, 0);
        lt_draft_acceptance_note(&g->all, LT_DRAFT_KEPT_ALL, 0, 0);
    }
    lt_draft_account_note(&g->account, drafted && first + first_calls == 0, took + of_model, known,
                          accepted, g->n);
    drop_ended(g);
    return took + first + of_model + first_calls;
}

static void begin(game *g, const world *w, uint64_t seed) {
    *g = (game){.w = w,
                .m = w->m,
                .plain = {.recent = 512, .padded = true},
                .drafted = {{.padded = true}, {.padded = true}},
                .calls = {.padded = w->m->call < 0.1},
                .rng = {.seed = seed}};
    lt_draft_account_begin(&g->account);
    for (int i = 0; i < CLASSES; i++) {
        g->after[i] = (int16_t)lt_rng_below(&g->rng, CLASSES);
        g->knows[i] = lt_rng_uniform(&g->rng) < w->rate;
    }
}

/* Begin new texts, and forget what was learned about the old ones. */
static void begin_turn(game *g) {
    lt_rng rng = {.seed = g->rng.seed + 100};
    g->n = g->w->n;
    for (int64_t i = 0; i < g->n; i++) {
        g->text[i] = (text){.behind = 1, .position = 7 * i, .left = TOKENS};
        if (is_map(g->w)) {
            g->text[i].position = (int64_t)lt_rng_below(&rng, CLASSES);
        }
    }
}

/* Tokens per ms of texts of TOKENS tokens; those before them, during which the engine measures,
 * do not count. */
static double play(const world *w, int fixed) {
    double seconds = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        game g;
        begin(&g, w, seed);
        for (int turn = 0; turn < 4; turn++) {
            begin_turn(&g);
            while (g.n > 0) {
                seconds += step(&g, fixed) * (turn > 0);
            }
        }
    }
    return (double)(3 * SEEDS * TOKENS * w->n) / seconds;
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

/* Drafts that pay on average do not pause after some bad ones: gains are saved, but only up to 16
 * steps; what is borrowed is not. */
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
    t.n = 1; /* The token after an accepted draft is never seen: it is assumed to be wrong. */
    assert_int_equal(lt_draft_run_after(&t, 1), 0);
    t.run = 0;
    assert_int_equal(lt_draft_run_after(&t, 1), 2);
    assert_int_equal(lt_draft_run_after(&t, 0), 0);
    t.run = 3;
    t.runs = NULL;
    assert_true(lt_draft_text_accepts(&t, 1) > 0.4);
}

/* The rate of a place that is not tried is forgotten, until it is tried again. */
static void untried_places_are_tried_again(void **state) {
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
    assert_true(lt_draft_acceptance_at(&l, NULL, 1) > 0.8); /* As for the place before it. */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_chosen_length_is_nearly_the_best),
                                       cmocka_unit_test(gains_are_saved),
                                       cmocka_unit_test(runs_correct_the_rates_of_places),
                                       cmocka_unit_test(untried_places_are_tried_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Draft tokens: matches against an exhaustive search, the length of drafts against the rate that
 * it maximises. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "serve/draft.h"

/* The end of the longest earlier match of the last tokens; of equally long ones the last. */
static int64_t search(const int32_t *t, int64_t n) {
    int64_t best = -1, longest = 1;
    for (int64_t end = 1; end < n; end++) {
        int64_t k = 0;
        while (k < end && k < 64 && t[end - 1 - k] == t[n - 1 - k]) {
            k++;
        }
        if (k >= 2 && k >= longest) {
            longest = k;
            best = end;
        }
    }
    return best;
}

static void matches_are_the_longest(void **state) {
    lt_rng r = {.seed = 1};
    int64_t found = 0;
    (void)state;
    for (int i = 0; i < 20000; i++) {
        int32_t t[80];
        const int64_t n = (int64_t)lt_rng_below(&r, 70);
        const uint64_t ids = 1 + lt_rng_below(&r, 4);
        for (int64_t k = 0; k < n; k++) {
            t[k] = (int32_t)lt_rng_below(&r, ids);
        }
        assert_int_equal(lt_draft_find(t, n), n > 1 ? search(t, n) : -1);
        found += n > 1 && search(t, n) >= 0;
    }
    assert_true(found > 10000);
}

static void matches_are_found_in_another_text(void **state) {
    const int32_t text[] = {5, 1, 2, 3, 4, 1, 2, 9}, tokens[] = {7, 5, 1, 2};
    (void)state;
    assert_int_equal(lt_draft_find_in(text, 8, tokens, 4), 3); /* 5 1 2, not the later 1 2. */
    assert_int_equal(lt_draft_find_in(text, 8, tokens + 2, 2), 7);
    assert_int_equal(lt_draft_find_in(text, 7, tokens + 2, 2), 3); /* A token must follow. */
    assert_int_equal(lt_draft_find_in(text, 8, tokens, 1), -1);
    assert_int_equal(lt_draft_find_in(text, 0, tokens, 4), -1);
}

/* Rates differ by the place in the draft; a text with little history has the rate of all
 * texts. */
static void acceptance_is_known_by_place(void **state) {
    lt_draft_acceptance l, all, none;
    lt_rng r = {.seed = 3};
    double at[2] = {0};
    (void)state;
    memset(&l, 0, sizeof l);
    memset(&all, 0, sizeof all);
    memset(&none, 0, sizeof none);
    assert_true(lt_draft_acceptance_at(&l, NULL, 7) == 0.6);
    for (int i = 0; i < 20000; i++) {
        const bool first = lt_rng_uniform(&r) < 0.9;
        const int64_t right = first ? 1 + (lt_rng_uniform(&r) < 0.3) : 0;
        lt_draft_acceptance_note(&l, LT_DRAFT_KEPT, 2, right);
        lt_draft_acceptance_note(&all, LT_DRAFT_KEPT_ALL, 2, right);
        at[0] += lt_draft_acceptance_at(&l, &all, 0) / 20000;
        at[1] += lt_draft_acceptance_at(&l, &all, 1) / 20000;
    }
    assert_true(fabs(at[0] - 0.9) < 0.02 && fabs(at[1] - 0.3) < 0.03);
    assert_true(fabs(lt_draft_acceptance_at(&none, &all, 0) - 0.9) < 0.1);
    for (int i = 0; i < 100; i++) {
        lt_draft_acceptance_note(&l, LT_DRAFT_KEPT, 3, 0);
    }
    assert_true(lt_draft_acceptance_at(&l, &all, 0) < 0.3);
    /* Its own rates are forgotten: first that of all texts counts, in the end none. */
    for (int i = 0; i < 800; i++) {
        lt_draft_acceptance_note(&l, LT_DRAFT_KEPT, 0, 0);
    }
    assert_true(fabs(lt_draft_acceptance_at(&l, &all, 0) - 0.9) < 0.1);
    for (int i = 0; i < 1500; i++) {
        lt_draft_acceptance_note(&all, LT_DRAFT_KEPT_ALL, 0, 0);
    }
    assert_true(fabs(lt_draft_acceptance_at(&all, NULL, 1) - 0.6) < 0.01);
}

static void times_are_known_or_interpolated(void **state) {
    static lt_draft_times t;
    (void)state;
    assert_true(lt_draft_times_of(&t, 5) == 0 && !lt_draft_times_know(&t, 5));
    lt_draft_times_note(&t, 2, 0.010);
    assert_true(lt_draft_times_of(&t, 9) == 0.010 && lt_draft_times_of(&t, 1) == 0.010);
    lt_draft_times_note(&t, 6, 0.030);
    assert_true(fabs(lt_draft_times_of(&t, 4) - 0.020) < 1e-12);
    assert_true(lt_draft_times_know(&t, 2) && !lt_draft_times_know(&t, 9));
    lt_draft_times_note(&t, 2, 1.0); /* One slow step. */
    assert_true(lt_draft_times_of(&t, 2) < 0.0121);
    for (int i = 0; i < 40; i++) { /* Times change permanently. */
        lt_draft_times_note(&t, 2, 0.015);
    }
    assert_true(fabs(lt_draft_times_of(&t, 2) - 0.015) < 0.0005);
    for (int i = 0; i < 100; i++) {
        lt_draft_times_note(&t, 0, 0);
    }
    /* Old, but known. */
    assert_true(!lt_draft_times_know(&t, 2) && lt_draft_times_of(&t, 2) > 0);
    for (int i = 0; i < 300; i++) {
        lt_draft_times_note(&t, 0, 0);
    }
    /* 6: stale. */
    assert_true(fabs(lt_draft_times_of(&t, 6) - lt_draft_times_of(&t, 2)) < 1e-12);
}

/* Losses stop drafts; after a hundred times as many steps they are tried again; debts are paid by
 * gains. */
static void the_account_is_kept(void **state) {
    lt_draft_account a;
    int n = 0;
    (void)state;
    lt_draft_account_begin(&a);
    while (a.balance >= 0) {
        lt_draft_account_note(&a, true, 1.5, 1, 0, 1);
        n++;
    }
    assert_in_range(n, 2, 20);
    for (n = 0; a.balance < 0; n++) {
        lt_draft_account_note(&a, false, 1, 1, 0, 1);
    }
    assert_in_range(n, 1, 60);
    lt_draft_account_borrow(&a, 10, 2);
    assert_true(a.debt == 5);
    for (int i = 0; i < 6; i++) { /* Each saves a step. */
        lt_draft_account_note(&a, true, 1, 1, 1, 1);
    }
    assert_true(a.debt == 0 && a.balance > 0.8);
    lt_draft_account_borrow(&a, 100, 1); /* What does not pay becomes a loss. */
    for (n = 0; n < 1000; n++) {
        lt_draft_account_note(&a, false, 1, 1, 0, 1);
    }
    assert_true(a.debt < 5 && a.balance < -50);
}

/* Drafts that were accepted with this rate for a long time. */
static lt_draft_acceptance rated(double rate) {
    lt_draft_acceptance l;
    for (int i = 0; i < LT_DRAFT_MOST; i++) {
        l.tried[i] = 1e9;
        l.accepted[i] = rate * 1e9;
    }
    return l;
}

/* Tokens per second of one text with k draft tokens, which are accepted with 0.8. */
static double rate_of(int64_t k, double seconds) {
    double tokens = 1;
    for (int64_t i = 1; i <= k; i++) {
        tokens += pow(0.8, (double)i);
    }
    return tokens / seconds;
}

/* Steps take 10 ms and 1 ms for each further row; calls of the draft model 2 ms. */
/* Times belong to ranges of rows: 1, 2, 3, 4, 5 and 6, 7 and 8, 9 to 12, ... */
static void ranges_of_rows(void **state) {
    static const int ends[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, LT_DRAFT_ROWS};
    (void)state;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const int first = i > 0 ? ends[i - 1] + 1 : 1;
        for (int at = first; at <= ends[i]; at++) {
            lt_draft_times t = {.n_steps = 0};
            lt_draft_times_note(&t, at, 0.010);
            for (int rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
                assert_int_equal(lt_draft_times_know(&t, rows), rows >= first && rows <= ends[i]);
            }
        }
    }
}

/* If steps with drafts take as long as others. */
static double choose(const lt_draft_times *t, const lt_draft_times *calls, int64_t n_rows,
                     lt_draft_text *texts, int64_t n) {
    const lt_draft_known known = {
        .plain = t, .drafted = {t, t}, .few = LT_DRAFT_MOST, .model = calls};
    return lt_draft_choose(&known, n_rows, texts, n);
}

/* The draft model's first call runs the tokens of each text that it has not run, at most 128: a
 * text that does not fit with the others has no draft. */
static void the_first_call_is_full(void **state) {
    static lt_draft_times t, calls;
    const lt_draft_acceptance good = rated(0.8);
    (void)state;
    for (int rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
        lt_draft_times_note(&t, rows, 0.010);
        lt_draft_times_note(&calls, rows, 0.0001);
    }
    lt_draft_times_note(&t, 3, 0.010);
    for (int64_t over = 0; over <= 1; over++) {
        lt_draft_text texts[3];
        for (int i = 0; i < 3; i++) {
            texts[i] = (lt_draft_text){.own = &good,
                                       .all = &good,
                                       .most = 4,
                                       .behind = i == 0   ? 100
                                                 : i == 1 ? 27
                                                          : 1};
        }
        texts[1].behind += over; /* Then the row of the third one does not fit. */
        assert_true(choose(&t, &calls, 3, texts, 3) > 0);
        assert_int_equal(texts[0].n, 4);
        assert_int_equal(texts[1].n, 4);
        assert_int_equal(texts[2].n, over ? 0 : 4);
    }
}

static void the_best_rate_is_taken(void **state) {
    static lt_draft_times t, calls;
    const lt_draft_acceptance good = rated(0.8), bad = rated(0.02);
    lt_draft_text text = {.own = &good, .all = &good, .most = LT_DRAFT_MOST}, texts[8];
    int64_t want = 0, by_model = 0;
    double saved;
    (void)state;
    assert_true(choose(&t, NULL, 1, &text, 1) == 0);
    assert_int_equal(text.n, 0);
    for (int rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
        lt_draft_times_note(&t, rows, 0.010 + 0.001 * (rows - 1));
        lt_draft_times_note(&calls, rows, 0.002);
    }
    for (int64_t k = 1; k <= LT_DRAFT_MOST; k++) {
        const double a = 0.010 + 0.001 * (double)k, b = 0.010 + 0.001 * (double)want;
        const double c = 0.010 + 0.001 * (double)by_model + 0.002 * (double)by_model;
        want = rate_of(k, a) > rate_of(want, b) ? k : want;
        by_model = rate_of(k, a + 0.002 * (double)k) > rate_of(by_model, c) ? k : by_model;
    }
    assert_true(want > by_model && by_model > 1);
    lt_draft_times_note(&t, 1, 0.010); /* A recent step without drafts. */
    saved = choose(&t, NULL, 1, &text, 1);
    assert_int_equal(text.n, want);
    assert_true(fabs(saved - (1 - 100 / rate_of(want, 0.010 + 0.001 * (double)want))) < 1e-9);
    text.behind = 2;
    (void)choose(&t, &calls, 1, &text, 1);
    assert_int_equal(text.n, by_model);
    text = (lt_draft_text){.own = &bad, .all = &bad, .most = LT_DRAFT_MOST};
    assert_true(choose(&t, NULL, 1, &text, 1) == 0);
    assert_int_equal(text.n, 0);
    for (int i = 0; i < 8; i++) { /* Each text has as many as its own rate justifies. */
        texts[i] = (lt_draft_text){
            .own = i % 2 == 0 ? &good : &bad, .all = &good, .most = i < 2 ? 1 : 8};
    }
    lt_draft_times_note(&t, 8, 0.017);
    (void)choose(&t, NULL, 8, texts, 8);
    assert_true(texts[0].n == 1 && texts[1].n == 0 && texts[2].n > 1 && texts[3].n == 0);
    assert_true(texts[2].n - texts[4].n <= 1 && texts[4].n - texts[6].n <= 1);
    /* If each row costs as much as the first, no draft pays. */
    for (int again = 0; again < 200; again++) {
        for (int rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
            lt_draft_times_note(&t, rows, 0.010 * rows);
        }
    }
    lt_draft_times_note(&t, 8, 0.080);
    assert_true(choose(&t, NULL, 8, texts, 8) == 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(texts[i].n, 0);
    }
}

/* A first measurement that was far too slow is forgotten at the next one, but a confirmed one is
 * not. */
static void a_slow_first_step_is_forgotten(void **state) {
    static lt_draft_times t;
    (void)state;
    lt_draft_times_note(&t, 4, 1.0);
    lt_draft_times_note(&t, 4, 0.010);
    assert_true(fabs(lt_draft_times_of(&t, 4) - 0.010) < 1e-12);
    for (int i = 0; i < 20; i++) {
        lt_draft_times_note(&t, 4, 0.010);
    }
    lt_draft_times_note(&t, 4, 0.001);
    assert_true(fabs(lt_draft_times_of(&t, 4) - 0.0091) < 1e-12);
}

/* Padded steps take as long as a step with the most rows of their range. */
static void padded_steps_have_steps_of_times(void **state) {
    static lt_draft_times t;
    (void)state;
    t.padded = true;
    lt_draft_times_note(&t, 17, 0.010); /* Up to 24. */
    lt_draft_times_note(&t, 48, 0.022); /* From 33 on. */
    assert_true(fabs(lt_draft_times_of(&t, 18) - 0.010) < 1e-12);
    assert_true(fabs(lt_draft_times_of(&t, 24) - 0.010) < 1e-12);
    assert_true(fabs(lt_draft_times_of(&t, 25) - 0.014) < 1e-12); /* 32 lies between 24 and 48. */
    assert_true(fabs(lt_draft_times_of(&t, 33) - 0.022) < 1e-12);
}

/* Steps with long drafts have their own times; until one is measured, those of short ones
 * count. */
/* 10 rows in 1 ms; 100 in 8; then a call of 10 that compiles for 300 ms counts like the last one,
 * and if it is slow again, it is believed more and more. */
static void a_call_that_compiles_is_not_charged(void **state) {
    lt_draft_catch_up c = {0};
    (void)state;
    assert_true(lt_draft_catch_up_note(&c, 0.001, 10) == 0.001);
    assert_true(lt_draft_catch_up_note(&c, 0.008, 100) == 0.008);
    assert_true(lt_draft_catch_up_note(&c, 0.300, 10) == 0.008);
    assert_true(lt_draft_catch_up_note(&c, 0.300, 10) == 0.300);
    assert_true(lt_draft_catch_up_note(&c, 0.001, 10) == 0.001);
    assert_true(lt_draft_catch_up_note(&c, 0.0079, 10) == 0.0079);
    /* Ten times the rows may take ten times 8 times as long. */
    assert_true(lt_draft_catch_up_note(&c, 0.6, 100) == 0.6);
}

static void long_drafts_have_their_own_times(void **state) {
    static lt_draft_times plain, few, many;
    const lt_draft_acceptance good = rated(0.95);
    const lt_draft_known known = {.plain = &plain, .drafted = {&few, &many}, .few = 3};
    lt_draft_text text = {.own = &good, .all = &good, .most = LT_DRAFT_MOST};
    (void)state;
    lt_draft_times_note(&plain, 1, 0.010);
    for (int rows = 2; rows <= 9; rows++) {
        lt_draft_times_note(&few, rows, 0.012);
    }
    (void)lt_draft_choose(&known, 1, &text, 1);
    assert_int_equal(text.n, LT_DRAFT_MOST);
    for (int rows = 5; rows <= 9; rows++) {
        lt_draft_times_note(&many, rows, 0.030);
    }
    (void)lt_draft_choose(&known, 1, &text, 1);
    assert_int_equal(text.n, 3);
}

/* A step takes 10 ms, a call of the head 2 or 3. With one layer, drafts of n tokens take n calls;
 * with three, at least three calls: the expected tokens per ms are 1.6 / 12, 1.96 / 14 and 2.176
 * / 16, or 1.96 / 16 and 2.176 / 16 (0.6 accepted); 1.5 / 13, or at most 1.875 / 19 (0.5), less
 * than 1 / 10. Each layer runs three rows of a text, and one more after a draft that was accepted
 * completely. */
static void each_draft_costs_all_layers_of_a_head(void **state) {
    static const struct {
        double accepted, call_s;
        int64_t layers, behind, n;
    } cases[] = {{0.6, 0.002, 1, 1, 2}, {0.6, 0.002, 3, 3, 3}, {0.5, 0.003, 1, 1, 1},
                 {0.5, 0.003, 3, 3, 0}, {0.6, 0.002, 3, 4, 0}, {0.6, 0.002, 4, 4, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static lt_draft_times steps, calls;
        const lt_draft_acceptance rate = rated(cases[i].accepted);
        const lt_draft_known known = {.plain = &steps,
                                      .drafted = {&steps, &steps},
                                      .few = LT_DRAFT_MOST,
                                      .model = &calls,
                                      .model_layers = cases[i].layers};
        lt_draft_text text = {
            .own = &rate, .all = &rate, .most = LT_DRAFT_MOST, .behind = cases[i].behind};
        steps = calls = (lt_draft_times){0};
        for (int64_t rows = 1; rows <= 16; rows++) {
            lt_draft_times_note(&steps, rows, 0.010);
            lt_draft_times_note(&calls, rows, rows > 3 ? 0.010 : cases[i].call_s);
        }
        (void)lt_draft_choose(&known, 1, &text, 1);
        assert_int_equal(text.n, cases[i].n);
    }
}

/* If there is room for few draft tokens, the text that had fewer tokens gets them. What other
 * texts gain must justify that its steps become longer. */
static void slow_texts_count_more(void **state) {
    static lt_draft_times t;
    const lt_draft_acceptance good = rated(0.9), bad = rated(0.02);
    lt_draft_text texts[2];
    (void)state;
    for (int rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
        lt_draft_times_note(&t, rows, rows < 126 ? 0.010 : 0.020);
    }
    lt_draft_times_note(&t, 124, 0.010);
    for (int slow = 0; slow < 2; slow++) {
        for (int i = 0; i < 2; i++) {
            texts[i] = (lt_draft_text){
                .own = &good, .all = &good, .most = 8, .pace = i == slow ? 1 : 3};
        }
        assert_true(choose(&t, NULL, 124, texts, 2) > 0);
        assert_true(texts[slow].n > texts[1 - slow].n);
    }
    lt_draft_times_note(&t, 2, 0.010);
    for (int slow = 0; slow < 2; slow++) { /* A draft token makes a step 1.5 times as long. */
        static lt_draft_times steep;
        lt_draft_times_note(&steep, 2, 0.010);
        for (int rows = 3; rows <= 10; rows++) {
            lt_draft_times_note(&steep, rows, 0.018);
        }
        texts[0] = (lt_draft_text){.own = &good, .all = &good, .most = 8, .pace = slow ? 4 : 1};
        texts[1] = (lt_draft_text){.own = &bad, .all = &bad, .most = 8, .pace = 1};
        assert_true((choose(&steep, NULL, 2, texts, 2) > 0) == !slow);
    }
    assert_true(fabs(lt_draft_pace_after(0, 1) - 1) < 1e-12);
    assert_true(lt_draft_pace_after(1, 5) > 1.05 && lt_draft_pace_after(5, 1) < 4.95);
}

/* A simulated world in which a step takes (1 + slope (rows - 1)) (times a number around 1), a
 * call of the draft model `call` of that, and a draft token is accepted with probability `rate`
 * if those before it were. wait > 0: a device, on which a step with drafts takes this much
 * longer. Returns the tokens per second of n texts with drafts, divided by those without. */
static double played(double slope, double call, double rate, double wait, int64_t n,
                     uint64_t seed) {
    lt_draft_times plain_steps = {.recent = wait > 0 ? 512 : 0}, others = {.n_steps = 0};
    lt_draft_times calls = {.n_steps = 0}, *drafted = wait > 0 ? &others : &plain_steps;
    lt_draft_acceptance rates[64], all;
    lt_draft_text texts[64];
    lt_rng r = {.seed = seed};
    lt_draft_account account;
    double seconds = 0, plain = 0, tokens = 0;
    lt_draft_account_begin(&account);
    memset(&rates, 0, sizeof rates);
    memset(&all, 0, sizeof all);
    for (int step = 0; step < 6000; step++) {
        const double hiccup = 0.95 + 0.1 * lt_rng_uniform(&r) + (lt_rng_below(&r, 100) == 0);
        const double known = lt_draft_times_of(&plain_steps, n);
        int64_t rows[LT_DRAFT_MOST] = {0}, n_rows = n, accepted = 0;
        double took, of_model = 0;
        for (int64_t i = 0; i < n; i++) {
            texts[i] = (lt_draft_text){
                .own = &rates[i], .all = &all, .most = LT_DRAFT_MOST, .behind = call > 0};
        }
        if (account.balance >= 0) {
            (void)lt_draft_choose(&(lt_draft_known){.plain = &plain_steps,
                                                    .drafted = {drafted, drafted},
                                                    .few = LT_DRAFT_MOST,
                                                    .model = call > 0 ? &calls : NULL},
                                  n, texts, n);
        }
        for (int64_t i = 0; i < n; i++) {
            int64_t right = 0;
            while (right < texts[i].n && lt_rng_uniform(&r) < rate) {
                right++;
            }
            for (int64_t k = 0; k < texts[i].n; k++) {
                rows[k]++;
            }
            n_rows += texts[i].n;
            accepted += right;
            lt_draft_acceptance_note(&rates[i], LT_DRAFT_KEPT, texts[i].n, right);
            if (texts[i].n > 0) {
                lt_draft_acceptance_note(&all, LT_DRAFT_KEPT_ALL, texts[i].n, right);
            }
        }
        for (int k = 0; k < LT_DRAFT_MOST && rows[k] > 0 && call > 0; k++) {
            took = call * (1 + slope * (double)(rows[k] - 1)) * hiccup;
            lt_draft_times_note(&calls, rows[k], took);
            of_model += took;
        }
        if (rows[0] == 0) {
            lt_draft_times_note(&calls, 0, 0);
            lt_draft_acceptance_note(&all, LT_DRAFT_KEPT_ALL, 0, 0);
        }
        took = (1 + slope * (double)(n_rows - 1) + (n_rows > n ? wait : 0)) * hiccup;
        lt_draft_times_note(n_rows > n ? drafted : &plain_steps, n_rows, took);
        if (wait > 0) {
            lt_draft_times_note(n_rows > n ? &plain_steps : drafted, 0, 0);
        }
        lt_draft_account_note(&account, n_rows > n, took + of_model, known, accepted, n);
        seconds += took + of_model;
        tokens += (double)(n + accepted);
        plain += (1 + slope * (double)(n - 1)) * hiccup;
    }
    return tokens / seconds * plain / (6000.0 * (double)n);
}

/* Worlds with many texts take most of the time: with 16 a half, with 64 a quarter are simulated,
 * in which each slope, call and rate occurs. LATEEN_TEST_ALL=1: all of them
 * (tests/long/worlds.sh). */
static bool is_played(int i) {
    static const int every[] = {1, 1, 2, 4};
    return getenv("LATEEN_TEST_ALL") != NULL ||
           (i % 5 + i / 5 % 4 + i / 20 % 5) % every[i / 100] == 0;
}

/* Drafts gain where they can, and cost at most 2 % where they cannot. */
static void drafts_never_cost_much(void **state) {
    static const double slopes[] = {0, 0.02, 0.1, 0.3, 1}, calls[] = {0, 0.1, 0.3, 1};
    static const double rates[] = {0, 0.2, 0.5, 0.7, 0.9};
    static const int64_t texts[] = {1, 4, 16, 64};
    (void)state;
    for (int k = 0; k < 600; k++) { /* All 400 on a host, some of them on a device. */
        const int i = k < 400 ? k : k * 7 % 400;
        const double slope = slopes[i % 5], call = calls[i / 5 % 4], rate = rates[i / 20 % 5];
        const double wait = k < 400 ? 0 : 0.1 + 0.4 * (k % 2);
        const int64_t n = texts[i / 100];
        if (!is_played(i)) {
            continue;
        }
        const double gain = played(slope, call, rate, wait, n, (uint64_t)i);
        /* With one draft token each: if that gains much, at least nearly as much is gained. */
        const double one = (1 + rate) * (1 + slope * (double)(n - 1)) /
                           (1 + wait + slope * (double)(2 * n - 1) +
                            call * (1 + slope * (double)(n - 1)));
        if (gain < 0.98 || (one > 1.2 && gain < 0.9 * one)) {
            fail_msg("a row costs %g, the draft model %g, rate %g, a wait %g, %lld texts: %.3f "
                     "times (one token: %.3f)",
                     slope, call, rate, wait, (long long)n, gain, one);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches_are_the_longest),
                                       cmocka_unit_test(matches_are_found_in_another_text),
                                       cmocka_unit_test(acceptance_is_known_by_place),
                                       cmocka_unit_test(times_are_known_or_interpolated),
                                       cmocka_unit_test(the_account_is_kept),
                                       cmocka_unit_test(ranges_of_rows),
                                       cmocka_unit_test(the_first_call_is_full),
                                       cmocka_unit_test(the_best_rate_is_taken),
                                       cmocka_unit_test(a_slow_first_step_is_forgotten),
                                       cmocka_unit_test(padded_steps_have_steps_of_times),
                                       cmocka_unit_test(a_call_that_compiles_is_not_charged),
                                       cmocka_unit_test(long_drafts_have_their_own_times),
                                       cmocka_unit_test(each_draft_costs_all_layers_of_a_head),
                                       cmocka_unit_test(slow_texts_count_more),
                                       cmocka_unit_test(drafts_never_cost_much)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Branches of drafts: matches with different next tokens against an exhaustive search; which
 * branches are chosen against all choices, and against the table that was computed by hand for an
 * H200 (docs/speed/serving.md, attempt 12); what they gain and cost in simulated worlds. */
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

/* The longest match whose next token differs from those that follow at[0..n); of equally long
 * ones the last. */
static int64_t search(const int32_t *t, int64_t n, const int64_t *at, int n_found) {
    int64_t best = -1, longest = 1;
    for (int64_t end = 1; end < n; end++) {
        int64_t k = 0;
        bool known = false;
        for (int i = 0; i < n_found; i++) {
            known |= t[at[i]] == t[end];
        }
        while (k < end && t[end - 1 - k] == t[n - 1 - k]) {
            k++;
        }
        if (!known && k >= 2 && k >= longest) {
            longest = k;
            best = end;
        }
    }
    return best;
}

static void matches_differ_in_what_follows(void **state) {
    lt_rng r = {.seed = 1};
    int64_t n_of[LT_DRAFT_BRANCHES + 1] = {0};
    (void)state;
    for (int i = 0; i < 20000; i++) {
        int32_t t[60];
        int64_t at[LT_DRAFT_BRANCHES];
        const int64_t n = 2 + (int64_t)lt_rng_below(&r, 58);
        const uint64_t ids = 1 + lt_rng_below(&r, 9);
        const int most = 1 + (int)lt_rng_below(&r, LT_DRAFT_BRANCHES);
        int n_found;
        for (int64_t k = 0; k < n; k++) {
            t[k] = (int32_t)lt_rng_below(&r, ids);
        }
        n_found = lt_draft_find_all(t, n, t, n, most, at);
        for (int k = 0; k < n_found; k++) {
            assert_int_equal(at[k], search(t, n, at, k));
        }
        assert_true(n_found == most || search(t, n, at, n_found) < 0);
        n_of[n_found]++;
    }
    for (int k = 0; k <= LT_DRAFT_BRANCHES; k++) {
        assert_true(n_of[k] > 5);
    }
}

/* A branch is tried if all before it were wrong. */
static void acceptance_of_branches_by_their_number(void **state) {
    lt_draft_others l, all, none;
    lt_rng r = {.seed = 3};
    (void)state;
    memset(&l, 0, sizeof l);
    memset(&all, 0, sizeof all);
    memset(&none, 0, sizeof none);
    assert_true(lt_draft_others_at(&l, NULL, 0) == 0.2);
    for (int i = 0; i < 5000; i++) {
        const double u = lt_rng_uniform(&r);
        const int right = u < 0.5 ? 0 : u < 0.6 ? 1 : 2; /* 0.5, and 0.2 of the rest. */
        lt_draft_others_note(&l, LT_DRAFT_KEPT, 2, right);
        lt_draft_others_note(&all, LT_DRAFT_KEPT_ALL, 2, right);
    }
    assert_true(fabs(lt_draft_others_at(&all, NULL, 0) - 0.5) < 0.15);
    assert_true(fabs(lt_draft_others_at(&all, NULL, 1) - 0.2) < 0.15);
    assert_true(all.tried[2] == 0);
    assert_true(fabs(lt_draft_others_at(&none, &all, 1) - lt_draft_others_at(&all, NULL, 1)) <
                1e-12);
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

static lt_draft_others others_rated(double first, double second) {
    const double rates[LT_DRAFT_OTHERS] = {first, second, 0};
    lt_draft_others l;
    for (int i = 0; i < LT_DRAFT_OTHERS; i++) {
        l.tried[i] = 1e9;
        l.right[i] = rates[i] * 1e9;
    }
    return l;
}

static double chain(double a, int64_t n) {
    double sum = 0;
    for (int64_t k = 0; k < n; k++) {
        sum += pow(a, (double)k);
    }
    return sum;
}

/* Tokens per step with a draft of n tokens and one branch of m; without a draft if n is 0. */
static double tokens_of(double a, double s, int64_t n, int64_t m) {
    return 1 + a * chain(a, n) + (n > 0 ? (1 - a) * s * chain(a, m) : 0);
}

/* Times of an H200 in ms (docs/speed/serving.md). */
static double h200_step(int64_t rows) {
    return rows == 1 ? 0.72 : 0.99 + 0.006 * (rows > 4 ? (double)rows - 4 : 0);
}

static double h200_call(int64_t rows) {
    return 0.147 + 0.006 * ((double)rows - 1);
}

static double h200_rate(double a, double s, int64_t n, int64_t m) {
    double ms = h200_step(1 + n + (m > 0 ? 1 + m : 0));
    for (int64_t k = 0; k < n || k < m; k++) {
        ms += h200_call((k < n) + (k < m));
    }
    return tokens_of(a, s, n, m) / ms;
}

static void branches_gain_what_was_computed(void **state) {
    /* Acceptance of first and second choices; the gain of two branches over the best chain or
     * none. */
    static const double table[][3] = {{0.5, 0.2, 1.05}, {0.5, 0.4, 1.13},  {0.7, 0.2, 1.02},
                                      {0.7, 0.4, 1.07}, {0.85, 0.2, 0.99}, {0.85, 0.4, 1.01}};
    static lt_draft_times plain, drafted, calls;
    (void)state;
    lt_draft_times_note(&plain, 1, h200_step(1));
    for (int i = 0; i < 100; i++) { /* Points are means over ranges of rows. */
        for (int64_t rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
            lt_draft_times_note(&drafted, rows, h200_step(rows > 1 ? rows : 2));
            lt_draft_times_note(&calls, rows, h200_call(rows));
        }
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const double a = table[i][0], s = table[i][1];
        const lt_draft_acceptance rate = rated(a);
        const lt_draft_others others = others_rated(s, 0);
        const lt_draft_known known = {.plain = &plain,
                                      .drafted = {&drafted, &drafted},
                                      .few = LT_DRAFT_MOST,
                                      .model = &calls,
                                      .most_branches = 1};
        lt_draft_text text = {.own = &rate,
                              .all = &rate,
                              .most = LT_DRAFT_MOST,
                              .behind = 1,
                              .n_others = 1,
                              .own_others = &others,
                              .all_others = &others};
        double best = 1 / h200_step(1), two = 0, chosen;
        for (int64_t n = 1; n <= LT_DRAFT_MOST; n++) {
            best = fmax(best, h200_rate(a, s, n, 0));
            for (int64_t m = 1; m <= LT_DRAFT_MOST; m++) {
                two = fmax(two, h200_rate(a, s, n, m));
            }
        }
        assert_true(fabs(two / best - table[i][2]) < 0.0151);
        (void)lt_draft_choose(&known, 1, &text, 1);
        chosen = text.n > 0 ? h200_rate(a, s, text.n, text.branch[0]) : 1 / h200_step(1);
        assert_true(text.branch[1] == 0 && text.branch[2] == 0);
        assert_true((text.branch[0] > 0) == (two / best > 1.03));
        if (chosen < 0.999 * best || chosen < 0.97 * two) {
            fail_msg("%g, %g: %lld and %lld tokens have %.3f of one draft, %.3f of two", a, s,
                     (long long)text.n, (long long)text.branch[0], chosen / best, chosen / two);
        }
    }
}

/* If a row takes 7 % of a step, as on two cores of a CPU, no branch pays; if rows are free, all
 * branches of texts with drafts do. */
static void branches_need_cheap_rows(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        const double slope = i < 2 ? 0.07 : 0.0001;
        const lt_draft_acceptance rate = rated(0.7), bad = rated(0.001);
        const lt_draft_others others = others_rated(0.3, 0.2);
        static lt_draft_times t;
        lt_draft_text texts[3];
        const lt_draft_known known = {.plain = &t,
                                      .drafted = {&t, &t},
                                      .few = LT_DRAFT_MOST,
                                      .most_branches = i == 3 ? 3 : 16};
        t = (lt_draft_times){0};
        for (int64_t rows = 1; rows <= LT_DRAFT_ROWS; rows++) {
            lt_draft_times_note(&t, rows, 1 + slope * (double)(rows - 1));
        }
        lt_draft_times_note(&t, 3, 1 + 2 * slope);
        for (int k = 0; k < 3; k++) {
            texts[k] = (lt_draft_text){.own = k < 2 ? &rate : &bad,
                                       .all = k < 2 ? &rate : &bad,
                                       .most = 4,
                                       .n_others = 2,
                                       .own_others = &others,
                                       .all_others = &others};
        }
        assert_true(lt_draft_choose(&known, 3, texts, 3) > 0);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(texts[k].n, i < 2 ? texts[0].n : 4);
            assert_true((texts[k].branch[0] > 0) == (i >= 2));
            assert_true((texts[k].branch[1] > 0) == (i == 2) || i == 3);
            assert_true(texts[k].branch[2] == 0);
        }
        if (i == 3) { /* Three branches in all. */
            int n = 0;
            for (int k = 0; k < 6; k++) {
                n += texts[k / 2].branch[k % 2] > 0;
            }
            assert_int_equal(n, 3);
        }
    }
}

enum { STEPS = 6000 };

/* A simulated world in which a step takes (1 + slope (rows - 1)) (times a number around 1), a
 * call of the draft model `call` of that; a draft token is accepted with probability a if those
 * before it were, and the first one of a branch with s if those before it were wrong. Returns the
 * tokens per second of n texts, divided by those without drafts. */
static double played(double slope, double call, double a, double s, int64_t n, int branches,
                     uint64_t seed) {
    static lt_draft_times steps, calls;
    lt_draft_acceptance rates[4] = {{{0}, {0}}}, all = {{0}, {0}};
    lt_draft_others others[4] = {{{0}, {0}}}, all_others = {{0}, {0}};
    lt_draft_text texts[4];
    lt_rng r = {.seed = seed};
    lt_draft_account account;
    double seconds = 0, plain = 0, tokens = 0;
    steps = calls = (lt_draft_times){0};
    lt_draft_account_begin(&account);
    for (int step = 0; step < STEPS; step++) {
        const double hiccup = 0.95 + 0.1 * lt_rng_uniform(&r) + (lt_rng_below(&r, 100) == 0);
        const double known = lt_draft_times_of(&steps, n);
        int64_t rows[LT_DRAFT_MOST] = {0}, n_rows = n, accepted = 0;
        double took, of_model = 0;
        for (int64_t i = 0; i < n; i++) {
            texts[i] = (lt_draft_text){.own = &rates[i],
                                       .all = &all,
                                       .most = LT_DRAFT_MOST,
                                       .behind = call > 0,
                                       .n_others = branches,
                                       .own_others = &others[i],
                                       .all_others = &all_others};
        }
        if (account.balance >= 0) {
            (void)lt_draft_choose(&(lt_draft_known){.plain = &steps,
                                                    .drafted = {&steps, &steps},
                                                    .few = LT_DRAFT_MOST,
                                                    .model = call > 0 ? &calls : NULL,
                                                    .most_branches = 4},
                                  n, texts, n);
        }
        for (int64_t i = 0; i < n; i++) {
            lt_draft_text *t = &texts[i];
            int64_t right = 0, beside = 0;
            int which = 0;
            while (right < t->n && lt_rng_uniform(&r) < a) {
                right++;
            }
            if (t->n > 0 && right == 0) {
                while (which < branches && !(lt_rng_uniform(&r) < s)) {
                    which++;
                }
                lt_draft_others_note(&others[i], LT_DRAFT_KEPT, branches, which);
                lt_draft_others_note(&all_others, LT_DRAFT_KEPT_ALL, branches, which);
                beside = which < branches && t->branch[which] > 0;
                while (beside > 0 && beside < t->branch[which] && lt_rng_uniform(&r) < a) {
                    beside++;
                }
            }
            for (int b = -1; b < LT_DRAFT_OTHERS; b++) {
                const int64_t m = b < 0 ? t->n : t->branch[b];
                for (int64_t k = 0; k < m; k++) {
                    rows[k]++;
                }
                n_rows += m + (b >= 0 && m > 0);
            }
            accepted += right + beside;
            lt_draft_acceptance_note(&rates[i], LT_DRAFT_KEPT, t->n, right);
            if (t->n > 0) {
                lt_draft_acceptance_note(&all, LT_DRAFT_KEPT_ALL, t->n, right);
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
        took = (1 + slope * (double)(n_rows - 1)) * hiccup;
        lt_draft_times_note(&steps, n_rows, took);
        lt_draft_account_note(&account, n_rows > n, took + of_model, known, accepted, n);
        seconds += took + of_model;
        tokens += (double)(n + accepted);
        plain += (1 + slope * (double)(n - 1)) * hiccup;
    }
    return tokens / seconds * plain / (STEPS * (double)n);
}

/* Against no drafts, and against drafts without branches, in every fifth world; if rows are
 * cheap, they gain. */
static void branches_never_cost_much(void **state) {
    static const double slopes[] = {0.001, 0.02, 0.07, 0.3}, calls[] = {0, 0.15};
    static const double firsts[] = {0.1, 0.4, 0.6, 0.8}, seconds[] = {0.05, 0.3, 0.6};
    double most = 0;
    (void)state;
    for (int i = 0; i < 4 * 2 * 4 * 3 * 2; i += 5) {
        const double slope = slopes[i % 4], call = calls[i / 4 % 2], a = firsts[i / 8 % 4];
        const double s = seconds[i / 32 % 3];
        const int64_t n = i < 96 ? 1 : 4;
        const double with = played(slope, call, a, s, n, 2, (uint64_t)i);
        const double without = played(slope, call, a, s, n, 0, (uint64_t)i);
        most = fmax(most, with / without);
        if (with < 0.98 || with < 0.97 * without) {
            fail_msg("a row costs %g, the draft model %g, rates %g and %g, %lld texts: %.3f times, "
                     "without branches %.3f",
                     slope, call, a, s, (long long)n, with, without);
        }
    }
    assert_true(most > 1.2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(matches_differ_in_what_follows),
                                       cmocka_unit_test(acceptance_of_branches_by_their_number),
                                       cmocka_unit_test(branches_gain_what_was_computed),
                                       cmocka_unit_test(branches_need_cheap_rows),
                                       cmocka_unit_test(branches_never_cost_much)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

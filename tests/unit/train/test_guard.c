/* The guard's decisions about divergence and its state, against numbers worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/error.h"
#include "train/watch/guard.h"

static lt_recipe *recipe(int64_t window) {
    lt_recipe *r = calloc(1, sizeof *r);
    assert_non_null(r);
    lt_options_default(&lt_recipe_table, r);
    r->guard_window = window;
    return r;
}

static void judge(lt_guard *g, double loss, double norm, bool applied) {
    char why[160];
    assert_int_equal(lt_guard_allows(g, loss, norm, why, sizeof why), applied);
    lt_guard_note(g, applied, loss, norm);
}

/* Losses 1 .. 20: the mean of the last 16 is that of 5 .. 20, 12.5; with a window of 8 that of 13
 * .. 20, 16.5. */
static void mean_of_recent_losses(void **state) {
    const int64_t windows[] = {128, 16, 8};
    const double want[] = {12.5, 12.5, 16.5};
    (void)state;
    for (int i = 0; i < 3; i++) {
        lt_recipe *r = recipe(windows[i]);
        lt_guard *g = calloc(1, sizeof *g);
        lt_guard_open(g, r);
        assert_true(isnan(lt_guard_recent(g)));
        judge(g, 1, 1, true);
        assert_true(lt_guard_recent(g) == 1.0);
        for (int k = 2; k <= 20; k++) {
            judge(g, k, 1, true);
        }
        assert_true(lt_guard_recent(g) == want[i]);
        free(g);
        free(r);
    }
}

/* best + max(1, best / 2): 10.5 allows 15.75; 4 allows 6; 1.5 allows 2.5; 0.25 allows 1.25. */
static void limits_of_suspicion(void **state) {
    const double best[] = {10.5, 4.0, 1.5, 0.25}, most[] = {15.75, 6.0, 2.5, 1.25};
    lt_recipe *r = recipe(128);
    lt_guard *g = calloc(1, sizeof *g);
    (void)state;
    lt_guard_open(g, r);
    assert_false(lt_guard_suspects(g, 1e30)); /* Nothing is known yet. */
    for (int i = 0; i < 4; i++) {
        g->best = best[i];
        assert_false(lt_guard_suspects(g, most[i]));
        assert_true(lt_guard_suspects(g, nextafter(most[i], 100.0)));
    }
    /* The limit for the mean of the last losses: 13.125, 5, 2, 0.75. */
    for (int i = 0; i < 4; i++) {
        const double mean[] = {13.125, 5.0, 2.0, 0.75};
        lt_guard_open(g, r);
        judge(g, mean[i] - 0.25, 1, true);
        judge(g, mean[i] + 0.25, 1, true);
        g->best = best[i];
        assert_false(lt_guard_suspects(g, best[i]));
        judge(g, mean[i] + 0.125, 1, true);
        assert_true(lt_guard_suspects(g, best[i]));
    }
    free(g);
    free(r);
}

/* The best begins as the first loss, 6. With 15 losses it does not change. The 16th makes it
 * their mean: 6 and 15 times 2 have the mean 2.25 and the deviation sqrt(15) / 4 = 0.968; 16
 * times 2 have the mean 2 and no deviation, so the spread fades to nine tenths. A higher mean
 * does not change the best. */
static void the_best_loss(void **state) {
    lt_recipe *r = recipe(128);
    lt_guard *g = calloc(1, sizeof *g);
    (void)state;
    lt_guard_open(g, r);
    lt_guard_note_good(g);
    assert_true(isinf(g->best));
    judge(g, 6, 1, true);
    for (int k = 0; k < 14; k++) {
        judge(g, 2, 1, true);
    }
    lt_guard_note_good(g);
    assert_true(g->best == 6.0 && g->spread == 0.0);
    judge(g, 2, 1, true);
    lt_guard_note_good(g);
    assert_true(g->best == 2.25);
    assert_true(fabs(g->spread - 0.96824583655) < 1e-10);
    judge(g, 2, 1, true);
    lt_guard_note_good(g);
    assert_true(g->best == 2.0);
    assert_true(fabs(g->spread - 0.9 * 0.96824583655) < 1e-10);
    judge(g, 2.5, 1, true);
    lt_guard_note_good(g);
    assert_true(g->best == 2.0);
    free(g);
    free(r);
}

/* A window of 8 cannot hold 16: 8 losses are enough. */
static void best_of_a_small_window(void **state) {
    lt_recipe *r = recipe(8);
    lt_guard *g = calloc(1, sizeof *g);
    (void)state;
    lt_guard_open(g, r);
    for (int k = 0; k < 8; k++) {
        judge(g, k == 0 ? 6 : 2, 1, true);
        lt_guard_note_good(g);
        assert_true(g->best == (k < 7 ? 6.0 : 2.5));
    }
    free(g);
    free(r);
}

/* 4 spreads for one loss, 1.5 for the mean: 2 + 4 and 2 + 1.5. */
static void limits_with_noise(void **state) {
    lt_recipe *r = recipe(128);
    lt_guard *g = calloc(1, sizeof *g);
    (void)state;
    lt_guard_open(g, r);
    g->best = 2.0;
    g->spread = 1.0;
    assert_false(lt_guard_suspects(g, 6.0));
    assert_true(lt_guard_suspects(g, 6.01));
    judge(g, 3.5, 1, true);
    assert_false(lt_guard_suspects(g, 3.5));
    judge(g, 3.6, 1, true);
    assert_true(lt_guard_suspects(g, 3.5));
    free(g);
    free(r);
}

static void not_finite(void **state) {
    lt_recipe *r = recipe(8);
    lt_guard *g = calloc(1, sizeof *g);
    (void)state;
    r->guard_loss = 3.0;
    lt_guard_open(g, r);
    for (int k = 0; k < 8; k++) {
        judge(g, k % 2 == 0 ? 2.0 : 4.0, 1, true); /* Mean 3, deviation 1. */
    }
    judge(g, NAN, 1, false);
    judge(g, 3, INFINITY, false);
    assert_int_equal(g->not_finite_in_a_row, 2);
    judge(g, 6.5, 1, false); /* 3.5 deviations: skipped, but finite. */
    assert_int_equal(g->not_finite_in_a_row, 0);
    assert_int_equal(g->skipped_in_a_row, 3);
    judge(g, 5.5, 1, true);
    assert_int_equal(g->skipped_in_a_row, 0);
    assert_int_equal(g->skipped, 3);
    free(g);
    free(r);
}

static void fill(lt_guard *g, int n) {
    for (int k = 1; k <= n; k++) {
        judge(g, k, 100 + k, true);
    }
}

/* Losses 1 .. 11 in a window of 8: the ring then holds 9 10 11 4 5 6 7 8, with the oldest at
 * index 3. */
static void state_of_another_window(void **state) {
    const struct {
        int64_t window, n, next;
        double oldest_first[10];
        int64_t first; /* Index of the oldest. */
    } cases[] = {
        {8, 8, 3, {4, 5, 6, 7, 8, 9, 10, 11}, 3},  /* Unchanged. */
        {10, 8, 8, {4, 5, 6, 7, 8, 9, 10, 11}, 0}, /* Capacity for two more. */
        {9, 8, 8, {4, 5, 6, 7, 8, 9, 10, 11}, 0},
    };
    lt_recipe *r = recipe(8);
    lt_guard *g = calloc(1, sizeof *g), *h = calloc(1, sizeof *h);
    json_t *saved;
    (void)state;
    lt_guard_open(g, r);
    fill(g, 11);
    g->best = 1.25;
    g->spread = 0.5;
    saved = lt_guard_save(g);
    for (int i = 0; i < 3; i++) {
        r->guard_window = cases[i].window;
        lt_guard_open(h, r);
        assert_int_equal(lt_guard_load(h, saved, "test"), LT_OK);
        assert_int_equal(h->loss.n, cases[i].n);
        assert_int_equal(h->loss.next, cases[i].next);
        assert_true(h->best == 1.25 && h->spread == 0.5);
        for (int64_t k = 0; k < cases[i].n; k++) {
            const int64_t at = (cases[i].first + k) % cases[i].n;
            assert_true(h->loss.values[at] == cases[i].oldest_first[k]);
            assert_true(h->grad.values[at] == 100 + cases[i].oldest_first[k]);
        }
    }
    json_decref(saved);
    r->guard_window = 16; /* 1 .. 11, then into a window of 8: 4 .. 11, full, the oldest at 0. */
    lt_guard_open(g, r);
    fill(g, 11);
    saved = lt_guard_save(g);
    r->guard_window = 8;
    lt_guard_open(h, r);
    assert_int_equal(lt_guard_load(h, saved, "test"), LT_OK);
    assert_int_equal(h->loss.n, 8);
    assert_int_equal(h->loss.next, 0);
    for (int k = 0; k < 8; k++) {
        assert_true(h->loss.values[k] == 4 + k);
    }
    json_decref(saved);
    free(g);
    free(h);
    free(r);
}

/* Mean 3 and deviation 1 over the window: 3 sigma end at 6. */
static void thresholds(void **state) {
    lt_recipe *r = recipe(8);
    lt_guard *g = calloc(1, sizeof *g);
    (void)state;
    r->guard_loss = 3.0;
    lt_guard_open(g, r);
    for (int k = 0; k < 7; k++) {
        judge(g, k % 2 == 0 ? 2.0 : 4.0, k % 2 == 0 ? 20.0 : 40.0, true);
    }
    judge(g, 100, 30, true); /* The window is not full, so nothing is judged. */
    lt_guard_open(g, r);
    for (int k = 0; k < 8; k++) {
        judge(g, k % 2 == 0 ? 2.0 : 4.0, k % 2 == 0 ? 20.0 : 40.0, true);
    }
    judge(g, 6.05, 30, false);
    judge(g, 5.95, 30, true);
    r->guard_loss = 0.0;
    r->guard_grad = 3.0;
    lt_guard_open(g, r);
    for (int k = 0; k < 8; k++) {
        judge(g, k % 2 == 0 ? 2.0 : 4.0, k % 2 == 0 ? 20.0 : 40.0, true);
    }
    judge(g, 3, 60.5, false); /* Mean 30, deviation 10. */
    judge(g, 3, 59.5, true);
    lt_guard_open(g, r);
    for (int k = 0; k < 8; k++) { /* Equal values have no deviation, so no value is far away. */
        judge(g, 3, 5, true);
    }
    judge(g, 3, 1e9, true);
    free(g);
    free(r);
}

/* A state that lacks a member is refused, and not taken as 0; a state whose ring is full and
 * begins at index 0 is accepted. */
static void incomplete_state(void **state) {
    static const char *const words[] = {"skipped", "skipped_in_a_row", "loss", "grad"};
    lt_recipe *r = recipe(8);
    lt_guard *g = calloc(1, sizeof *g), *h = calloc(1, sizeof *h);
    json_t *saved;
    (void)state;
    lt_guard_open(g, r);
    fill(g, 16);
    judge(g, NAN, 1, false);
    saved = lt_guard_save(g);
    lt_guard_open(h, r);
    assert_int_equal(lt_guard_load(h, saved, "test"), LT_OK);
    assert_int_equal(h->loss.next, 0);
    assert_int_equal(h->skipped, 1);
    assert_int_equal(h->skipped_in_a_row, 1);
    assert_true(h->loss.values[0] == 9 && h->loss.values[7] == 16);
    for (int i = 0; i < 4; i++) {
        json_t *part = json_copy(saved);
        json_object_del(part, words[i]);
        assert_int_not_equal(lt_guard_load(h, part, "test"), LT_OK);
        json_decref(part);
    }
    json_decref(saved);
    free(g);
    free(h);
    free(r);
}

/* A state from before `best` was stored: the mean of the losses in it. */
static void older_state(void **state) {
    lt_recipe *r = recipe(8);
    lt_guard *g = calloc(1, sizeof *g);
    json_t *saved;
    (void)state;
    lt_guard_open(g, r);
    fill(g, 3);
    saved = lt_guard_save(g);
    json_object_del(saved, "best");
    lt_guard_open(g, r);
    assert_int_equal(lt_guard_load(g, saved, "test"), LT_OK);
    assert_true(g->best == 2.0);
    json_object_set_new(json_object_get(saved, "loss"), "next", json_integer(9));
    assert_int_equal(lt_guard_load(g, saved, "test"), LT_ERR_STATE);
    json_decref(saved);
    free(g);
    free(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_of_recent_losses),   cmocka_unit_test(limits_of_suspicion),
        cmocka_unit_test(the_best_loss),           cmocka_unit_test(best_of_a_small_window),
        cmocka_unit_test(limits_with_noise),       cmocka_unit_test(not_finite),
        cmocka_unit_test(state_of_another_window), cmocka_unit_test(thresholds),
        cmocka_unit_test(incomplete_state),        cmocka_unit_test(older_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

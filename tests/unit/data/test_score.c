/* pass@k and maj@k against all subsets, counted one by one, and against known numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>

#include <cmocka.h>

#include "data/check/score.h"

static void close_to(double got, double want) {
    if (!(fabs(got - want) <= 1e-12)) {
        fail_msg("got %.15g, want %.15g", got, want);
    }
}

/* Visit every subset of k of the n answers; answer i is of class classes[i], -1: it has none. */
static void enumerate(const int *classes, const bool *right, int n_classes, int n, int k,
                      double *pass, double *majority) {
    int subsets = 0;
    *pass = *majority = 0;
    for (unsigned set = 0; set < 1u << n; set++) {
        int counts[16] = {0}, most = 0, best = 0, best_right = 0;
        bool any = false;
        if (__builtin_popcount(set) != k) {
            continue;
        }
        for (int i = 0; i < n; i++) {
            if ((set >> i & 1) != 0 && classes[i] >= 0) {
                counts[classes[i]]++;
                any = any || right[classes[i]];
            }
        }
        for (int c = 0; c < n_classes; c++) {
            most = counts[c] > most ? counts[c] : most;
        }
        for (int c = 0; c < n_classes && most > 0; c++) {
            best += counts[c] == most;
            best_right += counts[c] == most && right[c];
        }
        *pass += any;
        *majority += best > 0 ? (double)best_right / best : 0;
        subsets++;
    }
    *pass /= subsets;
    *majority /= subsets;
}

static void all_subsets(void **state) {
    static const struct {
        int counts[4], voteless;
        bool right[4];
    } cases[] = {
        {{5, 4, 2, 1}, 0, {true, false, false, false}},
        {{5, 4, 2, 1}, 0, {false, true, false, false}},
        {{1, 1, 1, 1}, 3, {false, false, true, false}},
        {{3, 3, 3, 0}, 3, {true, false, false, false}},
        {{2, 3, 0, 0}, 7, {true, true, false, false}}, /* Two spellings are right. */
        {{6, 0, 0, 0}, 6, {true, false, false, false}},
        {{4, 4, 0, 0}, 0, {false, false, false, false}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int classes[16], n = 0, n_right = 0;
        for (int c = 0; c < 4; c++) {
            n_right += cases[i].right[c] ? cases[i].counts[c] : 0;
            for (int x = 0; x < cases[i].counts[c]; x++) {
                classes[n++] = c;
            }
        }
        for (int x = 0; x < cases[i].voteless; x++) {
            classes[n++] = -1;
        }
        for (int k = 1; k <= n; k++) {
            double pass, majority, got = NAN;
            enumerate(classes, cases[i].right, 4, n, k, &pass, &majority);
            close_to(lt_score_pass(n, n_right, k), pass);
            assert_int_equal(lt_score_majority(&got, cases[i].counts, cases[i].right, 4, n, k),
                             LT_OK);
            close_to(got, majority);
        }
    }
}

/* With one answer drawn, both are the share of right answers; with all drawn, the largest class
 * decides. Large numbers keep their digits. */
static void limits(void **state) {
    const int counts[3] = {200, 156, 100};
    const bool right[3] = {true, false, false};
    double got = NAN;
    (void)state;
    close_to(lt_score_pass(512, 200, 1), 200. / 512);
    close_to(lt_score_pass(512, 0, 512), 0);
    close_to(lt_score_pass(512, 1, 256), 0.5);
    close_to(lt_score_pass(8, 5, 4), 1);
    assert_int_equal(lt_score_majority(&got, counts, right, 3, 512, 1), LT_OK);
    close_to(got, 200. / 512);
    assert_int_equal(lt_score_majority(&got, counts, right, 3, 512, 512), LT_OK);
    close_to(got, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_subsets), cmocka_unit_test(limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

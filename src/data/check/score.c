/* score.c: see score.h.
 *
 * MAJORITY. Class j wins a subset in which it has m members when no other class has more; when t
 * others also have m, it is taken with probability 1 / (t + 1). For each m, a table over (answers
 * chosen, ties), to which the classes are added one by one, counts the ways to choose the other k -
 * m answers. */
#include "data/check/score.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* C(n, k); 0 if k > n. */
static double choose(int n, int k) {
    double ways = k <= n ? 1 : 0;
    for (int i = 1; i <= k && k <= n; i++) {
        ways = ways * (double)(n - k + i) / (double)i;
    }
    return ways;
}

double lt_score_pass(int n, int right, int k) {
    LT_ASSERT(0 <= right && right <= n && 1 <= k && k <= n && n <= LT_SCORE_ANSWERS);
    return 1 - choose(n - right, k) / choose(n, k);
}

/* Add a class of `count` answers, of which up to m may be chosen, to ways (rest + 1, ties + 1).
 * This is done in place: a cell needs cells of fewer answers, which are updated later. */
static void add_class(double *ways, int rest, int ties, int count, int m) {
    const int width = ties + 1;
    double some[LT_SCORE_ANSWERS + 1];
    for (int x = 0; x <= m; x++) {
        some[x] = choose(count, x);
    }
    for (int r = rest; r >= 0; r--) {
        for (int t = ties; t >= 0; t--) {
            double sum = 0;
            for (int x = 0; x < m && x <= r && x <= count; x++) {
                sum += some[x] * ways[(r - x) * width + t];
            }
            if (r >= m && t > 0 && count >= m) {
                sum += some[m] * ways[(r - m) * width + t - 1];
            }
            ways[r * width + t] = sum;
        }
    }
}

/* Number of subsets of k answers that class j wins with m members; a tie counts as a fraction. */
static double wins(double *ways, const int *counts, int n_classes, int voteless, int j, int m,
                   int k) {
    const int rest = k - m, ties = rest / m;
    double sum = 0;
    memset(ways, 0, (size_t)(rest + 1) * (size_t)(ties + 1) * sizeof *ways);
    for (int r = 0; r <= rest; r++) {
        ways[r * (ties + 1)] = choose(voteless, r);
    }
    for (int i = 0; i < n_classes; i++) {
        if (i != j) {
            add_class(ways, rest, ties, counts[i], m);
        }
    }
    for (int t = 0; t <= ties; t++) {
        sum += ways[rest * (ties + 1) + t] / (double)(t + 1);
    }
    return sum * choose(counts[j], m);
}

lt_err lt_score_majority(double *out, const int *counts, const bool *right, int n_classes, int n,
                         int k) {
    double *ways = malloc((size_t)(k + 1) * (size_t)(k + 1) * sizeof *ways);
    double sum = 0;
    int voteless = n;
    LT_ASSERT(1 <= k && k <= n && n <= LT_SCORE_ANSWERS);
    if (ways == NULL) {
        LT_FAIL(LT_ERR_OOM, "majorities of %d answers", k);
    }
    for (int i = 0; i < n_classes; i++) {
        voteless -= counts[i];
    }
    LT_ASSERT(voteless >= 0);
    for (int j = 0; j < n_classes; j++) {
        for (int m = 1; right[j] && m <= k && m <= counts[j]; m++) {
            sum += wins(ways, counts, n_classes, voteless, j, m, k);
        }
    }
    *out = sum / choose(n, k);
    free(ways);
    return LT_OK;
}

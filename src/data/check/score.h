/* score.h: pass@k and maj@k of n answers to one problem. They are computed as expectations over all
 * subsets of k answers, so that no subset is drawn. */
#ifndef LT_DATA_CHECK_SCORE_H
#define LT_DATA_CHECK_SCORE_H

#include <stdbool.h>

#include "lateen/base.h"

/* Most answers to one problem; the number of subsets fits a double. */
#define LT_SCORE_ANSWERS 512

/* The probability that one of k answers is right: 1 - C(n - right, k) / C(n, k). Chen et al. 2021,
 * arXiv:2107.03374. 0 <= right <= n, 1 <= k <= n <= LT_SCORE_ANSWERS. */
double lt_score_pass(int n, int right, int k);

/* The probability that the most frequent of k answers is right, where equally frequent ones are
 * equally likely to be taken: maj@k. counts (n_classes) are the numbers of equal answers, right
 * (n_classes) says which of them are right; those of the n answers that are in no class do not
 * vote. OOM is the only error. */
LT_MUST_USE lt_err lt_score_majority(double *out, const int *counts, const bool *right,
                                     int n_classes, int n, int k);

#endif

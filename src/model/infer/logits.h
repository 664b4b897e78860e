/* logits.h: passes over one row of logits, which make up most of the work of choosing a token: four
 * floats at a time in plain vector C. */
#ifndef LT_MODEL_LOGITS_H
#define LT_MODEL_LOGITS_H

#include <stdbool.h>
#include <stdint.h>

#define LT_LOGITS_BLOCK 256 /* Weights a partial sum. */

typedef struct {
    float p; /* A logit, weight or log-probability. */
    int32_t id;
} lt_candidate;

/* The id of the largest logit, the lowest of ties; false: there is a NaN. */
bool lt_logits_best(const float *x, int64_t n, int32_t *best);

/* exp((x - high) * scale) to y (may be NULL: not stored); the sum, and of each block of
 * LT_LOGITS_BLOCK to sums (may be NULL). Relative error 2^-22; below e^-87: 0. */
double lt_logits_exp(const float *x, int64_t n, float high, float scale, float *y, double *sums);

/* log(sum of exp(x)), where `high` is the largest. */
double lt_logits_lse(const float *x, int64_t n, float high);

/* Nats of the softmax's distribution; lse is lt_logits_lse. */
double lt_logits_entropy(const float *x, int64_t n, double lse);

int64_t lt_logits_count_above(const float *x, int64_t n, float than); /* Strictly. */

/* Collect the logits >= least, in ascending order of id. */
int64_t lt_logits_collect(const float *x, int64_t n, float least, lt_candidate *out);

/* The k largest (fewer if n is smaller, or fewer are above -inf), in any order; out has room for n.
 * Ties: the lower ids. */
int64_t lt_logits_top(const float *x, int64_t n, int64_t k, lt_candidate *out);

/* The larger first, then the lower id: a total order, so that no result depends on the sorting
 * method. */
static inline bool lt_candidate_before(const lt_candidate *a, const lt_candidate *b) {
    return a->p != b->p ? a->p > b->p : a->id < b->id;
}

/* Candidates as a heap, with the first in order on top: they are sorted only as far as they are
 * popped. */
void lt_heap_make(lt_candidate *c, int64_t n);
/* The top goes to c[n - 1], the others are a heap of n - 1. */
void lt_heap_pop(lt_candidate *c, int64_t n);
/* Sort the first k of the order to the front. */
void lt_candidates_sort(lt_candidate *c, int64_t n, int64_t k);

/* By rising id. scratch: (n) */
void lt_candidates_by_id(lt_candidate *c, int64_t n, lt_candidate *scratch);

#endif

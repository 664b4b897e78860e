/* progress.h: two published measures of whether reasoning still makes progress. They use no state
 * of the server.
 *
 * Entropy after the closing mark (EAT: Wang et al. 2025, arXiv:2509.26522): at each border of the
 * reasoning, the entropy of the token that would follow if the reasoning ended there. While it
 * still changes, the reasoning changes the answer. With x the entropies and a rate alpha
 *
 *     m = alpha x + (1 - alpha) m          m begins with the first x
 *     v = alpha (x - m)^2 + (1 - alpha) v  v begins with 0
 *
 * and the reasoning is settled when v < delta after more than 4 / alpha entropies.
 *
 * Repetition (seq-rep-n: Welleck et al. 2020, arXiv:1908.04319): the share of the n-grams of a text
 * that occurred in it before, 1 - (different n-grams) / (n-grams). */
#ifndef LT_SERVE_PROGRESS_H
#define LT_SERVE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double mean, variance;
    int64_t n; /* Entropies so far. */
} lt_settling;

/* Add an entropy in nats. True: it has settled. */
bool lt_settling_add(lt_settling *s, double entropy, double alpha, double delta);

#define LT_REPETITION_N 4 /* Tokens of an n-gram: seq-rep-4. */

/* seq-rep-4 of ids (n). *first (may be NULL): index of the first n-gram that occurred before; n if
 * none did. With fewer than LT_REPETITION_N ids: 0. */
double lt_repetition(const uint32_t *ids, int64_t n, int64_t *first);

#endif

/* progress.c: see progress.h. */
#include "serve/api/progress.h"

#include <stddef.h>
#include <string.h>

bool lt_settling_add(lt_settling *s, double entropy, double alpha, double delta) {
    s->mean = s->n == 0 ? entropy : alpha * entropy + (1 - alpha) * s->mean;
    s->variance = alpha * (entropy - s->mean) * (entropy - s->mean) + (1 - alpha) * s->variance;
    s->n++;
    return (double)s->n > 4 / alpha && s->variance < delta;
}

/* The texts have only a few hundred tokens, so each n-gram is compared with all earlier ones. */
double lt_repetition(const uint32_t *ids, int64_t n, int64_t *first) {
    const int64_t grams = n - LT_REPETITION_N + 1;
    int64_t repeated = 0;
    if (first != NULL) {
        *first = n;
    }
    for (int64_t i = 1; i < grams; i++) {
        int64_t k = 0;
        while (k < i && memcmp(ids + k, ids + i, LT_REPETITION_N * sizeof *ids) != 0) {
            k++;
        }
        if (k < i && repeated++ == 0 && first != NULL) {
            *first = i;
        }
    }
    return grams > 0 ? (double)repeated / (double)grams : 0;
}

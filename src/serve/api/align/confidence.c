/* confidence.c: see confidence.h. */
#include "serve/api/align/confidence.h"

#include <math.h>
#include <stdlib.h>

void lt_confidence_add(lt_confidence *c, const lt_event *ev, int64_t window) {
    double sum = 0;
    if (c->n == c->room) {
        const int64_t room = c->room > 0 ? 2 * c->room : 64;
        float *more = realloc(c->values, (size_t)room * sizeof *more);
        if (more == NULL) {
            return;
        }
        c->values = more;
        c->room = room;
    }
    for (int i = 0; i < ev->n_top; i++) {
        sum += isfinite(ev->top[i].logprob) ? -(double)ev->top[i].logprob : 0;
    }
    c->values[c->n] = ev->n_top > 0 ? (float)(sum / ev->n_top) : 0;
    c->sum += c->values[c->n++];
    if (c->n > window) {
        c->sum -= c->values[c->n - 1 - window];
    }
    if (c->n >= window && (!c->full || c->sum / (double)window < c->lowest)) {
        c->full = true;
        c->lowest = c->sum / (double)window;
    }
}

double lt_confidence_of(const lt_confidence *c) {
    return c->full ? c->lowest : c->n > 0 ? c->sum / (double)c->n : 0;
}

double lt_confidence_now(const lt_confidence *c, int64_t window) {
    return c->n >= window ? c->sum / (double)window : INFINITY;
}

static int rising(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double lt_confidence_threshold(double *confidences, int64_t n, double eta) {
    const double at = (1 - eta) * (double)(n - 1);
    const int64_t low = (int64_t)at, high = low + 1 < n ? low + 1 : low;
    qsort(confidences, (size_t)n, sizeof *confidences, rising);
    return confidences[low] + (at - (double)low) * (confidences[high] - confidences[low]);
}

void lt_confidence_free(lt_confidence *c) {
    free(c->values);
}

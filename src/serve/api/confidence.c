/* confidence.c: see confidence.h. */
#include "serve/api/confidence.h"

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

void lt_confidence_free(lt_confidence *c) {
    free(c->values);
}

/* timeline.c: see timeline.h. Span i of the queue lies between marks 2 i + 1 and 2 i + 2 of its
 * stopwatch. */
#include "tensor/timeline.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/error.h"

const lt_span_words lt_span_words_of[LT_SPAN_KINDS] = {
#define SPAN_WORDS(kind, queued, name, first, second) {queued, name, first, second},
    LT_SPAN_MAP(SPAN_WORDS)
#undef SPAN_WORDS
};

void lt_timeline_open(lt_timeline *t, lt_device *device, lt_queue *queue) {
    *t = (lt_timeline){.backend = device->backend, .queue = queue};
}

void lt_timeline_close(lt_timeline *t) {
    free(t->spans);
    *t = (lt_timeline){0};
}

lt_err lt_timeline_restart(lt_timeline *t, bool keep) {
    t->n = t->n_settled = t->n_lost = 0;
    t->waited_s = 0.0;
    t->keeps = keep;
    if (keep && t->backend->mark != NULL) {
        LT_TRY(t->backend->sync(t->queue));
        LT_TRY(t->backend->mark(t->queue, 0));
        LT_TRY(t->backend->reach(t->queue, 0));
    }
    t->origin_ns = lt_clock_ns();
    return LT_OK;
}

/* The index of a new span; -1: there is no memory for it. */
static int64_t take(lt_timeline *t) {
    if (t->n == t->room) {
        const int64_t room = 2 * t->room + 256;
        lt_span *grown = realloc(t->spans, (size_t)room * sizeof *grown);
        if (grown == NULL) {
            t->n_lost++;
            return -1;
        }
        t->spans = grown;
        t->room = room;
    }
    return t->n++;
}

lt_err lt_timeline_begin(lt_timeline *t, lt_open_span *s, lt_span_kind kind, int64_t first,
                         int64_t second) {
    const bool waits = kind == LT_SPAN_WAIT || kind == LT_SPAN_HOST_WAIT;
    *s = (lt_open_span){.at = -1, .waits = waits};
    if (t == NULL || (!waits && !t->keeps)) {
        return LT_OK;
    }
    s->queued = lt_span_words_of[kind].queued && t->backend->mark != NULL;
    s->from_ns = lt_clock_ns();
    s->at = t->keeps || s->queued ? take(t) : -1;
    if (s->at < 0) {
        return LT_OK;
    }
    t->spans[s->at] = (lt_span){kind, first, second, s->from_ns, 0};
    return s->queued ? t->backend->mark(t->queue, 2 * s->at + 1) : LT_OK;
}

lt_err lt_timeline_end(lt_timeline *t, const lt_open_span *s) {
    if (s->from_ns == 0) {
        return LT_OK;
    }
    if (s->queued) {
        return s->at >= 0 ? t->backend->mark(t->queue, 2 * s->at + 2) : LT_OK;
    }
    const uint64_t now = lt_clock_ns();
    if (s->at >= 0) {
        t->spans[s->at].to_ns = now;
    }
    t->waited_s += s->waits ? (double)(now - s->from_ns) * 1e-9 : 0.0;
    return LT_OK;
}

/* Fill in a span of the stopwatch. If spans are kept, both of its marks are measured from mark 0:
 * a stopwatch rounds distances, so a beginning plus a length could be later than the next
 * beginning. */
static lt_err measure(lt_timeline *t, int64_t i) {
    lt_span *s = &t->spans[i];
    double from_s = 0.0, to_s;
    if (t->keeps) {
        LT_TRY(t->backend->between(t->queue, 0, 2 * i + 1, &from_s));
    }
    LT_TRY(t->backend->between(t->queue, t->keeps ? 0 : 2 * i + 1, 2 * i + 2, &to_s));
    s->from_ns = t->origin_ns + (uint64_t)(from_s * 1e9);
    s->to_ns = t->origin_ns + (uint64_t)(to_s * 1e9);
    t->waited_s += s->kind == LT_SPAN_WAIT ? to_s - from_s : 0.0;
    return LT_OK;
}

lt_err lt_timeline_settle(lt_timeline *t) {
    for (; t->n_settled < t->n; t->n_settled++) {
        const bool queued = lt_span_words_of[t->spans[t->n_settled].kind].queued;
        LT_TRY(queued && t->backend->mark != NULL ? measure(t, t->n_settled) : LT_OK);
    }
    if (!t->keeps) {
        t->n = t->n_settled = 0;
    }
    return LT_OK;
}

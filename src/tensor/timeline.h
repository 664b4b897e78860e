/* timeline.h: records what a rank does at what time, as spans on the queue of its passes and on
 * its host.
 *
 *     lt_timeline_begin(t, &span, LT_SPAN_WAIT, call, 0)     before the work
 *     lt_timeline_end(t, &span)                              after it
 *     lt_timeline_settle(t)                                  the queue has been synced: the times
 *                                                            of all spans, and the sum of waits
 *
 * On a backend with a stopwatch a span of the queue is measured by two of its marks, so the host
 * does not wait; on other backends work runs immediately, and the clock is read. The sum of all
 * waits is always measured. All other spans cost nothing unless they are kept, as for the trace
 * of a step. A timeline belongs to the thread that drives the queue. */
#ifndef LT_TENSOR_TIMELINE_H
#define LT_TENSOR_TIMELINE_H

#include "tensor/backend.h"

/* What happens in a span, whether it happens on the queue of the passes or on the host, its name,
 * and the names of its two numbers. */
#define LT_SPAN_MAP(X)                                                                             \
    X(WAIT, true, "wait", "call", "")                                                              \
    X(EMBED, true, "embedding", "", "")                                                            \
    X(FORWARD, true, "forward", "layer", "")                                                       \
    X(HEAD, true, "head and loss", "", "")                                                         \
    X(BACKWARD, true, "backward", "layer", "")                                                     \
    X(EMBED_BACKWARD, true, "backward of the embedding", "", "")                                   \
    X(WEIGHTS, true, "gradients of weights", "layer", "")                                          \
    X(STAGE_FORWARD, true, "stage forward", "chunk", "micro_batch")                                \
    X(STAGE_BACKWARD, true, "stage backward", "chunk", "micro_batch")                              \
    X(STAGE_WEIGHTS, true, "stage, gradients of weights", "chunk", "micro_batch")                  \
    X(HOST_WAIT, false, "wait", "call", "")                                                        \
    X(STEP, false, "step", "step", "")                                                             \
    X(ROWS, false, "rows of the next step", "", "")                                                \
    X(PASSES, false, "passes", "", "")                                                             \
    X(SUMS, false, "sums of gradients", "", "")                                                    \
    X(RECORD, false, "record of all ranks", "", "")                                                \
    X(UPDATE, false, "update", "", "")
typedef enum {
#define LT_SPAN_ENUM(kind, queued, name, first, second) LT_SPAN_##kind,
    LT_SPAN_MAP(LT_SPAN_ENUM)
#undef LT_SPAN_ENUM
        LT_SPAN_KINDS
} lt_span_kind;
typedef struct {
    bool queued;
    const char *name, *first, *second;
} lt_span_words;
extern const lt_span_words lt_span_words_of[LT_SPAN_KINDS];

typedef struct {
    int64_t kind; /* lt_span_kind */
    int64_t first, second;
    uint64_t from_ns, to_ns; /* On the clock of lt_clock_ns. */
} lt_span;

typedef struct lt_timeline lt_timeline;

/* A span that has begun. */
typedef struct {
    int64_t at; /* Its index among the spans that are kept; -1: it is not kept. */
    bool waits, queued;
    uint64_t from_ns;
} lt_open_span;

struct lt_timeline {
    const lt_backend *backend;
    lt_queue *queue;
    bool keeps;         /* All spans are kept, not only waits that a stopwatch measures. */
    uint64_t origin_ns; /* The time of mark 0, if spans are kept. */
    lt_span *spans;     /* (n) of `room`, which grows. */
    int64_t n, room;
    int64_t n_settled; /* Spans [0, n_settled) have their times. */
    int64_t n_lost;    /* Spans for which there was no memory. */
    double waited_s;
};

void lt_timeline_open(lt_timeline *t, lt_device *device, lt_queue *queue);
void lt_timeline_close(lt_timeline *t); /* Accepts a zeroed one. */

/* Forget all spans and waits; from now on keep all spans, or only the waits. If spans are to be
 * kept, the queue is synced, to relate its stopwatch to the clock. */
LT_MUST_USE lt_err lt_timeline_restart(lt_timeline *t, bool keep);

/* t NULL: nothing is measured. Spans nest; an inner one ends before the outer one. */
LT_MUST_USE lt_err lt_timeline_begin(lt_timeline *t, lt_open_span *s, lt_span_kind kind,
                                     int64_t first, int64_t second);
LT_MUST_USE lt_err lt_timeline_end(lt_timeline *t, const lt_open_span *s);

/* Add the waits that the stopwatch measured to waited_s and, if the timeline keeps spans, fill in
 * their times. Waits for the queue if it has not reached the end of each span. */
LT_MUST_USE lt_err lt_timeline_settle(lt_timeline *t);

#endif

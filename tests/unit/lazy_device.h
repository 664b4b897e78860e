/* lazy_device.h: a device for tests that does nothing until it is waited for. Ops of the CPU are
 * kept with their arguments, transfers and copies with their pointers. They run in order when a
 * sync waits for a whole queue, or a mark for the work before it; if a queue waits for another,
 * that one runs first, up to that point and no further. A real device may be as late, so this
 * finds code that reads a result too early or overwrites the source of a pending transfer. A
 * device may also be early: lazy.hasty makes a transfer at once if its queue is empty, and runs
 * all other queues to their ends before a mark is reached. This finds work that should have
 * waited for another queue. Graphs are kept in the same way. Only one thread at a time may use
 * it; its memory is host memory. */
#ifndef TESTS_LAZY_DEVICE_H
#define TESTS_LAZY_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/host.h"
#include "unit/device.h"
#include "tensor/ops.h"

typedef struct lazy_work lazy_work;
struct lazy_work {
    lazy_work *next;
    lt_err (*run)(const lazy_work *w); /* NULL: a mark. */
    void *dst;
    const void *src;
    size_t bytes, stride_bytes;
    int64_t n;        /* Number of pieces; the mark; how much of `before`. */
    lt_queue *before; /* The queue to wait for. */
    const lt_graph *graph;
    _Alignas(64) unsigned char args[2048];
};

struct lt_graph {
    lazy_work *first, *last;
};

/* Work that is not done yet, in order; how much was ever added, and how much is done. */
struct lt_queue {
    lt_device *device;
    lt_graph work;
    int64_t n_added, n_done;
};

enum { LAZY_QUEUES = 32 };

static struct {
    lt_queue *queues[LAZY_QUEUES];
    lt_graph *recording;
    bool hasty;
    /* n_launched: launches of graphs. n_left: marks reached while later work was queued. */
    int64_t n_launched, n_left;
    int64_t fail_in, refuse_in; /* After this many waits, or transfers, one fails; 0: none. */
} lazy;

static lt_err lazy_queue_open(lt_device *d, lt_queue **out) {
    *out = calloc(1, sizeof **out);
    LT_ASSERT(*out != NULL);
    (*out)->device = d;
    for (int i = 0; i < LAZY_QUEUES; i++) {
        if (lazy.queues[i] == NULL) {
            lazy.queues[i] = *out;
            return LT_OK;
        }
    }
    LT_FAIL(LT_ERR_LIMIT, "%d queues", LAZY_QUEUES);
}

static lt_err lazy_keep(lt_queue *q, const lazy_work *w) {
    lt_graph *to = lazy.recording != NULL ? lazy.recording : &q->work;
    lazy_work *own = aligned_alloc(64, sizeof *own);
    LT_ASSERT(own != NULL);
    *own = *w;
    own->next = NULL;
    *(to->first == NULL ? &to->first : &to->last->next) = own;
    to->last = own;
    q->n_added += lazy.recording == NULL;
    return LT_OK;
}

/* Run a queue, or one that it waits for, until this much of it is done. A wait always refers to
 * earlier work, and there are few queues. */
static lt_err lazy_run(lt_queue *q, int64_t n) {
    lt_err err = LT_OK;
    LT_ASSERT(lazy.recording == NULL && n <= q->n_added);
    while (q->n_done < n) {
        lt_queue *at = q;
        while (at->work.first->before != NULL &&
               at->work.first->before->n_done < at->work.first->n) {
            at = at->work.first->before;
        }
        lazy_work *w = at->work.first;
        err = err == LT_OK && w->run != NULL ? w->run(w) : err;
        at->work.first = w->next;
        at->n_done++;
        free(w);
    }
    return err;
}

/* Run everything that is queued. */
static void lazy_run_all(void) {
    for (int i = 0; i < LAZY_QUEUES; i++) {
        if (lazy.queues[i] != NULL) {
            (void)lazy_run(lazy.queues[i], lazy.queues[i]->n_added);
        }
    }
}

/* A queue of another backend is returned to it: golden.h opens a model on one and runs it on the
 * other. */
static void lazy_queue_close(lt_queue *q) {
    for (int i = 0; i < LAZY_QUEUES; i++) {
        if (lazy.queues[i] == q) {
            lazy_run_all();
            lazy.queues[i] = NULL;
            free(q);
            return;
        }
    }
    if (q != NULL) {
        lt_queue_device(q)->backend->queue_close(q);
    }
}

static lt_err lazy_wait(lt_queue *q, int64_t n) {
    const bool fails = lazy.fail_in == 1;
    lazy.fail_in -= lazy.fail_in > 0;
    LT_TRY(lazy_run(q, n));
    return fails ? lt_error_set(LT_ERR_IO, "the device fails, as the test requested") : LT_OK;
}

static lt_err lazy_sync(lt_queue *q) {
    return lazy_wait(q, q->n_added);
}

static lt_err lazy_order(lt_queue *after, lt_queue *before) {
    LT_ASSERT(lazy.recording == NULL);
    return lazy_keep(after, &(lazy_work){.before = before, .n = before->n_added});
}

static lt_err lazy_mark(lt_queue *q, int64_t i) {
    return lazy_keep(q, &(lazy_work){.n = i});
}

static lt_err lazy_reach(lt_queue *q, int64_t i) {
    int64_t n = q->n_done, last = -1;
    lt_err err;
    for (const lazy_work *w = q->work.first; w != NULL; w = w->next) {
        n++;
        last = w->run == NULL && w->before == NULL && w->n == i ? n : last;
    }
    if (last < 0) { /* The queue is past the mark. */
        return LT_OK;
    }
    for (int k = 0; k < LAZY_QUEUES && lazy.hasty; k++) {
        if (lazy.queues[k] != NULL && lazy.queues[k] != q) {
            LT_TRY(lazy_run(lazy.queues[k], lazy.queues[k]->n_added));
        }
    }
    err = lazy_wait(q, last);
    n = 0;
    for (int k = 0; k < LAZY_QUEUES; k++) {
        n += lazy.queues[k] != NULL ? lazy.queues[k]->n_added - lazy.queues[k]->n_done : 0;
    }
    lazy.n_left += n > 0;
    return err;
}

static lt_err lazy_between(lt_queue *q, int64_t from, int64_t to, double *seconds) {
    (void)q;
    (void)from;
    (void)to;
    *seconds = 0.0;
    return LT_OK;
}

static lt_err lazy_run_copy(const lazy_work *w) {
    return lt_host_copy(NULL, w->dst, w->src, w->bytes);
}

static lt_err lazy_copy(lt_queue *q, void *dst, const void *src, size_t bytes) {
    return lazy_keep(q, &(lazy_work){.run = lazy_run_copy, .dst = dst, .src = src, .bytes = bytes});
}

static lt_err lazy_transfer(lt_queue *q, void *dst, const void *src, size_t bytes) {
    const bool refuses = lazy.refuse_in == 1;
    LT_ASSERT(lazy.recording == NULL);
    lazy.refuse_in -= lazy.refuse_in > 0;
    if (refuses) {
        LT_FAIL(LT_ERR_IO, "the device refuses, as the test requested");
    }
    LT_TRY(lazy_copy(q, dst, src, bytes));
    return lazy.hasty && q->n_added - q->n_done == 1 ? lazy_run(q, q->n_added) : LT_OK;
}

static lt_err lazy_run_zero(const lazy_work *w) {
    return lt_host_zero_pieces(NULL, w->dst, w->bytes, w->stride_bytes, w->n);
}

static lt_err lazy_zero_pieces(lt_queue *q, void *dst, size_t piece_bytes, size_t stride_bytes,
                               int64_t n) {
    return lazy_keep(q, &(lazy_work){.run = lazy_run_zero,
                                     .dst = dst,
                                     .bytes = piece_bytes,
                                     .stride_bytes = stride_bytes,
                                     .n = n});
}

static lt_err lazy_zero(lt_queue *q, void *dst, size_t bytes) {
    return lazy_zero_pieces(q, dst, bytes, bytes, 1);
}

static void lazy_release(lt_device *d, void *data, size_t bytes) {
    lazy_run_all();
    lt_host_release(d, data, bytes);
}

#define LAZY_OP(name, type)                                                                        \
    _Static_assert(sizeof(type) <= sizeof((lazy_work *)0)->args, #type);                           \
    static lt_err lazy_run_op_##name(const lazy_work *w) {                                         \
        return lt_backend_cpu()->ops->name(NULL, (const type *)(const void *)w->args);             \
    }                                                                                              \
    static lt_err lazy_op_##name(lt_queue *q, const type *a) {                                     \
        lazy_work w = {.run = lazy_run_op_##name};                                                 \
        memcpy(w.args, a, sizeof *a);                                                              \
        return lazy_keep(q, &w);                                                                   \
    }
LT_OP_MAP(LAZY_OP)
#define LAZY_FIELD(name, type) .name = lazy_op_##name,
static const lt_ops lazy_ops = {LT_OP_MAP(LAZY_FIELD)};

static lt_err lazy_graph_begin(lt_queue *q) {
    (void)q;
    LT_ASSERT(lazy.recording == NULL);
    lazy.recording = calloc(1, sizeof *lazy.recording);
    LT_ASSERT(lazy.recording != NULL);
    return LT_OK;
}

static lt_err lazy_graph_end(lt_queue *q, lt_graph **out) {
    (void)q;
    *out = lazy.recording;
    lazy.recording = NULL;
    return LT_OK;
}

static lt_err lazy_run_graph(const lazy_work *g) {
    for (const lazy_work *w = g->graph->first; w != NULL; w = w->next) {
        LT_TRY(w->run(w));
    }
    return LT_OK;
}

static lt_err lazy_graph_launch(lt_queue *q, lt_graph *g) {
    lazy.n_launched++;
    return lazy_keep(q, &(lazy_work){.run = lazy_run_graph, .graph = g});
}

static void lazy_graph_close(lt_device *d, lt_graph *g) {
    (void)d;
    if (g != NULL) {
        lazy_run_all();
        for (lazy_work *w = g->first, *next; w != NULL; w = next) {
            next = w->next;
            free(w);
        }
        free(g);
    }
}

/* With graphs, or without. */
static const lt_backend *lazy_device(bool graphs) {
    static lt_backend backends[2];
    lt_backend *b = &backends[graphs];
    *b = *lt_backend_cpu();
    b->name = "lazy";
    b->host_memory = false;
    b->ops = &lazy_ops;
    b->queue_open = lazy_queue_open;
    b->queue_close = lazy_queue_close;
    b->sync = lazy_sync;
    b->order = lazy_order;
    b->mark = lazy_mark;
    b->reach = lazy_reach;
    b->between = lazy_between;
    b->upload = b->download = lazy_transfer;
    b->copy = lazy_copy;
    b->zero = lazy_zero;
    b->zero_pieces = lazy_zero_pieces;
    b->release = b->host_release = lazy_release;
    if (graphs) {
        b->graph_begin = lazy_graph_begin;
        b->graph_end = lazy_graph_end;
        b->graph_launch = lazy_graph_launch;
        b->graph_close = lazy_graph_close;
    }
    return b;
}

#endif

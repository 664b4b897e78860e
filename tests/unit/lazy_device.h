/* lazy_device.h: a device for tests that does nothing until it is waited for. The CPU's ops are kept with their arguments, transfers and copies with their pointers,
 * and run in order when a sync asks for all of them, or a mark for those before it. A real device may be as late: who reads a result too early, or writes
 * over what a transfer has still to read, is found out. Graphs are kept likewise. One queue, one thread at a time; memory is the host's. */
#ifndef TESTS_LAZY_DEVICE_H
#define TESTS_LAZY_DEVICE_H

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "kernels/host.h"
#include "tensor/backend.h"
#include "tensor/ops.h"

typedef struct lazy_work lazy_work;
struct lazy_work {
    lazy_work *next;
    lt_err (*run)(const lazy_work *w); /* NULL: a mark. */
    void *dst;
    const void *src;
    size_t bytes, stride_bytes;
    int64_t n; /* Pieces; which mark. */
    const lt_graph *graph;
    _Alignas(64) unsigned char args[2048];
};

struct lt_graph {
    lazy_work *first, *last;
};

static struct {
    lt_graph queue;
    lt_graph *recording;
    int64_t n_launched, /* Graphs. */
        n_left;         /* Marks that were reached while work stood behind them. */
    int64_t fail_in;    /* So many waits later one fails; 0: none. */
} lazy;

static lt_err lazy_keep(const lazy_work *w) {
    lt_graph *to = lazy.recording != NULL ? lazy.recording : &lazy.queue;
    lazy_work *own = aligned_alloc(64, sizeof *own);
    LT_ASSERT(own != NULL);
    *own = *w;
    own->next = NULL;
    *(to->first == NULL ? &to->first : &to->last->next) = own;
    to->last = own;
    return LT_OK;
}

/* Up to and with `last`; NULL: all. */
static lt_err lazy_run(const lazy_work *last) {
    lt_err err = LT_OK;
    LT_ASSERT(lazy.recording == NULL);
    for (bool more = lazy.queue.first != NULL; more;) {
        lazy_work *w = lazy.queue.first;
        err = err == LT_OK && w->run != NULL ? w->run(w) : err;
        lazy.queue.first = w->next;
        more = w != last && w->next != NULL;
        free(w);
    }
    return err;
}

static lt_err lazy_wait(const lazy_work *last) {
    const bool fails = lazy.fail_in == 1;
    lazy.fail_in -= lazy.fail_in > 0;
    LT_TRY(lazy_run(last));
    return fails ? lt_error_set(LT_ERR_IO, "the device fails, as it was told to") : LT_OK;
}

static lt_err lazy_sync(lt_queue *q) {
    (void)q;
    return lazy_wait(NULL);
}

static lt_err lazy_mark(lt_queue *q, int64_t i) {
    (void)q;
    return lazy_keep(&(lazy_work){.n = i});
}

static lt_err lazy_reach(lt_queue *q, int64_t i) {
    const lazy_work *last = NULL;
    lt_err err;
    (void)q;
    for (const lazy_work *w = lazy.queue.first; w != NULL; w = w->next) {
        last = w->run == NULL && w->n == i ? w : last;
    }
    if (last == NULL) { /* The queue has passed it. */
        return LT_OK;
    }
    err = lazy_wait(last);
    lazy.n_left += lazy.queue.first != NULL;
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
    (void)q;
    return lazy_keep(&(lazy_work){.run = lazy_run_copy, .dst = dst, .src = src, .bytes = bytes});
}

static lt_err lazy_transfer(lt_queue *q, void *dst, const void *src, size_t bytes) {
    LT_ASSERT(lazy.recording == NULL);
    return lazy_copy(q, dst, src, bytes);
}

static lt_err lazy_run_zero(const lazy_work *w) {
    return lt_host_zero_pieces(NULL, w->dst, w->bytes, w->stride_bytes, w->n);
}

static lt_err lazy_zero_pieces(lt_queue *q, void *dst, size_t piece_bytes, size_t stride_bytes,
                               int64_t n) {
    (void)q;
    return lazy_keep(&(lazy_work){.run = lazy_run_zero,
                                  .dst = dst,
                                  .bytes = piece_bytes,
                                  .stride_bytes = stride_bytes,
                                  .n = n});
}

static lt_err lazy_zero(lt_queue *q, void *dst, size_t bytes) {
    return lazy_zero_pieces(q, dst, bytes, bytes, 1);
}

static void lazy_release(void *data, size_t bytes) {
    (void)lazy_run(NULL);
    lt_host_release(data, bytes);
}

#define LAZY_OP(name, type)                                                                        \
    _Static_assert(sizeof(type) <= sizeof((lazy_work *)0)->args, #type);                           \
    static lt_err lazy_run_op_##name(const lazy_work *w) {                                         \
        return lt_backend_cpu()->ops->name(NULL, (const type *)(const void *)w->args);             \
    }                                                                                              \
    static lt_err lazy_op_##name(lt_queue *q, const type *a) {                                     \
        lazy_work w = {.run = lazy_run_op_##name};                                                 \
        (void)q;                                                                                   \
        memcpy(w.args, a, sizeof *a);                                                              \
        return lazy_keep(&w);                                                                      \
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
    (void)q;
    lazy.n_launched++;
    return lazy_keep(&(lazy_work){.run = lazy_run_graph, .graph = g});
}

static void lazy_graph_close(lt_graph *g) {
    if (g != NULL) {
        (void)lazy_run(NULL);
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
    b->sync = lazy_sync;
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

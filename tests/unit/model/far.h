/* far.h: a device for tests: the CPU's kernels, with the properties that make a GPU hard to use.
 *
 *     memory the host cannot access what alloc returns: a read or write faults. Ops get the real
 *              address.
 *     queues nothing runs before a sync: data that are read too early are old, and data that are
 *              changed too early are used as changed.
 *     graphs recorded with the current pointers and numbers; transfers and waits inside one fail.
 *
 * Code that runs correctly here, with the same bits as on the CPU, keeps to backend.h. */
#ifndef TESTS_MODEL_FAR_H
#define TESTS_MODEL_FAR_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/error.h"
#include "tensor/ops.h"
#include "unit/device.h"

#define FAR_ROOM       ((size_t)4 << 30)
#define FAR_ARGS_BYTES 2048
/* A word of the arguments may be a small number, or a flag with padding that holds half of an old
 * far address; no such word looks like an address in this range. */
#define FAR_PLACE ((void *)0x5a5aa0000000)

typedef enum { FAR_OP, FAR_MOVE, FAR_ZERO, FAR_ORDER, FAR_LAUNCH } far_kind;

typedef struct {
    far_kind kind;
    lt_op op;
    _Alignas(16) unsigned char args[FAR_ARGS_BYTES];
    void *dst;
    const void *src;
    size_t bytes;
    lt_queue *other; /* ORDER: run it up to `until` first. */
    int64_t until;
    lt_graph *graph;
} far_work;

struct lt_graph {
    far_work *works;
    int64_t n, room;
};

struct lt_queue {
    lt_device *device;
    struct lt_graph list; /* All work that was ever queued; [done, n) has not run yet. */
    int64_t done;
    struct lt_graph *recording;
};

/* The range that is handed out; where the bytes are. */
static unsigned char *far_base, *far_real;
static size_t far_used;
static size_t far_limit = FAR_ROOM;
static int64_t far_launches;

static inline void *far_to_real(const void *p) {
    const uintptr_t at = (uintptr_t)p, base = (uintptr_t)far_base;
    return at >= base && at < base + far_used ? far_real + (at - base) : (void *)at;
}

static inline lt_err far_alloc(lt_device *d, void **out, size_t bytes, const char *what) {
    (void)d;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    if (far_base == NULL) {
        far_base = mmap(FAR_PLACE, FAR_ROOM, PROT_NONE, flags, -1, 0);
        far_real = mmap(NULL, FAR_ROOM, PROT_READ | PROT_WRITE, flags, -1, 0);
        LT_ASSERT(far_base != MAP_FAILED && far_real != MAP_FAILED);
    }
    bytes = (bytes + 4095) / 4096 * 4096;
    if (bytes > far_limit || far_used + bytes > FAR_ROOM) {
        LT_FAIL(LT_ERR_OOM, "%s: %zu bytes of far memory", what, bytes);
    }
    *out = far_base + far_used;
    far_used += bytes;
    return LT_OK;
}

/* The memory is never used again. */
static inline void far_release(lt_device *d, void *data, size_t bytes) {
    (void)d;
    (void)madvise(far_to_real(data), (bytes + 4095) / 4096 * 4096, MADV_DONTNEED);
}

static inline lt_err far_queue_open(lt_device *d, lt_queue **out) {
    *out = calloc(1, sizeof **out);
    LT_ASSERT(*out != NULL);
    (*out)->device = d;
    return LT_OK;
}

static inline far_work *far_push(lt_queue *q, far_kind kind) {
    struct lt_graph *g = q->recording != NULL ? q->recording : &q->list;
    if (g->n == g->room) {
        g->room = g->room == 0 ? 64 : 2 * g->room;
        g->works = realloc(g->works, (size_t)g->room * sizeof *g->works);
        LT_ASSERT(g->works != NULL);
    }
    g->works[g->n] = (far_work){.kind = kind};
    return &g->works[g->n++];
}

/* A copy of the arguments in which every far address is replaced by the real one. Only data of
 * tensors and packed weights are addresses there. */
static inline lt_err far_call(lt_op op, const void *args) {
    _Alignas(16) unsigned char real[FAR_ARGS_BYTES];
    const lt_backend *cpu = lt_backend_cpu();
    memcpy(real, args, sizeof real);
    for (size_t at = 0; at < sizeof real; at += sizeof(void *)) {
        void *p;
        memcpy(&p, real + at, sizeof p);
        p = far_to_real(p);
        memcpy(real + at, &p, sizeof p);
    }
    switch (op) {
#define FAR_CASE(name, type)                                                                       \
    case LT_OP_##name:                                                                             \
        return cpu->ops->name(NULL, (const type *)(const void *)real);
        LT_OP_MAP(FAR_CASE)
#undef FAR_CASE
    case LT_OP_COUNT:
        break;
    }
    LT_FAIL(LT_ERR_ARG, "no such op");
}

static inline lt_err far_run_until(lt_queue *q, int64_t until);

static inline lt_err far_run_work(const far_work *w) {
    switch (w->kind) {
    case FAR_OP:
        return far_call(w->op, w->args);
    case FAR_MOVE:
        memmove(far_to_real(w->dst), far_to_real(w->src), w->bytes);
        return LT_OK;
    case FAR_ZERO:
        memset(far_to_real(w->dst), 0, w->bytes);
        return LT_OK;
    case FAR_ORDER:
        return far_run_until(w->other, w->until);
    case FAR_LAUNCH:
        far_launches++;
        for (int64_t i = 0; i < w->graph->n; i++) {
            LT_TRY(far_run_work(&w->graph->works[i]));
        }
        return LT_OK;
    }
    return LT_ERR_ARG;
}

static inline lt_err far_run_until(lt_queue *q, int64_t until) {
    while (q->done < until) { /* An ORDER may come back here, so done is advanced first. */
        const far_work w = q->list.works[q->done++];
        LT_TRY(far_run_work(&w));
    }
    return LT_OK;
}

static inline lt_err far_sync(lt_queue *q) {
    if (q->recording != NULL) {
        LT_FAIL(LT_ERR_STATE, "a wait inside a graph");
    }
    return far_run_until(q, q->list.n);
}

static inline void far_queue_close(lt_queue *q) {
    if (q != NULL) {
        (void)!far_sync(q);
        free(q->list.works);
        free(q);
    }
}

static inline lt_err far_move(lt_queue *q, void *dst, const void *src, size_t bytes) {
    far_work *w = far_push(q, FAR_MOVE);
    w->dst = dst;
    w->src = src;
    w->bytes = bytes;
    return LT_OK;
}

static inline lt_err far_transfer(lt_queue *q, void *dst, const void *src, size_t bytes) {
    if (q->recording != NULL) {
        LT_FAIL(LT_ERR_STATE, "a transfer inside a graph");
    }
    return far_move(q, dst, src, bytes);
}

static inline lt_err far_zero(lt_queue *q, void *dst, size_t bytes) {
    far_work *w = far_push(q, FAR_ZERO);
    w->dst = dst;
    w->bytes = bytes;
    return LT_OK;
}

static inline lt_err far_zero_pieces(lt_queue *q, void *dst, size_t piece_bytes,
                                     size_t stride_bytes, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        (void)!far_zero(q, (char *)dst + (size_t)i * stride_bytes, piece_bytes);
    }
    return LT_OK;
}

static inline lt_err far_order(lt_queue *after, lt_queue *before) {
    far_work *w = far_push(after, FAR_ORDER);
    w->other = before;
    w->until = before->list.n;
    return LT_OK;
}

static inline lt_err far_graph_begin(lt_queue *q) {
    LT_ASSERT(q->recording == NULL);
    q->recording = calloc(1, sizeof *q->recording);
    return q->recording != NULL ? LT_OK : LT_ERR_OOM;
}

static inline lt_err far_graph_end(lt_queue *q, lt_graph **out) {
    LT_ASSERT(q->recording != NULL);
    *out = q->recording;
    q->recording = NULL;
    return LT_OK;
}

static inline lt_err far_graph_launch(lt_queue *q, lt_graph *g) {
    far_push(q, FAR_LAUNCH)->graph = g;
    return LT_OK;
}

static inline void far_graph_close(lt_device *d, lt_graph *g) {
    (void)d;
    if (g != NULL) {
        free(g->works);
        free(g);
    }
}

static inline lt_err far_host_alloc(lt_device *d, void **out, size_t bytes, const char *what) {
    (void)d;
    (void)what;
    *out = calloc(1, bytes);
    return *out != NULL ? LT_OK : LT_ERR_OOM;
}

static inline void far_host_release(lt_device *d, void *data, size_t bytes) {
    (void)d;
    (void)bytes;
    free(data);
}

static inline lt_err far_memory_left(lt_device *d, size_t *bytes) {
    (void)d;
    *bytes = far_limit;
    return LT_OK;
}

static inline lt_err far_push_op(lt_queue *q, lt_op op, const void *args, size_t bytes) {
    far_work *w = far_push(q, FAR_OP);
    LT_ASSERT(bytes <= FAR_ARGS_BYTES);
    w->op = op;
    memcpy(w->args, args, bytes);
    return LT_OK;
}

#define FAR_OP_FUNCTION(name, type)                                                                \
    static inline lt_err far_##name(lt_queue *q, const type *a) {                                  \
        return far_push_op(q, LT_OP_##name, a, sizeof *a);                                         \
    }
LT_OP_MAP(FAR_OP_FUNCTION)
#define FAR_OP_FIELD(name, type) .name = far_##name,

static inline const lt_backend *far_backend(void) {
    static const lt_ops ops = {LT_OP_MAP(FAR_OP_FIELD)};
    static lt_backend b;
    b = (lt_backend){.name = "far",
                     .ops = &ops,
                     .lists = lt_backend_cpu()->lists,
                     .alloc = far_alloc,
                     .release = far_release,
                     .queue_open = far_queue_open,
                     .queue_close = far_queue_close,
                     .sync = far_sync,
                     .upload = far_transfer,
                     .download = far_transfer,
                     .zero = far_zero,
                     .zero_pieces = far_zero_pieces,
                     .copy = far_move,
                     .host_alloc = far_host_alloc,
                     .host_release = far_host_release,
                     .order = far_order,
                     .graph_begin = far_graph_begin,
                     .graph_end = far_graph_end,
                     .graph_launch = far_graph_launch,
                     .graph_close = far_graph_close,
                     .memory_left = far_memory_left,
                     .matmul_pack_bytes = lt_backend_cpu()->matmul_pack_bytes};
    return &b;
}

#endif

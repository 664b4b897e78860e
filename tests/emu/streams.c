/* streams.c: the emulated driver's streams, events and graphs.
 *
 * If the earlier work of a stream is done, the next piece is done at once, in the thread that
 * queues it. Work that ends by itself at some later moment (emu_external, of the emulated NCCL)
 * makes the stream a queue of items: later work waits there, and so does work of other streams
 * that waits for a later event. The queue advances whenever a thread waits or queues something,
 * and in a separate thread as long as there is such work. So a program that forgets to wait reads
 * too early here, too.
 *
 * A captured stream records launches, copies and fills in order; streams that wait for an event
 * of it are captured with it. A graph is that list: it is run again in the same order, with
 * copied arguments.
 */
#include "streams.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define POLL_US 50
#define LATE_MS 0.6

struct CUgraph_st {
    node *nodes;
    /* n_holders: streams, events and executables that refer to it. */
    int n_nodes, max_nodes, n_holders;
    bool whole; /* Its capture has ended. */
};
struct CUgraphExec_st {
    CUgraph graph;
};

/* What an event waits for: the position of a stream when the event was recorded. */
typedef struct {
    int n_holders;
    bool passed;
    double at_ms;
} moment;
struct CUevent_st {
    moment *at; /* NULL: not recorded. */
    CUgraph captured;
};

typedef enum { ITEM_NODE, ITEM_GRAPH, ITEM_MARK, ITEM_WAIT, ITEM_EXTERNAL } item_kind;
typedef struct item {
    struct item *next;
    item_kind kind;
    node work;
    CUgraph graph;
    moment *at;
    emu_external external;
    bool begun;
    double until_ms; /* For a wait whose event has passed: when the stream continues. */
} item;
struct CUstream_st {
    CUcontext context;
    CUgraph captured;
    bool began; /* The stream that began the capture, not one that joined it. */
    CUstream next;
    item *first, *last;
    bool running; /* One thread runs it, without the lock. */
};

static struct {
    pthread_mutex_t lock; /* Protects everything below, and streams and moments. */
    CUstream streams;
    int n_external;
    bool has_thread;
} line = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double now_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* ---- Nodes: a piece of work, now or when a graph runs ---- */

static void node_run(const node *n, void **args) {
    void *own[MAX_ARGS];
    switch (n->kind) {
    case NODE_LAUNCH:
        for (int i = 0, at = 0; args == NULL && i < n->function->entry->n_args; i++) {
            own[i] = n->values + at;
            at += (int)(n->function->entry->arg_bytes[i] + 127) / 128 * 128;
        }
        emu_launch(n->function->name, n->function->entry, args != NULL ? args : own, n->grid,
                   n->block, n->cluster, n->bytes);
        emu_guards_check(n->function->name);
        break;
    case NODE_COPY:
        memmove(n->dst, n->src, n->bytes);
        break;
    case NODE_FILL:
        for (size_t i = 0; i < n->bytes / 4; i++) {
            ((uint32_t *)n->dst)[i] = n->word;
        }
        memset((char *)n->dst + n->bytes / 4 * 4, (int)(n->word & 0xff), n->bytes % 4);
        break;
    }
}

/* Copy a node and its arguments, which the caller owns only now. */
static CUresult node_copy(node *kept, const node *n, void **args) {
    const emu_entry *const e = n->kind == NODE_LAUNCH ? n->function->entry : NULL;
    size_t bytes = 0;
    *kept = *n;
    for (int i = 0; e != NULL && i < e->n_args; i++) {
        bytes += (e->arg_bytes[i] + 127) / 128 * 128;
    }
    if (bytes > 0) {
        if (posix_memalign((void **)&kept->values, 128, bytes) != 0) {
            return LT_CU_ERROR_OUT_OF_MEMORY;
        }
        bytes = 0;
        for (int i = 0; i < e->n_args; i++) {
            memcpy(kept->values + bytes, args[i], e->arg_bytes[i]);
            bytes += (e->arg_bytes[i] + 127) / 128 * 128;
        }
    }
    return 0;
}

static CUresult node_keep(CUgraph g, const node *n, void **args) {
    if (g->n_nodes == g->max_nodes) {
        const int most = 2 * g->max_nodes + 64;
        node *const more = realloc(g->nodes, (size_t)most * sizeof *more);
        if (more == NULL) {
            return LT_CU_ERROR_OUT_OF_MEMORY;
        }
        g->nodes = more;
        g->max_nodes = most;
    }
    const CUresult r = node_copy(&g->nodes[g->n_nodes], n, args);
    g->n_nodes += r == 0;
    return r;
}

static void graph_leave(CUgraph g) {
    if (g == NULL || __atomic_sub_fetch(&g->n_holders, 1, __ATOMIC_ACQ_REL) > 0) {
        return;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        free(g->nodes[i].values);
    }
    free(g->nodes);
    free(g);
}

static CUgraph graph_hold(CUgraph g) {
    if (g != NULL) {
        __atomic_add_fetch(&g->n_holders, 1, __ATOMIC_ACQ_REL);
    }
    return g;
}

/* ---- Queues of items ---- */

static moment *moment_hold(moment *m) {
    m->n_holders++;
    return m;
}

static void moment_leave(moment *m) {
    if (m != NULL && --m->n_holders == 0) {
        free(m);
    }
}

static void item_free(item *i) {
    if (i->kind == ITEM_EXTERNAL && i->external.free_ctx != NULL) {
        i->external.free_ctx(i->external.ctx);
    }
    free(i->work.values);
    graph_leave(i->graph);
    moment_leave(i->at);
    free(i);
}

static bool append(CUstream s, const item *i) {
    item *const kept = malloc(sizeof *kept);
    if (kept == NULL) {
        return false;
    }
    *kept = *i;
    kept->next = NULL;
    if (s->first == NULL) {
        s->first = kept;
    } else {
        s->last->next = kept;
    }
    s->last = kept;
    line.n_external += i->kind == ITEM_EXTERNAL;
    return true;
}

/* Concurrent streams advance at independent moments: a program that relies on one being faster
 * than another is wrong for some of these. */
static double late_ms(void) {
    static uint64_t draws;
    const char *const seed = getenv("LATEEN_EMU_SEED");
    uint64_t x = ++draws * 0x9e3779b97f4a7c15u + (seed != NULL ? strtoull(seed, NULL, 10) : 0);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)(x >> 40) * 0x1p-24 * LATE_MS;
}

/* Run the first item. The caller holds the lock, which is released meanwhile. True: the item is
 * done. */
static bool item_run(CUstream s, item *i) {
    bool done = true;
    if (i->kind == ITEM_MARK) {
        i->at->passed = true;
        i->at->at_ms = now_ms();
        return true;
    }
    if (i->kind == ITEM_WAIT) {
        if (i->at->passed && i->until_ms == 0.0) {
            i->until_ms = now_ms() + late_ms();
        }
        return i->at->passed && now_ms() >= i->until_ms;
    }
    s->running = true;
    pthread_mutex_unlock(&line.lock);
    if (i->kind == ITEM_NODE) {
        node_run(&i->work, NULL);
    } else if (i->kind == ITEM_GRAPH) {
        for (int k = 0; k < i->graph->n_nodes; k++) {
            node_run(&i->graph->nodes[k], NULL);
        }
    } else {
        if (!i->begun) {
            i->external.begin(i->external.ctx);
            i->begun = true;
        }
        done = i->external.poll(i->external.ctx);
    }
    pthread_mutex_lock(&line.lock);
    s->running = false;
    line.n_external -= done && i->kind == ITEM_EXTERNAL;
    return done;
}

/* Advance every queue as far as it goes without external work. The caller holds the lock. */
static void go_on(void) {
    bool again = true;
    while (again) {
        again = false;
        for (CUstream s = line.streams; s != NULL && !again; s = s->next) {
            item *const i = s->first;
            if (i != NULL && !s->running && i->kind != ITEM_EXTERNAL && item_run(s, i)) {
                s->first = i->next;
                item_free(i);
                again = true; /* Begin again, because the list may have changed meanwhile. */
            }
        }
    }
}

/* The same, and poll each piece of external work once, in its turn. */
static void look(void) {
    static unsigned turn;
    int n = 0, k;
    CUstream s;
    go_on();
    for (s = line.streams; s != NULL; s = s->next) {
        n += s->first != NULL && s->first->kind == ITEM_EXTERNAL && !s->running;
    }
    k = n > 0 ? (int)(turn++ % (unsigned)n) : -1;
    for (s = line.streams; s != NULL && n > 0; s = s->next) {
        item *const i = s->first;
        if (i != NULL && i->kind == ITEM_EXTERNAL && !s->running && k-- == 0) {
            if (item_run(s, i)) {
                s->first = i->next;
                item_free(i);
                go_on();
            }
            return;
        }
    }
}

static void rest(void) {
    pthread_mutex_unlock(&line.lock);
    (void)usleep(POLL_US);
    pthread_mutex_lock(&line.lock);
}

static void *line_main(void *unused) {
    (void)unused;
    pthread_mutex_lock(&line.lock);
    for (;;) {
        look();
        rest();
        if (line.n_external == 0) {
            pthread_mutex_unlock(&line.lock);
            (void)usleep(1000);
            pthread_mutex_lock(&line.lock);
        }
    }
    return NULL;
}

static bool is_idle(const CUstream s) {
    return s->first == NULL && !s->running;
}

static void wait_idle(const CUstream s) {
    while (!is_idle(s)) {
        look();
        if (!is_idle(s)) {
            rest();
        }
    }
}

void emu_settle(CUcontext context) {
    pthread_mutex_lock(&line.lock);
    for (CUstream s = line.streams; s != NULL;) {
        if (s->context == context && !is_idle(s)) {
            look();
            rest();
            s = line.streams; /* Other threads may have closed their streams. */
        } else {
            s = s->next;
        }
    }
    pthread_mutex_unlock(&line.lock);
}

CUresult emu_do(CUstream s, const node *n, void **args) {
    CUresult r = 0;
    if (s != NULL && s->context != emu_current) {
        return INVALID_HANDLE;
    }
    if (s != NULL && s->captured != NULL) {
        return node_keep(s->captured, n, args);
    }
    if (s == NULL) {
        node_run(n, args);
        return 0;
    }
    pthread_mutex_lock(&line.lock);
    if (is_idle(s)) {
        s->running = true;
        pthread_mutex_unlock(&line.lock);
        node_run(n, args);
        pthread_mutex_lock(&line.lock);
        s->running = false;
    } else {
        item i = {.kind = ITEM_NODE};
        r = node_copy(&i.work, n, args);
        r = r == 0 && !append(s, &i) ? LT_CU_ERROR_OUT_OF_MEMORY : r;
    }
    pthread_mutex_unlock(&line.lock);
    return r;
}

EXPORT bool emu_stream_external(CUstream s, const emu_external *x) {
    pthread_t thread;
    bool good;
    if (s->captured != NULL) {
        return false;
    }
    pthread_mutex_lock(&line.lock);
    good = append(s, &(item){.kind = ITEM_EXTERNAL, .external = *x});
    if (good && !line.has_thread) {
        line.has_thread = pthread_create(&thread, NULL, line_main, NULL) == 0;
        if (line.has_thread) {
            (void)pthread_detach(thread);
        }
    }
    pthread_mutex_unlock(&line.lock);
    return good;
}

/* ---- Streams, events, graphs ---- */

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
    const CUstream s = emu_current != NULL ? calloc(1, sizeof *s) : NULL;
    (void)flags;
    if (emu_current == NULL) {
        return INVALID_CONTEXT;
    }
    if (s == NULL) {
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    s->context = emu_current;
    pthread_mutex_lock(&line.lock);
    s->next = line.streams;
    line.streams = s;
    pthread_mutex_unlock(&line.lock);
    *out = s;
    return 0;
}
EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    (void)priority; /* Work is done when it is queued. */
    return cuStreamCreate(out, flags);
}
EXPORT CUresult cuStreamDestroy_v2(CUstream s) {
    pthread_mutex_lock(&line.lock);
    wait_idle(s);
    for (CUstream *at = &line.streams; *at != NULL; at = &(*at)->next) {
        if (*at == s) {
            *at = s->next;
            break;
        }
    }
    pthread_mutex_unlock(&line.lock);
    graph_leave(s->captured);
    free(s);
    return 0;
}
EXPORT CUresult cuStreamSynchronize(CUstream s) {
    if (s != NULL && s->captured != NULL) {
        return CAPTURE_UNSUPPORTED;
    }
    if (s != NULL) {
        pthread_mutex_lock(&line.lock);
        wait_idle(s);
        pthread_mutex_unlock(&line.lock);
    }
    return 0;
}
EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags) {
    CUresult r = 0;
    (void)flags;
    if (e->captured != NULL && e->captured->whole) {
        /* It is recorded in a graph: nothing outside can wait for it. */
        return CAPTURE_UNSUPPORTED;
    }
    if (s != NULL && e->captured != NULL && s->captured == NULL) {
        s->captured = graph_hold(e->captured);
        return 0;
    }
    pthread_mutex_lock(&line.lock);
    if (e->at != NULL && !e->at->passed && s != NULL && s->captured == NULL &&
        !append(s, &(item){.kind = ITEM_WAIT, .at = moment_hold(e->at)})) {
        moment_leave(e->at);
        r = LT_CU_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&line.lock);
    return r;
}
EXPORT CUresult cuStreamBeginCapture_v2(CUstream s, int mode) {
    (void)mode;
    if (s == NULL || s->captured != NULL) {
        return CAPTURE_UNSUPPORTED;
    }
    s->captured = calloc(1, sizeof *s->captured);
    s->began = true;
    return graph_hold(s->captured) != NULL ? 0 : LT_CU_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuStreamEndCapture(CUstream s, CUgraph *out) {
    if (s == NULL || !s->began) {
        return CAPTURE_UNSUPPORTED;
    }
    *out = s->captured; /* The stream's reference becomes the caller's. */
    s->captured->whole = true;
    s->captured = NULL;
    s->began = false;
    pthread_mutex_lock(&line.lock);
    for (CUstream o = line.streams; o != NULL; o = o->next) {
        if (o->captured == *out) { /* A stream that joined. */
            graph_leave(o->captured);
            o->captured = NULL;
        }
    }
    pthread_mutex_unlock(&line.lock);
    return 0;
}
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags) {
    const CUgraphExec e = calloc(1, sizeof *e);
    (void)flags;
    if (e == NULL) {
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    e->graph = graph_hold(g);
    *out = e;
    return 0;
}
EXPORT CUresult cuGraphGetNodes(CUgraph g, CUgraphNode *nodes, size_t *n) {
    *n = (size_t)g->n_nodes;
    return nodes == NULL ? 0 : NOT_SUPPORTED;
}
EXPORT CUresult cuGraphDestroy(CUgraph g) {
    graph_leave(g);
    return 0;
}
EXPORT CUresult cuGraphExecDestroy(CUgraphExec e) {
    graph_leave(e->graph);
    free(e);
    return 0;
}
EXPORT CUresult cuGraphLaunch(CUgraphExec e, CUstream s) {
    CUresult r = 0;
    if (s != NULL && s->captured != NULL) {
        return CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_lock(&line.lock);
    if (s != NULL && !is_idle(s)) {
        r = append(s, &(item){.kind = ITEM_GRAPH, .graph = graph_hold(e->graph)})
                ? 0
                : LT_CU_ERROR_OUT_OF_MEMORY;
    } else {
        if (s != NULL) {
            s->running = true;
        }
        pthread_mutex_unlock(&line.lock);
        for (int i = 0; i < e->graph->n_nodes; i++) {
            node_run(&e->graph->nodes[i], NULL);
        }
        pthread_mutex_lock(&line.lock);
        if (s != NULL) {
            s->running = false;
        }
    }
    pthread_mutex_unlock(&line.lock);
    return r;
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags) {
    (void)flags;
    *out = calloc(1, sizeof **out);
    return *out != NULL ? 0 : LT_CU_ERROR_OUT_OF_MEMORY;
}
EXPORT CUresult cuEventDestroy_v2(CUevent e) {
    graph_leave(e->captured);
    pthread_mutex_lock(&line.lock);
    moment_leave(e->at);
    pthread_mutex_unlock(&line.lock);
    free(e);
    return 0;
}
EXPORT CUresult cuEventRecord(CUevent e, CUstream s) {
    CUresult r = 0;
    moment *const m = calloc(1, sizeof *m);
    if (m == NULL) {
        return LT_CU_ERROR_OUT_OF_MEMORY;
    }
    graph_leave(e->captured);
    e->captured = graph_hold(s != NULL ? s->captured : NULL);
    *m = (moment){.n_holders = 1, .passed = true, .at_ms = now_ms()};
    pthread_mutex_lock(&line.lock);
    if (s != NULL && s->captured == NULL && !is_idle(s)) {
        m->passed = false;
        r = append(s, &(item){.kind = ITEM_MARK, .at = moment_hold(m)}) ? 0
                                                                        : LT_CU_ERROR_OUT_OF_MEMORY;
    }
    moment_leave(e->at);
    e->at = m;
    pthread_mutex_unlock(&line.lock);
    return r;
}
EXPORT CUresult cuEventQuery(CUevent e) {
    CUresult r;
    pthread_mutex_lock(&line.lock);
    look();
    r = e->at == NULL || e->at->passed ? 0 : NOT_READY;
    pthread_mutex_unlock(&line.lock);
    return r;
}
EXPORT CUresult cuEventSynchronize(CUevent e) {
    moment *m;
    pthread_mutex_lock(&line.lock);
    m = e->at != NULL ? moment_hold(e->at) : NULL;
    while (m != NULL && !m->passed) {
        look();
        if (!m->passed) {
            rest();
        }
    }
    moment_leave(m);
    pthread_mutex_unlock(&line.lock);
    return 0;
}
EXPORT CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to) {
    CUresult r = INVALID_HANDLE;
    pthread_mutex_lock(&line.lock);
    if (from->at != NULL && to->at != NULL) {
        r = from->at->passed && to->at->passed ? 0 : NOT_READY;
        /* In steps of half a microsecond, the resolution that CUDA promises. */
        *ms = (float)(rint((to->at->at_ms - from->at->at_ms) * 2e3) * 0.5e-3);
    }
    pthread_mutex_unlock(&line.lock);
    return r;
}

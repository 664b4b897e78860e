/* block.c: one cluster of a launch (one block, if the launch has no clusters): its threads as
 * fibers, its barriers, the exchanges within its warps, its shared memory. See emu.h.
 *
 *     home ──▶ runner ──▶ kernel(thread 0) ─ waits ─▶ another runner ──▶ kernel(thread 1) ─ waits
 *         ─▶ ... ─ the last one comes ─▶ all are ready
 *
 * A runner is a stack that runs threads which have not begun yet, one after the other, so that a
 * kernel without barriers is a plain loop over its threads. A thread that must wait keeps its
 * runner, and the next ready thread continues, or a new runner begins the next ones. When no
 * thread is ready, the host thread returns home, where the copy engine takes a step (copies.c),
 * spinning threads are woken, and a deadlock of the cluster is reported.
 *
 * Order: warps run one after the other, lanes in rising order (LATEEN_EMU_ORDER=reverse:
 * falling), so that code which assumes that lanes run in step, which the language does not
 * promise, gives different bits. LATEEN_EMU_SEED=n: threads run in the n-th random order, and
 * sometimes yield at barriers in memory although they need not. */
#include "block.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fiber.h"
#include "inside.h"

#define MAX_THREADS  1024 /* Of a block. */
#define MAX_WARPS    (MAX_THREADS / EMU_WARP)
#define MAX_CLUSTER  16
#define MAX_ALL      (MAX_THREADS * MAX_CLUSTER)
#define MAX_BARRIERS 16
#define MAX_MEETINGS 32 /* Exchanges of one warp with different masks. */
#define MAX_ARRAYS   64
#define STACK_BYTES  ((size_t)256 << 10) /* Per thread; only touched pages take memory. */
#define STACK_SHIFT  832
#define GUARD_BYTES  128 /* Between shared arrays. */
#define STATIC_MOST  (48u << 10)
#define CANARY       0x5bd1e995u
#define GUARD        0xa5

typedef struct runner {
    fiber f;
    unsigned *stack;
    struct runner *next; /* Next in the list of idle runners. */
} runner;

typedef struct {
    void *dst;
    const void *src;
    int bytes, take, group;
} copy;

typedef struct {
    emu_thread pub; /* The first field, because emu_self points here. */
    struct block *in;
    runner *on;
    const void *sleeps;    /* The thread waits until this address is woken. */
    uint64_t cluster_turn; /* Turn of its last arrival at the barrier of the cluster. */
    const char *waits;     /* For messages; NULL: the thread runs, or has left. */
    copy *copies;
    int n_copies, max_copies, group;
} thread;

typedef struct {
    unsigned mask, arrived;
    emu_together together;
    const char *what;
    void *lanes[EMU_WARP];
} meeting;

typedef struct {
    unsigned alive;
    int n_open; /* Slots used so far; usually one. */
    meeting open[MAX_MEETINGS];
} warp;

typedef struct {
    int arrived, expected, n_waiting; /* expected 0: all threads that are alive. */
    int waiting[MAX_THREADS];
} barrier;

typedef struct {
    const void *site;
    const char *name;
    unsigned char *at;
    size_t bytes;
} array;

typedef struct block {
    int first, n_threads, n_alive; /* Among the threads of the cluster. */
    warp warps[MAX_WARPS];
    emu_products products[MAX_WARPS / 4];
    barrier barriers[MAX_BARRIERS];
    unsigned char *shared; /* The block's window of shared memory. */
    size_t shared_used, static_bytes;
    array arrays[MAX_ARRAYS]; /* [0]: the dynamic part. */
    int n_arrays;
} block;

struct emu_worker {
    const emu_work *work;
    fiber home;
    runner *idle, *running;
    thread threads[MAX_ALL];
    block blocks[MAX_CLUSTER];
    int n_blocks, n_threads, n_begun, n_alive, n_runners;
    int ready[MAX_ALL], ready_head, n_ready;
    int spinning[MAX_ALL], n_spinning;
    int sleeping[MAX_ALL], n_sleeping;
    int cluster_arrived;
    uint64_t cluster_turn;
    uint64_t random;
    emu_copies *copies;
};

__thread emu_thread *emu_self;
static __thread emu_worker *worker __attribute__((tls_model("initial-exec")));

/* Defined if the program runs under AddressSanitizer. */
__attribute__((weak)) void __asan_poison_memory_region(void const volatile *p, size_t bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(void const volatile *p, size_t bytes);

static bool from_last(void) {
    static int reverse = -1;
    if (reverse < 0) {
        const char *const order = getenv("LATEEN_EMU_ORDER");
        reverse = order != NULL && strcmp(order, "reverse") == 0;
    }
    return reverse != 0;
}

static uint64_t seed(void) {
    static long long n = -1;
    if (n < 0) {
        const char *const text = getenv("LATEEN_EMU_SEED");
        n = text != NULL ? atoll(text) & INT64_MAX : 0;
    }
    return (uint64_t)n;
}

int emu_capability(void) {
    const char *const text = getenv("LATEEN_EMU_CAPABILITY");
    return text != NULL && atoi(text) == 90 ? 90 : 80;
}
size_t emu_shared_most(void) {
    return emu_capability() == 90 ? 227u << 10 : 163u << 10;
}

uint32_t emu_random(uint32_t below) { /* xorshift64*, Vigna 2016. */
    uint64_t x = worker->random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    worker->random = x;
    return (uint32_t)((x * 0x2545f4914f6cdd1dull >> 32) * below >> 32);
}

void emu_trap(const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (emu_self != NULL && worker != NULL && worker->work != NULL) {
        (void)fprintf(stderr, "emulated GPU: %s: block (%u, %u, %u), thread (%u, %u, %u): %s\n",
                      worker->work->name, emu_self->block.x, emu_self->block.y, emu_self->block.z,
                      emu_self->thread.x, emu_self->thread.y, emu_self->thread.z, text);
    } else {
        (void)fprintf(stderr, "emulated GPU: %s\n", text);
    }
    abort();
}

/* ---- Scheduling ---- */

static void make_ready(emu_worker *w, int t) {
    w->threads[t].waits = NULL;
    w->ready[(w->ready_head + w->n_ready++) % MAX_ALL] = t;
}

static void runner_main(void);

static runner *idle_runner(emu_worker *w) {
    runner *r = w->idle;
    if (r != NULL) {
        w->idle = r->next;
        return r;
    }
    r = calloc(1, sizeof *r);
    if (r != NULL) {
        r->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    if (r == NULL || r->stack == MAP_FAILED) {
        emu_trap("no memory for another thread's stack");
    }
    r->stack[0] = CANARY;
    /* The tops of the stacks differ modulo the number of cache ways. Otherwise all stacks of a
     * block would compete for the same few lines. */
    fiber_make(&r->f, r->stack, STACK_BYTES - (size_t)(w->n_runners++ % 64) * STACK_SHIFT,
               runner_main);
    return r;
}

/* The runner to continue with; NULL: the host thread returns home. */
static runner *pick(emu_worker *w) {
    if (w->n_ready > 0) {
        if (seed() != 0) { /* A random one. */
            int *const any =
                &w->ready[(w->ready_head + (int)emu_random((uint32_t)w->n_ready)) % MAX_ALL];
            const int first = w->ready[w->ready_head];
            w->ready[w->ready_head] = *any;
            *any = first;
        }
        thread *const t = &w->threads[w->ready[w->ready_head]];
        w->ready_head = (w->ready_head + 1) % MAX_ALL;
        w->n_ready--;
        if (w->n_ready > 0) { /* Its stack is not in the cache yet, and it will run soon. */
            const thread *const soon = &w->threads[w->ready[w->ready_head]];
            fiber_prefetch(&soon->on->f);
            __builtin_prefetch(soon);
        }
        return t->on;
    }
    return w->n_begun < w->n_threads ? idle_runner(w) : NULL;
}

static void go_on(emu_worker *w, runner *from) {
    if (emu_copies_under_way(w->copies) && emu_random(16) == 0) {
        emu_copies_step(w->copies);
    }
    runner *const to = pick(w);
    w->running = to;
    if (to != from) {
        fiber_switch(&from->f, to != NULL ? &to->f : &w->home);
    }
}

/* The calling thread waits until another one makes it ready. */
static void wait_for(const char *what) {
    emu_worker *const w = worker;
    thread *const me = (thread *)(void *)emu_self;
    me->waits = what;
    go_on(w, me->on);
    me->waits = NULL;
    emu_self = &me->pub;
}

static thread *self(void) {
    return (thread *)(void *)emu_self;
}
static int self_index(void) {
    return self()->in->first + (int)emu_self->rank;
}

void emu_sleep(const void *at, const char *what) {
    emu_worker *const w = worker;
    self()->sleeps = at;
    w->sleeping[w->n_sleeping++] = self_index();
    wait_for(what);
}

void emu_wake(const void *at) {
    emu_worker *const w = worker;
    int left = 0;
    for (int i = 0; i < w->n_sleeping; i++) {
        const int t = w->sleeping[i];
        if (w->threads[t].sleeps == at) {
            make_ready(w, t);
        } else {
            w->sleeping[left++] = t;
        }
    }
    w->n_sleeping = left;
}

void emu_give_way(void) {
    if (seed() != 0 && emu_random(8) == 0) {
        make_ready(worker, self_index());
        wait_for("its turn");
    }
}

/* ---- Exchanges within a warp ---- */

static warp *warp_of(const thread *t) {
    return &t->in->warps[t->pub.warp];
}
emu_products *emu_products_here(void) {
    return &self()->in->products[emu_self->warp / 4];
}

/* The caller belongs to that warp. */
static void meeting_check(emu_worker *w, meeting *m) {
    warp *const of = warp_of(self());
    const unsigned came = m->arrived, caller = 1u << emu_self->lane;
    if (came == 0 || came != (m->mask & of->alive)) {
        return;
    }
    if (m->together != NULL) {
        m->together(m->lanes, came);
    }
    m->arrived = 0;
    memset(m->lanes, 0, sizeof m->lanes);
    for (int lane = 0; lane < EMU_WARP; lane++) {
        if ((came & ~caller) >> lane & 1u) {
            make_ready(w, self()->in->first + (int)emu_self->warp * EMU_WARP + lane);
        }
    }
}

void emu_warp(unsigned mask, emu_together together, void *mine, const char *what) {
    emu_worker *const w = worker;
    const unsigned bit = 1u << emu_self->lane;
    warp *const of = warp_of(self());
    meeting *m = NULL, *empty = NULL;
    if ((mask & bit) == 0) {
        emu_trap("%s with mask %08x, which leaves out the caller, lane %u", what, mask,
                 emu_self->lane);
    }
    for (int i = 0; i < of->n_open && m == NULL; i++) {
        meeting *const o = &of->open[i];
        if (o->arrived == 0) {
            empty = o;
        } else if (o->mask == mask) {
            m = o;
        }
    }
    if (m == NULL && empty == NULL) {
        if (of->n_open == MAX_MEETINGS) {
            emu_trap("%s: more than %d groups of a warp", what, MAX_MEETINGS);
        }
        empty = &of->open[of->n_open++];
    }
    if (m == NULL) {
        m = empty;
        m->mask = mask;
        m->together = together;
        m->what = what;
    } else if (m->together != together) {
        emu_trap("lanes of one warp meet in different instructions: this one in %s, others in %s",
                 what, m->what);
    }
    m->arrived |= bit;
    m->lanes[emu_self->lane] = mine;
    if (m->arrived == (mask & of->alive)) {
        meeting_check(w, m);
    } else {
        wait_for(what);
    }
}

/* ---- Barriers ---- */

static void barrier_check(emu_worker *w, barrier *b, int n_alive) {
    if (b->arrived > 0 && b->arrived >= (b->expected > 0 ? b->expected : n_alive)) {
        b->arrived = 0;
        for (int i = 0; i < b->n_waiting; i++) {
            make_ready(w, b->waiting[i]);
        }
        b->n_waiting = 0;
    }
}

static barrier *barrier_of(int id, int threads) {
    barrier *b;
    if (id < 0 || id >= MAX_BARRIERS) {
        emu_trap("barrier %d of %d", id, MAX_BARRIERS);
    }
    b = &self()->in->barriers[id];
    if (b->arrived > 0 && b->expected != threads) {
        emu_trap("barrier %d is for %d threads here and for %d elsewhere (0: all)", id, threads,
                 b->expected);
    }
    b->expected = threads;
    return b;
}

void emu_barrier(int id, int threads) {
    barrier *const b = barrier_of(id, threads);
    b->arrived++;
    b->waiting[b->n_waiting++] = self_index();
    /* Makes the caller ready, too, after the others: it continues in its turn. */
    barrier_check(worker, b, self()->in->n_alive);
    wait_for("a barrier");
}

void emu_barrier_arrive(int id, int threads) {
    barrier *const b = barrier_of(id, threads);
    b->arrived++;
    barrier_check(worker, b, self()->in->n_alive);
}

void emu_spin(void) {
    worker->spinning[worker->n_spinning++] = self_index();
    wait_for("a word in memory");
}

/* ---- Clusters ---- */

static void cluster_check(emu_worker *w) {
    if (w->cluster_arrived > 0 && w->cluster_arrived >= w->n_alive) {
        w->cluster_arrived = 0;
        w->cluster_turn++;
        emu_wake(&w->cluster_turn);
    }
}

void emu_cluster_arrive(void) {
    self()->cluster_turn = worker->cluster_turn;
    worker->cluster_arrived++;
    cluster_check(worker);
}

void emu_cluster_wait(void) {
    while (self()->cluster_turn == worker->cluster_turn) {
        emu_sleep(&worker->cluster_turn, "the cluster's barrier");
    }
}

uint32_t emu_cluster_address(uint32_t address, uint32_t rank) {
    if (rank >= (uint32_t)worker->n_blocks) {
        emu_trap("mapa to block %u of a cluster of %d", rank, worker->n_blocks);
    }
    (void)emu_shared_pointer(address, 1);
    return (address & EMU_SHARED_MASK) | (rank + 1) << EMU_SHARED_BITS;
}
bool emu_block_left(int rank) {
    return worker->blocks[rank].n_alive == 0;
}
int emu_cluster_blocks(void) {
    return worker->n_blocks;
}
emu_copies *emu_copies_here(void) {
    return worker->copies;
}

/* ---- Shared memory ---- */

static void *array_add(block *in, const void *site, const char *name, size_t bytes, size_t align) {
    const size_t from = (in->shared_used + GUARD_BYTES + align - 1) & ~(align - 1);
    array *const a = &in->arrays[in->n_arrays++];
    if (in->n_arrays == MAX_ARRAYS || from + bytes + GUARD_BYTES > EMU_SHARED_BYTES + 8192) {
        emu_trap("shared array %s of %zu bytes: beyond the block's %zu", name, bytes,
                 emu_shared_most());
    }
    *a = (array){site, name, in->shared + from, bytes};
    in->shared_used = from + bytes;
    if (__asan_unpoison_memory_region != NULL) {
        __asan_unpoison_memory_region(a->at, bytes);
    } else {
        memset(a->at + bytes, GUARD, GUARD_BYTES);
    }
    memset(a->at, 0xff, bytes);
    return a->at;
}

static void shared_open(block *in, size_t dynamic_bytes) {
    if (in->shared == NULL &&
        posix_memalign((void **)&in->shared, 1024, EMU_SHARED_BYTES + 8192) != 0) {
        emu_trap("no memory for a block's shared memory");
    }
    in->n_arrays = 0;
    in->static_bytes = 0;
    in->shared_used = 1024 - GUARD_BYTES;
    if (__asan_poison_memory_region != NULL) {
        __asan_poison_memory_region(in->shared, EMU_SHARED_BYTES + 8192);
    }
    (void)array_add(in, in, "(dynamic)", dynamic_bytes, 1024);
}

static void shared_check(const block *in) {
    for (int i = 0; i < in->n_arrays && __asan_poison_memory_region == NULL; i++) {
        const array *const a = &in->arrays[i];
        for (size_t j = 0; j < GUARD_BYTES; j++) {
            if (a->at[a->bytes + j] != GUARD) {
                emu_trap(
                    "a thread of the block wrote %zu bytes past the end of shared array %s of %zu",
                    j, a->name, a->bytes);
            }
        }
    }
}

void *emu_shared(const void *site, size_t bytes, size_t align, const char *name) {
    block *const in = self()->in;
    const size_t dynamic = worker->work->dynamic_bytes;
    for (int i = 1; i < in->n_arrays; i++) {
        if (in->arrays[i].site == site) {
            return in->arrays[i].at;
        }
    }
    in->static_bytes += bytes;
    if (in->static_bytes > STATIC_MOST || in->static_bytes + dynamic > emu_shared_most()) {
        emu_trap("%zu bytes of static shared memory beside %zu dynamic ones: at most %u and %zu",
                 in->static_bytes, dynamic, STATIC_MOST, emu_shared_most());
    }
    return array_add(in, site, name, bytes, align < 16 ? 16 : align);
}

void *emu_shared_dynamic(void) {
    return self()->in->arrays[0].at;
}

uint32_t emu_shared_address(const void *p) {
    const uintptr_t at = (uintptr_t)p - (uintptr_t)self()->in->shared;
    if (at > self()->in->shared_used + GUARD_BYTES) {
        emu_trap("%p is not in shared memory", p);
    }
    return (uint32_t)at + EMU_SHARED_BASE;
}

int emu_shared_rank(uint32_t address) {
    const uint32_t of = address >> EMU_SHARED_BITS;
    if (of > (uint32_t)worker->n_blocks) {
        emu_trap("address %#x belongs to no block of the cluster", address);
    }
    return of > 0 ? (int)of - 1 : (int)emu_self->cluster_rank;
}

unsigned char *emu_shared_of(int rank, uint32_t address, size_t bytes) {
    const block *const in = &worker->blocks[rank];
    const size_t low = address & EMU_SHARED_MASK, at = low - EMU_SHARED_BASE;
    if (low < EMU_SHARED_BASE || at + bytes > in->shared_used) {
        emu_trap("shared address %#x of %zu bytes is outside the block's memory", address, bytes);
    }
    return in->shared + at;
}

void *emu_cluster_pointer(uint32_t address, size_t bytes) {
    const int rank = emu_shared_rank(address);
    if (emu_block_left(rank)) {
        emu_trap("shared address %#x is of block %d of the cluster, which has left", address, rank);
    }
    if ((address & (bytes - 1)) != 0) {
        emu_trap("shared address %#x is not aligned to %zu bytes", address, bytes);
    }
    return emu_shared_of(rank, address, bytes);
}

void *emu_shared_pointer(uint32_t address, size_t bytes) {
    const block *const in = self()->in;
    const size_t at = (size_t)address - EMU_SHARED_BASE;
    if (address < EMU_SHARED_BASE || at + bytes > in->shared_used) {
        emu_trap("shared address %#x of %zu bytes is outside the block's memory", address, bytes);
    }
    /* The alignment is a power of two; a division took most of the time of this check. */
    if ((at & (bytes - 1)) != 0) {
        emu_trap("shared address %#x is not aligned to %zu bytes", address, bytes);
    }
    return in->shared + at;
}

/* ---- cp.async ---- */

void emu_cp_async(void *dst, const void *src, int bytes, int take) {
    thread *const t = self();
    if ((((uintptr_t)dst | (uintptr_t)src) & ((unsigned)bytes - 1)) != 0) {
        emu_trap("cp.async of %d bytes from %p to %p: not aligned", bytes, src, dst);
    }
    if (t->n_copies == t->max_copies) {
        t->max_copies = 2 * t->max_copies + 64;
        t->copies = realloc(t->copies, (size_t)t->max_copies * sizeof *t->copies);
        if (t->copies == NULL) {
            emu_trap("no memory for %d copies", t->max_copies);
        }
    }
    t->copies[t->n_copies++] = (copy){dst, src, bytes, take, t->group};
}

void emu_cp_async_commit(void) {
    self()->group++;
}

void emu_cp_async_wait(int n) {
    thread *const t = self();
    int done = 0;
    for (; done < t->n_copies && t->copies[done].group < t->group - n; done++) {
        const copy *const c = &t->copies[done];
        memcpy(c->dst, c->src, (size_t)c->take);
        memset((char *)c->dst + c->take, 0, (size_t)(c->bytes - c->take));
    }
    t->n_copies -= done;
    memmove(t->copies, t->copies + done, (size_t)t->n_copies * sizeof *t->copies);
}

/* ---- Threads ---- */

static void thread_begin(emu_worker *w, int index, int rank, int block_rank, emu_dim3 at) {
    thread *const t = &w->threads[index];
    const emu_dim3 d = w->work->block;
    const unsigned r = (unsigned)rank;
    t->pub.thread = (emu_dim3){r % d.x, r / d.x % d.y, r / d.x / d.y};
    t->pub.block = at;
    t->pub.block_dim = d;
    t->pub.grid_dim = w->work->grid;
    t->pub.rank = r;
    t->pub.lane = r % EMU_WARP;
    t->pub.warp = r / EMU_WARP;
    t->pub.cluster_rank = (unsigned)block_rank;
    t->pub.bulk_group = 0;
    t->in = &w->blocks[block_rank];
    t->waits = NULL;
    t->n_copies = t->group = 0;
}

static void thread_end(emu_worker *w) {
    const thread *const t = self();
    warp *const of = warp_of(t);
    if (t->n_copies > 0 && t->copies[t->n_copies - 1].group == t->group) {
        emu_trap("a thread ends with cp.async copies that it never committed: no wait covers them");
    }
    emu_copies_thread_ends(w->copies);
    w->n_alive--;
    t->in->n_alive--;
    of->alive &= ~(1u << emu_self->lane);
    if (of->alive == 0) {
        emu_products_end(emu_products_here());
    }
    for (int i = 0; i < of->n_open; i++) {
        meeting_check(w, &of->open[i]);
    }
    barrier_check(w, &t->in->barriers[0], t->in->n_alive);
    cluster_check(w);
    if (w->running->stack[0] != CANARY) {
        emu_trap("a thread used more than %zu bytes of stack", STACK_BYTES);
    }
}

static void runner_main(void) {
    emu_worker *const w = worker;
    for (;;) {
        runner *const me = w->running;
        while (w->n_begun < w->n_threads) {
            const int at = w->n_begun++;
            thread *const t = &w->threads[from_last() ? w->n_threads - 1 - at : at];
            t->on = me;
            emu_self = &t->pub;
            w->work->entry->call(w->work->args);
            thread_end(w);
        }
        me->next = w->idle;
        w->idle = me;
        go_on(w, me);
    }
}

static void report_stuck(const emu_worker *w) {
    for (int i = 0; i < w->n_threads; i++) {
        if (w->threads[i].waits != NULL) {
            (void)fprintf(stderr, "emulated GPU: thread %d of block %u waits for %s\n",
                          (int)w->threads[i].pub.rank, w->threads[i].pub.cluster_rank,
                          w->threads[i].waits);
        }
    }
    emu_trap("%s: %d threads wait for each other for ever", w->work->name, w->n_alive);
}

static void block_begin(emu_worker *w, int rank, emu_dim3 at) {
    const int n = (int)(w->work->block.x * w->work->block.y * w->work->block.z);
    block *const in = &w->blocks[rank];
    in->first = rank * n;
    in->n_threads = in->n_alive = n;
    for (int i = 0; i < n; i++) {
        thread_begin(w, in->first + i, i, rank, at);
    }
    for (int i = 0; i < (n + EMU_WARP - 1) / EMU_WARP; i++) {
        const int lanes = n - i * EMU_WARP;
        in->warps[i].n_open = 0;
        emu_products_begin(&in->products[i / 4]);
        in->warps[i].alive = lanes >= EMU_WARP ? ~0u : (1u << lanes) - 1u;
    }
    for (int i = 0; i < MAX_BARRIERS; i++) {
        in->barriers[i].arrived = in->barriers[i].n_waiting = 0;
    }
    shared_open(in, w->work->dynamic_bytes);
}

void emu_cluster_run(emu_worker *w, const emu_work *work, emu_dim3 first) {
    const emu_dim3 c = work->cluster;
    worker = w;
    w->work = work;
    w->random = ((seed() + 1) * 0x9e3779b97f4a7c15ull + work->turn * 0xd1342543de82ef95ull) ^
                (1 + first.x + 65537ull * first.y + 4294967311ull * first.z);
    w->random += w->random == 0;
    w->n_blocks = 0;
    w->n_begun = w->n_ready = w->n_spinning = w->n_sleeping = w->ready_head = 0;
    w->cluster_arrived = 0;
    for (unsigned z = 0; z < c.z; z++) {
        for (unsigned y = 0; y < c.y; y++) {
            for (unsigned x = 0; x < c.x; x++) {
                block_begin(w, w->n_blocks++, (emu_dim3){first.x + x, first.y + y, first.z + z});
            }
        }
    }
    w->n_threads = w->n_alive = w->n_blocks * w->blocks[0].n_threads;
    while (w->n_alive > 0) {
        runner *r = pick(w);
        const bool copying = emu_copies_under_way(w->copies);
        if (r == NULL && w->n_spinning == 0 && !copying) {
            report_stuck(w);
        }
        if (r == NULL && copying && (w->n_spinning == 0 || emu_random(2) == 0)) {
            emu_copies_step(w->copies);
            continue;
        }
        if (r == NULL) {
            for (int i = 0; i < w->n_spinning; i++) {
                make_ready(w, w->spinning[i]);
            }
            w->n_spinning = 0;
            work->stuck(work->context);
            (void)sched_yield();
            continue;
        }
        w->running = r;
        fiber_switch(&w->home, &r->f);
    }
    for (int i = 0; i < w->n_blocks; i++) {
        shared_check(&w->blocks[i]);
    }
    emu_self = NULL;
}

void emu_worker_rest(emu_worker *w) {
    while (emu_copies_under_way(w->copies)) {
        emu_copies_step(w->copies);
    }
}

emu_worker *emu_worker_open(void) {
    emu_worker *const w = calloc(1, sizeof *w);
    if (w == NULL || (w->copies = emu_copies_open()) == NULL) {
        emu_trap("no memory for a worker");
    }
    return w;
}

void emu_worker_close(emu_worker *w) {
    while (w->idle != NULL) {
        runner *const r = w->idle;
        w->idle = r->next;
        (void)munmap(r->stack, STACK_BYTES);
        free(r);
    }
    for (int i = 0; i < MAX_ALL; i++) {
        free(w->threads[i].copies);
    }
    for (int i = 0; i < MAX_CLUSTER; i++) {
        if (w->blocks[i].shared != NULL && __asan_unpoison_memory_region != NULL) {
            __asan_unpoison_memory_region(w->blocks[i].shared, EMU_SHARED_BYTES + 8192);
        }
        free(w->blocks[i].shared);
        for (int j = 0; j < MAX_WARPS / 4; j++) {
            emu_products_free(&w->blocks[i].products[j]);
        }
    }
    emu_copies_close(w->copies);
    free(w);
}

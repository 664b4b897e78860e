/* nccl.c: libnccl.so.2 without GPUs, for the emulated driver: the functions of
 * src/comm/nccl_library.h for 2 to 64 ranks, which are threads of one process or processes of one
 * machine, each with an emulated GPU of its own.
 *
 * MEETING    an id names a file that all ranks map: which ranks have joined, how far each is, and
 *            for each rank and each pair a slab that its data pass through (sparse: only written
 *            pages exist).
 * CALLS      return at once and put an emu_external into their stream (streams.h). When all
 *            earlier work is done, it copies what it sends into its slab, fills the receive
 *            buffer with NaN and keeps a hash of what it sends; when all ranks have called and a
 *            random time has passed, results are written. A program that reads too early reads
 *            NaN; one that overwrites what is being sent is ended with a message.
 * SUMS       are computed in the type of the call, rounded at every hop, in an order that differs
 *            from block to block and with LATEEN_EMU_SEED, and is the same on all ranks: NCCL
 *            allows any order.
 * CHECKS     what each rank calls (verb, count, type, root, reduction) must be the same, and no
 *            call may be made while the previous one is in progress: otherwise the program ends
 *            with a message. LATEEN_EMU_NCCL_STRICT=0: ranks that differ hang, as on a GPU. Two
 *            ranks on one GPU are refused, as NCCL does.
 * FAULTS     LATEEN_EMU_NCCL_FAULT=RANK:CALL:KIND with the rank in its communicator, the index of
 *            the call among all calls of that rank, and a kind: die, stall, slow or error;
 *            LATEEN_EMU_NCCL_POLLS=J: calls are in progress for J polls;
 *            LATEEN_EMU_NCCL_VERSION=22703; LATEEN_EMU_NCCL_DELAY_US=500: the longest random
 *            time. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "comm/nccl_library.h"
#include "streams.h"

#define MOST_RANKS       64
#define SLAB_BYTES       ((size_t)256 << 20)
#define PAIR_BYTES       ((size_t)64 << 20)
#define BLOCK            1024 /* Elements that are summed in the same order. */
#define MOST_OPS         256  /* Of a group. */
#define INVALID_ARGUMENT 4
#define INVALID_USAGE    5
#define REMOTE_ERROR     6

typedef enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, SEND, RECV } verb;
static const char *const verb_names[] = {"AllReduce", "AllGather", "ReduceScatter",
                                         "Broadcast", "Send",      "Recv"};
typedef struct {
    verb verb;
    size_t count;
    int type, op, root;
} call_words;
typedef struct {
    _Atomic uint64_t published, consumed;
    call_words call;
    int device;
} rank_head;
typedef struct {
    _Atomic uint64_t posted, taken;
    uint64_t bytes;
} pair_head;
typedef struct {
    _Atomic int attached, finalised;
    rank_head ranks[MOST_RANKS];
    pair_head pairs[MOST_RANKS][MOST_RANKS]; /* [from][to]. */
} meeting;

struct ncclComm {
    meeting *m;
    char path[128];
    size_t bytes;
    int n, rank;
    bool ready, blocking, finalising;
    _Atomic bool aborted;
    _Atomic int error, n_tickets;
    int polls;              /* Polls during which the last call is still in progress. */
    uint64_t n_calls, seq;  /* All calls; collectives. */
    struct ticket *waiting; /* Calls that are not in their streams yet. */
};

typedef struct {
    verb verb;
    const char *src;
    char *dst;
    size_t bytes;
    int peer, state;
} message;

typedef struct ticket {
    struct ticket *next;
    lt_nccl_comm comm;
    CUstream stream;
    call_words call;
    const char *src;
    char *dst;
    size_t send_bytes, recv_bytes;
    uint64_t seq, hash;
    double until_ms;
    int state, n_messages;
    bool stalls;
    double slow_ms;
    message messages[];
} ticket;

static __thread struct {
    int depth, n;
    struct {
        lt_nccl_comm comm;
        CUstream stream;
        message m;
    } ops[MOST_OPS];
} group;
static __thread char last_error[256];
static _Atomic uint64_t n_calls_of[MOST_RANKS];

/* ---- Settings -------------------------------------------------------------------------------- */

static long setting(const char *name, long otherwise) {
    const char *const text = getenv(name);
    return text != NULL && *text != '\0' ? atol(text) : otherwise;
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static double now_ms(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

__attribute__((visibility("hidden"))) void emu_trap(const char *fmt, ...) {
    va_list ap;
    (void)fprintf(stderr, "emulated NCCL: ");
    va_start(ap, fmt);
    (void)vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void)fprintf(stderr, "\n");
    abort();
}

static uint64_t hash(const char *data, size_t bytes) {
    uint64_t h = bytes, word;
    for (; bytes >= 8; bytes -= 8, data += 8) {
        memcpy(&word, data, 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    for (; bytes > 0; bytes--) {
        h = (h ^ (unsigned char)*data++) * 0x100000001b3u;
    }
    return h;
}

static size_t type_bytes(int type) {
    return type == LT_NCCL_INT8 || type == LT_NCCL_UINT8         ? 1
           : type == LT_NCCL_FLOAT16 || type == LT_NCCL_BFLOAT16 ? 2
           : type == LT_NCCL_INT64 || type == LT_NCCL_FLOAT64    ? 8
                                                                 : 4;
}

/* ---- Sums ------------------------------------------------------------------------------------ */

static float half_to_float(uint16_t h, bool bf16) {
    const uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return bf16 ? f : emu_f16_to_f32(h);
}

#define REDUCE(name, type_)                                                                        \
    static void name(type_ *to, const type_ *x, size_t n, int op) {                                \
        for (size_t i = 0; i < n; i++) {                                                           \
            to[i] = op == LT_NCCL_SUM   ? (type_)(to[i] + x[i])                                    \
                    : op == LT_NCCL_MAX ? (x[i] > to[i] ? x[i] : to[i])                            \
                                        : (x[i] < to[i] ? x[i] : to[i]);                           \
        }                                                                                          \
    }
REDUCE(reduce_f32, float)
REDUCE(reduce_f64, double)
REDUCE(reduce_u8, uint8_t)

#define REDUCE_WHOLE(name, type_, unsigned_)                                                       \
    static void name(type_ *to, const type_ *x, size_t n, int op) {                                \
        for (size_t i = 0; i < n; i++) {                                                           \
            to[i] = op == LT_NCCL_SUM   ? (type_)((unsigned_)to[i] + (unsigned_)x[i])              \
                    : op == LT_NCCL_MAX ? (x[i] > to[i] ? x[i] : to[i])                            \
                                        : (x[i] < to[i] ? x[i] : to[i]);                           \
        }                                                                                          \
    }
REDUCE_WHOLE(reduce_i32, int32_t, uint32_t)
REDUCE_WHOLE(reduce_i64, int64_t, uint64_t)

static void reduce_half(uint16_t *to, const uint16_t *x, size_t n, int op, bool bf16) {
    for (size_t i = 0; i < n; i++) {
        float a = half_to_float(to[i], bf16);
        const float b = half_to_float(x[i], bf16);
        reduce_f32(&a, &b, 1, op);
        to[i] = bf16 ? emu_f32_to_bf16(a) : emu_f32_to_f16(a);
    }
}

static void reduce(void *to, const void *x, size_t n, int type, int op) {
    switch (type) {
    case LT_NCCL_FLOAT32:
        reduce_f32(to, x, n, op);
        break;
    case LT_NCCL_FLOAT64:
        reduce_f64(to, x, n, op);
        break;
    case LT_NCCL_INT32:
        reduce_i32(to, x, n, op);
        break;
    case LT_NCCL_INT64:
        reduce_i64(to, x, n, op);
        break;
    case LT_NCCL_FLOAT16:
    case LT_NCCL_BFLOAT16:
        reduce_half(to, x, n, op, type == LT_NCCL_BFLOAT16);
        break;
    default:
        reduce_u8(to, x, n, op);
        break;
    }
}

/* ---- Collectives ----------------------------------------------------------------------------- */

static size_t head_bytes(void) {
    return (sizeof(meeting) + 4095) / 4096 * 4096;
}

static char *slab_of(const lt_nccl_comm c, int rank) {
    return (char *)c->m + head_bytes() + (size_t)rank * SLAB_BYTES;
}

static char *pair_slab(const lt_nccl_comm c, int from, int to) {
    return (char *)c->m + head_bytes() + (size_t)c->n * SLAB_BYTES +
           (size_t)(from * c->n + to) * PAIR_BYTES;
}

static bool all_reached(const lt_nccl_comm c, bool consumed, uint64_t seq) {
    for (int r = 0; r < c->n; r++) {
        const rank_head *h = &c->m->ranks[r];
        if (atomic_load(consumed ? &h->consumed : &h->published) < seq) {
            return false;
        }
    }
    return true;
}

/* True: all ranks make the same call. */
static bool compare(const ticket *t) {
    const lt_nccl_comm c = t->comm;
    for (int r = 0; r < c->n; r++) {
        const call_words *o = &c->m->ranks[r].call;
        if (memcmp(o, &t->call, sizeof *o) != 0) {
            if (setting("LATEEN_EMU_NCCL_STRICT", 1) == 0) {
                return false;
            }
            emu_trap("call %llu differs: rank %d calls %s of %zu, rank %d %s of %zu",
                     (unsigned long long)t->seq, c->rank, verb_names[t->call.verb], t->call.count,
                     r, verb_names[o->verb], o->count);
        }
    }
    return true;
}

static void reduce_into(const ticket *t, size_t first, size_t count) {
    const lt_nccl_comm c = t->comm;
    const size_t elem = type_bytes(t->call.type);
    for (size_t at = 0; at < count; at += BLOCK) {
        const size_t n = count - at < BLOCK ? count - at : BLOCK;
        const int start = (int)(mix((uint64_t)setting("LATEEN_EMU_SEED", 0) ^ mix(t->seq) ^
                                    (first + at) / BLOCK) %
                                (uint64_t)c->n);
        char *to = t->dst + at * elem;
        memcpy(to, slab_of(c, start) + (first + at) * elem, n * elem);
        for (int k = 1; k < c->n; k++) {
            reduce(to, slab_of(c, (start + k) % c->n) + (first + at) * elem, n, t->call.type,
                   t->call.op);
        }
    }
}

static void finish(const ticket *t) {
    const lt_nccl_comm c = t->comm;
    if (hash(t->src, t->send_bytes) != t->hash) {
        emu_trap("rank %d: what its call %llu (%s) sends was written to before the call was done",
                 c->rank, (unsigned long long)t->seq, verb_names[t->call.verb]);
    }
    switch (t->call.verb) {
    case ALL_REDUCE:
        reduce_into(t, 0, t->call.count);
        break;
    case REDUCE_SCATTER:
        reduce_into(t, (size_t)c->rank * t->call.count, t->call.count);
        break;
    case ALL_GATHER:
        for (int r = 0; r < c->n; r++) {
            memcpy(t->dst + (size_t)r * t->send_bytes, slab_of(c, r), t->send_bytes);
        }
        break;
    default:
        memcpy(t->dst, slab_of(c, t->call.root), t->recv_bytes);
        break;
    }
}

static bool poll_collective(ticket *t) {
    const lt_nccl_comm c = t->comm;
    if (t->state == 0 && all_reached(c, true, t->seq - 1)) {
        memcpy(slab_of(c, c->rank), t->src, t->send_bytes);
        memset(t->dst, 0xff, t->recv_bytes);
        t->hash = hash(t->src, t->send_bytes);
        c->m->ranks[c->rank].call = t->call;
        atomic_store(&c->m->ranks[c->rank].published, t->seq);
        t->state = 1;
    }
    if (t->state == 1 && all_reached(c, false, t->seq)) {
        const uint64_t draw = mix((uint64_t)setting("LATEEN_EMU_SEED", 0) ^
                                  mix((uint64_t)c->rank << 32 ^ t->seq));
        t->stalls = t->stalls || !compare(t);
        t->until_ms = now_ms() + t->slow_ms +
                      (double)(draw % 1000) * 1e-6 *
                          (double)setting("LATEEN_EMU_NCCL_DELAY_US", 500);
        t->state = 2;
    }
    if (t->state == 2 && !t->stalls && now_ms() >= t->until_ms) {
        finish(t);
        atomic_store(&c->m->ranks[c->rank].consumed, t->seq);
        return true;
    }
    return false;
}

/* ---- Sends and receives ---------------------------------------------------------------------- */

static bool poll_send(const lt_nccl_comm c, message *m) {
    pair_head *p = &c->m->pairs[c->rank][m->peer];
    if (m->state == 0 && atomic_load(&p->taken) == atomic_load(&p->posted)) {
        memcpy(pair_slab(c, c->rank, m->peer), m->src, m->bytes);
        p->bytes = m->bytes;
        atomic_fetch_add(&p->posted, 1);
        m->state = 1;
    }
    if (m->state == 1 && atomic_load(&p->taken) == atomic_load(&p->posted)) {
        if (memcmp(pair_slab(c, c->rank, m->peer), m->src, m->bytes) != 0) {
            emu_trap("rank %d: what it sends to %d was written to before the call was done",
                     c->rank, m->peer);
        }
        m->state = 2;
    }
    return m->state == 2;
}

static bool poll_recv(const lt_nccl_comm c, message *m) {
    pair_head *p = &c->m->pairs[m->peer][c->rank];
    if (m->state == 0 && atomic_load(&p->posted) > atomic_load(&p->taken)) {
        if (p->bytes != m->bytes) {
            if (setting("LATEEN_EMU_NCCL_STRICT", 1) == 0) {
                return false;
            }
            emu_trap("rank %d sends %llu bytes to rank %d, which receives %zu", m->peer,
                     (unsigned long long)p->bytes, c->rank, m->bytes);
        }
        memcpy(m->dst, pair_slab(c, m->peer, c->rank), m->bytes);
        atomic_fetch_add(&p->taken, 1);
        m->state = 2;
    }
    return m->state == 2;
}

static bool poll_messages(ticket *t) {
    bool done = true;
    if (t->until_ms == 0.0) {
        const uint64_t draw = mix((uint64_t)setting("LATEEN_EMU_SEED", 0) ^ mix(t->comm->n_calls));
        t->until_ms = now_ms() + t->slow_ms +
                      (double)(draw % 1000) * 1e-6 *
                          (double)setting("LATEEN_EMU_NCCL_DELAY_US", 500);
        for (int i = 0; i < t->n_messages; i++) {
            if (t->messages[i].verb == RECV) {
                memset(t->messages[i].dst, 0xff, t->messages[i].bytes);
            }
        }
    }
    if (now_ms() < t->until_ms || t->stalls) {
        return false;
    }
    for (int i = 0; i < t->n_messages; i++) {
        message *m = &t->messages[i];
        done = (m->verb == SEND ? poll_send(t->comm, m) : poll_recv(t->comm, m)) && done;
    }
    return done;
}

/* ---- Into the streams ------------------------------------------------------------------------ */

static void ticket_begin(void *ctx) {
    (void)ctx;
}

static bool ticket_poll(void *ctx) {
    ticket *t = ctx;
    return atomic_load(&t->comm->aborted) ||
           (t->n_messages > 0 ? poll_messages(t) : poll_collective(t));
}

static void ticket_free(void *ctx) {
    ticket *t = ctx;
    atomic_fetch_sub(&t->comm->n_tickets, 1);
    free(t);
}

static void *driver_function(const char *name) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void *f = lib != NULL ? dlsym(lib, name) : NULL;
    if (f == NULL) {
        emu_trap("the emulated driver is not open");
    }
    return f;
}

static void flush(lt_nccl_comm c) {
    bool (*external)(CUstream, const emu_external *);
    *(void **)&external = driver_function("emu_stream_external");
    while (c->waiting != NULL) {
        ticket *t = c->waiting;
        c->waiting = t->next;
        atomic_fetch_add(&c->n_tickets, 1);
        if (!external(t->stream, &(emu_external){ticket_begin, ticket_poll, ticket_free, t})) {
            emu_trap("a call in a stream that is being captured");
        }
    }
}

static void fault(lt_nccl_comm c, ticket *t) {
    const char *text = getenv("LATEEN_EMU_NCCL_FAULT");
    const uint64_t number = atomic_fetch_add(&n_calls_of[c->rank], 1) + 1;
    int rank = -1;
    unsigned long long call = 0;
    char kind[16] = "";
    if (text == NULL || sscanf(text, "%d:%llu:%15s", &rank, &call, kind) != 3 || rank != c->rank ||
        call != number) {
        return;
    }
    if (strcmp(kind, "die") == 0) {
        (void)kill(getpid(), SIGKILL);
    }
    t->stalls = strcmp(kind, "stall") == 0;
    t->slow_ms = strcmp(kind, "slow") == 0 ? 1500.0 : 0.0;
    if (strcmp(kind, "error") == 0) {
        t->stalls = true;
        atomic_store(&c->error, REMOTE_ERROR);
    }
}

static int add_ticket(ticket *t) {
    const lt_nccl_comm c = t->comm;
    ticket **at = &c->waiting;
    if (!c->ready) {
        emu_trap("rank %d calls before its communicator is ready", c->rank);
    }
    if (c->polls > 0) {
        emu_trap("rank %d calls while its last call is in progress", c->rank);
    }
    c->n_calls++;
    fault(c, t);
    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = t;
    return LT_NCCL_SUCCESS;
}

static int submit(lt_nccl_comm c) {
    c->polls = c->blocking ? 0 : (int)setting("LATEEN_EMU_NCCL_POLLS", 0);
    if (c->polls == 0) {
        flush(c);
    }
    return c->polls > 0 ? LT_NCCL_IN_PROGRESS : LT_NCCL_SUCCESS;
}

static int collective(lt_nccl_comm c, CUstream s, call_words w, const void *src, void *dst,
                      size_t send_bytes, size_t recv_bytes) {
    ticket *t = calloc(1, sizeof *t);
    if (group.depth > 0) {
        emu_trap("collectives in a group are not emulated");
    }
    if (t == NULL || send_bytes > SLAB_BYTES) {
        emu_trap("%zu bytes in one call: the emulation has room for %zu", send_bytes, SLAB_BYTES);
    }
    *t = (ticket){.comm = c,
                  .stream = s,
                  .src = src,
                  .dst = dst,
                  .send_bytes = send_bytes,
                  .recv_bytes = recv_bytes,
                  .seq = ++c->seq};
    memset(&t->call, 0, sizeof t->call);
    t->call.verb = w.verb;
    t->call.count = w.count;
    t->call.type = w.type;
    t->call.op = w.op;
    t->call.root = w.root;
    (void)add_ticket(t);
    return submit(c);
}

/* ---- The interface --------------------------------------------------------------------------- */

EXPORT int ncclGetVersion(int *version) {
    *version = (int)setting("LATEEN_EMU_NCCL_VERSION", 22703);
    return LT_NCCL_SUCCESS;
}
EXPORT const char *ncclGetErrorString(int result) {
    return result == INVALID_ARGUMENT      ? "invalid argument"
           : result == INVALID_USAGE       ? "invalid usage"
           : result == REMOTE_ERROR        ? "remote process exited or there was a network error"
           : result == LT_NCCL_IN_PROGRESS ? "NCCL operation in progress"
                                           : "no error";
}
EXPORT const char *ncclGetLastError(lt_nccl_comm comm) {
    (void)comm;
    return last_error;
}

EXPORT int ncclGetUniqueId(lt_nccl_id *id) {
    const char *const dir = getenv("TMPDIR");
    int fd;
    memset(id, 0, sizeof *id);
    (void)snprintf(id->bytes, sizeof id->bytes, "%.90s/lateen-nccl-XXXXXX",
                   dir != NULL ? dir : "/tmp");
    fd = mkstemp(id->bytes);
    if (fd < 0) {
        return 2;
    }
    (void)close(fd);
    return LT_NCCL_SUCCESS;
}

static int check_config(const lt_nccl_config *g) {
    const int version = (int)setting("LATEEN_EMU_NCCL_VERSION", 22703);
    const size_t known = version >= 22700 ? sizeof *g : offsetof(lt_nccl_config, comm_name);
    if (g == NULL || g->magic != LT_NCCL_MAGIC || g->size > known || (int)g->version > version ||
        (g->blocking != 0 && g->blocking != 1)) {
        (void)snprintf(last_error, sizeof last_error,
                       "a configuration of size %zu and version %u, which %d does not know",
                       g != NULL ? g->size : 0, g != NULL ? g->version : 0, version);
        return INVALID_ARGUMENT;
    }
    return LT_NCCL_SUCCESS;
}

EXPORT int ncclCommInitRankConfig(lt_nccl_comm *out, int n, lt_nccl_id id, int rank,
                                  lt_nccl_config *config) {
    int (*device)(void);
    lt_nccl_comm c;
    int fd;
    last_error[0] = '\0';
    if (check_config(config) != LT_NCCL_SUCCESS || n < 1 || n > MOST_RANKS || rank < 0 ||
        rank >= n) {
        return INVALID_ARGUMENT;
    }
    *(void **)&device = driver_function("emu_current_device");
    c = calloc(1, sizeof *c);
    fd = open(id.bytes, O_RDWR | O_CLOEXEC);
    if (c == NULL || fd < 0) {
        free(c);
        return 2;
    }
    c->bytes = head_bytes() + (size_t)n * SLAB_BYTES + (size_t)n * (size_t)n * PAIR_BYTES;
    if (ftruncate(fd, (off_t)c->bytes) != 0 ||
        (c->m = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0)) ==
            MAP_FAILED) {
        emu_trap("a file of %zu bytes: %s", c->bytes, strerror(errno));
    }
    (void)close(fd);
    (void)snprintf(c->path, sizeof c->path, "%s", id.bytes);
    c->n = n;
    c->rank = rank;
    c->blocking = config->blocking == 1;
    c->m->ranks[rank].device = device();
    atomic_fetch_add(&c->m->attached, 1);
    *out = c;
    return LT_NCCL_IN_PROGRESS;
}

/* All ranks have joined. Does another rank use the same GPU? */
static int make_ready(lt_nccl_comm c) {
    const char *const many = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    const bool allowed = many != NULL && *many == '1' &&
                         setting("LATEEN_EMU_NCCL_VERSION", 22703) >= 23000;
    if (c->rank == 0) {
        (void)unlink(c->path);
    }
    for (int i = 0; i < c->n && !allowed; i++) {
        for (int j = 0; j < i; j++) {
            if (c->m->ranks[i].device == c->m->ranks[j].device) {
                (void)snprintf(last_error, sizeof last_error,
                               "Duplicate GPU detected : rank %d and rank %d both on GPU %d", j, i,
                               c->m->ranks[i].device);
                return INVALID_USAGE;
            }
        }
    }
    c->ready = true;
    return LT_NCCL_SUCCESS;
}

EXPORT int ncclCommGetAsyncError(lt_nccl_comm c, int *state) {
    *state = atomic_load(&c->error);
    if (*state == LT_NCCL_SUCCESS && !c->ready) {
        *state = atomic_load(&c->m->attached) == c->n ? make_ready(c) : LT_NCCL_IN_PROGRESS;
        atomic_store(&c->error, *state == LT_NCCL_IN_PROGRESS ? LT_NCCL_SUCCESS : *state);
    } else if (*state == LT_NCCL_SUCCESS && c->polls > 0) {
        if (--c->polls == 0) {
            flush(c);
        }
        *state = LT_NCCL_IN_PROGRESS;
    } else if (*state == LT_NCCL_SUCCESS && c->finalising) {
        *state = atomic_load(&c->m->finalised) == c->n ? LT_NCCL_SUCCESS : LT_NCCL_IN_PROGRESS;
    }
    return LT_NCCL_SUCCESS;
}

EXPORT int ncclCommAbort(lt_nccl_comm c) {
    if (c->finalising && atomic_load(&c->m->finalised) < c->n) {
        emu_trap("rank %d aborts a communicator that not all ranks have finalised: NCCL waits here",
                 c->rank);
    }
    /* Its memory stays, because calls in streams still read it. */
    atomic_store(&c->aborted, true);
    if (!c->ready && c->rank == 0) {
        (void)unlink(c->path);
    }
    return LT_NCCL_SUCCESS;
}
/* In progress until all ranks have called it, because NCCL's proxies wait for each other to
 * disconnect. */
EXPORT int ncclCommFinalize(lt_nccl_comm c) {
    if (!c->ready || c->finalising) {
        return INVALID_USAGE;
    }
    c->finalising = true;
    atomic_fetch_add(&c->m->finalised, 1);
    return LT_NCCL_SUCCESS;
}
EXPORT int ncclCommDestroy(lt_nccl_comm c) {
    if (atomic_load(&c->n_tickets) > 0) {
        emu_trap("rank %d destroys a communicator that is in use", c->rank);
    }
    atomic_store(&c->aborted, true);
    (void)munmap(c->m, c->bytes);
    return LT_NCCL_SUCCESS;
}

EXPORT int ncclGroupStart(void) {
    group.depth++;
    return LT_NCCL_SUCCESS;
}

/* Messages of one communicator and one stream are sent together. */
EXPORT int ncclGroupEnd(void) {
    int result = LT_NCCL_SUCCESS;
    if (--group.depth > 0) {
        return LT_NCCL_SUCCESS;
    }
    for (int i = 0; i < group.n; i++) {
        const lt_nccl_comm c = group.ops[i].comm;
        ticket *t;
        if (c == NULL) {
            continue;
        }
        t = calloc(1, sizeof *t + (size_t)group.n * sizeof *t->messages);
        if (t == NULL) {
            emu_trap("no memory");
        }
        t->comm = c;
        t->stream = group.ops[i].stream;
        for (int k = i; k < group.n; k++) {
            if (group.ops[k].comm == c && group.ops[k].stream == t->stream) {
                t->messages[t->n_messages++] = group.ops[k].m;
                group.ops[k].comm = NULL;
            }
        }
        (void)add_ticket(t);
        const int r = submit(c);
        result = r != LT_NCCL_SUCCESS ? r : result;
    }
    group.n = 0;
    return result;
}

static int pass_message(lt_nccl_comm c, CUstream s, message m) {
    if (m.peer < 0 || m.peer >= c->n || m.peer == c->rank) {
        return INVALID_ARGUMENT;
    }
    if (m.bytes > PAIR_BYTES || group.n == MOST_OPS) {
        emu_trap("%zu bytes in one message: the emulation has room for %zu", m.bytes, PAIR_BYTES);
    }
    group.depth++;
    group.ops[group.n].comm = c;
    group.ops[group.n].stream = s;
    group.ops[group.n++].m = m;
    return ncclGroupEnd();
}

EXPORT int ncclSend(const void *src, size_t count, int type, int peer, lt_nccl_comm c, void *s) {
    return pass_message(
        c, s, (message){.verb = SEND, .src = src, .bytes = count * type_bytes(type), .peer = peer});
}
EXPORT int ncclRecv(void *dst, size_t count, int type, int peer, lt_nccl_comm c, void *s) {
    return pass_message(
        c, s, (message){.verb = RECV, .dst = dst, .bytes = count * type_bytes(type), .peer = peer});
}
EXPORT int ncclAllReduce(const void *src, void *dst, size_t count, int type, int op, lt_nccl_comm c,
                         void *s) {
    const size_t bytes = count * type_bytes(type);
    return collective(c, s, (call_words){ALL_REDUCE, count, type, op, 0}, src, dst, bytes, bytes);
}
EXPORT int ncclAllGather(const void *src, void *dst, size_t count, int type, lt_nccl_comm c,
                         void *s) {
    const size_t bytes = count * type_bytes(type);
    return collective(c, s, (call_words){ALL_GATHER, count, type, 0, 0}, src, dst, bytes,
                      bytes * (size_t)c->n);
}
EXPORT int ncclReduceScatter(const void *src, void *dst, size_t count, int type, int op,
                             lt_nccl_comm c, void *s) {
    const size_t bytes = count * type_bytes(type);
    return collective(c, s, (call_words){REDUCE_SCATTER, count, type, op, 0}, src, dst,
                      bytes * (size_t)c->n, bytes);
}
EXPORT int ncclBroadcast(const void *src, void *dst, size_t count, int type, int root,
                         lt_nccl_comm c, void *s) {
    const size_t bytes = count * type_bytes(type);
    return collective(c, s, (call_words){BROADCAST, count, type, 0, root}, src, dst,
                      c->rank == root ? bytes : 0, bytes);
}

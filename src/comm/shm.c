/* shm.c: ranks as processes of one machine that `lateen launch` started (docs/adr/0008). They
 * exchange messages through a memory segment that all of them map; the verbs are rounds of such
 * messages (rounds.h).
 *
 * SEGMENT    a head, and for every ordered pair of ranks a lane, in which each word has one writer:
 *
 *     sender                                                      receiver
 *     offers[offered++] = {id, tag, bytes}  ──────────────────▶   keeps it until a receive fits
 *     granted ids, in their order           ◀──────────────────   grants[granted++] = id
 *     bytes of the granted messages, in the order of the grants ▶ ring: written, read
 *
 * Only data for which a receive waits are in a ring, so a message without a receive delays no
 * other. A rank has at most LT_COMM_AHEAD sends and receives and one collective in progress: fewer
 * than OFFERS messages to each rank.
 *
 * FAILURES   A rank that fails writes its reason into the head, which all ranks read whenever they
 * poll. A rank that dies or stops cannot: the launcher notices it and tells the others through the
 * store (store.h), and their heartbeat threads abort the world. If both fail, the deadline of each
 * verb ends the world. */
#include "comm/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "comm/launched.h"
#include "comm/rounds.h"

#define MAGIC 0x6c617465656e7331u
/* A power of two, larger than the number of messages that a rank can have under way to another. */
#define OFFERS      512
#define RINGS_BYTES ((size_t)64 << 20) /* Total of all rings, within the limits of each. */
#define RING_LEAST  ((size_t)32 << 10)
#define RING_MOST   ((size_t)512 << 10)
#define POLL_US     50
#define LINE        64

typedef struct {
    uint64_t magic, epoch;
    int64_t n;
    uint64_t ring_bytes;
    _Atomic int failed; /* 0: no; 1: a rank is writing the reason; 2: the reason is complete. */
    char reason[LT_COMM_WHY];
} segment_head;

typedef struct {
    int32_t id, tag;
    uint64_t bytes;
} offer;

typedef struct {
    _Alignas(LINE) _Atomic uint32_t offered;
    _Atomic uint64_t written;
    _Alignas(LINE) _Atomic uint32_t granted;
    _Atomic uint64_t read;
    _Alignas(LINE) offer offers[OFFERS];
    int32_t grants[OFFERS];
    /* The ring follows in memory. */
} lane;

typedef struct {
    bool used, done, matched;
    bool is_recv;
    int rank, tag;
    char *data;
    size_t bytes, moved;
} request;

/* This rank's view of another rank: queues of indices into `requests`. */
typedef struct {
    int32_t ids[OFFERS];
    uint32_t first, end;
} queue;

typedef struct {
    offer waiting[OFFERS]; /* Offers without a matching receive, oldest first. */
    int n_waiting;
    uint32_t n_offers, n_grants;           /* The other rank's, read so far. */
    int32_t posted[LT_SHM_MOST_TRANSFERS]; /* Receives without a matching offer, oldest first. */
    int n_posted;
    queue sends, receives; /* Granted. */
} peer;

typedef struct {
    segment_head *head;
    size_t bytes;
    int rank, n;
    request requests[LT_SHM_MOST_TRANSFERS];
    peer *peers; /* (n) */
    lt_rounds rounds;
    lt_comm_store *store;
} shm_world;

/* ---- The segment ----------------------------------------------------------------------------- */

static size_t ring_bytes(int n) {
    size_t bytes = RING_MOST;
    while (bytes > RING_LEAST && bytes * (size_t)n * (size_t)n > RINGS_BYTES) {
        bytes /= 2;
    }
    return bytes;
}

static size_t head_bytes(void) {
    return (sizeof(segment_head) + LINE - 1) / LINE * LINE;
}

static size_t segment_bytes(int n) {
    return head_bytes() + (size_t)n * (size_t)n * (sizeof(lane) + ring_bytes(n));
}

lt_err lt_shm_make(int *fd, int n, uint64_t epoch) {
    lt_err err = LT_OK;
    segment_head head = {
        .magic = MAGIC, .epoch = epoch, .n = n, .ring_bytes = ring_bytes(n > 0 ? n : 1)};
    int f = *fd;

    if (n < 1 || n > LT_SHM_MOST_RANKS) {
        LT_FAIL(LT_ERR_ARG, "%d ranks on one machine; 1 to %d are possible", n, LT_SHM_MOST_RANKS);
    }
    if (f < 0) {
        f = memfd_create("lateen-ranks", 0); /* Ranks inherit it. */
    }
    if (f < 0 || ftruncate(f, 0) != 0 || ftruncate(f, (off_t)segment_bytes(n)) != 0 ||
        pwrite(f, &head, sizeof head, 0) != (ssize_t)sizeof head) {
        LT_FAIL_DONE(LT_ERR_IO, "memory segment of %zu bytes: %s", segment_bytes(n),
                     strerror(errno));
    }
    *fd = f;
    f = -1;
done:
    if (f >= 0 && f != *fd) {
        (void)close(f);
    }
    return err;
}

static lane *lane_of(const shm_world *w, int from, int to) {
    char *lanes = (char *)w->head + head_bytes();
    return (lane *)(void *)(lanes + (size_t)(from * w->n + to) *
                                        (sizeof(lane) + (size_t)w->head->ring_bytes));
}

/* ---- Messages -------------------------------------------------------------------------------- */

static void push(queue *q, int32_t id) {
    LT_ASSERT(q->end - q->first < OFFERS);
    q->ids[q->end++ % OFFERS] = id;
}

/* Copy as many bytes as possible between a ring and a message. at: the ring's byte counter. */
static size_t move_ring(shm_world *w, lane *l, request *r, uint64_t at, uint64_t room) {
    char *ring = (char *)(l + 1);
    size_t moved = 0;
    while (room > 0 && r->moved < r->bytes) {
        const size_t size = (size_t)w->head->ring_bytes, begin = (size_t)(at % size);
        size_t n = r->bytes - r->moved;
        n = n < room ? n : (size_t)room;
        n = n < size - begin ? n : size - begin;
        if (r->is_recv) {
            memcpy(r->data + r->moved, ring + begin, n);
        } else {
            memcpy(ring + begin, r->data + r->moved, n);
        }
        r->moved += n;
        at += n;
        room -= n;
        moved += n;
    }
    return moved;
}

static void send_granted(shm_world *w, peer *p, int other) {
    lane *l = lane_of(w, w->rank, other);
    const uint32_t granted = atomic_load_explicit(&l->granted, memory_order_acquire);
    while (p->n_grants != granted) {
        push(&p->sends, l->grants[p->n_grants++ % OFFERS]);
    }
    while (p->sends.first != p->sends.end) {
        request *r = &w->requests[p->sends.ids[p->sends.first % OFFERS]];
        const uint64_t written = atomic_load_explicit(&l->written, memory_order_relaxed),
                       in_ring = written - atomic_load_explicit(&l->read, memory_order_acquire);
        const size_t n = move_ring(w, l, r, written, w->head->ring_bytes - in_ring);
        atomic_store_explicit(&l->written, written + n, memory_order_release);
        if (r->moved < r->bytes) {
            return;
        }
        r->done = true;
        p->sends.first++;
    }
}

/* Offers and receives with the same tag match in order. A message of an unexpected size is not
 * taken: the receive ends with the offered size, which its caller refuses. */
static void match(shm_world *w, peer *p, lane *l) {
    for (int i = 0; i < p->n_posted; i++) {
        request *r = &w->requests[p->posted[i]];
        int k = 0;
        while (k < p->n_waiting && p->waiting[k].tag != r->tag) {
            k++;
        }
        if (k == p->n_waiting) {
            continue;
        }
        if (p->waiting[k].bytes == r->bytes) {
            const uint32_t g = atomic_load_explicit(&l->granted, memory_order_relaxed);
            l->grants[g % OFFERS] = p->waiting[k].id;
            atomic_store_explicit(&l->granted, g + 1, memory_order_release);
            push(&p->receives, p->posted[i]);
        } else {
            r->moved = (size_t)p->waiting[k].bytes;
            r->done = true;
        }
        p->n_waiting--;
        memmove(&p->waiting[k], &p->waiting[k + 1],
                (size_t)(p->n_waiting - k) * sizeof *p->waiting);
        p->n_posted--;
        memmove(&p->posted[i], &p->posted[i + 1], (size_t)(p->n_posted - i) * sizeof *p->posted);
        i--;
    }
}

static void receive_granted(shm_world *w, peer *p, int other) {
    lane *l = lane_of(w, other, w->rank);
    const uint32_t offered = atomic_load_explicit(&l->offered, memory_order_acquire);
    while (p->n_offers != offered && p->n_waiting < OFFERS) {
        p->waiting[p->n_waiting++] = l->offers[p->n_offers++ % OFFERS];
    }
    match(w, p, l);
    while (p->receives.first != p->receives.end) {
        request *r = &w->requests[p->receives.ids[p->receives.first % OFFERS]];
        const uint64_t read = atomic_load_explicit(&l->read, memory_order_relaxed),
                       written = atomic_load_explicit(&l->written, memory_order_acquire);
        const size_t n = move_ring(w, l, r, read, written - read);
        atomic_store_explicit(&l->read, read + n, memory_order_release);
        if (r->moved < r->bytes) {
            return;
        }
        r->done = true;
        p->receives.first++;
    }
}

/* ---- The link -------------------------------------------------------------------------------- */

static int32_t take_request(shm_world *w, request r) {
    int32_t id = 0;
    while (w->requests[id].used) {
        id++;
        LT_ASSERT(id < LT_SHM_MOST_TRANSFERS); /* There are fewer calls than slots. */
    }
    w->requests[id] = r;
    w->requests[id].used = true;
    return id;
}

static lt_err send_bytes(void *of, const void *data, size_t bytes, int rank, int tag, void **out) {
    shm_world *w = of;
    lane *l = lane_of(w, w->rank, rank);
    const uint32_t at = atomic_load_explicit(&l->offered, memory_order_relaxed);
    const int32_t id = take_request(
        w, (request){.rank = rank, .tag = tag, .data = (char *)(uintptr_t)data, .bytes = bytes});
    l->offers[at % OFFERS] = (offer){id, tag, bytes};
    atomic_store_explicit(&l->offered, at + 1, memory_order_release);
    *out = &w->requests[id];
    return LT_OK;
}

static lt_err receive_bytes(void *of, void *data, size_t bytes, int rank, int tag, void **out) {
    shm_world *w = of;
    peer *p = &w->peers[rank];
    const int32_t id = take_request(
        w, (request){.is_recv = true, .rank = rank, .tag = tag, .data = data, .bytes = bytes});
    p->posted[p->n_posted++] = id;
    *out = &w->requests[id];
    return LT_OK;
}

static lt_err test_request(void *of, void **out, size_t *bytes) {
    shm_world *w = of;
    request *r = *out;
    if (!r->done) {
        send_granted(w, &w->peers[r->rank], r->rank);
        receive_granted(w, &w->peers[r->rank], r->rank);
    }
    if (r->done) {
        *bytes = r->moved;
        r->used = false;
        *out = NULL;
    }
    return LT_OK;
}

static const lt_link link_shm = {send_bytes, receive_bytes, test_request};

/* ---- The transport --------------------------------------------------------------------------- */

static const char *over(const lt_comm *c) {
    const shm_world *w = c->world;
    return atomic_load_explicit(&w->head->failed, memory_order_acquire) == 2 ? w->head->reason
                                                                             : NULL;
}

static lt_advance advance(lt_call *call) {
    shm_world *w = call->group->comm->world;
    const char *reason = over(call->group->comm);
    if (reason != NULL) {
        (void)!lt_error_set(LT_ERR_REMOTE, "%s", reason);
        return LT_ADVANCE_FAILED;
    }
    return lt_rounds_advance(&w->rounds, call);
}

static void missing(const lt_call *call, char *out, size_t out_bytes) {
    const shm_world *w = call->group->comm->world;
    lt_rounds_missing(&w->rounds, call, out, out_bytes);
}

static void tell_all(lt_comm *c) {
    shm_world *w = c->world;
    int none = 0;
    if (atomic_compare_exchange_strong(&w->head->failed, &none, 1)) {
        memcpy(w->head->reason, c->why, sizeof w->head->reason);
        atomic_store_explicit(&w->head->failed, 2, memory_order_release);
    }
}

static void world_free(shm_world *w) {
    if (w != NULL) {
        lt_comm_store_close(w->store);
        if (w->head != NULL) {
            (void)munmap(w->head, w->bytes);
        }
        lt_rounds_close(&w->rounds);
        free(w->peers);
        free(w);
    }
}

static void close_world(lt_comm *c) {
    world_free(c->world);
}

const lt_transport lt_transport_shm = {.name = "shm",
                                       .poll_us = POLL_US,
                                       .group_open = lt_rounds_group_open,
                                       .advance = advance,
                                       .missing = missing,
                                       .abort = tell_all,
                                       .over = over,
                                       .close = close_world};

/* ---- Opening --------------------------------------------------------------------------------- */

static lt_err map(shm_world *w, int fd, uint64_t epoch) {
    struct stat st;
    w->bytes = segment_bytes(w->n);
    if (fstat(fd, &st) != 0 || st.st_size != (off_t)w->bytes) {
        LT_FAIL(LT_ERR_ARG, "%s=%d is not the memory segment of %d ranks", LT_ENV_SEGMENT, fd,
                w->n);
    }
    w->head = mmap(NULL, w->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (w->head == MAP_FAILED) {
        w->head = NULL;
        LT_FAIL(LT_ERR_OOM, "memory segment of %zu bytes: %s", w->bytes, strerror(errno));
    }
    /* The descriptor is kept: the next world may use it, too. */
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    if (w->head->magic != MAGIC || w->head->n != w->n || w->head->epoch != epoch) {
        LT_FAIL(LT_ERR_STATE, "memory segment of %lld ranks and epoch %llu, not of %d and %llu",
                (long long)w->head->n, (unsigned long long)w->head->epoch, w->n,
                (unsigned long long)epoch);
    }
    return LT_OK;
}

lt_err lt_comm_open_shm(lt_comm **out, const lt_comm_options *o) {
    lt_err err = LT_OK;
    lt_comm_options options = o != NULL ? *o : (lt_comm_options){0};
    lt_launched l;
    lt_comm *c = NULL;
    shm_world *w = NULL;

    LT_TRY(lt_launched_read(&l));
    w = calloc(1, sizeof *w);
    if (w == NULL || (w->peers = calloc((size_t)l.n, sizeof *w->peers)) == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "rank %d", l.rank);
    }
    w->rank = l.rank;
    w->n = l.n;
    LT_TRY_DONE(map(w, l.segment, l.epoch));
    LT_TRY_DONE(lt_rounds_open(&w->rounds, &link_shm, w, w->n));
    LT_TRY_DONE(lt_launched_join(&w->store, &l));
    options.epoch = l.epoch;
    LT_TRY_DONE(lt_comm_begin(&c, &lt_transport_shm, w, w->rank, w->n, &options, NULL, NULL));
    w = NULL; /* Owned by the rank's comm now. */
    LT_TRY_DONE(lt_launched_begin(((shm_world *)c->world)->store, &l, c));
    *out = c;
    c = NULL;
done:
    world_free(w);
    lt_comm_close(c);
    return err;
}

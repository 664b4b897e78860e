/* tcp.c: ranks as processes of several machines that `lateen launch --hosts` started
 * (docs/adr/0012). Every two ranks share a connection; the verbs are rounds of messages
 * (rounds.h).
 *
 * STREAM     in each direction a sequence of frames: a `head` each, and after some of them a body:
 *
 *     READY    id, tag, bytes    a receive waits for a message of this tag and size
 *     DATA     id, bytes         answers READY `id`: the message follows
 *     UNEQUAL  id, bytes         answers READY `id`: the message has this size, and is not sent
 *     FAILED   bytes             the world has ended: the reason follows
 *
 * Receives and sends of one tag match in their order, at the sender. Only data for which a receive
 * waits are sent, so a message without a receive delays no other, and the reader of a stream never
 * has to stop. A rank has at most LT_COMM_AHEAD sends and receives and one collective in progress,
 * so fewer than LANES messages to each rank.
 *
 * STRANGERS  A rank listens while its world opens, at the address from which it reaches the store.
 * A connection counts once it has named the run's token, its rank and the epoch. One that has not
 * is closed after STRANGER_S seconds, or when more than STRANGERS such connections wait. Nothing is
 * encrypted.
 *
 * FAILURES   A rank that fails sends FAILED to all others. A connection that has closed fails the
 * calls that wait for its rank, but only CLOSED_S seconds later: the launcher, which tells all
 * ranks through the store (launched.h), usually knows better why. A machine that cannot be reached
 * is found by the heartbeats. Two machines may both reach the launcher, but not each other. Their
 * connection then counts as closed after the time allowed to a missing heartbeat: the kernel
 * reports bytes that were not acknowledged within it, and probes a connection that sends none. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/launched.h"
#include "comm/rounds.h"
#include "comm/shm.h"

#define MAGIC   0x6c617465656e7431u /* It also rejects a machine with another byte order. */
#define LANES   512
#define POLL_US 50
/* Bytes that are read from one rank before the others have their turn. */
#define AT_ONCE    ((size_t)4 << 20)
#define STRANGERS  64
#define STRANGER_S 5.0
#define CLOSED_S   1.0

typedef enum { READY = 1, DATA, UNEQUAL, FAILED } frame_kind;

typedef struct {
    int32_t kind, id, tag, unused;
    uint64_t bytes;
} head;

/* The first bytes of a connection, sent by the rank with the larger number. */
typedef struct {
    uint64_t magic, epoch;
    int32_t rank, n;
    char token[LT_STORE_TOKEN + 7]; /* A multiple of 8 bytes. */
} greeting;
_Static_assert(sizeof(head) == 24 && sizeof(greeting) == 96, "frames have no holes");

typedef struct {
    bool used, done, is_recv;
    int rank, tag;
    char *data;
    size_t bytes, moved;
} request;

/* A frame to be sent. of: the message that follows, or -1. */
typedef struct {
    head h;
    int32_t of;
} outgoing;

typedef struct {
    int fd;           /* -1: this rank itself. */
    char address[64]; /* "10.0.0.2:4711" */
    double closed_s;  /* When the connection was found to be closed; 0: it is open. */
    int closed_by;    /* errno of the closing; 0: the other side closed it. */
    outgoing out[2 * LANES];
    uint32_t out_first, out_end;
    size_t out_at; /* Bytes sent of the first frame and its message. */
    head in;       /* The frame that is being read, */
    size_t in_at;  /* and how many bytes of it and its message have been received. */
    char why[LT_COMM_WHY];
    bool failed;
    head ready[LANES]; /* The other rank's receives without a send here, oldest first. */
    int n_ready;
    /* Sends without a receive at the other rank, oldest first. */
    int32_t posted[LT_SHM_MOST_TRANSFERS];
    int n_posted;
} peer;

typedef struct {
    int rank, n;
    request requests[LT_SHM_MOST_TRANSFERS];
    peer *peers; /* (n) */
    lt_rounds rounds;
    lt_comm_store *store;
} tcp_world;

/* ---- Frames out ------------------------------------------------------------------------------ */

static void put_frame(peer *p, head h, int32_t of) {
    LT_ASSERT(p->out_end - p->out_first < 2 * LANES);
    p->out[p->out_end++ % (2 * LANES)] = (outgoing){h, of};
}

/* Send as much as the connection accepts. */
static void send_frames(tcp_world *w, peer *p) {
    while (p->out_first != p->out_end && p->closed_s == 0.0) {
        outgoing *o = &p->out[p->out_first % (2 * LANES)];
        request *r = o->of >= 0 ? &w->requests[o->of] : NULL;
        const size_t body = r != NULL ? r->bytes : 0,
                     head_at = p->out_at < sizeof o->h ? p->out_at : sizeof o->h,
                     body_at = p->out_at - head_at;
        struct iovec parts[2] = {{(char *)&o->h + head_at, sizeof o->h - head_at},
                                 {r != NULL ? r->data + body_at : NULL, body - body_at}};
        const struct msghdr m = {.msg_iov = parts, .msg_iovlen = 2};
        const ssize_t n = sendmsg(p->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) {
            if (errno != EAGAIN && errno != EINTR) {
                p->closed_by = errno;
                p->closed_s = lt_clock_s();
            }
            return;
        }
        p->out_at += (size_t)n;
        if (p->out_at == sizeof o->h + body) {
            if (r != NULL) {
                r->done = true;
            }
            p->out_at = 0;
            p->out_first++;
        }
    }
}

/* Answer each receive for which there is a send. */
static void match(tcp_world *w, peer *p) {
    for (int i = 0; i < p->n_posted; i++) {
        const int32_t id = p->posted[i];
        const request *r = &w->requests[id];
        int k = 0;
        while (k < p->n_ready && p->ready[k].tag != r->tag) {
            k++;
        }
        if (k == p->n_ready) {
            continue;
        }
        const bool equal = p->ready[k].bytes == r->bytes;
        /* A send of another size ends the world. */
        put_frame(p,
                  (head){.kind = equal ? DATA : UNEQUAL, .id = p->ready[k].id, .bytes = r->bytes},
                  equal ? id : -1);
        p->n_ready--;
        memmove(&p->ready[k], &p->ready[k + 1], (size_t)(p->n_ready - k) * sizeof *p->ready);
        p->n_posted--;
        memmove(&p->posted[i], &p->posted[i + 1], (size_t)(p->n_posted - i) * sizeof *p->posted);
        i--;
    }
}

/* ---- Frames in ------------------------------------------------------------------------------- */

/* The receive that a frame answers; NULL: there is none. */
static request *answered(tcp_world *w, const peer *p, const head *h) {
    request *r = h->id >= 0 && h->id < LT_SHM_MOST_TRANSFERS ? &w->requests[h->id] : NULL;
    const bool fits = r != NULL && r->used && r->is_recv && !r->done && &w->peers[r->rank] == p &&
                      (h->kind != DATA || h->bytes == r->bytes);
    return fits ? r : NULL;
}

/* A whole frame has been received. */
static void end_frame(tcp_world *w, peer *p) {
    const head *h = &p->in;
    request *r = h->kind == DATA || h->kind == UNEQUAL ? answered(w, p, h) : NULL;
    if (h->kind == READY) {
        p->ready[p->n_ready++] = *h;
        match(w, p);
    } else if (r != NULL) {
        r->moved = (size_t)h->bytes;
        r->done = true;
    } else {
        p->failed = true;
    }
    p->in_at = 0;
}

/* Where the next bytes go, and how many; *room 0: the frame is complete. False: no rank sends such
 * a frame. */
static bool place(tcp_world *w, peer *p, char **to, size_t *room) {
    const head *h = &p->in;
    const size_t at = p->in_at - sizeof *h;
    request *r;
    *room = 0;
    if (p->in_at < sizeof *h) {
        *to = (char *)&p->in + p->in_at;
        *room = sizeof *h - p->in_at;
        return true;
    }
    switch (h->kind) {
    case READY:
        return p->n_ready < LANES;
    case UNEQUAL:
        return answered(w, p, h) != NULL;
    case DATA:
        r = answered(w, p, h);
        *to = r != NULL ? r->data + at : NULL;
        *room = r != NULL ? r->bytes - at : 0;
        return r != NULL;
    case FAILED:
        *to = p->why + at;
        *room = h->bytes < sizeof p->why ? (size_t)h->bytes - at : 0;
        return h->bytes < sizeof p->why;
    default:
        return false;
    }
}

static void receive_frames(tcp_world *w, peer *p) {
    size_t total = 0;
    while (p->closed_s == 0.0 && !p->failed && total < AT_ONCE) {
        char *to = NULL;
        size_t room;
        ssize_t n;
        if (!place(w, p, &to, &room)) {
            (void)snprintf(p->why, sizeof p->why, "rank %d (%s) sends a frame that no rank sends",
                           (int)(p - w->peers), p->address);
            p->failed = true;
            return;
        }
        if (room == 0) {
            end_frame(w, p);
            continue;
        }
        n = recv(p->fd, to, room, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n <= 0) {
            p->closed_by = n < 0 ? errno : 0;
            p->closed_s = lt_clock_s();
            return;
        }
        p->in_at += (size_t)n;
        total += (size_t)n;
    }
}

/* ---- The link -------------------------------------------------------------------------------- */

static int32_t take_request(tcp_world *w, request r) {
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
    tcp_world *w = of;
    peer *p = &w->peers[rank];
    const int32_t id = take_request(
        w, (request){.rank = rank, .tag = tag, .data = (char *)(uintptr_t)data, .bytes = bytes});
    p->posted[p->n_posted++] = id;
    match(w, p);
    send_frames(w, p);
    *out = &w->requests[id];
    return LT_OK;
}

static lt_err receive_bytes(void *of, void *data, size_t bytes, int rank, int tag, void **out) {
    tcp_world *w = of;
    peer *p = &w->peers[rank];
    const int32_t id = take_request(
        w, (request){.is_recv = true, .rank = rank, .tag = tag, .data = data, .bytes = bytes});
    put_frame(p, (head){.kind = READY, .id = id, .tag = tag, .bytes = bytes}, -1);
    send_frames(w, p);
    *out = &w->requests[id];
    return LT_OK;
}

static lt_err test_request(void *of, void **out, size_t *bytes) {
    tcp_world *w = of;
    request *r = *out;
    peer *p = &w->peers[r->rank];
    if (!r->done) {
        receive_frames(w, p);
        send_frames(w, p);
    }
    if (r->done) {
        *bytes = r->moved;
        r->used = false;
        *out = NULL;
        return LT_OK;
    }
    if (p->failed) {
        LT_FAIL(LT_ERR_REMOTE, "%s", p->why);
    }
    if (p->closed_s > 0.0 && lt_clock_s() > p->closed_s + CLOSED_S) {
        if (p->closed_by != 0 && p->closed_by != ECONNRESET && p->closed_by != EPIPE) {
            LT_FAIL(LT_ERR_REMOTE, "rank %d (%s) is not reached any more: %s", r->rank, p->address,
                    strerror(p->closed_by));
        }
        LT_FAIL(LT_ERR_REMOTE, "rank %d has closed its connection (%s)", r->rank, p->address);
    }
    return LT_OK;
}

static const lt_link link_tcp = {send_bytes, receive_bytes, test_request};

/* ---- The transport --------------------------------------------------------------------------- */

static lt_advance advance(lt_call *call) {
    tcp_world *w = call->group->comm->world;
    return lt_rounds_advance(&w->rounds, call);
}

static void missing(const lt_call *call, char *out, size_t out_bytes) {
    const tcp_world *w = call->group->comm->world;
    lt_rounds_missing(&w->rounds, call, out, out_bytes);
}

/* If a message is half sent, the reason cannot be sent: that rank sees the connection close. */
static void tell_all(lt_comm *c) {
    tcp_world *w = c->world;
    struct {
        head h;
        char why[LT_COMM_WHY];
    } frame = {.h = {.kind = FAILED, .bytes = strlen(c->why)}};
    (void)snprintf(frame.why, sizeof frame.why, "%s", c->why);
    for (int r = 0; r < w->n; r++) {
        peer *p = &w->peers[r];
        if (p->fd >= 0) {
            if (p->out_at == 0 && p->closed_s == 0.0) {
                (void)!send(p->fd, &frame, sizeof frame.h + (size_t)frame.h.bytes,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
            }
            (void)shutdown(p->fd, SHUT_WR);
            p->closed_s = lt_clock_s();
        }
    }
}

static void world_free(tcp_world *w) {
    if (w != NULL) {
        lt_comm_store_close(w->store);
        for (int r = 0; w->peers != NULL && r < w->n; r++) {
            if (w->peers[r].fd >= 0) {
                (void)close(w->peers[r].fd);
            }
        }
        lt_rounds_close(&w->rounds);
        free(w->peers);
        free(w);
    }
}

static void close_world(lt_comm *c) {
    world_free(c->world);
}

const lt_transport lt_transport_tcp = {.name = "tcp",
                                       .poll_us = POLL_US,
                                       .group_open = lt_rounds_group_open,
                                       .advance = advance,
                                       .missing = missing,
                                       .abort = tell_all,
                                       .close = close_world};

/* ---- Connecting ------------------------------------------------------------------------------ */

/* Listen at an address of this machine. *fd is set even if a later call fails. */
static lt_err listen_here(const tcp_world *w, int *fd, char address[64]) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    socklen_t bytes = sizeof a;
    char host[LT_STORE_ADDRESS];
    LT_TRY(lt_comm_store_here(w->store, host));
    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || inet_pton(AF_INET, host, &a.sin_addr) != 1 ||
        bind(*fd, (const struct sockaddr *)&a, sizeof a) != 0 || listen(*fd, 1024) != 0 ||
        getsockname(*fd, (struct sockaddr *)&a, &bytes) != 0) {
        LT_FAIL(LT_ERR_IO, "rank %d: listen at %s: %s", w->rank, host, strerror(errno));
    }
    (void)snprintf(address, 64, "%.47s:%d", host, ntohs(a.sin_port));
    return LT_OK;
}

static bool parse_address(const char *text, struct sockaddr_in *a) {
    char host[64];
    const char *colon = strrchr(text, ':');
    const int port = colon != NULL ? atoi(colon + 1) : 0;
    *a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    return colon != NULL && port > 0 && port < 65536 &&
           snprintf(host, sizeof host, "%.*s", (int)(colon - text), text) < (int)sizeof host &&
           inet_pton(AF_INET, host, &a->sin_addr) == 1;
}

static bool wait_until(int fd, short events, double until_s) {
    struct pollfd p = {.fd = fd, .events = events};
    const double left_s = until_s - lt_clock_s();
    return left_s > 0.0 && poll(&p, 1, (int)(left_s * 1e3) + 1) > 0;
}

static void use_connection(peer *p, int fd) {
    const double silent_s = lt_launched_silent_s();
    const int one = 1, ms = (int)(silent_s * 1e3), ask_s = silent_s < 6.0 ? 1 : (int)(silent_s / 3);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (silent_s > 0.0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &ask_s, sizeof ask_s);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &ask_s, sizeof ask_s);
        (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    }
    p->fd = fd;
}

/* Connect to a rank with a smaller number, which listens. */
static lt_err connect_to(tcp_world *w, int rank, const greeting *own, double until_s) {
    peer *p = &w->peers[rank];
    struct sockaddr_in a;
    char key[32];
    size_t bytes = 0;
    int fd, failure = 0;
    socklen_t n = sizeof failure;
    (void)snprintf(key, sizeof key, "tcp/%d", rank);
    LT_TRY(lt_comm_store_get(w->store, key, p->address, sizeof p->address - 1, &bytes,
                             until_s - lt_clock_s()));
    p->address[bytes] = '\0';
    if (!parse_address(p->address, &a)) {
        LT_FAIL(LT_ERR_FORMAT, "address of rank %d: '%s'", rank, p->address);
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        LT_FAIL(LT_ERR_IO, "connection to rank %d: %s", rank, strerror(errno));
    }
    use_connection(p, fd);
    if ((connect(fd, (const struct sockaddr *)&a, sizeof a) != 0 && errno != EINPROGRESS) ||
        !wait_until(fd, POLLOUT, until_s) ||
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &n) != 0 || failure != 0 ||
        send(fd, own, sizeof *own, MSG_NOSIGNAL) != (ssize_t)sizeof *own) {
        LT_FAIL(LT_ERR_REMOTE, "rank %d cannot be reached at %s: %s", rank, p->address,
                failure != 0 ? strerror(failure) : "no answer");
    }
    return LT_OK;
}

/* A connection that has not yet identified itself. */
typedef struct {
    int fd;
    double since_s;
    greeting said;
    size_t n;
    char address[64];
} stranger;

typedef struct {
    stranger all[STRANGERS]; /* Oldest first. */
    int n;
} strangers;

static void drop(strangers *s, int i, bool close_it) {
    if (close_it) {
        (void)close(s->all[i].fd);
    }
    s->n--;
    memmove(&s->all[i], &s->all[i + 1], (size_t)(s->n - i) * sizeof *s->all);
}

static void accept_one(strangers *s, int listener) {
    struct sockaddr_in a = {0};
    socklen_t bytes = sizeof a;
    char host[INET_ADDRSTRLEN] = "?";
    const int fd = accept4(listener, (struct sockaddr *)&a, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        return;
    }
    if (s->n == STRANGERS) { /* Close the oldest, which is the first. */
        drop(s, 0, true);
    }
    (void)inet_ntop(AF_INET, &a.sin_addr, host, sizeof host);
    s->all[s->n] = (stranger){.fd = fd, .since_s = lt_clock_s()};
    (void)snprintf(s->all[s->n++].address, 64, "%.47s:%d", host, ntohs(a.sin_port));
}

/* Whether this connection's greeting is that of a rank that is still missing. */
static bool is_missing_rank(const tcp_world *w, const greeting *own, greeting *g) {
    g->token[sizeof g->token - 1] = '\0';
    return g->magic == MAGIC && g->epoch == own->epoch && g->n == own->n && g->rank > w->rank &&
           g->rank < w->n && lt_comm_store_is_token(own->token, g->token) &&
           w->peers[g->rank].fd < 0;
}

/* Read the strangers' greetings; returns how many ranks have arrived. */
static int hear(tcp_world *w, strangers *s, const greeting *own) {
    int came = 0;
    for (int i = s->n - 1; i >= 0; i--) {
        stranger *x = &s->all[i];
        const ssize_t n = recv(x->fd, (char *)&x->said + x->n, sizeof x->said - x->n, MSG_DONTWAIT);
        const bool waits = n < 0 && (errno == EAGAIN || errno == EINTR);
        x->n += n > 0 ? (size_t)n : 0;
        if (x->n == sizeof x->said && is_missing_rank(w, own, &x->said)) {
            peer *p = &w->peers[x->said.rank];
            memcpy(p->address, x->address, sizeof p->address);
            use_connection(p, x->fd);
            drop(s, i, false);
            came++;
        } else if ((n <= 0 && !waits) || x->n == sizeof x->said ||
                   lt_clock_s() > x->since_s + STRANGER_S) {
            drop(s, i, true);
        }
    }
    return came;
}

/* Wait until all ranks with larger numbers have connected, or one is known not to come. */
static lt_err accept_all(tcp_world *w, int listener, const greeting *own, double until_s) {
    lt_err err = LT_OK;
    strangers s = {.n = 0};
    struct pollfd polls[1 + STRANGERS];
    int left = w->n - 1 - w->rank;
    while (left > 0 && lt_clock_s() < until_s) {
        polls[0] = (struct pollfd){.fd = listener, .events = POLLIN};
        for (int i = 0; i < s.n; i++) {
            polls[1 + i] = (struct pollfd){.fd = s.all[i].fd, .events = POLLIN};
        }
        if (poll(polls, (nfds_t)(1 + s.n), 100) == 0) {
            LT_TRY_DONE(lt_comm_store_heed(w->store));
        }
        if ((polls[0].revents & POLLIN) != 0) {
            accept_one(&s, listener);
        }
        left -= hear(w, &s, own);
    }
    for (int r = w->rank + 1; left > 0 && r < w->n; r++) {
        if (w->peers[r].fd < 0) {
            LT_FAIL_DONE(LT_ERR_REMOTE, "rank %d and %d others have not connected to rank %d", r,
                         left - 1, w->rank);
        }
    }
done:
    while (s.n > 0) {
        drop(&s, 0, true);
    }
    return err;
}

static lt_err connect_all(tcp_world *w, const lt_launched *l) {
    lt_err err = LT_OK;
    const double until_s = lt_clock_s() + lt_launched_open_s(l);
    greeting own = {.magic = MAGIC, .epoch = l->epoch, .rank = l->rank, .n = l->n};
    char address[64], key[32];
    int listener = -1;

    (void)snprintf(own.token, sizeof own.token, "%s", l->token);
    LT_TRY_DONE(listen_here(w, &listener, address));
    (void)snprintf(key, sizeof key, "tcp/%d", w->rank);
    LT_TRY_DONE(lt_comm_store_set(w->store, key, address, strlen(address)));
    for (int r = 0; r < w->rank; r++) {
        LT_TRY_DONE(connect_to(w, r, &own, until_s));
    }
    LT_TRY_DONE(accept_all(w, listener, &own, until_s));
done:
    if (listener >= 0) {
        (void)close(listener);
    }
    return err;
}

lt_err lt_comm_open_tcp(lt_comm **out, const lt_comm_options *o) {
    lt_err err = LT_OK;
    lt_comm_options options = o != NULL ? *o : (lt_comm_options){0};
    lt_launched l;
    lt_comm *c = NULL;
    tcp_world *w = NULL;

    LT_TRY(lt_launched_read(&l));
    w = calloc(1, sizeof *w);
    if (w == NULL || (w->peers = calloc((size_t)l.n, sizeof *w->peers)) == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "rank %d", l.rank);
    }
    w->rank = l.rank;
    w->n = l.n;
    for (int r = 0; r < w->n; r++) {
        w->peers[r].fd = -1;
    }
    LT_TRY_DONE(lt_rounds_open(&w->rounds, &link_tcp, w, w->n));
    LT_TRY_DONE(lt_launched_join(&w->store, &l));
    LT_TRY_DONE(connect_all(w, &l));
    options.epoch = l.epoch;
    LT_TRY_DONE(lt_comm_begin(&c, &lt_transport_tcp, w, w->rank, w->n, &options, NULL, NULL));
    w = NULL; /* Owned by the rank's comm now. */
    LT_TRY_DONE(lt_launched_begin(((tcp_world *)c->world)->store, &l, c));
    *out = c;
    c = NULL;
done:
    world_free(w);
    lt_comm_close(c);
    return err;
}

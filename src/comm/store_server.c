/* store_server.c: the store's server: one thread, poll(), and a fixed number of slots for
 * connections. See store.h for the protocol.
 *
 *     a connection:  stranger ──HELLO──▶ client ──BEAT──▶ the heartbeat of its rank
 *
 * A request that cannot be answered yet stays in its connection, which reads no other meanwhile.
 * When a key changes, all connections are searched for those that wait for it: they are few, and
 * the thread is idle most of the time. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/encoding.h"
#include "base/error.h"
#include "comm/store_frame.h"
#include "comm/store_table.h"

#define MS          1000000u
#define STRANGER_MS 5000u
/* A longer delay means that this thread itself was stopped, so no client is to blame. */
#define LATE_MS       1000u
#define SLEEP_MS      1000
#define STRANGER_MOST (LT_STORE_REQUEST_HEAD + LT_STORE_KEY + 64)
#define OUT_MOST      (LT_STORE_REPLY_MOST + LT_STORE_REPLY_HEAD + LT_STORE_NOTICE)

typedef struct {
    int fd; /* -1: the slot is free. */
    bool known, waits, closing;
    int rank;
    /* When it was accepted; when its waiting request will be answered with TIMEOUT. */
    uint64_t since_ns, until_ns;
    lt_comm_store_request request; /* The waiting request; its value is not kept. */
    bool beats;
    /* Time of the last beat, and the longest silence that is allowed; 0: no beat is due. */
    uint64_t beat_ns, silent_ns;
    unsigned char *in, *out;
    size_t in_bytes, in_room, out_bytes, out_at, out_room;
} connection;

struct lt_comm_store_server {
    pthread_mutex_t lock;
    pthread_t thread;
    bool running, closing;
    int listener, bell, n_ranks, n_places, n_strangers;
    char address[LT_STORE_ADDRESS], token[LT_STORE_TOKEN], notice[LT_STORE_NOTICE];
    uint64_t epoch;
    lt_comm_store_table table;
    connection *places;
    struct pollfd *polls; /* (n_places + 2): the bell, the listener, the connections; */
    int *polled;          /* (n_places + 2): and the slots of the connections. */
    lt_life *life;        /* (n_ranks) */
    bool *came;           /* (n_ranks): which ranks wait at the barrier. */
};

/* ---- Sending --------------------------------------------------------------------------------- */

static void drop(lt_comm_store_server *s, connection *c);

static bool reserve(unsigned char **buffer, size_t *room, size_t bytes) {
    unsigned char *more;
    size_t want = *room > 0 ? *room : 256;
    while (want < bytes) {
        want *= 2;
    }
    if (want == *room) {
        return true;
    }
    more = realloc(*buffer, want);
    if (more == NULL) {
        return false;
    }
    *buffer = more;
    *room = want;
    return true;
}

static void send_out(lt_comm_store_server *s, connection *c) {
    while (c->out_at < c->out_bytes) {
        const ssize_t n = send(c->fd, c->out + c->out_at, c->out_bytes - c->out_at,
                               MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n <= 0) {
            drop(s, c);
            return;
        }
        c->out_at += (size_t)n;
    }
    c->out_at = c->out_bytes = 0;
    if (c->closing) {
        drop(s, c);
    }
}

static void reply(lt_comm_store_server *s, connection *c, lt_comm_store_reply r) {
    if (c->out_bytes + LT_STORE_REPLY_HEAD + r.value_bytes > OUT_MOST ||
        !reserve(&c->out, &c->out_room, c->out_bytes + LT_STORE_REPLY_HEAD + r.value_bytes)) {
        drop(s, c);
        return;
    }
    c->out_bytes += lt_comm_store_reply_write(c->out + c->out_bytes, &r);
    send_out(s, c);
}

static void answer(lt_comm_store_server *s, connection *c, lt_comm_store_status status) {
    reply(s, c, (lt_comm_store_reply){.status = status});
}

static void answer_value(lt_comm_store_server *s, connection *c, const lt_comm_store_entry *e) {
    lt_comm_store_reply r = {
        .version = e->version, .value = e->value, .value_bytes = (uint32_t)e->bytes};
    if (e->bytes == sizeof r.number) {
        memcpy(&r.number, e->value, sizeof r.number);
    }
    reply(s, c, r);
}

/* ---- Who waits ------------------------------------------------------------------------------- */

static bool waits_for(const connection *c, lt_comm_store_op op, const char *key) {
    return c->fd >= 0 && c->waits && c->request.op == op && strcmp(c->request.key, key) == 0;
}

/* The key has changed: answer the clients that wait for it. */
static void wake(lt_comm_store_server *s, const char *key) {
    const lt_comm_store_entry *e = lt_comm_store_table_find(&s->table, key);
    for (int i = 0; e != NULL && i < s->n_places; i++) {
        connection *c = &s->places[i];
        if (waits_for(c, LT_STORE_GET, key) ||
            (waits_for(c, LT_STORE_WATCH, key) && e->version > (uint64_t)c->request.number)) {
            c->waits = false;
            answer_value(s, c, e);
        }
    }
}

static void set_life(lt_comm_store_server *s, int rank, lt_life life) {
    static const char *const names[] = {"none", "alive", "silent", "left", "dead"};
    char key[32];
    if (rank < 0 || s->life[rank] == life || s->life[rank] == LT_LIFE_LEFT) {
        return;
    }
    s->life[rank] = life;
    (void)snprintf(key, sizeof key, "life/%d", rank);
    if (lt_comm_store_table_set(&s->table, key, names[life], strlen(names[life])) == LT_STORE_OK) {
        wake(s, key);
    }
}

static void drop(lt_comm_store_server *s, connection *c) {
    const bool beats = c->beats;
    const int rank = c->rank;
    if (c->fd < 0) {
        return;
    }
    (void)close(c->fd);
    free(c->in);
    free(c->out);
    s->n_strangers -= !c->known;
    *c = (connection){.fd = -1, .rank = -1};
    if (beats) {
        set_life(s, rank, LT_LIFE_DEAD);
    }
}

/* Mark in s->came the ranks that wait at this barrier; returns their number. */
static int who_came(lt_comm_store_server *s, const lt_comm_store_request *r) {
    int n = 0;
    memset(s->came, 0, (size_t)s->n_ranks * sizeof *s->came);
    for (int i = 0; i < s->n_places; i++) {
        const connection *c = &s->places[i];
        if (waits_for(c, LT_STORE_BARRIER, r->key) && c->request.number == r->number) {
            n += !s->came[c->rank];
            s->came[c->rank] = true;
        }
    }
    return n;
}

static void try_barrier(lt_comm_store_server *s, const lt_comm_store_request *r) {
    /* A copy, since r may belong to a connection that is answered here. */
    const lt_comm_store_request barrier = *r;
    if (who_came(s, &barrier) < (int)barrier.number) {
        return;
    }
    for (int i = 0; i < s->n_places; i++) {
        connection *c = &s->places[i];
        if (waits_for(c, LT_STORE_BARRIER, barrier.key) && c->request.number == barrier.number) {
            c->waits = false;
            answer(s, c, LT_STORE_OK);
        }
    }
}

/* A request's deadline has passed. */
static void give_up(lt_comm_store_server *s, connection *c) {
    char text[512] = "";
    size_t used = 0;
    if (c->request.op == LT_STORE_BARRIER) {
        (void)who_came(s, &c->request);
        for (int rank = 0; rank < (int)c->request.number && used < sizeof text - 32; rank++) {
            if (!s->came[rank]) {
                used += (size_t)snprintf(text + used, sizeof text - used, "%srank %d",
                                         used > 0 ? ", " : "", rank);
            }
        }
    }
    c->waits = false;
    reply(s, c,
          (lt_comm_store_reply){.status = LT_STORE_TIMEOUT,
                                .value = (const unsigned char *)text,
                                .value_bytes = (uint32_t)used});
}

/* ---- Requests -------------------------------------------------------------------------------- */

bool lt_comm_store_is_token(const char *token, const char *given) {
    const size_t n = strlen(token), m = strlen(given);
    unsigned differs = n != m;
    for (size_t i = 0; i < n; i++) {
        differs |= (unsigned)(unsigned char)token[i] ^ (i < m ? (unsigned char)given[i] : 0u);
    }
    return differs == 0;
}

static void hello(lt_comm_store_server *s, connection *c, const lt_comm_store_request *r) {
    const bool good = !c->known && lt_comm_store_is_token(s->token, r->key) &&
                      r->value_bytes == strlen(LT_STORE_GREETING) &&
                      memcmp(r->value, LT_STORE_GREETING, r->value_bytes) == 0 && r->number >= -1 &&
                      r->number < s->n_ranks;
    const lt_comm_store_status status = !good                 ? LT_STORE_REFUSED
                                        : r->epoch < s->epoch ? LT_STORE_OLD
                                        : r->epoch > s->epoch ? LT_STORE_AHEAD
                                                              : LT_STORE_OK;
    c->closing = status != LT_STORE_OK;
    if (!c->closing) {
        c->known = true;
        c->rank = (int)r->number;
        s->n_strangers--;
    }
    answer(s, c, status);
}

/* Tell a client why the world has ended. */
static void say(lt_comm_store_server *s, connection *c) {
    reply(s, c,
          (lt_comm_store_reply){.status = LT_STORE_SAYS,
                                .value = (const unsigned char *)s->notice,
                                .value_bytes = (uint32_t)strlen(s->notice)});
}

static void begin_beats(lt_comm_store_server *s, connection *c, const lt_comm_store_request *r) {
    const bool first = !c->beats;
    if (c->rank < 0) {
        c->closing = true;
        answer(s, c, LT_STORE_REFUSED);
        return;
    }
    c->beats = true;
    c->beat_ns = lt_clock_ns();
    c->silent_ns = (uint64_t)r->wait_ms * MS;
    set_life(s, c->rank, LT_LIFE_ALIVE);
    if (first && s->notice[0] != '\0') {
        say(s, c);
    }
}

/* Answer the request if possible; otherwise it waits. */
static void wait_for(lt_comm_store_server *s, connection *c, const lt_comm_store_request *r) {
    const lt_comm_store_entry *e = lt_comm_store_table_find(&s->table, r->key);
    if (r->op != LT_STORE_BARRIER && e != NULL &&
        (r->op == LT_STORE_GET || e->version > (uint64_t)r->number)) {
        answer_value(s, c, e);
        return;
    }
    if (s->notice[0] != '\0') { /* The awaited event may never happen. */
        say(s, c);
        return;
    }
    c->request = *r;
    c->request.value = NULL;
    c->waits = true;
    c->until_ns = lt_clock_ns() + (uint64_t)r->wait_ms * MS;
    if (r->op == LT_STORE_BARRIER) {
        try_barrier(s, r);
    }
}

static void change(lt_comm_store_server *s, connection *c, const lt_comm_store_request *r) {
    const lt_comm_store_entry *e;
    lt_comm_store_status status = LT_STORE_REFUSED;
    int64_t sum = 0;
    if (strncmp(r->key, "life/", 5) != 0) {
        status = r->op == LT_STORE_SET
                     ? lt_comm_store_table_set(&s->table, r->key, r->value, r->value_bytes)
                     : lt_comm_store_table_add(&s->table, r->key, r->number, &sum);
    }
    e = lt_comm_store_table_find(&s->table, r->key);
    reply(s, c,
          (lt_comm_store_reply){
              .status = status, .number = sum, .version = e != NULL ? e->version : 0});
    if (status == LT_STORE_OK) {
        wake(s, r->key);
    }
}

static void serve(lt_comm_store_server *s, connection *c, const lt_comm_store_request *r) {
    if (r->op == LT_STORE_HELLO || !c->known) {
        if (r->op == LT_STORE_HELLO) {
            hello(s, c, r);
        } else {
            drop(s, c);
        }
        return;
    }
    if (r->epoch != s->epoch) {
        answer(s, c, r->epoch < s->epoch ? LT_STORE_OLD : LT_STORE_AHEAD);
        return;
    }
    switch (r->op) {
    case LT_STORE_SET:
    case LT_STORE_ADD:
        change(s, c, r);
        break;
    case LT_STORE_BARRIER:
        if (c->rank < 0 || r->number < 1 || r->number > s->n_ranks || c->rank >= r->number) {
            answer(s, c, LT_STORE_REFUSED);
            break;
        }
        wait_for(s, c, r);
        break;
    case LT_STORE_GET:
    case LT_STORE_WATCH:
        wait_for(s, c, r);
        break;
    case LT_STORE_BEAT:
        begin_beats(s, c, r);
        break;
    default: /* BYE */
        set_life(s, c->rank, LT_LIFE_LEFT);
        answer(s, c, LT_STORE_OK);
        break;
    }
}

/* Serve the complete requests received so far, one after the other. */
static void handle(lt_comm_store_server *s, connection *c) {
    while (c->fd >= 0 && !c->waits && !c->closing && c->out_bytes == 0) {
        lt_comm_store_request r;
        const int64_t n = lt_comm_store_frame_bytes(
            c->in, c->in_bytes, c->known ? LT_STORE_REQUEST_MOST : STRANGER_MOST);
        if (n < 0 || (n > 0 && (size_t)n <= c->in_bytes &&
                      !lt_comm_store_request_read(&r, c->in, (size_t)n))) {
            drop(s, c);
            return;
        }
        if (n == 0 || (size_t)n > c->in_bytes) {
            return;
        }
        serve(s, c, &r);
        if (c->fd >= 0) {
            c->in_bytes -= (size_t)n;
            memmove(c->in, c->in + n, c->in_bytes);
        }
    }
}

static void receive(lt_comm_store_server *s, connection *c) {
    const size_t most = c->known ? LT_STORE_REQUEST_MOST : STRANGER_MOST;
    const int64_t frame = lt_comm_store_frame_bytes(c->in, c->in_bytes, most);
    const size_t want = frame > 0 && (size_t)frame > c->in_bytes ? (size_t)frame : 256;
    ssize_t n;
    if (c->in_bytes >= most ||
        !reserve(&c->in, &c->in_room, want > c->in_bytes ? want : c->in_bytes + 1)) {
        drop(s, c);
        return;
    }
    n = recv(c->fd, c->in + c->in_bytes, c->in_room - c->in_bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        drop(s, c);
        return;
    }
    c->in_bytes += (size_t)n;
}

/* ---- The thread ------------------------------------------------------------------------------ */

static connection *free_place(lt_comm_store_server *s) {
    connection *oldest = NULL;
    if (s->n_strangers >= LT_STORE_STRANGERS) {
        for (int i = 0; i < s->n_places; i++) {
            connection *c = &s->places[i];
            if (c->fd >= 0 && !c->known && (oldest == NULL || c->since_ns < oldest->since_ns)) {
                oldest = c;
            }
        }
        if (oldest != NULL) {
            drop(s, oldest);
        }
    }
    for (int i = 0; i < s->n_places; i++) {
        if (s->places[i].fd < 0) {
            return &s->places[i];
        }
    }
    return NULL;
}

static void accept_one(lt_comm_store_server *s) {
    const int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK), one = 1;
    connection *c = fd >= 0 ? free_place(s) : NULL;
    if (fd < 0) {
        return;
    }
    if (c == NULL) {
        (void)close(fd);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *c = (connection){.fd = fd, .rank = -1, .since_ns = lt_clock_ns()};
    s->n_strangers++;
}

/* Do the work due at `now`; returns when more is due. */
static uint64_t look_at_clock(lt_comm_store_server *s, uint64_t now) {
    uint64_t next = now + (uint64_t)SLEEP_MS * MS;
    for (int i = 0; i < s->n_places; i++) {
        connection *c = &s->places[i];
        uint64_t due = 0;
        if (c->fd >= 0 && !c->known) {
            due = c->since_ns + (uint64_t)STRANGER_MS * MS;
            if (due <= now) {
                drop(s, c);
            }
        } else if (c->fd >= 0 && c->waits) {
            due = c->until_ns;
            if (due <= now) {
                give_up(s, c);
            }
        } else if (c->fd >= 0 && c->beats && c->silent_ns > 0 && s->life[c->rank] != LT_LIFE_LEFT) {
            due = c->beat_ns + c->silent_ns;
            if (due <= now) {
                set_life(s, c->rank, LT_LIFE_SILENT);
            }
        }
        next = due > now && due < next ? due : next;
    }
    return next;
}

/* This process was stopped for a while and did not read what was sent to it: extend the
 * deadlines. */
static void forgive(lt_comm_store_server *s, uint64_t late_ns) {
    for (int i = 0; i < s->n_places; i++) {
        s->places[i].since_ns += late_ns;
        s->places[i].until_ns += late_ns;
        s->places[i].beat_ns += late_ns;
    }
}

static void one_round(lt_comm_store_server *s, int n_polls) {
    uint64_t count;
    if ((s->polls[0].revents & POLLIN) != 0) {
        (void)!read(s->bell, &count, sizeof count);
    }
    for (int i = 2; i < n_polls; i++) {
        connection *c = &s->places[s->polled[i]];
        if (c->fd == s->polls[i].fd && (s->polls[i].revents & POLLOUT) != 0) {
            send_out(s, c);
        }
        if (c->fd == s->polls[i].fd && (s->polls[i].revents & ~POLLOUT) != 0) {
            receive(s, c);
        }
    }
    for (int i = 0; i < s->n_places; i++) { /* Connections that were just answered are included. */
        if (s->places[i].fd >= 0 && s->places[i].in_bytes > 0) {
            handle(s, &s->places[i]);
        }
    }
    if ((s->polls[1].revents & POLLIN) != 0) {
        accept_one(s);
    }
}

static void *run(void *arg) {
    lt_comm_store_server *s = arg;
    (void)pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        const uint64_t now = lt_clock_ns(), next = look_at_clock(s, now);
        const int wait_ms = (int)((next - now) / MS) + 1;
        uint64_t after;
        int n = 2;
        s->polls[0] = (struct pollfd){.fd = s->bell, .events = POLLIN};
        s->polls[1] = (struct pollfd){.fd = s->listener, .events = POLLIN};
        for (int i = 0; i < s->n_places; i++) {
            const connection *c = &s->places[i];
            if (c->fd >= 0) {
                /* Nothing is read from a client that waits or does not read its replies, but its
                 * closing is noticed. */
                const bool reads = !c->closing && !c->waits && c->out_bytes == 0;
                s->polled[n] = i;
                s->polls[n++] = (struct pollfd){
                    .fd = c->fd,
                    .events = (short)((reads ? POLLIN : POLLRDHUP) |
                                      (c->out_bytes > c->out_at ? POLLOUT : 0))};
            }
        }
        (void)pthread_mutex_unlock(&s->lock);
        (void)poll(s->polls, (nfds_t)n, wait_ms);
        (void)pthread_mutex_lock(&s->lock);
        after = lt_clock_ns();
        if (after > now + (uint64_t)(wait_ms + (int)LATE_MS) * MS) {
            forgive(s, after - now);
        }
        one_round(s, n);
    }
    (void)pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- Opening --------------------------------------------------------------------------------- */

static lt_err listen_at(lt_comm_store_server *s, const char *host, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t bytes = sizeof a;
    const int one = 1;
    if (inet_pton(AF_INET, host, &a.sin_addr) != 1) {
        LT_FAIL(LT_ERR_ARG, "store: '%s' is not an IPv4 address of this machine", host);
    }
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->listener < 0 ||
        setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0 ||
        bind(s->listener, (const struct sockaddr *)&a, sizeof a) != 0 ||
        listen(s->listener, 1024) != 0 ||
        getsockname(s->listener, (struct sockaddr *)&a, &bytes) != 0) {
        LT_FAIL(LT_ERR_IO, "store: listen at %s:%d: %s", host, port, strerror(errno));
    }
    (void)snprintf(s->address, sizeof s->address, "%s:%d", host, ntohs(a.sin_port));
    return LT_OK;
}

lt_err lt_comm_store_server_open(lt_comm_store_server **out, const char *host, int port,
                                 int n_ranks, const char *token, uint64_t epoch) {
    lt_err err = LT_OK;
    lt_comm_store_server *s = calloc(1, sizeof *s);

    LT_ASSERT(n_ranks > 0 && strlen(token) < LT_STORE_TOKEN && token[0] != '\0');
    if (s == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "store");
    }
    (void)pthread_mutex_init(&s->lock, NULL);
    s->listener = s->bell = -1;
    s->n_ranks = n_ranks;
    s->epoch = epoch;
    (void)snprintf(s->token, sizeof s->token, "%s", token);
    s->n_places = 4 * n_ranks + 16 + LT_STORE_STRANGERS;
    s->places = calloc((size_t)s->n_places, sizeof *s->places);
    s->polls = calloc((size_t)s->n_places + 2, sizeof *s->polls);
    s->polled = calloc((size_t)s->n_places + 2, sizeof *s->polled);
    s->life = calloc((size_t)n_ranks, sizeof *s->life);
    s->came = calloc((size_t)n_ranks, sizeof *s->came);
    if (s->places == NULL || s->polls == NULL || s->polled == NULL || s->life == NULL ||
        s->came == NULL) {
        s->n_places = 0;
        LT_FAIL_DONE(LT_ERR_OOM, "store of %d ranks", n_ranks);
    }
    for (int i = 0; i < s->n_places; i++) {
        s->places[i] = (connection){.fd = -1, .rank = -1};
    }
    LT_TRY_DONE(listen_at(s, host, port));
    s->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->bell < 0 || pthread_create(&s->thread, NULL, run, s) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "store: thread");
    }
    s->running = true;
    *out = s;
    s = NULL;
done:
    lt_comm_store_server_close(s);
    return err;
}

static void ring(lt_comm_store_server *s) {
    const uint64_t one = 1;
    (void)!write(s->bell, &one, sizeof one);
}

void lt_comm_store_server_close(lt_comm_store_server *s) {
    if (s == NULL) {
        return;
    }
    if (s->running) {
        (void)pthread_mutex_lock(&s->lock);
        s->closing = true;
        ring(s);
        (void)pthread_mutex_unlock(&s->lock);
        (void)pthread_join(s->thread, NULL);
    }
    for (int i = 0; i < s->n_places; i++) {
        drop(s, &s->places[i]);
    }
    if (s->listener >= 0) {
        (void)close(s->listener);
    }
    if (s->bell >= 0) {
        (void)close(s->bell);
    }
    lt_comm_store_table_clear(&s->table);
    free(s->places);
    free(s->polls);
    free(s->polled);
    free(s->life);
    free(s->came);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

const char *lt_comm_store_server_address(const lt_comm_store_server *s) {
    return s->address;
}

void lt_comm_store_server_begin(lt_comm_store_server *s, uint64_t epoch) {
    (void)pthread_mutex_lock(&s->lock);
    LT_ASSERT(epoch > s->epoch);
    s->epoch = epoch;
    for (int i = 0; i < s->n_places; i++) {
        connection *c = &s->places[i];
        if (c->fd >= 0 && c->known) {
            c->beats = false;
            c->closing = true;
            if (c->waits) {
                c->waits = false;
                answer(s, c, LT_STORE_OLD);
            } else if (c->out_bytes == 0) {
                drop(s, c);
            }
        }
    }
    lt_comm_store_table_clear(&s->table);
    memset(s->life, 0, (size_t)s->n_ranks * sizeof *s->life);
    s->notice[0] = '\0';
    ring(s);
    (void)pthread_mutex_unlock(&s->lock);
}

lt_life lt_comm_store_server_life(lt_comm_store_server *s, int rank) {
    lt_life life;
    (void)pthread_mutex_lock(&s->lock);
    life = s->life[rank];
    (void)pthread_mutex_unlock(&s->lock);
    return life;
}

bool lt_comm_store_server_peek(lt_comm_store_server *s, const char *key, void *value, size_t room,
                               size_t *bytes, uint64_t *version) {
    const lt_comm_store_entry *e;
    bool fits;
    (void)pthread_mutex_lock(&s->lock);
    e = lt_comm_store_table_find(&s->table, key);
    fits = e != NULL && e->bytes <= room;
    if (fits) {
        memcpy(value, e->value, e->bytes);
        *bytes = e->bytes;
        *version = e->version;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return fits;
}

void lt_comm_store_server_notice(lt_comm_store_server *s, const char *text) {
    (void)pthread_mutex_lock(&s->lock);
    (void)snprintf(s->notice, sizeof s->notice, "%s", text);
    for (int i = 0; i < s->n_places; i++) {
        connection *c = &s->places[i];
        if (c->fd >= 0 && (c->beats || c->waits)) {
            c->waits = false;
            say(s, c);
        }
    }
    ring(s);
    (void)pthread_mutex_unlock(&s->lock);
}

lt_err lt_comm_store_token(char out[LT_STORE_TOKEN]) {
    unsigned char bytes[(LT_STORE_TOKEN - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) {
        LT_FAIL(LT_ERR_IO, "random bytes: %s", strerror(errno));
    }
    lt_hex_write(out, bytes, sizeof bytes);
    return LT_OK;
}

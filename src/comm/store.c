/* store.c: a client of the store. See store.h. Requests and replies use one connection; heartbeats
 * and the server's notice use another, which has a thread of its own, so a rank that waits for a
 * reply or computes still counts as alive. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/store_frame.h"

#define NS          1000000000.0
#define SLACK_S     10.0 /* Extra time for the server's answer after the deadline of a request. */
#define RETRY_MS    50
#define WAIT_MOST_S 4e6

struct lt_comm_store {
    pthread_mutex_t lock; /* Protects fd and frame. */
    int fd, live_fd, bell;
    char address[LT_STORE_ADDRESS], token[LT_STORE_TOKEN];
    int rank;
    uint64_t epoch;
    bool broken; /* A reply was missed, so no further request is possible. */
    unsigned char *frame;
    pthread_t thread;
    bool lives;
    double every_s, silent_s;
    void (*on_notice)(void *ctx, const char *text);
    void *ctx;
};

/* ---- Frames over a socket -------------------------------------------------------------------- */

/* Wait until the socket is ready for `events`; REMOTE at the deadline. */
static lt_err ready(const lt_comm_store *s, int fd, short events, double until_s) {
    for (;;) {
        struct pollfd p = {.fd = fd, .events = events};
        const double left_s = until_s - lt_clock_s();
        const int n = poll(&p, 1, left_s > 0.0 ? (int)(left_s * 1e3) + 1 : 0);
        if (n > 0) {
            return LT_OK;
        }
        if (n == 0 && left_s <= 0.0) {
            LT_FAIL(LT_ERR_REMOTE, "store %s does not answer", s->address);
        }
    }
}

static lt_err send_all(const lt_comm_store *s, int fd, const unsigned char *data, size_t bytes,
                       double until_s) {
    for (size_t at = 0; at < bytes;) {
        const ssize_t n = send(fd, data + at, bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            LT_TRY(ready(s, fd, POLLOUT, until_s));
        } else if (n <= 0 && errno != EINTR) {
            LT_FAIL(LT_ERR_REMOTE, "store %s has gone: %s", s->address, strerror(errno));
        } else {
            at += n > 0 ? (size_t)n : 0;
        }
    }
    return LT_OK;
}

static lt_err receive_all(const lt_comm_store *s, int fd, unsigned char *data, size_t bytes,
                          double until_s) {
    for (size_t at = 0; at < bytes;) {
        ssize_t n;
        LT_TRY(ready(s, fd, POLLIN, until_s));
        n = recv(fd, data + at, bytes - at, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) {
            LT_FAIL(LT_ERR_REMOTE, "store %s has gone%s%s", s->address, n < 0 ? ": " : "",
                    n < 0 ? strerror(errno) : "");
        }
        at += n > 0 ? (size_t)n : 0;
    }
    return LT_OK;
}

static lt_err receive_reply(const lt_comm_store *s, int fd, unsigned char *frame,
                            lt_comm_store_reply *r, double until_s) {
    int64_t bytes;
    LT_TRY(receive_all(s, fd, frame, 4, until_s));
    bytes = lt_comm_store_frame_bytes(frame, 4, LT_STORE_REPLY_MOST);
    if (bytes < 4) {
        LT_FAIL(LT_ERR_FORMAT, "store %s answers with no frame", s->address);
    }
    LT_TRY(receive_all(s, fd, frame + 4, (size_t)bytes - 4, until_s));
    if (!lt_comm_store_reply_read(r, frame, (size_t)bytes)) {
        LT_FAIL(LT_ERR_FORMAT, "store %s answers with a bad frame", s->address);
    }
    return LT_OK;
}

static lt_err judge(const lt_comm_store *s, const lt_comm_store_request *q,
                    const lt_comm_store_reply *r) {
    switch (r->status) {
    case LT_STORE_OK:
        return LT_OK;
    case LT_STORE_TIMEOUT:
        if (q->op == LT_STORE_BARRIER) {
            LT_FAIL(LT_ERR_REMOTE, "barrier '%s' of %lld ranks: %.*s did not come, after %.3g s",
                    q->key, (long long)q->number, (int)r->value_bytes, (const char *)r->value,
                    q->wait_ms * 1e-3);
        }
        LT_FAIL(LT_ERR_REMOTE, "store: '%s' was not set within %.3g s", q->key, q->wait_ms * 1e-3);
    case LT_STORE_OLD:
    case LT_STORE_AHEAD:
        LT_FAIL(LT_ERR_STATE, "store %s: generation %llu of attempt %llu is %s", s->address,
                (unsigned long long)(s->epoch & 0xffffffffu), (unsigned long long)(s->epoch >> 32),
                r->status == LT_STORE_OLD ? "over" : "not there yet");
    case LT_STORE_SAYS:
        LT_FAIL(LT_ERR_REMOTE, "%.*s", (int)r->value_bytes, (const char *)r->value);
    case LT_STORE_FULL:
        LT_FAIL(LT_ERR_LIMIT, "store %s is full: '%s' of %u bytes", s->address, q->key,
                q->value_bytes);
    default:
        LT_FAIL(LT_ERR_ARG, "store %s refuses %s", s->address,
                q->op == LT_STORE_HELLO ? "this client (its token, its rank or its version)"
                                        : q->key);
    }
}

/* Send a request and read its reply; its value stays in s->frame. Called with the lock held. */
static lt_err ask(lt_comm_store *s, int fd, lt_comm_store_request *q, lt_comm_store_reply *r) {
    const double until_s = lt_clock_s() + q->wait_ms * 1e-3 + SLACK_S;
    lt_err err = LT_OK;
    q->epoch = s->epoch;
    if (s->broken) {
        LT_FAIL(LT_ERR_REMOTE, "store %s has gone", s->address);
    }
    LT_TRY_DONE(send_all(s, fd, s->frame, lt_comm_store_request_write(s->frame, q), until_s));
    LT_TRY_DONE(receive_reply(s, fd, s->frame, r, until_s));
done:
    s->broken = s->broken || err != LT_OK;
    return err != LT_OK ? err : judge(s, q, r);
}

static lt_err set_key(lt_comm_store_request *q, const char *key) {
    if (key[0] == '\0' || strlen(key) > LT_STORE_KEY) {
        LT_FAIL(LT_ERR_ARG, "store: a key has 1 to %d bytes: '%s'", LT_STORE_KEY, key);
    }
    (void)snprintf(q->key, sizeof q->key, "%s", key);
    return LT_OK;
}

static uint32_t milliseconds(double s) {
    return s <= 0.0 ? 0 : s > WAIT_MOST_S ? (uint32_t)(WAIT_MOST_S * 1e3) : (uint32_t)(s * 1e3);
}

/* ---- Connecting ------------------------------------------------------------------------------ */

static int try_connect(const char *host, const char *port, double until_s) {
    const struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    const double left_s = until_s - lt_clock_s();
    int fd = -1, failure = 0;
    const int one = 1;
    socklen_t bytes = sizeof failure;
    if (getaddrinfo(host, port, &hints, &list) != 0 || list == NULL) {
        return -1;
    }
    fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) != 0) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (errno != EINPROGRESS || poll(&p, 1, left_s > 0.0 ? (int)(left_s * 1e3) + 1 : 0) <= 0 ||
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &bytes) != 0 || failure != 0) {
            (void)close(fd);
            fd = -1;
        }
    }
    if (fd >= 0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    freeaddrinfo(list);
    return fd;
}

/* Open a connection and say HELLO; retries until the deadline, because the server may start
 * later. */
static lt_err join(lt_comm_store *s, int *out, double deadline_s) {
    const double until_s = lt_clock_s() + deadline_s;
    lt_comm_store_request q = {.op = LT_STORE_HELLO,
                               .number = s->rank,
                               .value = (const unsigned char *)LT_STORE_GREETING,
                               .value_bytes = (uint32_t)strlen(LT_STORE_GREETING)};
    lt_comm_store_reply r;
    char host[LT_STORE_ADDRESS];
    const char *port = strrchr(s->address, ':');
    int fd;
    if (port == NULL) {
        LT_FAIL(LT_ERR_ARG, "store: '%s' is not HOST:PORT", s->address);
    }
    (void)snprintf(host, sizeof host, "%.*s", (int)(port - s->address), s->address);
    while ((fd = try_connect(host, port + 1, until_s)) < 0) {
        if (lt_clock_s() > until_s) {
            LT_FAIL(LT_ERR_REMOTE, "store %s cannot be reached, after %.3g s", s->address,
                    deadline_s);
        }
        (void)poll(NULL, 0, RETRY_MS);
    }
    (void)snprintf(q.key, sizeof q.key, "%s", s->token);
    lt_err err = ask(s, fd, &q, &r);
    if (err != LT_OK) {
        (void)close(fd);
        return err;
    }
    *out = fd;
    return LT_OK;
}

lt_err lt_comm_store_open(lt_comm_store **out, const char *address, const char *token, int rank,
                          uint64_t epoch, double deadline_s) {
    lt_err err = LT_OK;
    lt_comm_store *s = calloc(1, sizeof *s);

    LT_ASSERT(out != NULL);
    if (s == NULL || (s->frame = malloc(LT_STORE_REQUEST_MOST)) == NULL) {
        free(s);
        LT_FAIL(LT_ERR_OOM, "store %s", address);
    }
    (void)pthread_mutex_init(&s->lock, NULL);
    s->fd = s->live_fd = s->bell = -1;
    s->rank = rank;
    s->epoch = epoch;
    if (strlen(address) >= sizeof s->address || strlen(token) >= sizeof s->token) {
        LT_FAIL_DONE(LT_ERR_ARG, "store: an address or a token that is too long");
    }
    (void)snprintf(s->address, sizeof s->address, "%s", address);
    (void)snprintf(s->token, sizeof s->token, "%s", token);
    LT_TRY_DONE(join(s, &s->fd, deadline_s));
    *out = s;
    s = NULL;
done:
    lt_comm_store_close(s);
    return err;
}

lt_err lt_comm_store_here(const lt_comm_store *s, char out[LT_STORE_ADDRESS]) {
    struct sockaddr_in a = {0};
    socklen_t bytes = sizeof a;
    if (getsockname(s->fd, (struct sockaddr *)&a, &bytes) != 0 ||
        inet_ntop(AF_INET, &a.sin_addr, out, LT_STORE_ADDRESS) == NULL) {
        LT_FAIL(LT_ERR_IO, "store %s: address of this machine: %s", s->address, strerror(errno));
    }
    return LT_OK;
}

/* ---- The heartbeat --------------------------------------------------------------------------- */

static void *live(void *arg) {
    lt_comm_store *s = arg;
    unsigned char frame[LT_STORE_REQUEST_HEAD];
    unsigned char *heard = malloc(LT_STORE_REPLY_MOST);
    const lt_comm_store_request beat = {
        .op = LT_STORE_BEAT, .epoch = s->epoch, .wait_ms = milliseconds(s->silent_s)};
    const size_t bytes = lt_comm_store_request_write(frame, &beat);
    char text[LT_STORE_NOTICE] = "";
    bool told = heard == NULL;
    double next_s = lt_clock_s();
    for (bool first = true;; first = false) {
        struct pollfd p[2] = {{.fd = s->bell, .events = POLLIN},
                              {.fd = told ? -1 : s->live_fd, .events = POLLIN}};
        const double left_s = next_s - lt_clock_s();
        lt_comm_store_reply r;
        if (first || (s->every_s > 0.0 && left_s <= 0.0)) {
            next_s = lt_clock_s() + s->every_s;
            (void)!send_all(s, s->live_fd, frame, bytes, lt_clock_s() + 1.0);
            continue;
        }
        (void)poll(p, 2, s->every_s > 0.0 ? (int)(left_s * 1e3) + 1 : -1);
        if ((p[0].revents & POLLIN) != 0) {
            break;
        }
        if (!told && p[1].revents != 0) {
            const lt_err err = receive_reply(s, s->live_fd, heard, &r, lt_clock_s() + SLACK_S);
            const size_t n = err == LT_OK && r.value_bytes < sizeof text ? r.value_bytes : 0;
            if (n > 0) {
                memcpy(text, r.value, n);
            }
            text[n] = '\0';
            told = true;
            s->on_notice(s->ctx, err == LT_OK ? text : lt_error_message());
        }
    }
    free(heard);
    return NULL;
}

lt_err lt_comm_store_live(lt_comm_store *s, double every_s, double silent_s,
                          void (*on_notice)(void *ctx, const char *text), void *ctx) {
    lt_err err = LT_OK;
    LT_ASSERT(!s->lives && on_notice != NULL);
    s->every_s = every_s;
    s->silent_s = every_s > 0.0 ? silent_s : 0.0;
    s->on_notice = on_notice;
    s->ctx = ctx;
    (void)pthread_mutex_lock(&s->lock);
    err = join(s, &s->live_fd, SLACK_S);
    (void)pthread_mutex_unlock(&s->lock);
    LT_TRY(err);
    if (s->silent_s > 0.0) { /* If beats are not acknowledged for this long, the server is gone. */
        const unsigned ms = milliseconds(s->silent_s);
        (void)setsockopt(s->live_fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
    }
    s->bell = eventfd(0, EFD_CLOEXEC);
    if (s->bell < 0 || pthread_create(&s->thread, NULL, live, s) != 0) {
        LT_FAIL(LT_ERR_OOM, "store: thread of the heartbeat");
    }
    s->lives = true;
    return LT_OK;
}

void lt_comm_store_close(lt_comm_store *s) {
    const uint64_t one = 1;
    lt_comm_store_request bye = {.op = LT_STORE_BYE};
    lt_comm_store_reply r;
    if (s == NULL) {
        return;
    }
    if (s->lives) {
        (void)!ask(s, s->fd, &bye, &r); /* Sent before the heartbeat ends. */
        (void)!write(s->bell, &one, sizeof one);
        (void)pthread_join(s->thread, NULL);
    }
    for (int i = 0; i < 3; i++) {
        const int fd = i == 0 ? s->fd : i == 1 ? s->live_fd : s->bell;
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    (void)pthread_mutex_destroy(&s->lock);
    free(s->frame);
    free(s);
}

/* ---- Requests -------------------------------------------------------------------------------- */

lt_err lt_comm_store_set(lt_comm_store *s, const char *key, const void *value, size_t bytes) {
    lt_comm_store_request q = {.op = LT_STORE_SET, .value = value, .value_bytes = (uint32_t)bytes};
    lt_comm_store_reply r;
    lt_err err;
    LT_TRY(set_key(&q, key));
    if (bytes > LT_STORE_VALUE) {
        LT_FAIL(LT_ERR_LIMIT, "store: '%s' of %zu bytes; at most %d", key, bytes, LT_STORE_VALUE);
    }
    (void)pthread_mutex_lock(&s->lock);
    err = ask(s, s->fd, &q, &r);
    (void)pthread_mutex_unlock(&s->lock);
    return err;
}

static lt_err fetch(lt_comm_store *s, lt_comm_store_request *q, const char *key, uint64_t *version,
                    void *value, size_t room, size_t *bytes) {
    lt_comm_store_reply r;
    lt_err err = LT_OK;
    LT_TRY(set_key(q, key));
    (void)pthread_mutex_lock(&s->lock);
    LT_TRY_DONE(ask(s, s->fd, q, &r));
    if (r.value_bytes > room) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "store: '%s' has %u bytes, and there is room for %zu", key,
                     r.value_bytes, room);
    }
    if (r.value_bytes > 0) {
        memcpy(value, r.value, r.value_bytes);
    }
    *bytes = r.value_bytes;
    if (version != NULL) {
        *version = r.version;
    }
done:
    (void)pthread_mutex_unlock(&s->lock);
    return err;
}

lt_err lt_comm_store_get(lt_comm_store *s, const char *key, void *value, size_t room, size_t *bytes,
                         double deadline_s) {
    lt_comm_store_request q = {.op = LT_STORE_GET, .wait_ms = milliseconds(deadline_s)};
    return fetch(s, &q, key, NULL, value, room, bytes);
}

lt_err lt_comm_store_heed(lt_comm_store *s) {
    /* No rank ever sets this key. */
    lt_comm_store_request q = {.op = LT_STORE_GET, .key = "nothing"};
    lt_comm_store_reply r = {.status = LT_STORE_SAYS};
    lt_err err;
    (void)pthread_mutex_lock(&s->lock);
    err = ask(s, s->fd, &q, &r);
    (void)pthread_mutex_unlock(&s->lock);
    return r.status == LT_STORE_TIMEOUT ? LT_OK : err;
}

lt_err lt_comm_store_watch(lt_comm_store *s, const char *key, uint64_t *version, void *value,
                           size_t room, size_t *bytes, double deadline_s) {
    lt_comm_store_request q = {
        .op = LT_STORE_WATCH, .number = (int64_t)*version, .wait_ms = milliseconds(deadline_s)};
    return fetch(s, &q, key, version, value, room, bytes);
}

lt_err lt_comm_store_add(lt_comm_store *s, const char *key, int64_t number, int64_t *sum) {
    lt_comm_store_request q = {.op = LT_STORE_ADD, .number = number};
    lt_comm_store_reply r = {0};
    lt_err err;
    LT_TRY(set_key(&q, key));
    (void)pthread_mutex_lock(&s->lock);
    err = ask(s, s->fd, &q, &r);
    (void)pthread_mutex_unlock(&s->lock);
    *sum = r.number;
    return err;
}

lt_err lt_comm_store_barrier(lt_comm_store *s, const char *key, int n, double deadline_s) {
    lt_comm_store_request q = {
        .op = LT_STORE_BARRIER, .number = n, .wait_ms = milliseconds(deadline_s)};
    lt_comm_store_reply r;
    lt_err err;
    LT_TRY(set_key(&q, key));
    (void)pthread_mutex_lock(&s->lock);
    err = ask(s, s->fd, &q, &r);
    (void)pthread_mutex_unlock(&s->lock);
    return err;
}

/* http.c: see http.h.
 *
 *            accept             request complete           the answer's end, keep-alive
 *   listener ──────▶ READING ─────────────────────▶ ANSWERING ─────────────────────────▶ READING
 *                      │ 408, 400, 413, 431:          │ client gone, or too slow: on_gone
 *                      ▼ answered, then               ▼
 *                   FLUSHING ──all written──▶ freed   freed
 *
 * A connection is never freed inside a call that the API makes on it (write, end): it is marked and
 * a zero timeout frees it from the loop.
 */
#include "serve/http/impl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/http/tls.h"

/* Bytes of pipelined requests after the one that is being answered. */
#define PIPELINE_BYTES (16 << 10)
/* Bytes of a request that do not count towards the limit for all bodies. */
#define FREE_BYTES (16 << 10)
/* How long a body may wait for memory in the limit for all bodies. */
#define STARVE_S           2.0
#define HALF_CLOSED_S      0.25 /* First check whether a half-closed client still exists. */
#define HALF_CLOSED_NEXT_S 0.1
#define REFUSED_MORE       128
#define WARN_EVERY_S       10.0
#define OTHER_DESCRIPTORS  256 /* Descriptors other than those of connections. */

/* ---- Room for bodies ---- */

static size_t charge_of(size_t room) {
    return room > FREE_BYTES ? room - FREE_BYTES : 0;
}

static void set_room(lt_http_conn *c, size_t room) {
    c->http->counts.bodies_bytes += (int64_t)charge_of(room) - (int64_t)charge_of(c->room);
    c->room = room;
}

static bool may_grow(void *ctx, size_t more) {
    lt_http_conn *c = ctx;
    const lt_http *h = c->http;
    const size_t others = (size_t)h->counts.bodies_bytes - charge_of(c->room);
    if (others + charge_of(c->room + more) > h->o.max_bodies_bytes + FREE_BYTES) {
        return false;
    }
    set_room(c, c->room + more);
    return true;
}

/* Memory was freed: count the rest, and resume reading where memory was missing. */
void lt_http_settle(lt_http_conn *c) {
    lt_http *h = c->http;
    set_room(c, c->parser.head_room + c->parser.body_room + c->taken);
    if (h->n_starved > 0) {
        event_active(h->on_room, EV_TIMEOUT, 1);
    }
}

/* ---- A connection's life ---- */

static void conn_free(lt_http_conn *c) {
    lt_http *h = c->http;
    lt_http_unlist(c);
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        h->conns = c->next;
    }
    h->n_conns--;
    h->n_starved -= c->starved;
    lt_http_parser_free(&c->parser);
    c->taken = 0;
    lt_http_settle(c);
    if (h->n_conns == h->o.max_connections + h->more - 1 && h->listener != NULL) {
        evconnlistener_enable(h->listener);
    }
    if (c->deadline != NULL) {
        event_free(c->deadline);
    }
    if (c->bev != NULL) {
        bufferevent_free(c->bev);
    }
    if (c->out != NULL) {
        evbuffer_free(c->out);
    }
    free(c);
}

/* The connection is lost. */
static void conn_lost(lt_http_conn *c) {
    void *user = c->user;
    c->user = NULL;
    if (c->stage == ANSWERING) {
        c->http->o.on_gone(c->http->o.ctx, c, user);
    }
    conn_free(c);
}

/* Answer a request that the parser or the deadline refused, then close. */
static void refuse(lt_http_conn *c, int status, const char *why) {
    lt_http_refusal r = {.status = status, .why = why, .head = &c->parser, .counted = c->admitted};
    if (c->starved) {
        c->starved = false;
        c->http->n_starved--;
        bufferevent_enable(c->bev, EV_READ); /* To discard it. */
    }
    c->keep_alive = false;
    c->stage = ANSWERING;
    c->http->o.on_bad(c->http->o.ctx, &r);
    lt_http_reply(c, status, "application/json", r.extra, r.body, strlen(r.body));
}

static lt_http_request request_of(const lt_http_conn *c) {
    const lt_http_parser *p = &c->parser;
    return (lt_http_request){.method = p->method,
                             .path = p->target,
                             .query = c->query,
                             .body = p->body != NULL ? p->body : "",
                             .body_bytes = p->body_n,
                             .head = p};
}

/* The head is complete: ask on_head whether to read the body. False: it was answered, and the
 * connection closes after the answer unless the body has already arrived. */
static bool admit(lt_http_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    const lt_http_parser *p = &c->parser;
    const bool whole = p->stage == LT_HTTP_READY ||
                       (p->framing == LT_HTTP_LENGTH && p->left <= evbuffer_get_length(in));
    const size_t rest = whole && p->stage == LT_HTTP_BODY ? (size_t)p->left : 0;
    /* The head buffer belongs to the parser and is split in place. */
    char *question = strchr(p->target, '?');
    lt_http_request r;

    c->query = "";
    if (question != NULL) {
        *question = '\0';
        c->query = question + 1;
    }
    c->admitted = true;
    c->head_only = strcmp(p->method, "HEAD") == 0;
    c->keep_alive = p->keep_alive && whole;
    c->stage = ANSWERING;
    r = request_of(c);
    if (!c->http->o.on_head(c->http->o.ctx, c, &r)) {
        evbuffer_drain(in, rest);
        return false;
    }
    c->stage = READING;
    return true;
}

/* The request is complete: hand it over. */
static void dispatch(lt_http_conn *c) {
    const lt_http_request r = request_of(c);
    c->stage = ANSWERING;
    c->keep_alive = c->parser.keep_alive;
    if (c->half_closed) {
        lt_http_set_deadline(c, HALF_CLOSED_S);
    } else {
        event_del(c->deadline);
    }
    c->http->o.on_request(c->http->o.ctx, c, &r);
    free(c->parser.body); /* The body was used or taken; free it now, because an answer may take
                           * minutes. */
    c->parser.body = NULL;
    c->parser.body_n = c->parser.body_room = 0;
    lt_http_settle(c);
}

/* There is no memory for more of the body: incoming data stays in the kernel, until the client's
 * side is full, too. */
static void starve(lt_http_conn *c) {
    c->starved = true;
    c->starved_s = lt_clock_s();
    c->http->n_starved++;
    bufferevent_disable(c->bev, EV_READ);
    lt_http_set_deadline(c, STARVE_S);
}

static void feed(lt_http_conn *c) {
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct evbuffer *in = bufferevent_get_input(c->bev);
    struct evbuffer_iovec v;
    lt_http_parser *p = &c->parser;

    if (evbuffer_peek(in, -1, NULL, &v, 1) < 1) {
        return;
    }
    if (p->stage == LT_HTTP_HEAD && p->head_n == 0) {
        c->due_s = lt_clock_s() + c->http->o.request_s;
        lt_http_set_deadline(c, c->http->o.request_s); /* The first byte starts the clock. */
    }
    evbuffer_drain(in, lt_http_parser_feed(p, v.iov_base, v.iov_len));
    if (p->stage == LT_HTTP_BAD) {
        refuse(c, p->status, p->why);
        return;
    }
    if (p->stage != LT_HTTP_HEAD && !c->admitted && !admit(c)) {
        return;
    }
    if (p->stage == LT_HTTP_READY) {
        dispatch(c);
    } else if (p->starved) {
        starve(c);
    } else if (p->stage == LT_HTTP_BODY && p->expects_continue && !c->continued) {
        c->continued = true;
        evbuffer_add(c->out, go_on, sizeof go_on - 1);
        lt_http_send_soon(c);
    }
}

static void read_requests(lt_http_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    while (c->stage == READING && !c->starved && !c->closing && evbuffer_get_length(in) > 0) {
        feed(c);
    }
    if (c->stage == FLUSHING) {
        lt_http_throw_away(c);
    }
}

static void read_on(lt_http_conn *c) {
    const double now = lt_clock_s();
    c->starved = false;
    c->http->n_starved--;
    c->due_s += now - c->starved_s; /* The client could not send meanwhile. */
    lt_http_set_deadline(c, c->due_s - now);
    bufferevent_enable(c->bev, EV_READ);
    read_requests(c);
}

/* Memory of bodies was freed: connections that wait for it try again. */
static void on_room(evutil_socket_t fd, short what, void *arg) {
    lt_http *h = arg;
    (void)fd;
    (void)what;
    for (lt_http_conn *c = h->conns; c != NULL && h->n_starved > 0; c = c->next) {
        if (c->starved && !c->closing) { /* Reading frees no connection: it closes, or answers. */
            read_on(c);
        }
    }
}

static void on_read(struct bufferevent *bev, void *arg) {
    lt_http_conn *c = arg;
    (void)bev;
    if (!c->closing) {
        read_requests(c);
    }
}

static void on_written(struct bufferevent *bev, void *arg) {
    (void)bev;
    lt_http_close_when_sent(arg);
}

/* A client that has shut down its sending side looks like one that is gone, until something is sent
 * to it: then the kernel of one that is gone resets the connection. */
static bool is_reset(const lt_http_conn *c) {
    struct pollfd p = {.fd = bufferevent_getfd(c->bev)};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
}

/* So the first word of every answer is sent early, if the answer has not begun by then. */
static void try_half_closed(lt_http_conn *c) {
    if (is_reset(c)) {
        conn_lost(c);
        return;
    }
    if (!c->begun && !c->version_sent) {
        c->version_sent = true;
        evbuffer_add(c->out, LT_HTTP_VERSION, sizeof LT_HTTP_VERSION - 1);
        lt_http_send_soon(c);
    }
    lt_http_set_deadline(c, HALF_CLOSED_NEXT_S);
}

static void on_event(struct bufferevent *bev, short what, void *arg) {
    lt_http_conn *c = arg;
    (void)bev;
    if ((what & BEV_EVENT_CONNECTED) != 0) {
        c->greeted = true;
        if (c->stage == READING && c->parser.head_n == 0 && !c->closing) {
            lt_http_set_deadline(c, c->http->o.idle_s);
        }
        return;
    }
    if ((what & BEV_EVENT_EOF) != 0 && c->stage == ANSWERING && !c->closing && !c->tls) {
        c->half_closed = true;
        lt_http_set_deadline(c, HALF_CLOSED_S);
        return;
    }
    if ((what & BEV_EVENT_EOF) != 0 && c->stage != ANSWERING && lt_http_unsent(c) > 0) {
        c->stage = FLUSHING; /* A client that half-closed still gets its answer. */
        return;
    }
    conn_lost(c);
}

/* There was no memory for the body in time. If many connections wait for each other's memory,
 * refusing the first frees memory for the next, which tries once more. */
static void give_up(lt_http_conn *c) {
    read_on(c);
    if (c->starved) {
        c->http->counts.starved++;
        refuse(c, 503, "the bodies of other requests use all the memory for bodies");
    }
}

static void on_deadline(evutil_socket_t fd, short what, void *arg) {
    lt_http_conn *c = arg;
    (void)fd;
    (void)what;
    if (c->closing || c->stage == FLUSHING) {
        conn_lost(c);
    } else if (c->stage == ANSWERING) {
        try_half_closed(c);
    } else if (c->starved) {
        give_up(c);
    } else if (c->parser.head_n > 0) {
        c->http->counts.timed_out++;
        refuse(c, 408, "the request did not come in time");
    } else {
        conn_lost(c);
    }
}

/* The oldest connection other than `newest` that is idle (wanted READING), or only lingers
 * (FLUSHING); NULL: there is none. */
static lt_http_conn *oldest(const lt_http *h, conn_stage wanted, const lt_http_conn *newest) {
    lt_http_conn *found = NULL;
    for (lt_http_conn *c = h->conns; c != NULL; c = c->next) {
        if (c != newest && c->stage == wanted && !c->closing && lt_http_unsent(c) == 0 &&
            (wanted == FLUSHING || c->parser.head_n == 0)) {
            found = c;
        }
    }
    return found;
}

static void warn_full(lt_http *h, const char *what) {
    const double now = lt_clock_s();
    if (h->warned_s == 0 || now - h->warned_s >= WARN_EVERY_S) {
        h->warned_s = now;
        lt_log_warn("http: all %d connections are in use (--max-connections): %s; %llu idle ones "
                    "closed and %llu refused so far",
                    h->o.max_connections, what, (unsigned long long)h->counts.dropped,
                    (unsigned long long)h->counts.refused);
    }
}

/* Count the connections without those that have had their last answer and only linger. */
static int64_t count_places(const lt_http *h) {
    int64_t n = 0;
    for (const lt_http_conn *c = h->conns; c != NULL; c = c->next) {
        n += c->stage != FLUSHING && !c->closing;
    }
    return n;
}

/* The limit of connections is reached. The oldest connection without a request is closed, so that
 * idle ones cannot lock others out; if all have requests, the newest is refused. */
static void make_room(lt_http *h, lt_http_conn *newest) {
    lt_http_conn *idle = oldest(h, READING, newest);
    lt_http_conn *lingers = h->n_conns >= h->o.max_connections + h->more
                                ? oldest(h, FLUSHING, newest)
                                : NULL;
    if (lingers != NULL) {
        conn_lost(lingers);
    }
    if (count_places(h) <= h->o.max_connections) {
        return;
    }
    if (idle != NULL) {
        h->counts.dropped++;
        conn_lost(idle);
        warn_full(h, "the oldest idle one made room");
        return;
    }
    h->counts.refused++;
    warn_full(h, "503");
    refuse(newest, 503, "all connections of this server are in use");
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *from,
                      int from_n, void *arg) {
    lt_http *h = arg;
    const struct timeval write_s = lt_clock_span(h->o.write_s);
    const int one = 1;
    lt_http_conn *c = calloc(1, sizeof *c);
    (void)from;
    (void)from_n;

    if (c == NULL) {
        close(fd);
        return;
    }
    c->http = h;
    c->next = h->conns;
    if (h->conns != NULL) {
        h->conns->prev = c;
    }
    h->conns = c;
    h->n_conns++;
    lt_http_parser_init(&c->parser, &(lt_http_parse_options){.max_head_bytes = h->o.max_head_bytes,
                                                             .max_body_bytes = h->o.max_body_bytes,
                                                             .may_grow = may_grow,
                                                             .ctx = c,
                                                             .head_alone = true});
    c->tls = h->o.tls != NULL;
    c->bev = c->tls ? lt_tls_accept(h->o.tls, h->base, fd)
                    : bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    c->deadline = evtimer_new(h->base, on_deadline, c);
    c->out = evbuffer_new();
    if (c->bev == NULL || c->deadline == NULL || c->out == NULL) {
        if (c->bev == NULL) {
            close(fd);
        }
        conn_free(c);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    bufferevent_setcb(c->bev, on_read, on_written, on_event, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, PIPELINE_BYTES);
    bufferevent_set_timeouts(c->bev, NULL, &write_s);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    lt_http_set_deadline(c, c->tls ? h->o.request_s : h->o.idle_s);
    if (h->n_conns > h->o.max_connections) {
        make_room(h, c);
    }
    if (h->n_conns >= h->o.max_connections + h->more) {
        evconnlistener_disable(l); /* The kernel's queue holds the others until one leaves. */
    }
}

/* Out of descriptors: pause instead of spinning on the same connection. */
static void on_listener_error(struct evconnlistener *l, void *arg) {
    lt_http *h = arg;
    lt_log_warn("http: accept: %s; %lld connections are open", strerror(errno),
                (long long)h->n_conns);
    if (h->n_conns > 0) {
        h->o.max_connections = (int)h->n_conns;
        h->more = 0; /* There is no descriptor even for a refusal. */
        evconnlistener_disable(l);
    }
}

/* ---- The server ---- */

/* A connection needs a descriptor, and a process often starts with 1,024: raise the limit as far as
 * the system allows. */
static void raise_descriptors(int64_t connections) {
    const rlim_t wanted = (rlim_t)connections + OTHER_DESCRIPTORS;
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur >= wanted) {
        return;
    }
    l.rlim_cur = l.rlim_max < wanted ? l.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &l) != 0 || l.rlim_cur < wanted) {
        lt_log_warn("http: %lld connections are allowed, but only %lld descriptors (ulimit -n)",
                    (long long)connections, (long long)l.rlim_cur);
    }
}

static lt_err listen_on(lt_http *h) {
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    struct sockaddr_storage bound;
    socklen_t bound_n = sizeof bound;
    char port[16], host[256];
    const size_t n = strlen(h->o.host);
    const bool brackets = n > 2 && h->o.host[0] == '[' && h->o.host[n - 1] == ']';
    int why;

    snprintf(port, sizeof port, "%d", h->o.port);
    snprintf(host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), h->o.host + brackets);
    why = getaddrinfo(host, port, &hints, &found);
    if (why != 0) {
        LT_FAIL(LT_ERR_ARG, "host %s: %s", h->o.host, gai_strerror(why));
    }
    for (struct addrinfo *a = found; a != NULL && h->listener == NULL; a = a->ai_next) {
        h->listener = evconnlistener_new_bind(h->base, on_accept, h,
                                              LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC |
                                                  LEV_OPT_REUSEABLE,
                                              1024, a->ai_addr, (int)a->ai_addrlen);
    }
    freeaddrinfo(found);
    if (h->listener == NULL) {
        LT_FAIL(LT_ERR_IO, "cannot bind %s:%d: %s", h->o.host, h->o.port, strerror(errno));
    }
    evconnlistener_set_error_cb(h->listener, on_listener_error);
    if (getsockname(evconnlistener_get_fd(h->listener), (struct sockaddr *)&bound, &bound_n) == 0) {
        h->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port
                                                    : ((struct sockaddr_in *)&bound)->sin_port);
    }
    return LT_OK;
}

lt_err lt_http_open(lt_http **out, struct event_base *base, const lt_http_options *o) {
    lt_err err = LT_OK;
    lt_http *h = calloc(1, sizeof *h);

    LT_ASSERT(o->on_request != NULL && o->on_gone != NULL && o->on_bad != NULL);
    if (h == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "http server");
    }
    h->o = *o;
    h->base = base;
    h->more = REFUSED_MORE;
    raise_descriptors(o->max_connections);
    h->on_flush = event_new(base, -1, 0, lt_http_on_flush, h);
    h->on_room = event_new(base, -1, 0, on_room, h);
    if (h->on_flush == NULL || h->on_room == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "http server");
    }
    LT_TRY_DONE(o->host != NULL ? listen_on(h) : LT_OK);
    *out = h;
    h = NULL;
done:
    lt_http_close(h);
    return err;
}

void lt_http_close(lt_http *h) {
    if (h == NULL) {
        return;
    }
    if (h->listener != NULL) {
        evconnlistener_free(h->listener);
        h->listener = NULL;
    }
    while (h->conns != NULL) {
        conn_lost(h->conns);
    }
    if (h->on_flush != NULL) {
        event_free(h->on_flush);
    }
    if (h->on_room != NULL) {
        event_free(h->on_room);
    }
    free(h);
}

int lt_http_port(const lt_http *h) {
    return h->port;
}

lt_http_counts lt_http_get_counts(const lt_http *h) {
    lt_http_counts counts = h->counts;
    counts.connections = h->n_conns;
    return counts;
}

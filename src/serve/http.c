/* http.c: see http.h.
 *
 *            accept                 request complete               answer's end, keep-alive
 *   listener ──────▶ READING ─────────────────────────▶ ANSWERING ─────────────────────────▶ READING
 *                      │ 408, 400, 413, 431: answered,    │ client gone, too slow: on_gone
 *                      ▼ then                             ▼
 *                   FLUSHING ──all written──▶ freed      freed
 *
 * A connection is never freed inside a call that the API makes on it (write, end): it is marked and a zero timeout frees it from the loop.
 *
 * Answers gather in a buffer of the connection's; once the loop's callback at hand is over, every connection with news is written to, once, and
 * directly: a token costs a stream one system call. Only what the socket does not take goes to the bufferevent, which waits for room by epoll. (Writing by
 * bufferevents alone cost three: epoll_ctl, writev, epoll_ctl.) */
#include "serve/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#define PIPELINE_BYTES    (64 << 10) /* Of requests that wait behind the one being answered. */
#define OTHER_DESCRIPTORS 256        /* Beside those of connections. */
#define CHUNK_FRAME       24 /* Around a chunk: its size in at most 16 digits, and two ends of lines. */

typedef enum { READING, ANSWERING, FLUSHING } conn_stage;

struct lt_http_conn {
    lt_http *http;
    struct bufferevent *bev;
    struct event *deadline; /* READING: for the request or the idle time; doomed: at once. */
    lt_http_parser parser;
    conn_stage stage;
    bool keep_alive, chunked, head_only, doomed, continued;
    struct evbuffer *out; /* Not yet tried to send. */
    void *user;
    lt_http_conn *next, *prev;
    lt_http_conn *fresh_next, **fresh_at; /* With news in `out`; fresh_at NULL: none. */
};

struct lt_http {
    lt_http_options o;
    struct event_base *base;
    struct evconnlistener *listener;
    lt_http_conn *conns, *fresh;
    struct event *on_flush;
    int64_t n_conns;
    int port;
};

static const struct {
    int status;
    const char *text;
} status_texts[] = {{200, "OK"},
                    {204, "No Content"},
                    {400, "Bad Request"},
                    {401, "Unauthorized"},
                    {403, "Forbidden"},
                    {404, "Not Found"},
                    {405, "Method Not Allowed"},
                    {408, "Request Timeout"},
                    {413, "Content Too Large"},
                    {415, "Unsupported Media Type"},
                    {417, "Expectation Failed"},
                    {422, "Unprocessable Content"},
                    {429, "Too Many Requests"},
                    {431, "Request Header Fields Too Large"},
                    {500, "Internal Server Error"},
                    {501, "Not Implemented"},
                    {503, "Service Unavailable"},
                    {505, "HTTP Version Not Supported"},
                    {529, "Overloaded"}};

const char *lt_http_status_text(int status) {
    for (size_t i = 0; i < sizeof status_texts / sizeof *status_texts; i++) {
        if (status_texts[i].status == status) {
            return status_texts[i].text;
        }
    }
    return "Unknown";
}

/* ---- A connection's life ---- */

static void unlist(lt_http_conn *c) {
    if (c->fresh_at == NULL) {
        return;
    }
    *c->fresh_at = c->fresh_next;
    if (c->fresh_next != NULL) {
        c->fresh_next->fresh_at = c->fresh_at;
    }
    c->fresh_at = NULL;
}

static void conn_free(lt_http_conn *c) {
    lt_http *h = c->http;
    unlist(c);
    if (c->next != NULL) {
        c->next->prev = c->prev;
    }
    if (c->prev != NULL) {
        c->prev->next = c->next;
    } else {
        h->conns = c->next;
    }
    h->n_conns--;
    if (h->n_conns == h->o.max_connections - 1 && h->listener != NULL) {
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
    lt_http_parser_free(&c->parser);
    free(c);
}

/* Nobody can be answered any more. */
static void conn_lost(lt_http_conn *c) {
    void *user = c->user;
    c->user = NULL;
    if (c->stage == ANSWERING) {
        c->http->o.on_gone(c->http->o.ctx, c, user);
    }
    conn_free(c);
}

/* Lose it from the loop, not from inside the caller's write. */
static void doom(lt_http_conn *c) {
    const struct timeval now = {0};
    c->doomed = true;
    event_add(c->deadline, &now);
}

static void set_deadline(lt_http_conn *c, double seconds) {
    const struct timeval tv = lt_clock_span(seconds);
    event_add(c->deadline, &tv);
}

/* ---- Sending ---- */

static size_t unsent(const lt_http_conn *c) {
    return evbuffer_get_length(c->out) + evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* There is something in `out`: send it when the callback at hand is over. */
static void send_soon(lt_http_conn *c) {
    lt_http *h = c->http;
    if (c->fresh_at != NULL) {
        return;
    }
    if (h->fresh == NULL) {
        event_active(h->on_flush, EV_TIMEOUT, 1);
    }
    c->fresh_next = h->fresh;
    if (h->fresh != NULL) {
        h->fresh->fresh_at = &c->fresh_next;
    }
    c->fresh_at = &h->fresh;
    h->fresh = c;
}

/* Close in order once all is sent: bytes that still come in would turn close into a reset that may destroy the answer on its way. */
static void close_when_sent(lt_http_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    if (c->stage == FLUSHING && unsent(c) == 0) {
        shutdown(bufferevent_getfd(c->bev), SHUT_WR);
        evbuffer_drain(in, evbuffer_get_length(in));
        set_deadline(c, 1);
    }
}

static void on_flush(evutil_socket_t fd, short what, void *arg) {
    lt_http *h = arg;
    (void)fd;
    (void)what;
    while (h->fresh != NULL) {
        lt_http_conn *c = h->fresh;
        unlist(c);
        if (c->doomed) {
            continue;
        }
        if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0) {
            (void)evbuffer_write(c->out, bufferevent_getfd(c->bev)); /* Errors come back below. */
        }
        if (evbuffer_get_length(c->out) > 0) {
            bufferevent_write_buffer(c->bev, c->out);
        }
        close_when_sent(c);
    }
}

/* Answer what the parser or the clock refused, and close behind it. */
static void refuse(lt_http_conn *c, int status, const char *why) {
    lt_http_refusal r = {.status = status, .why = why, .head = &c->parser};
    c->keep_alive = false;
    c->stage = ANSWERING;
    c->http->o.on_bad(c->http->o.ctx, &r);
    lt_http_reply(c, status, "application/json", r.extra, r.body, strlen(r.body));
}

/* The request is complete: cut the target and hand it over. */
static void dispatch(lt_http_conn *c) {
    lt_http_request r = {.method = c->parser.method,
                         .path = c->parser.target,
                         .query = "",
                         .body = c->parser.body != NULL ? c->parser.body : "",
                         .body_bytes = c->parser.body_n,
                         .head = &c->parser};
    char *question = strchr(c->parser.target, '?'); /* The head buffer is ours: cut in place. */

    if (question != NULL) {
        *question = '\0';
        r.query = question + 1;
    }
    event_del(c->deadline);
    c->stage = ANSWERING;
    c->keep_alive = c->parser.keep_alive;
    c->head_only = strcmp(r.method, "HEAD") == 0;
    c->http->o.on_request(c->http->o.ctx, c, &r);
}

static void read_requests(lt_http_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";

    while (c->stage == READING && evbuffer_get_length(in) > 0) {
        struct evbuffer_iovec v;
        if (evbuffer_peek(in, -1, NULL, &v, 1) < 1) {
            return;
        }
        if (c->parser.stage == LT_HTTP_HEAD && c->parser.head_n == 0) {
            set_deadline(c, c->http->o.request_s); /* The first byte starts the clock. */
        }
        evbuffer_drain(in, lt_http_parser_feed(&c->parser, v.iov_base, v.iov_len));
        if (c->parser.stage == LT_HTTP_BAD) {
            refuse(c, c->parser.status, c->parser.why);
        } else if (c->parser.stage == LT_HTTP_READY) {
            dispatch(c);
        } else if (c->parser.stage == LT_HTTP_BODY && c->parser.expects_continue && !c->continued) {
            c->continued = true;
            evbuffer_add(c->out, go_on, sizeof go_on - 1);
            send_soon(c);
        }
    }
}

static void on_read(struct bufferevent *bev, void *arg) {
    lt_http_conn *c = arg;
    (void)bev;
    if (!c->doomed) {
        read_requests(c);
    }
}

static void on_written(struct bufferevent *bev, void *arg) {
    (void)bev;
    close_when_sent(arg);
}

static void on_event(struct bufferevent *bev, short what, void *arg) {
    lt_http_conn *c = arg;
    (void)bev;
    if ((what & BEV_EVENT_EOF) != 0 && c->stage != ANSWERING && unsent(c) > 0) {
        c->stage = FLUSHING; /* A client that half-closed still gets its answer. */
        return;
    }
    conn_lost(c);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg) {
    lt_http_conn *c = arg;
    (void)fd;
    (void)what;
    if (!c->doomed && c->stage == READING && c->parser.head_n > 0) {
        refuse(c, 408, "the request did not come in time");
        return;
    }
    conn_lost(c);
}

/* All places are taken: the oldest connection that asks nothing makes room, so that idle ones cannot lock others out. */
static bool drop_idle(lt_http *h, const lt_http_conn *newest) {
    lt_http_conn *idle = NULL;
    for (lt_http_conn *c = h->conns; c != NULL; c = c->next) {
        if (c != newest && c->stage == READING && !c->doomed && c->parser.head_n == 0 &&
            unsent(c) == 0) {
            idle = c;
        }
    }
    if (idle != NULL) {
        conn_lost(idle);
    }
    return idle != NULL;
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
    lt_http_parser_init(&c->parser,
                        &(lt_http_parse_options){.max_head_bytes = h->o.max_head_bytes,
                                                 .max_body_bytes = h->o.max_body_bytes});
    c->bev = bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
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
    set_deadline(c, h->o.idle_s);
    if (h->n_conns == h->o.max_connections && !drop_idle(h, c)) {
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
        evconnlistener_disable(l);
    }
}

/* ---- Answers ---- */

static void put_head(lt_http_conn *c, int status, const char *type, const char *extra,
                     int64_t length) {
    struct evbuffer *out = c->out;
    send_soon(c);
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\n", status, lt_http_status_text(status));
    if (type != NULL) {
        evbuffer_add_printf(out, "Content-Type: %s\r\n", type);
    }
    if (length >= 0 && status != 204) {
        evbuffer_add_printf(out, "Content-Length: %lld\r\n", (long long)length);
    } else if (c->chunked) {
        evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\n");
    }
    evbuffer_add_printf(out, "Connection: %s\r\n%s\r\n", c->keep_alive ? "keep-alive" : "close",
                        extra != NULL ? extra : "");
}

/* The answer is complete: read the next request, or close once all is written. */
static void finish(lt_http_conn *c) {
    c->user = NULL;
    if (!c->keep_alive) {
        c->stage = FLUSHING;
        set_deadline(c, c->http->o.write_s);
        send_soon(c);
        return;
    }
    c->stage = READING;
    c->continued = false;
    lt_http_parser_reset(&c->parser);
    set_deadline(c, c->http->o.idle_s);
    if (evbuffer_get_length(bufferevent_get_input(c->bev)) > 0) {
        /* A pipelined request waits: from the loop, so that a thousand of them do not nest. */
        bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS | BEV_TRIG_IGNORE_WATERMARKS);
    }
}

void lt_http_reply(lt_http_conn *c, int status, const char *type, const char *extra,
                   const void *body, size_t n) {
    LT_ASSERT(c->stage == ANSWERING);
    if (c->doomed) {
        c->user = NULL;
        return;
    }
    c->chunked = false;
    put_head(c, status, type, extra, (int64_t)n);
    if (!c->head_only && n > 0) {
        evbuffer_add(c->out, body, n);
    }
    finish(c);
}

void lt_http_stream(lt_http_conn *c, int status, const char *type, const char *extra) {
    LT_ASSERT(c->stage == ANSWERING);
    if (c->doomed) {
        return;
    }
    c->chunked = c->parser.minor == 1;
    if (!c->chunked) {
        c->keep_alive = false; /* HTTP/1.0: the end of the connection is the end of the answer. */
    }
    put_head(c, status, type, extra, -1);
}

/* n in hexadecimal and a line's end; returns where to go on. */
static char *put_chunk_size(char *at, size_t n) {
    int shift = 0;
    while (shift < 60 && n >> (shift + 4) != 0) {
        shift += 4;
    }
    for (; shift >= 0; shift -= 4) {
        *at++ = "0123456789abcdef"[n >> shift & 15];
    }
    *at++ = '\r';
    *at++ = '\n';
    return at;
}

void lt_http_write(lt_http_conn *c, const void *data, size_t n) {
    struct evbuffer_iovec v;
    char *at;
    LT_ASSERT(c->stage == ANSWERING);
    if (c->doomed || n == 0 || c->head_only) {
        return;
    }
    if (unsent(c) + n > c->http->o.max_pending_bytes ||
        evbuffer_reserve_space(c->out, (ev_ssize_t)(n + CHUNK_FRAME), &v, 1) != 1) {
        lt_log_debug("http: a client reads too slowly; %zu bytes wait", unsent(c));
        doom(c);
        return;
    }
    at = v.iov_base;
    if (c->chunked) {
        at = put_chunk_size(at, n);
    }
    memcpy(at, data, n);
    at += n;
    if (c->chunked) {
        *at++ = '\r';
        *at++ = '\n';
    }
    v.iov_len = (size_t)(at - (char *)v.iov_base);
    evbuffer_commit_space(c->out, &v, 1);
    send_soon(c);
}

void lt_http_end(lt_http_conn *c) {
    LT_ASSERT(c->stage == ANSWERING);
    if (c->doomed) {
        c->user = NULL; /* Whoever ends an answer forgets the connection: nobody is left to tell. */
        return;
    }
    if (c->chunked && !c->head_only) {
        evbuffer_add(c->out, "0\r\n\r\n", 5);
        send_soon(c);
    }
    finish(c);
}

char *lt_http_take_body(lt_http_conn *c) {
    char *body = c->parser.body;
    LT_ASSERT(c->stage == ANSWERING);
    c->parser.body = NULL;
    c->parser.body_n = c->parser.body_room = 0;
    return body;
}

void lt_http_set_user(lt_http_conn *c, void *user) {
    c->user = user;
}

/* ---- The server ---- */

/* A connection is a descriptor, and a process often begins with 1,024: take what the limits of the system allow. */
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
        LT_FAIL(LT_ERR_IO, "%s:%d can not be bound: %s", h->o.host, h->o.port, strerror(errno));
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
    raise_descriptors(o->max_connections);
    h->on_flush = event_new(base, -1, 0, on_flush, h);
    if (h->on_flush == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "http server");
    }
    LT_TRY_DONE(listen_on(h));
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
    free(h);
}

int lt_http_port(const lt_http *h) {
    return h->port;
}

int64_t lt_http_connections(const lt_http *h) {
    return h->n_conns;
}

/* http/answer.c: how answers are sent: see http.h, and http/impl.h for why they are gathered
 * first. */
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/http/impl.h"
#include "serve/http/tls.h"

#define CHUNK_FRAME 24  /* For a chunk's frame: its size in at most 16 digits, and two line ends. */
#define LINGER_S    2.0 /* How long data that a refused client still sends is discarded. */

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

void lt_http_set_deadline(lt_http_conn *c, double seconds) {
    const struct timeval tv = lt_clock_span(seconds);
    event_add(c->deadline, &tv);
}

/* Free it from the loop, not inside the caller's write. */
static void close_soon(lt_http_conn *c) {
    const struct timeval now = {0};
    c->closing = true;
    event_add(c->deadline, &now);
}

void lt_http_unlist(lt_http_conn *c) {
    if (c->fresh_at == NULL) {
        return;
    }
    *c->fresh_at = c->fresh_next;
    if (c->fresh_next != NULL) {
        c->fresh_next->fresh_at = c->fresh_at;
    }
    c->fresh_at = NULL;
}

/* ---- Sending ---- */

size_t lt_http_unsent(const lt_http_conn *c) {
    return evbuffer_get_length(c->out) + evbuffer_get_length(bufferevent_get_output(c->bev));
}

/* Send `out` when the current callback returns. */
void lt_http_send_soon(lt_http_conn *c) {
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

/* Discard what a client still sends. */
void lt_http_throw_away(lt_http_conn *c) {
    struct evbuffer *in = bufferevent_get_input(c->bev);
    evbuffer_drain(in, evbuffer_get_length(in));
}

/* Close gracefully once all is sent: with unread bytes, close would send a reset, which may destroy
 * the answer in transit. */
void lt_http_close_when_sent(lt_http_conn *c) {
    if (c->stage == FLUSHING && lt_http_unsent(c) == 0) {
        if (c->tls) {
            lt_tls_say_goodbye(c->bev);
        }
        shutdown(bufferevent_getfd(c->bev), SHUT_WR);
        lt_http_throw_away(c);
        lt_http_set_deadline(c, LINGER_S);
    }
}

void lt_http_on_flush(evutil_socket_t fd, short what, void *arg) {
    lt_http *h = arg;
    (void)fd;
    (void)what;
    while (h->fresh != NULL) {
        lt_http_conn *c = h->fresh;
        lt_http_unlist(c);
        if (c->closing) {
            continue;
        }
        if (!c->tls && evbuffer_get_length(bufferevent_get_output(c->bev)) == 0) {
            (void)evbuffer_write(c->out, bufferevent_getfd(c->bev)); /* Errors come back below. */
        }
        if (evbuffer_get_length(c->out) > 0) {
            bufferevent_write_buffer(c->bev, c->out);
        }
        lt_http_close_when_sent(c);
    }
}

/* ---- Answers ---- */

static void put_head(lt_http_conn *c, int status, const char *type, const char *extra,
                     int64_t length) {
    struct evbuffer *out = c->out;
    lt_http_send_soon(c);
    evbuffer_add_printf(out, "%s%d %s\r\n", c->version_sent ? "" : LT_HTTP_VERSION, status,
                        lt_http_status_text(status));
    c->begun = true;
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
    c->begun = c->version_sent = c->admitted = c->continued = false;
    c->taken = 0;
    if (c->half_closed && evbuffer_get_length(bufferevent_get_input(c->bev)) == 0) {
        c->keep_alive = false; /* Nothing more can be received. */
    }
    if (!c->keep_alive) {
        lt_http_parser_reset(&c->parser);
        lt_http_settle(c);
        c->stage = FLUSHING;
        lt_http_set_deadline(c, c->http->o.write_s);
        lt_http_send_soon(c);
        return;
    }
    c->stage = READING;
    lt_http_parser_reset(&c->parser);
    lt_http_settle(c);
    lt_http_set_deadline(c, c->http->o.idle_s);
    if (evbuffer_get_length(bufferevent_get_input(c->bev)) > 0) {
        /* A pipelined request waits: read it from the loop, so that a thousand of them do not
         * nest. */
        bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS | BEV_TRIG_IGNORE_WATERMARKS);
    }
}

void lt_http_reply(lt_http_conn *c, int status, const char *type, const char *extra,
                   const void *body, size_t n) {
    LT_ASSERT(c->stage == ANSWERING);
    if (c->closing) {
        c->user = NULL;
        return;
    }
    if (c->answered != NULL) {
        c->user = NULL;
        c->stage = FLUSHING;
        c->answered(c->answered_ctx, status, extra, body, n);
        return; /* c may be freed. */
    }
    c->chunked = false;
    put_head(c, status, type, extra, (int64_t)n);
    if (!c->head_only && n > 0) {
        evbuffer_add(c->out, body, n);
    }
    finish(c);
}

void lt_http_reply_file(lt_http_conn *c, int status, const char *type, const char *extra, int fd,
                        size_t n) {
    LT_ASSERT(c->stage == ANSWERING && c->answered == NULL);
    if (c->closing || n == 0) {
        close(fd);
        lt_http_reply(c, status, type, extra, NULL, 0);
        return;
    }
    c->chunked = false;
    put_head(c, status, type, extra, (int64_t)n);
    if (c->head_only) {
        close(fd);
        /* Otherwise it closes fd later. */
    } else if (evbuffer_add_file(c->out, fd, 0, (ev_off_t)n) != 0) {
        close(fd);
        close_soon(c);
        c->user = NULL;
        return;
    }
    finish(c);
}

void lt_http_stream(lt_http_conn *c, int status, const char *type, const char *extra) {
    LT_ASSERT(c->stage == ANSWERING && c->answered == NULL);
    if (c->closing) {
        return;
    }
    c->chunked = c->parser.minor == 1;
    if (!c->chunked) {
        c->keep_alive = false; /* HTTP/1.0: the end of the connection is the end of the answer. */
    }
    put_head(c, status, type, extra, -1);
}

/* Write n in hexadecimal and a line end; returns the next position. */
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
    if (c->closing || n == 0 || c->head_only) {
        return;
    }
    if (lt_http_unsent(c) + n > c->http->o.max_pending_bytes ||
        evbuffer_reserve_space(c->out, (ev_ssize_t)(n + CHUNK_FRAME), &v, 1) != 1) {
        lt_log_debug("http: a client reads too slowly; %zu bytes wait", lt_http_unsent(c));
        close_soon(c);
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
    lt_http_send_soon(c);
}

void lt_http_end(lt_http_conn *c) {
    LT_ASSERT(c->stage == ANSWERING);
    if (c->closing) {
        /* A caller that ends an answer drops the connection itself, so no one needs to be
         * notified. */
        c->user = NULL;
        return;
    }
    if (c->chunked && !c->head_only) {
        evbuffer_add(c->out, "0\r\n\r\n", 5);
        lt_http_send_soon(c);
    }
    finish(c);
}

char *lt_http_take_body(lt_http_conn *c) {
    char *body = c->parser.body;
    LT_ASSERT(c->stage == ANSWERING);
    c->taken = c->parser.body_room; /* From now on it counts as the body's size. */
    c->parser.body = NULL;
    c->parser.body_n = c->parser.body_room = 0;
    return body;
}

void lt_http_release_body(lt_http_conn *c) {
    if (c->answered == NULL) { /* The server's own requests do not count. */
        c->taken = 0;
        lt_http_settle(c);
    }
}

void lt_http_set_user(lt_http_conn *c, void *user) {
    c->user = user;
}

/* ---- Requests of the server itself ---- */

lt_http_conn *lt_http_inner_open(lt_http *h, char *body, size_t n, lt_http_answered *answered,
                                 void *ctx) {
    lt_http_conn *c = calloc(1, sizeof *c);
    if (c == NULL) {
        free(body);
        return NULL;
    }
    c->http = h;
    c->stage = ANSWERING;
    c->parser.body = body;
    c->parser.body_n = n;
    c->answered = answered;
    c->answered_ctx = ctx;
    return c;
}

void lt_http_inner_close(lt_http_conn *c) {
    if (c->stage == ANSWERING) {
        c->http->o.on_gone(c->http->o.ctx, c, c->user);
    }
    free(c->parser.body);
    free(c);
}

lt_http_request lt_http_inner_request(const lt_http_conn *c, const char *method, const char *path) {
    return (lt_http_request){.method = method,
                             .path = path,
                             .query = "",
                             .body = c->parser.body,
                             .body_bytes = c->parser.body_n};
}

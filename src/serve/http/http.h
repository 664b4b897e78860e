/* http.h: an HTTP/1.1 server on libevent's loop: listener, connections, keep-alive, limits,
 * streams. One thread.
 *
 * It handles bytes, not APIs. A complete request is passed to on_request, which answers at once or
 * later, on the same thread:
 *     lt_http_reply(c, 200, "application/json", NULL, body, n);                     whole
 *     lt_http_stream(c, 200, "text/event-stream", NULL); lt_http_write(c, ...); ... lt_http_end(c);
 *     in parts
 * Until the end of the answer the connection belongs to that request; pipelined ones wait. When the
 * client disconnects before, or reads too slowly (more than max_pending_bytes unsent), on_gone is
 * called and the connection must not be used again; this cancels generation.
 *
 * on_head sees a request as soon as its headers have arrived; if it refuses the request, it answers
 * it, and the body is not read.
 *
 * Limits: connections (at the limit, the oldest idle one is closed; if none is idle, 503), header
 * and body bytes of a request, bytes of all bodies being read, time for a whole request to arrive
 * (408), idle time between requests, time without progress when writing. When the bodies together
 * reach their limit, a connection is not read, so that its client stops sending; after STARVE_S
 * seconds without memory, 503. A client that only shut down its sending side gets its answer.
 * libevent's own evhttp is not used: see docs/adr/0004-own-http.md. */
#ifndef LT_SERVE_HTTP_H
#define LT_SERVE_HTTP_H

#include <event2/event.h>
#include <stdbool.h>
#include <stddef.h>

#include "lateen/base.h"
#include "serve/http/parse.h"

typedef struct lt_http lt_http;
typedef struct lt_http_conn lt_http_conn;

typedef struct {
    const char *method, *path, *query; /* path without the query; query "" if there is none. */
    const char *body;                  /* 0-terminated. */
    size_t body_bytes;
    const lt_http_parser *head; /* For lt_http_header_get; NULL: the server's own request. */
} lt_http_request;

/* A request that the parser or the deadline refused, and the API's answer; both texts are
 * 0-terminated. */
typedef struct {
    int status;
    const char *why;
    const lt_http_parser *head; /* The head, as far as it was read. */
    bool counted;               /* on_head was called for it. */
    char extra[600], body[512]; /* Header lines; the answer. */
} lt_http_refusal;

typedef struct {
    const char *host;   /* NULL: it does not listen. */
    int port;           /* 0: any free port; see lt_http_port. */
    struct lt_tls *tls; /* http/tls.h; NULL: without TLS. */
    int max_connections;
    size_t max_head_bytes, max_body_bytes, max_pending_bytes;
    /* Bodies of all connections together; the first 16 KiB of each do not count. */
    size_t max_bodies_bytes;
    double request_s, idle_s, write_s;
    void *ctx;
    /* False: it was answered (lt_http_reply). The body has not been read yet. */
    bool (*on_head)(void *ctx, lt_http_conn *c, const lt_http_request *r);
    void (*on_request)(void *ctx, lt_http_conn *c, const lt_http_request *r);
    void (*on_gone)(void *ctx, lt_http_conn *c, void *user); /* user: lt_http_set_user's. */
    void (*on_bad)(void *ctx, lt_http_refusal *r);           /* Fill in the answer. */
} lt_http_options;

LT_MUST_USE lt_err lt_http_open(lt_http **out, struct event_base *base, const lt_http_options *o);
/* Closes every connection; on_gone is called for open answers. */
void lt_http_close(lt_http *h);
int lt_http_port(const lt_http *h);

/* Counts since the start, except for the first two. */
typedef struct {
    int64_t connections, bodies_bytes;
    uint64_t refused;   /* Connections refused because all were in use: 503. */
    uint64_t dropped;   /* Idle connections closed to make room. */
    uint64_t starved;   /* Requests that waited too long for memory for their body: 503. */
    uint64_t timed_out; /* Requests that did not arrive in time: 408. */
} lt_http_counts;
lt_http_counts lt_http_get_counts(const lt_http *h);

/* extra: complete header lines, each with its CRLF, or NULL. */
void lt_http_reply(lt_http_conn *c, int status, const char *type, const char *extra,
                   const void *body, size_t n);
void lt_http_stream(lt_http_conn *c, int status, const char *type, const char *extra);
void lt_http_write(lt_http_conn *c, const void *data, size_t n);
void lt_http_end(lt_http_conn *c);
/* Take over the request's body, 0-terminated and malloc'ed; NULL: it has none. */
char *lt_http_take_body(lt_http_conn *c);
/* Report that a taken body was freed, so that it no longer counts. After the end of the answer it
 * does not count in any case. */
void lt_http_release_body(lt_http_conn *c);
void lt_http_set_user(lt_http_conn *c, void *user);

/* Send the rest of an open file, n bytes, as the body; the descriptor becomes the connection's. */
void lt_http_reply_file(lt_http_conn *c, int status, const char *type, const char *extra, int fd,
                        size_t n);

/* ---- Requests of the server itself ---- */

/* A connection without a socket: a request that the server makes to itself, so that an endpoint
 * answers it like any other. It has one request, which may be answered with lt_http_reply only. */
typedef void lt_http_answered(void *ctx, int status, const char *extra, const void *body, size_t n);

/* Takes over the body: n bytes and a 0, malloc'ed. NULL: out of memory, and the body is freed. */
lt_http_conn *lt_http_inner_open(lt_http *h, char *body, size_t n, lt_http_answered *answered,
                                 void *ctx);
/* Call it inside `answered` or later. Before `answered`, on_gone is called, and no answer
 * follows. */
void lt_http_inner_close(lt_http_conn *c);
/* The request: it has no headers. */
lt_http_request lt_http_inner_request(const lt_http_conn *c, const char *method, const char *path);

const char *lt_http_status_text(int status);

#endif

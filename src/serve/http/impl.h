/* http/impl.h: connections from inside: http.c accepts, reads and frees them, http/answer.c writes
 * to them.
 *
 * Answers are gathered in a buffer of the connection. When the loop's current callback returns,
 * each connection with output is written to once, directly, so a token costs a stream one system
 * call. Only what the socket does not take goes to the bufferevent, which waits with epoll until it
 * can be written. (Writing with bufferevents alone took three calls: epoll_ctl, writev,
 * epoll_ctl.) */
#ifndef LT_SERVE_HTTP_IMPL_H
#define LT_SERVE_HTTP_IMPL_H

#include <event2/bufferevent.h>

#include "serve/http/http.h"

#define LT_HTTP_VERSION "HTTP/1.1 " /* Every answer begins with it. */

typedef enum { READING, ANSWERING, FLUSHING } conn_stage;

struct lt_http_conn {
    lt_http *http;
    struct bufferevent *bev;
    struct event *deadline; /* READING: when the request or the idle time ends; closing: at once. */
    lt_http_parser parser;
    conn_stage stage;
    bool keep_alive, chunked, head_only, closing, continued;
    bool tls, greeted; /* greeted: its handshake has ended. */
    bool admitted;     /* on_head has seen this request. */
    bool half_closed;  /* The client sends no more. */
    /* The head of the answer was written; its first word was sent early. */
    bool begun, version_sent;
    bool starved; /* It is not read until there is memory for its body. */
    /* READING: since when; and when the whole request must have arrived. */
    double starved_s, due_s;
    const char *query;    /* Query of the current request. */
    size_t room, taken;   /* Bytes of head and body; bytes of a body that the API took. */
    struct evbuffer *out; /* Not yet sent. */
    void *user;
    /* The server's own request: without socket, buffers and events. */
    lt_http_answered *answered;
    void *answered_ctx;
    lt_http_conn *next, *prev;
    /* Links of connections with new output; fresh_at NULL: none. */
    lt_http_conn *fresh_next, **fresh_at;
};

struct lt_http {
    lt_http_options o;
    struct event_base *base;
    struct evconnlistener *listener;
    lt_http_conn *conns, *fresh;
    struct event *on_flush, *on_room;
    int64_t n_conns, n_starved;
    lt_http_counts counts;
    double warned_s;
    int port, more; /* more: connections beyond max_connections, which are answered 503. */
};

void lt_http_set_deadline(lt_http_conn *c, double seconds);
/* Memory of its request was freed: count the rest, and let connections that wait for memory
 * continue. */
void lt_http_settle(lt_http_conn *c);

size_t lt_http_unsent(const lt_http_conn *c);
/* Send `out` when the current callback returns. */
void lt_http_send_soon(lt_http_conn *c);
/* Remove it from the connections with output. */
void lt_http_unlist(lt_http_conn *c);
void lt_http_on_flush(evutil_socket_t fd, short what, void *http);
/* After its last answer: close gracefully once all is sent. */
void lt_http_close_when_sent(lt_http_conn *c);
/* Discard what a client still sends. */
void lt_http_throw_away(lt_http_conn *c);

#endif

/* listen.h: a small HTTP server in its own thread, for metrics and reports: /metrics of a trainer
 * and of a node, the live report of a run. It serves only GET; a function for each path makes the
 * whole response, on the server's thread. (The server for models has its own HTTP code,
 * serve/http.) */
#ifndef LT_PLATFORM_TELEMETRY_LISTEN_H
#define LT_PLATFORM_TELEMETRY_LISTEN_H

#include <stddef.h>

#include "lateen/base.h"

typedef struct lt_listener lt_listener;

typedef struct {
    int status; /* 0 counts as 200. */
    const char *type;
    char *text; /* malloc'ed; the server frees it. */
    size_t bytes;
} lt_answer;

/* A failure is answered with 500; its message, which may name paths of the machine, goes to the
 * log. accept: the request's header, or NULL. */
typedef struct {
    const char *path; /* "/metrics" */
    lt_err (*answer)(void *ctx, const char *accept, lt_answer *out);
} lt_listen_route;

/* Serve at "HOST:PORT", "[ADDRESS]:PORT" or ":PORT" (127.0.0.1); port 0: any that is free. option:
 * the beginning of messages. routes must outlive the listener. */
LT_MUST_USE lt_err lt_listen_open(lt_listener **out, const char *option, const char *at,
                                  const lt_listen_route *routes, int n_routes, void *ctx);
const char *lt_listen_address(const lt_listener *l); /* "127.0.0.1:9400", with the real port. */
/* Waits for a response that is being made. Accepts NULL. */
void lt_listen_close(lt_listener *l);

#endif

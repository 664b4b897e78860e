/* http/tls.h: TLS for the HTTP server, with a certificate and its key from files that are read
 * again when they change (docs/adr/0005).
 *
 * Bad files at the start are an error. Bad files later are only reported in the log, and the last
 * good pair stays in use; so a certificate and its key can be replaced one after the other.
 * Connections keep the pair they began with. TLS 1.2 and 1.3, no renegotiation, no compression; the
 * application protocol is http/1.1. */
#ifndef LT_SERVE_HTTP_TLS_H
#define LT_SERVE_HTTP_TLS_H

#include <event2/bufferevent.h>

#include "lateen/base.h"

typedef struct lt_tls lt_tls;

/* cert: the certificate and those between it and its root, PEM; key: without a password. */
LT_MUST_USE lt_err lt_tls_open(lt_tls **out, struct event_base *base, const char *cert,
                               const char *key);
void lt_tls_close(lt_tls *t); /* Accepts NULL. */

/* Wrap an accepted connection; NULL: no memory, and fd still belongs to the caller. */
struct bufferevent *lt_tls_accept(lt_tls *t, struct event_base *base, evutil_socket_t fd);
/* Tell the client that no data follows. */
void lt_tls_say_goodbye(struct bufferevent *bev);

#endif

/* listen.c: libevent's evhttp on a thread; see listen.h. */
#include "platform/telemetry/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/thread.h>

#include "base/error.h"
#include "base/log.h"

/* A client that neither sends nor reads for this time is dropped. */
#define IDLE_S     30
#define HEAD_BYTES 16384

struct lt_listener {
    const lt_listen_route *routes;
    int n_routes;
    void *ctx;
    char host[256], address[300];
    struct event_base *base;
    struct evhttp *http;
    pthread_t thread;
    bool running;
};

static void reply(struct evhttp_request *req, const lt_answer *a) {
    struct evbuffer *body = evhttp_request_get_output_buffer(req);
    struct evkeyvalq *headers = evhttp_request_get_output_headers(req);
    const int status = a->status != 0 ? a->status : HTTP_OK;
    (void)evhttp_add_header(headers, "Content-Type", a->type);
    (void)evhttp_add_header(headers, "Cache-Control", "no-store");
    (void)evbuffer_add(body, a->text, a->bytes);
    evhttp_send_reply(req, status, status == HTTP_OK ? "OK" : "Unavailable", NULL);
}

static void on_request(struct evhttp_request *req, void *arg) {
    const lt_listener *l = arg;
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req));
    const char *accept = evhttp_find_header(evhttp_request_get_input_headers(req), "Accept");

    for (int i = 0; path != NULL && i < l->n_routes; i++) {
        lt_answer a = {.status = 0};
        if (strcmp(path, l->routes[i].path) != 0) {
            continue;
        }
        if (l->routes[i].answer(l->ctx, accept, &a) != LT_OK) {
            lt_log_warn("%s: %s", path, lt_error_message());
            evhttp_send_error(req, HTTP_INTERNAL, NULL);
        } else {
            reply(req, &a);
        }
        free(a.text);
        return;
    }
    evhttp_send_error(req, HTTP_NOTFOUND, NULL);
}

static void *serve(void *arg) {
    lt_listener *l = arg;
    (void)event_base_dispatch(l->base);
    return NULL;
}

/* Split "[::1]:9400" or "host:9400" into host and port. */
static lt_err split(lt_listener *l, const char *option, const char *at, unsigned short *port) {
    const char *colon = strrchr(at, ':'), *begin = at;
    size_t n = colon != NULL ? (size_t)(colon - at) : 0;
    char *end = NULL;
    const unsigned long number = colon != NULL ? strtoul(colon + 1, &end, 10) : 0;

    if (colon == NULL || end == colon + 1 || *end != '\0' || number > 65535) {
        LT_FAIL(LT_ERR_ARG, "%s: '%s' is not HOST:PORT", option, at);
    }
    if (n >= 2 && begin[0] == '[' && begin[n - 1] == ']') {
        begin++;
        n -= 2;
    }
    if (n >= sizeof l->host) {
        LT_FAIL(LT_ERR_ARG, "%s: a host of %zu characters", option, n);
    }
    snprintf(l->host, sizeof l->host, "%.*s", (int)n, begin);
    if (n == 0) {
        snprintf(l->host, sizeof l->host, "127.0.0.1");
    }
    *port = (unsigned short)number;
    return LT_OK;
}

static unsigned short bound_port(struct evhttp_bound_socket *s) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(evhttp_bound_socket_get_fd(s), (struct sockaddr *)&a, &n) != 0) {
        return 0;
    }
    return ntohs(a.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port
                                         : ((struct sockaddr_in *)&a)->sin_port);
}

lt_err lt_listen_open(lt_listener **out, const char *option, const char *at,
                      const lt_listen_route *routes, int n_routes, void *ctx) {
    lt_err err = LT_OK;
    unsigned short port = 0;
    struct evhttp_bound_socket *socket;
    lt_listener *l = calloc(1, sizeof *l);

    if (l == NULL || evthread_use_pthreads() != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", option);
    }
    *l = (lt_listener){.routes = routes, .n_routes = n_routes, .ctx = ctx};
    LT_TRY_DONE(split(l, option, at, &port));
    l->base = event_base_new();
    l->http = l->base != NULL ? evhttp_new(l->base) : NULL;
    if (l->http == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", option);
    }
    evhttp_set_allowed_methods(l->http, EVHTTP_REQ_GET);
    evhttp_set_timeout(l->http, IDLE_S);
    evhttp_set_max_headers_size(l->http, HEAD_BYTES);
    evhttp_set_max_body_size(l->http, 0);
    evhttp_set_gencb(l->http, on_request, l);
    socket = evhttp_bind_socket_with_handle(l->http, l->host, port);
    if (socket == NULL) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: cannot listen at %s: %s; is another process serving there?",
                     option, at, strerror(errno));
    }
    snprintf(l->address, sizeof l->address, strchr(l->host, ':') != NULL ? "[%s]:%d" : "%s:%d",
             l->host, bound_port(socket));
    if (pthread_create(&l->thread, NULL, serve, l) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s: no thread", option);
    }
    l->running = true;
    *out = l;
    l = NULL;
done:
    lt_listen_close(l);
    return err;
}

const char *lt_listen_address(const lt_listener *l) {
    return l->address;
}

void lt_listen_close(lt_listener *l) {
    if (l == NULL) {
        return;
    }
    if (l->running) {
        /* Not loopbreak, which has no effect on a loop that the thread has not begun yet. */
        (void)event_base_loopexit(l->base, NULL);
        pthread_join(l->thread, NULL);
    }
    if (l->http != NULL) {
        evhttp_free(l->http);
    }
    if (l->base != NULL) {
        event_base_free(l->base);
    }
    free(l);
}

/* page.c: `lateen train --page PORT`: libevent's HTTP server on 127.0.0.1, in its own thread,
 * which reads only the files of the run folder; the training loop is not involved. GET / is the
 * report, GET /data.json its data. */
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
#include "base/file.h"
#include "train/report.h"
#include "train/report_page.h"

struct lt_page {
    char run_folder[LT_PATH_BYTES];
    struct event_base *base;
    struct evhttp *http;
    pthread_t thread;
    bool running;
};

static void reply(struct evhttp_request *req, const char *type, const char *text) {
    struct evbuffer *body = evhttp_request_get_output_buffer(req);
    evhttp_add_header(evhttp_request_get_output_headers(req), "Content-Type", type);
    evhttp_add_header(evhttp_request_get_output_headers(req), "Cache-Control", "no-store");
    evbuffer_add(body, text, strlen(text));
    evhttp_send_reply(req, HTTP_OK, "OK", NULL);
}

static void on_data(struct evhttp_request *req, void *arg) {
    const lt_page *p = arg;
    char *data = NULL;
    if (lt_report_data(&data, p->run_folder, LT_REPORT_ROWS) != LT_OK) {
        evhttp_send_error(req, HTTP_INTERNAL, lt_error_message());
        return;
    }
    reply(req, "application/json", data);
    free(data);
}

static void on_page(struct evhttp_request *req, void *arg) {
    const char *path = evhttp_uri_get_path(evhttp_request_get_evhttp_uri(req));
    (void)arg;
    if (path == NULL || (strcmp(path, "/") != 0 && strcmp(path, "/report.html") != 0)) {
        evhttp_send_error(req, HTTP_NOTFOUND, NULL);
        return;
    }
    reply(req, "text/html; charset=utf-8",
          lt_report_page); /* Without data: the first fetch brings it. */
}

static void *serve(void *arg) {
    lt_page *p = arg;
    event_base_dispatch(p->base);
    return NULL;
}

lt_err lt_page_open(lt_page **out, const char *run_folder, int port) {
    lt_err err = LT_OK;
    lt_page *p = calloc(1, sizeof *p);

    if (p == NULL || evthread_use_pthreads() != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "page server");
    }
    snprintf(p->run_folder, sizeof p->run_folder, "%s", run_folder);
    p->base = event_base_new();
    p->http = p->base != NULL ? evhttp_new(p->base) : NULL;
    if (p->http == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "page server");
    }
    evhttp_set_allowed_methods(p->http, EVHTTP_REQ_GET);
    evhttp_set_cb(p->http, "/data.json", on_data, p);
    evhttp_set_gencb(p->http, on_page, p);
    if (evhttp_bind_socket(p->http, "127.0.0.1", (unsigned short)port) != 0) {
        LT_FAIL_DONE(LT_ERR_IO, "page: cannot bind 127.0.0.1:%d; is another run serving there?",
                     port);
    }
    if (pthread_create(&p->thread, NULL, serve, p) != 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "page server: no thread");
    }
    p->running = true;
    *out = p;
    p = NULL;
done:
    lt_page_close(p);
    return err;
}

void lt_page_close(lt_page *p) {
    if (p == NULL) {
        return;
    }
    if (p->running) {
        event_base_loopbreak(p->base);
        pthread_join(p->thread, NULL);
    }
    if (p->http != NULL) {
        evhttp_free(p->http);
    }
    if (p->base != NULL) {
        event_base_free(p->base);
    }
    free(p);
}

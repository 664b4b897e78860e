/* watch.c: checks at intervals, and serves the results: /metrics for Prometheus, /healthz for
 * probes of Kubernetes. A check may take seconds, so a response never waits for it: responses have
 * the results of the last check, and only GPUs are read anew for each /metrics. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "platform/health/expose.h"
#include "platform/telemetry/listen.h"

#define N_FORMATS (LT_EXPO_OPENMETRICS + 1)

typedef struct {
    const lt_health *h;
    double start_unix_s;
    pthread_mutex_t lock; /* Protects the following fields, which the last check wrote. */
    lt_expo texts[N_FORMATS];
    char why[LT_HEALTH_WHY_BYTES];
    lt_health_result result;
    double xids[LT_HEALTH_GPUS]; /* The last XID of each GPU; NAN: none. */
} watch;

/* Store the results of a check. */
static lt_err keep(watch *w) {
    const lt_facts *f = lt_health_facts(w->h);
    lt_expo texts[N_FORMATS];

    for (int format = 0; format < N_FORMATS; format++) {
        texts[format] = (lt_expo){.format = (lt_expo_format)format};
        lt_health_expose(&texts[format], w->h, lt_health_unix_s(w->h));
    }
    pthread_mutex_lock(&w->lock);
    for (int format = 0; format < N_FORMATS; format++) {
        lt_expo_free(&w->texts[format]);
        w->texts[format] = texts[format];
    }
    lt_health_why(w->h, w->why);
    w->result = lt_health_result_of(w->h);
    for (int i = 0; i < LT_HEALTH_GPUS; i++) {
        w->xids[i] = i < f->n_gpus ? f->gpus[i].xid : NAN;
    }
    pthread_mutex_unlock(&w->lock);
    if (texts[LT_EXPO_TEXT].failed || texts[LT_EXPO_OPENMETRICS].failed) {
        LT_FAIL(LT_ERR_OOM, "metrics of the health check");
    }
    return LT_OK;
}

/* Begin e with the text of the last check. */
static void copy_text(watch *w, lt_expo *e, double xids[LT_HEALTH_GPUS]) {
    pthread_mutex_lock(&w->lock);
    e->data = malloc(w->texts[e->format].room);
    e->failed = e->data == NULL;
    if (!e->failed) {
        e->n = w->texts[e->format].n;
        e->room = w->texts[e->format].room;
        memcpy(e->data, w->texts[e->format].data, e->n + 1);
    }
    memcpy(xids, w->xids, sizeof w->xids);
    pthread_mutex_unlock(&w->lock);
}

static lt_err answer_metrics(void *ctx, const char *accept, lt_answer *out) {
    watch *w = ctx;
    const lt_machine_source *source = lt_health_source(w->h);
    lt_expo e = {.format = lt_expo_choose(accept)};
    lt_gpu_reading *gpus = calloc(LT_HEALTH_GPUS, sizeof *gpus);
    double xids[LT_HEALTH_GPUS];
    int n = 0;

    if (gpus == NULL) {
        LT_FAIL(LT_ERR_OOM, "metrics");
    }
    copy_text(w, &e, xids);
    if (source->gpus(source, gpus, &n) != LT_OK) {
        n = 0; /* The check reports why. */
    }
    for (int i = 0; i < n; i++) {
        gpus[i].xid = xids[i];
    }
    lt_gpus_expose(&e, gpus, n, lt_health_node(w->h));
    lt_expo_process(&e, w->start_unix_s);
    lt_expo_end(&e);
    free(gpus);
    if (e.failed) {
        lt_expo_free(&e);
        LT_FAIL(LT_ERR_OOM, "metrics");
    }
    *out = (lt_answer){.type = lt_expo_content_type(e.format), .text = e.data, .bytes = e.n};
    return LT_OK;
}

static lt_err answer_healthz(void *ctx, const char *accept, lt_answer *out) {
    watch *w = ctx;
    (void)accept;
    pthread_mutex_lock(&w->lock);
    out->text = strdup(w->why[0] != '\0' ? w->why : "ok");
    out->status = w->result >= LT_HEALTH_DRAIN ? 503 : 200;
    pthread_mutex_unlock(&w->lock);
    if (out->text == NULL) {
        LT_FAIL(LT_ERR_OOM, "healthz");
    }
    out->type = "text/plain; charset=utf-8";
    out->bytes = strlen(out->text);
    return LT_OK;
}

static const lt_listen_route routes[] = {{"/metrics", answer_metrics},
                                         {"/healthz", answer_healthz}};

/* Sleep until the next check, or until a signal ends the sleep and *stop says so. */
static void sleep_until(double end_s, const volatile sig_atomic_t *stop) {
    for (double left_s; *stop == 0 && (left_s = end_s - lt_clock_s()) > 0.0;) {
        const double part_s = fmin(left_s, 0.2); /* A signal may come just before the sleep. */
        const struct timespec t = {.tv_nsec = (long)(part_s * 1e9)};
        (void)nanosleep(&t, NULL);
    }
}

lt_err lt_health_watch(lt_health *h, const lt_health_watch_options *o) {
    lt_err err = LT_OK;
    lt_listener *listener = NULL;
    watch w = {.h = h, .start_unix_s = lt_clock_unix_s()};

    (void)pthread_mutex_init(&w.lock, NULL);
    while (*o->stop == 0) {
        const double next_s = lt_clock_s() + o->every_s;
        LT_TRY_DONE(lt_health_check(h));
        LT_TRY_DONE(keep(&w));
        if (listener == NULL) { /* The server starts after the first result. */
            LT_TRY_DONE(lt_listen_open(&listener, "listen", o->listen, routes,
                                       (int)(sizeof routes / sizeof *routes), &w));
            o->on_listen(lt_listen_address(listener));
        }
        LT_TRY_DONE(o->on_check(h, o->ctx));
        sleep_until(next_s, o->stop);
    }
done:
    lt_listen_close(listener);
    for (int format = 0; format < N_FORMATS; format++) {
        lt_expo_free(&w.texts[format]);
    }
    (void)pthread_mutex_destroy(&w.lock);
    return err;
}

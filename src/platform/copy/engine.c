/* engine.c: see engine.h.
 *
 *     a file     open ──▶ parts, taken in order ──▶ completing the last part ends it
 *     a part     [recall] ──▶ read ──▶ wait until all parts before it are checked ──▶ check ──▶ put
 *
 * The wait cannot block for ever: parts are taken in order, so another thread works on the part
 * that is awaited, and waits only for parts before it. One mutex guards the list and the files;
 * it is never held during a request. */
#include "platform/copy/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"

#define TICK_S      0.2
#define PART_UNIT   ((int64_t)1 << 20)
#define MOST_IN_ONE ((int64_t)1 << 30) /* Largest file from a server that cannot send ranges. */

typedef struct job job;
struct job {
    job *next;
    lt_opened_item opened;
    lt_landing *landing;
    lt_verifier *checker; /* NULL: there is no checksum to compare with. */
    int64_t part_bytes, n_parts;
    int64_t taken, checked, done; /* Numbers of parts. */
    /* The bytes received are useless, e.g. have another checksum. */
    bool wrong;
};

typedef struct {
    const lt_engine_work *w;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    job *jobs;          /* Open files, the oldest first. */
    size_t next_item;   /* Index in the list. */
    int n_opening;      /* Files that are being opened. */
    int n_running;      /* Threads that run. */
    lt_failure failure; /* The first failure. */
    lt_copy_report report;
} engine;

typedef struct {
    engine *e;
    pthread_t thread;
    lt_web *http;
    unsigned char *data;
    size_t data_bytes;
} worker;

static void fail(engine *e, lt_err err) {
    pthread_mutex_lock(&e->lock);
    if (e->failure.err == LT_OK) {
        lt_failure_keep(&e->failure, err);
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* Whether a failure may not occur when the same copy is made again. If so, the parts that have
 * arrived are kept. */
static bool is_passing(lt_err err) {
    return err == LT_ERR_INTERRUPTED || err == LT_ERR_REMOTE || err == LT_ERR_OOM ||
           err == LT_ERR_IO;
}

static void job_free(job *j, lt_web *h, bool keep) {
    if (j != NULL) {
        lt_landing_close(j->landing, h, keep);
        lt_verifier_close(j->checker);
        lt_copy_source_close(&j->opened);
        free(j);
    }
}

/* Set the size of a file's parts: the requested one, or a larger one so that an upload does not
 * have too many. */
static lt_err divide(job *j, const lt_copy_options *o) {
    const int64_t n = j->opened.size_bytes;
    j->part_bytes = o->part_bytes;
    if ((n + j->part_bytes - 1) / j->part_bytes > LT_S3_MOST_PARTS) {
        j->part_bytes = (n / LT_S3_MOST_PARTS / PART_UNIT + 1) * PART_UNIT;
    }
    if (j->opened.source->at.at == LT_AT_WEB && j->opened.version[0] == '\0' &&
        /* Two answers may be of two versions, which nothing would reveal. */
        o->sha256[0] == '\0') {
        j->opened.in_one = n <= MOST_IN_ONE;
        if (j->opened.in_one) {
            j->part_bytes = n > j->part_bytes ? n : j->part_bytes;
        } else {
            lt_log_warn("%s: the server sends neither an ETag nor a date: if the file is replaced "
                        "during the copy, only --sha256 notices it",
                        j->opened.item->shown);
        }
    }
    if (!j->opened.ranges && n > j->part_bytes) {
        if (n > MOST_IN_ONE) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: %lld bytes, and the server cannot send them in ranges; at most %lld",
                    j->opened.item->shown, (long long)n, (long long)MOST_IN_ONE);
        }
        j->part_bytes = n;
    }
    j->n_parts = (n + j->part_bytes - 1) / j->part_bytes;
    return LT_OK;
}

/* Open the verifier for the source's checksum, or for the one that the user gave. */
static lt_err open_checker(job *j, const lt_copy_options *o) {
    if (o->sha256[0] != '\0') {
        j->opened.check = (lt_checksum){.kind = LT_DIGEST_SHA256};
        memcpy(j->opened.check.hex, o->sha256, 2 * lt_digest_bytes(LT_DIGEST_SHA256) + 1);
    }
    return j->opened.check.kind == LT_DIGEST_NONE
               ? LT_OK
               : lt_verifier_open(&j->checker, &j->opened.check, j->opened.size_bytes);
}

/* Count a file that needs no copy as done. */
static void count_same(engine *e, const job *j) {
    pthread_mutex_lock(&e->lock);
    e->report.n_files_done++;
    e->report.n_files_same++;
    e->report.done_bytes += j->opened.size_bytes;
    pthread_mutex_unlock(&e->lock);
}

/* Check that the content has the source's checksum, if there is one that applies. */
static lt_err check_content(worker *w, job *j) {
    const lt_err err = lt_verifier_end(j->checker, j->opened.item->shown);
    lt_failure wrong;
    bool fits = true;
    if (err == LT_OK) {
        return LT_OK;
    }
    lt_failure_keep(&wrong, err);
    LT_TRY(lt_copy_source_doubt(&j->opened, w->http, &fits));
    if (fits) {
        return lt_failure_raise(&wrong);
    }
    lt_log_warn("%s was uploaded in parts of different sizes: its checksum cannot be compared",
                j->opened.item->shown);
    j->opened.check.kind = LT_DIGEST_NONE;
    return LT_OK;
}

static lt_err job_end(worker *w, job *j) {
    engine *e = w->e;
    if (j->checker != NULL) {
        LT_TRY(check_content(w, j));
    }
    LT_TRY(lt_copy_source_check(&j->opened));
    LT_TRY(lt_landing_end(j->landing, w->http));
    pthread_mutex_lock(&e->lock);
    e->report.n_files_done++;
    /* It was compared with the store's ETags. */
    if (lt_landing_compares(j->landing) && j->checker == NULL) {
        (void)snprintf(e->report.checked_by, sizeof e->report.checked_by, "MD5%s",
                       j->n_parts > 1 ? " of its parts" : "");
    } else {
        lt_checksum_text(&j->opened.check, e->report.checked_by);
    }
    for (job **p = &e->jobs; *p != NULL; p = &(*p)->next) {
        if (*p == j) {
            *p = j->next;
            break;
        }
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    job_free(j, w->http, false);
    return LT_OK;
}

/* Open a file and add it to the jobs, unless it is already at the target or has no bytes. */
static lt_err open_item(worker *w, const lt_item *item) {
    engine *e = w->e;
    const lt_engine_work *k = e->w;
    lt_err err = LT_OK;
    bool same = false, listed;
    job *j = calloc(1, sizeof *j);

    if (j == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%s", item->shown);
    }
    j->opened.fd = -1;
    LT_TRY_DONE(lt_copy_source_open(k->source, w->http, item, &j->opened));
    LT_TRY_DONE(lt_target_has(k->target, w->http, &j->opened, &same));
    LT_TRY_DONE(divide(j, k->options));
    if (!same) {
        LT_TRY_DONE(open_checker(j, k->options));
        LT_TRY_DONE(lt_landing_open(&j->landing, k->target, w->http, &j->opened, j->part_bytes,
                                    j->n_parts));
        if (k->options->wait) { /* Another process may have made it meanwhile. */
            LT_TRY_DONE(lt_target_has(k->target, w->http, &j->opened, &same));
        }
    }
    pthread_mutex_lock(&e->lock);
    e->report.total_bytes += j->opened.size_bytes - item->size_bytes;
    listed = !same && j->n_parts > 0;
    if (listed) {
        job **p = &e->jobs;
        while (*p != NULL) {
            p = &(*p)->next;
        }
        *p = j;
        pthread_cond_broadcast(&e->changed);
    }
    pthread_mutex_unlock(&e->lock);
    if (same) {
        count_same(e, j);
    } else {
        if (!listed) { /* The file has no bytes. */
            LT_TRY_DONE(job_end(w, j));
        }
        j = NULL;
    }
done:
    job_free(j, w->http, is_passing(err));
    return err;
}

static lt_err need_bytes(worker *w, size_t bytes) {
    if (bytes > w->data_bytes) {
        free(w->data);
        w->data_bytes = 0;
        w->data = malloc(bytes);
        if (w->data == NULL) {
            LT_FAIL(LT_ERR_OOM, "a part of %zu bytes", bytes);
        }
        w->data_bytes = bytes;
    }
    return LT_OK;
}

/* Check a part after all parts before it have been checked. False: the copy has failed
 * meanwhile. */
static bool check_in_turn(engine *e, job *j, int64_t part, const unsigned char *data,
                          size_t bytes) {
    bool go_on;
    pthread_mutex_lock(&e->lock);
    while (j->checked < part && e->failure.err == LT_OK) {
        pthread_cond_wait(&e->changed, &e->lock);
    }
    go_on = e->failure.err == LT_OK;
    pthread_mutex_unlock(&e->lock);
    if (!go_on) {
        return false;
    }
    lt_verifier_add(j->checker, data, bytes);
    pthread_mutex_lock(&e->lock);
    j->checked++;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return true;
}

static lt_err do_part(worker *w, job *j, int64_t part) {
    engine *e = w->e;
    const int64_t at = part * j->part_bytes, left = j->opened.size_bytes - at,
                  n = left < j->part_bytes ? left : j->part_bytes;
    const bool compares = lt_landing_compares(j->landing);
    bool have = false, last;

    LT_TRY(need_bytes(w, (size_t)n));
    if (!compares) {
        LT_TRY(lt_landing_recall(j->landing, part, w->data, (size_t)n, &have));
    }
    if (!have) {
        LT_TRY(lt_copy_source_read(&j->opened, w->http, at, n, w->data));
    }
    if (compares) {
        LT_TRY(lt_landing_recall(j->landing, part, w->data, (size_t)n, &have));
    }
    if (j->checker != NULL && !check_in_turn(e, j, part, w->data, (size_t)n)) {
        return LT_OK;
    }
    if (!have) {
        LT_TRY(lt_landing_put(j->landing, w->http, part, w->data, (size_t)n));
    }
    pthread_mutex_lock(&e->lock);
    e->report.done_bytes += have ? n : 0;
    j->done++;
    last = j->done == j->n_parts;
    pthread_mutex_unlock(&e->lock);
    return last ? job_end(w, j) : LT_OK;
}

typedef enum { NOTHING_LEFT, OPEN_ITEM, DO_PART } step;

/* Decide what to do next; waits while files that are being opened may add parts. */
static step next_step(engine *e, job **out, int64_t *part, const lt_item **item) {
    step s = NOTHING_LEFT;
    pthread_mutex_lock(&e->lock);
    while (e->failure.err == LT_OK) {
        job *j = e->jobs;
        while (j != NULL && j->taken == j->n_parts) {
            j = j->next;
        }
        if (j != NULL) {
            *out = j;
            *part = j->taken++;
            s = DO_PART;
            break;
        }
        if (e->next_item < e->w->items->n) {
            *item = &e->w->items->rows[e->next_item++];
            e->n_opening++;
            s = OPEN_ITEM;
            break;
        }
        if (e->n_opening == 0) {
            break;
        }
        pthread_cond_wait(&e->changed, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
    return s;
}

static void *work(void *arg) {
    worker *w = arg;
    engine *e = w->e;
    job *j = NULL;
    int64_t part = 0;
    const lt_item *item = NULL;
    step s;

    while ((s = next_step(e, &j, &part, &item)) != NOTHING_LEFT) {
        const lt_err err = s == OPEN_ITEM ? open_item(w, item) : do_part(w, j, part);
        if (err != LT_OK) {
            if (s == DO_PART) {
                pthread_mutex_lock(&e->lock);
                j->wrong = j->wrong || !is_passing(err);
                pthread_mutex_unlock(&e->lock);
            }
            fail(e, err);
        }
        if (s == OPEN_ITEM) {
            pthread_mutex_lock(&e->lock);
            e->n_opening--;
            pthread_cond_broadcast(&e->changed);
            pthread_mutex_unlock(&e->lock);
        }
    }
    pthread_mutex_lock(&e->lock);
    e->n_running--;
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* The state of the copy; the caller holds the lock. */
static lt_copy_report report_now(const engine *e, double begin_s) {
    const lt_web_shared *s = e->w->shared;
    lt_copy_report r = e->report;
    r.moved_bytes = atomic_load(&s->moved);
    r.done_bytes += r.moved_bytes;
    r.n_retries = atomic_load(&s->n_retries);
    r.seconds = lt_clock_s() - begin_s;
    return r;
}

/* Wait for the threads, and tell the caller how far they are. */
static void watch(engine *e, double begin_s) {
    const lt_copy_options *o = e->w->options;
    pthread_mutex_lock(&e->lock);
    while (e->n_running > 0) {
        struct timespec until;
        (void)clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += (long)(TICK_S * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        (void)pthread_cond_timedwait(&e->changed, &e->lock, &until);
        if (e->failure.err != LT_OK) {
            atomic_store(&e->w->shared->stop, true);
        }
        if (o->tick != NULL && !atomic_load(&e->w->shared->stop)) {
            const lt_copy_report now = report_now(e, begin_s);
            pthread_mutex_unlock(&e->lock);
            if (o->tick(o->ctx, &now)) {
                atomic_store(&e->w->shared->stop, true);
                fail(e, lt_error_set(LT_ERR_INTERRUPTED, "the copy was stopped"));
            }
            pthread_mutex_lock(&e->lock);
        }
    }
    pthread_mutex_unlock(&e->lock);
}

lt_err lt_engine_run(const lt_engine_work *w, lt_copy_report *report) {
    const double begin_s = lt_clock_s();
    const int64_t n = w->options->n_connections;
    engine e = {.w = w, .report.n_files = (int64_t)w->items->n};
    worker *workers = calloc((size_t)n, sizeof *workers);
    pthread_condattr_t clock;
    lt_web *http = NULL;
    lt_err err = LT_OK;

    /* Use the monotonic clock: a tick measured by the time of day would last longer if that is
     * set back. */
    LT_ASSERT(pthread_condattr_init(&clock) == 0 &&
              pthread_condattr_setclock(&clock, CLOCK_MONOTONIC) == 0 &&
              pthread_mutex_init(&e.lock, NULL) == 0 && pthread_cond_init(&e.changed, &clock) == 0);
    (void)pthread_condattr_destroy(&clock);
    for (size_t i = 0; i < w->items->n; i++) {
        e.report.total_bytes += w->items->rows[i].size_bytes;
    }
    if (workers == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "%lld connections", (long long)n);
    }
    for (int64_t i = 0; i < n && err == LT_OK; i++) {
        workers[i].e = &e;
        err = lt_web_open(&workers[i].http, w->shared);
        pthread_mutex_lock(&e.lock);
        e.n_running++;
        pthread_mutex_unlock(&e.lock);
        if (err != LT_OK || pthread_create(&workers[i].thread, NULL, work, &workers[i]) != 0) {
            pthread_mutex_lock(&e.lock);
            e.n_running--;
            pthread_mutex_unlock(&e.lock);
            lt_web_close(workers[i].http);
            workers[i].http = NULL;
            fail(&e, err != LT_OK ? err : lt_error_set(LT_ERR_OOM, "no thread for a connection"));
            break;
        }
    }
    watch(&e, begin_s);
    for (int64_t i = 0; i < n && workers[i].http != NULL; i++) {
        pthread_join(workers[i].thread, NULL);
        lt_web_close(workers[i].http);
        free(workers[i].data);
    }
    /* Abandoned uploads are aborted at the service, over a connection that is not stopped. */
    w->shared->asked = NULL;
    atomic_store(&w->shared->stop, false);
    if (e.jobs != NULL && lt_web_open(&http, w->shared) == LT_OK) {
        for (job *j = e.jobs, *next; j != NULL; j = next) {
            next = j->next;
            job_free(j, http, !j->wrong);
        }
    }
    lt_web_close(http);
    w->shared->asked = w->options->stop;
    *report = report_now(&e, begin_s);
    err = lt_failure_raise(&e.failure);
done:
    free(workers);
    (void)pthread_cond_destroy(&e.changed);
    (void)pthread_mutex_destroy(&e.lock);
    return err;
}

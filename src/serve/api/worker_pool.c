/* worker_pool.c: see worker_pool.h. */
#include "serve/api/worker_pool.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"

/* From this text size in bytes on, the allocator's free memory is returned to the system. */
#define BIG ((size_t)1 << 20)
/* A block whose free() makes glibc look at the end of the heap (64 KiB at least), and that is not
 * mapped separately. */
#define PIECE ((size_t)128 << 10)

struct lt_worker_pool {
    struct event *on_done;
    int64_t max_waiting;
    pthread_t threads[LT_WORKER_POOL_THREADS];
    int n_threads; /* Number of running threads. */
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    lt_fifo waiting, worked, trees;
    int64_t n; /* Number of waiting jobs. */
    /* Text bytes of jobs that have begun and were not taken, and of trees that are being freed. */
    size_t busy_bytes;
    bool closing;
    unsigned trim; /* A bit for each thread that will return freed memory once it is idle. */
};

static lt_pool_job *pop(lt_fifo *l) {
    return (lt_pool_job *)lt_fifo_pop(l);
}

/* ---- The threads ---- */

/* Trees come first; then the first job, if there is room for it. */
static lt_pool_job *next_job(lt_worker_pool *a) {
    lt_pool_job *job = pop(&a->trees);
    const lt_pool_job *first = (const lt_pool_job *)a->waiting.first;
    if (job == NULL && first != NULL && !a->closing &&
        (a->busy_bytes == 0 || a->busy_bytes + first->bytes <= LT_WORKER_POOL_BYTES)) {
        job = pop(&a->waiting);
        a->n--;
    }
    a->busy_bytes += job != NULL ? job->bytes : 0;
    return job;
}

/* malloc_trim merges freed memory under the lock of each of the allocator's arenas in turn; after a
 * tree of a million values this takes a second on a busy machine. It leaves what is free at the end
 * of the arena of a thread; that is returned when the thread frees a large enough piece. */
static void give_back(bool all_arenas) {
#ifdef __GLIBC__
    void *volatile piece = malloc(PIECE);
    free(piece);
    if (all_arenas) {
        malloc_trim(0);
    }
#endif
}

static unsigned all_threads(const lt_worker_pool *a) {
    return (1u << a->n_threads) - 1;
}

static void *run(void *arg) {
    lt_worker_pool *a = arg;
    pthread_mutex_lock(&a->lock); /* From here on, a->threads is complete. */
    const unsigned mine = 1u << lt_worker_pool_thread(a);
    for (;;) {
        lt_pool_job *job = next_job(a);
        size_t bytes;
        bool told;
        if (job == NULL && a->closing) {
            break;
        }
        if (job == NULL && (a->trim & mine) != 0) {
            const bool first = a->trim == all_threads(a);
            a->trim &= ~mine;
            pthread_mutex_unlock(&a->lock);
            give_back(first);
            pthread_mutex_lock(&a->lock);
            continue;
        }
        if (job == NULL) {
            pthread_cond_wait(&a->wake, &a->lock);
            continue;
        }
        told = job->done != NULL;
        bytes = job->bytes;
        pthread_mutex_unlock(&a->lock);
        job->work(job);
        pthread_mutex_lock(&a->lock);
        if (told) {
            lt_fifo_push(&a->worked, &job->link);
            event_active(a->on_done, 0, 0);
        } else {
            a->busy_bytes -= bytes;
            pthread_cond_broadcast(&a->wake);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

int lt_worker_pool_thread(const lt_worker_pool *a) {
    for (int i = 0; i < a->n_threads; i++) {
        if (pthread_equal(a->threads[i], pthread_self()) != 0) {
            return i;
        }
    }
    return -1;
}

/* ---- The loop's thread ---- */

static lt_pool_job *take_worked(lt_worker_pool *a) {
    lt_pool_job *job;
    pthread_mutex_lock(&a->lock);
    job = pop(&a->worked);
    if (job != NULL) {
        a->busy_bytes -= job->bytes;
        pthread_cond_broadcast(&a->wake);
    }
    pthread_mutex_unlock(&a->lock);
    return job;
}

static void tell_worked(lt_worker_pool *a) {
    for (lt_pool_job *job = take_worked(a); job != NULL; job = take_worked(a)) {
        job->done(job);
    }
}

static void on_done(evutil_socket_t fd, short what, void *arg) {
    (void)fd;
    (void)what;
    tell_worked(arg);
}

lt_err lt_worker_pool_submit(lt_worker_pool *a, lt_pool_job *job) {
    lt_err err = LT_OK;
    pthread_mutex_lock(&a->lock);
    if (a->n >= a->max_waiting) {
        LT_FAIL_DONE(LT_ERR_LIMIT,
                     "%lld large requests are waiting to be processed; try again later",
                     (long long)a->n);
    }
    lt_fifo_push(&a->waiting, &job->link);
    a->n++;
    pthread_cond_signal(&a->wake);
done:
    pthread_mutex_unlock(&a->lock);
    return err;
}

bool lt_worker_pool_cancel(lt_worker_pool *a, lt_pool_job *job) {
    bool waited;
    pthread_mutex_lock(&a->lock);
    waited = lt_fifo_take_out(&a->waiting, &job->link);
    a->n -= waited;
    pthread_cond_broadcast(&a->wake); /* The next job may be smaller. */
    pthread_mutex_unlock(&a->lock);
    return waited;
}

void lt_worker_pool_give_back(lt_worker_pool *a, size_t bytes) {
    if (bytes <= BIG) {
        return;
    }
    if (a == NULL || a->n_threads == 0) {
        give_back(true);
        return;
    }
    pthread_mutex_lock(&a->lock);
    a->trim = all_threads(a);
    pthread_cond_broadcast(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

/* ---- Trees ---- */

static void free_tree(lt_pool_job *job) {
    lt_body *b = (lt_body *)job;
    lt_worker_pool *a = b->pool;
    const size_t bytes = job->bytes;
    json_decref(b->root);
    free(b);
    lt_worker_pool_give_back(a, bytes);
}

lt_body *lt_body_open(lt_worker_pool *a, const char *text, size_t bytes) {
    lt_body *b = calloc(1, sizeof *b);
    if (b != NULL) {
        *b = (lt_body){.job = {.work = free_tree, .bytes = bytes}, .pool = a};
        b->root = lt_body_parse(text, bytes, &b->error);
    }
    return b;
}

void lt_body_free(lt_body *b) {
    lt_worker_pool *a = b != NULL ? b->pool : NULL;
    if (b == NULL) {
        return;
    }
    if (a->n_threads == 0 || lt_worker_pool_thread(a) >= 0) {
        free_tree(&b->job);
        return;
    }
    pthread_mutex_lock(&a->lock);
    lt_fifo_push(&a->trees, &b->job.link);
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

/* ---- Open, close ---- */

lt_err lt_worker_pool_open(lt_worker_pool **out, struct event_base *base, int n_threads,
                           int64_t max_waiting) {
    lt_err err = LT_OK;
    lt_worker_pool *a = calloc(1, sizeof *a);

    LT_ASSERT(n_threads >= 1 && n_threads <= LT_WORKER_POOL_THREADS);
    if (a == NULL) {
        LT_FAIL(LT_ERR_OOM, "worker pool");
    }
    a->max_waiting = max_waiting;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->wake, NULL);
    a->on_done = event_new(base, -1, EV_PERSIST, on_done, a);
    if (a->on_done == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "worker pool");
    }
    pthread_mutex_lock(&a->lock); /* Held until the number of running threads is known. */
    while (a->n_threads < n_threads &&
           pthread_create(&a->threads[a->n_threads], NULL, run, a) == 0) {
        a->n_threads++;
    }
    pthread_mutex_unlock(&a->lock);
    if (a->n_threads == 0) {
        LT_FAIL_DONE(LT_ERR_OOM, "worker pool: cannot start a thread");
    }
    *out = a;
    a = NULL;
done:
    lt_worker_pool_close(a);
    return err;
}

void lt_worker_pool_stop(lt_worker_pool *a) {
    if (a == NULL || a->n_threads == 0) {
        return;
    }
    pthread_mutex_lock(&a->lock);
    a->closing = true;
    pthread_cond_broadcast(&a->wake);
    pthread_mutex_unlock(&a->lock);
    for (int i = 0; i < a->n_threads; i++) {
        pthread_join(a->threads[i], NULL);
    }
    a->n_threads = 0;
    event_del(a->on_done);
    tell_worked(a);
}

void lt_worker_pool_close(lt_worker_pool *a) {
    if (a == NULL) {
        return;
    }
    lt_worker_pool_stop(a);
    if (a->on_done != NULL) {
        event_free(a->on_done);
    }
    pthread_cond_destroy(&a->wake);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

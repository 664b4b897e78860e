/* aside.c: see aside.h. */
#include "serve/aside.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/error.h"

#define BIG_TREE                                                                                   \
    ((size_t)1                                                                                     \
     << 20) /* Bytes of its text: what the allocator keeps of it goes back to the system. */

struct lt_aside {
    struct event *on_done;
    int64_t max_waiting;
    pthread_t thread;
    bool running;
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    lt_fifo waiting, worked, trees;
    int64_t n; /* In waiting. */
    bool closing;
};

static lt_aside_job *pop(lt_fifo *l) {
    return (lt_aside_job *)lt_fifo_pop(l);
}

/* ---- The thread ---- */

/* Trees first; a job only when the loop has taken the last. */
static lt_aside_job *next_job(lt_aside *a) {
    lt_aside_job *job = pop(&a->trees);
    if (job == NULL && !a->closing && a->worked.first == NULL) {
        job = pop(&a->waiting);
        a->n -= job != NULL;
    }
    return job;
}

static void *run(void *arg) {
    lt_aside *a = arg;
    pthread_mutex_lock(&a->lock);
    for (;;) {
        lt_aside_job *job = next_job(a);
        bool told;
        if (job == NULL && a->closing) {
            break;
        }
        if (job == NULL) {
            pthread_cond_wait(&a->wake, &a->lock);
            continue;
        }
        told = job->done != NULL;
        pthread_mutex_unlock(&a->lock);
        job->work(job);
        pthread_mutex_lock(&a->lock);
        if (told) {
            lt_fifo_push(&a->worked, &job->link);
            event_active(a->on_done, 0, 0);
        }
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

bool lt_aside_here(const lt_aside *a) {
    return a->running && pthread_equal(a->thread, pthread_self()) != 0;
}

/* ---- The loop's thread ---- */

static void on_done(evutil_socket_t fd, short what, void *arg) {
    lt_aside *a = arg;
    lt_aside_job *job;
    (void)fd;
    (void)what;
    pthread_mutex_lock(&a->lock);
    job = pop(&a->worked);
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
    if (job != NULL) {
        job->done(job);
    }
}

lt_err lt_aside_submit(lt_aside *a, lt_aside_job *job) {
    lt_err err = LT_OK;
    pthread_mutex_lock(&a->lock);
    if (a->n >= a->max_waiting) {
        LT_FAIL_DONE(LT_ERR_LIMIT, "%lld large requests are waiting to be read; try again later",
                     (long long)a->n);
    }
    lt_fifo_push(&a->waiting, &job->link);
    a->n++;
    pthread_cond_signal(&a->wake);
done:
    pthread_mutex_unlock(&a->lock);
    return err;
}

bool lt_aside_cancel(lt_aside *a, lt_aside_job *job) {
    bool waited;
    pthread_mutex_lock(&a->lock);
    waited = lt_fifo_take_out(&a->waiting, &job->link);
    a->n -= waited;
    pthread_mutex_unlock(&a->lock);
    return waited;
}

/* ---- Trees ---- */

static void free_tree(lt_aside_job *job) {
    lt_body *b = (lt_body *)job;
    const size_t bytes = b->bytes;
    json_decref(b->root);
    free(b);
#ifdef __GLIBC__
    if (bytes > BIG_TREE) {
        malloc_trim(0);
    }
#else
    (void)bytes;
#endif
}

lt_body *lt_body_open(lt_aside *a, const char *text, size_t bytes) {
    lt_body *b = calloc(1, sizeof *b);
    if (b != NULL) {
        *b = (lt_body){.job = {.work = free_tree}, .aside = a, .bytes = bytes};
        b->root = lt_body_parse(text, bytes, &b->error);
    }
    return b;
}

void lt_body_free(lt_body *b) {
    lt_aside *a = b != NULL ? b->aside : NULL;
    if (b == NULL) {
        return;
    }
    if (!a->running || lt_aside_here(a)) {
        free_tree(&b->job);
        return;
    }
    pthread_mutex_lock(&a->lock);
    lt_fifo_push(&a->trees, &b->job.link);
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

/* ---- Open, close ---- */

lt_err lt_aside_open(lt_aside **out, struct event_base *base, int64_t max_waiting) {
    lt_err err = LT_OK;
    lt_aside *a = calloc(1, sizeof *a);

    if (a == NULL) {
        LT_FAIL(LT_ERR_OOM, "a thread beside the loop");
    }
    a->max_waiting = max_waiting;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->wake, NULL);
    a->on_done = event_new(base, -1, EV_PERSIST, on_done, a);
    if (a->on_done == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "a thread beside the loop");
    }
    pthread_mutex_lock(&a->lock); /* Until it is known that it runs. */
    a->running = pthread_create(&a->thread, NULL, run, a) == 0;
    pthread_mutex_unlock(&a->lock);
    if (!a->running) {
        LT_FAIL_DONE(LT_ERR_OOM, "no thread beside the loop");
    }
    *out = a;
    a = NULL;
done:
    lt_aside_close(a);
    return err;
}

void lt_aside_stop(lt_aside *a) {
    if (a == NULL || !a->running) {
        return;
    }
    pthread_mutex_lock(&a->lock);
    a->closing = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    a->running = false;
    event_del(a->on_done);
    for (lt_aside_job *job = pop(&a->worked); job != NULL; job = pop(&a->worked)) {
        job->done(job);
    }
}

void lt_aside_close(lt_aside *a) {
    if (a == NULL) {
        return;
    }
    lt_aside_stop(a);
    if (a->on_done != NULL) {
        event_free(a->on_done);
    }
    pthread_cond_destroy(&a->wake);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

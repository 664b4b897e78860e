/* worker_pool.h: threads for work that would delay the event loop, and with it all streams: large
 * requests, from JSON to tokens, and the freeing of their trees.
 *
 *     loop:      lt_worker_pool_submit(a, job)
 *     threads:   job->work(job)
 *     loop:      job->done(job), once it may be used or freed again
 *
 *     free ─submit─▶ WAITING ─▶ being worked on ─▶ WORKED ─▶ told: done() on the loop ─▶ free
 *                       └─cancel: true ─▶ free
 *
 * Jobs begin in order and end in any order; a connection has one at a time. Memory: discarded trees
 * are freed first, and a job begins only if all jobs in progress together, until the loop has taken
 * them, have at most LT_WORKER_POOL_BYTES of text; a longer job runs alone. This bounds the trees
 * that exist besides those of requests being answered. The queue is bounded, first come, first
 * served; a further job fails with LIMIT. */
#ifndef LT_SERVE_WORKER_POOL_H
#define LT_SERVE_WORKER_POOL_H

#include <event2/event.h>

#include "serve/api/api_params.h"
#include "serve/fifo.h"

typedef struct lt_worker_pool lt_worker_pool;
typedef struct lt_pool_job lt_pool_job;

#define LT_WORKER_POOL_THREADS 4                 /* Most threads. */
#define LT_WORKER_POOL_BYTES   ((size_t)8 << 20) /* Least memory for LT_BODY_VALUES values. */

struct lt_pool_job {
    lt_fifo_link link;              /* Used by the threads. */
    size_t bytes;                   /* Bytes of its text. */
    void (*work)(lt_pool_job *job); /* Called on a thread. */
    void (*done)(lt_pool_job *job); /* Called on the loop; NULL: no call. */
};

/* Starts n_threads of 1 to LT_WORKER_POOL_THREADS. */
LT_MUST_USE lt_err lt_worker_pool_open(lt_worker_pool **out, struct event_base *base, int n_threads,
                                       int64_t max_waiting);
/* On the loop's thread: finish the jobs that have begun and call their done(), drop waiting jobs,
 * and free all trees; later trees are freed immediately. Accepts NULL. */
void lt_worker_pool_stop(lt_worker_pool *a);
void lt_worker_pool_close(lt_worker_pool *a); /* Trees must be free. */

LT_MUST_USE lt_err lt_worker_pool_submit(lt_worker_pool *a, lt_pool_job *job);
/* True: the job had not begun, and belongs to the caller again. False: done() will be called for
 * it. */
bool lt_worker_pool_cancel(lt_worker_pool *a, lt_pool_job *job);
/* Index of the calling thread in the pool; -1: it is not one of its threads. */
int lt_worker_pool_thread(const lt_worker_pool *a);

/* Report that memory for a text of this size was freed. For megabytes, an idle thread returns the
 * allocator's free memory to the system. Accepts NULL. */
void lt_worker_pool_give_back(lt_worker_pool *a, size_t bytes);

/* A tree that a thread of the pool frees. */
struct lt_body {
    lt_pool_job job;
    lt_worker_pool *pool;
    json_t *root; /* NULL: error says why. */
    lt_api_error error;
};

/* Parse the text. NULL: out of memory. */
lt_body *lt_body_open(lt_worker_pool *a, const char *text, size_t bytes);
/* Can be called on any thread; frees immediately on a thread of the pool, soon otherwise. Accepts
 * NULL. */
void lt_body_free(lt_body *b);

#endif

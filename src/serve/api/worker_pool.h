/* worker_pool.h: threads for what would hold the loop, and with it everybody's streams, up: large
 * requests, from JSON to tokens, and the freeing of their trees.
 *
 *     loop:      lt_worker_pool_submit(a, job)
 *     threads:   job->work(job)
 *     loop:      job->done(job), once it may be used or freed again
 *
 *     free ─submit─▶ WAITING ─▶ being worked on ─▶ WORKED ─▶ told: done() on the loop ─▶ free
 *                       └─cancel: true ─▶ free
 *
 * Jobs begin in their order, and end in any; a connection has one at a time.
 * Memory: trees that are let go are freed first, and a job is begun only beside such others that
 * all of them, until the loop has taken them, have at most LT_WORKER_POOL_BYTES of text; a longer
 * one alone. So beside the trees of requests that are being answered there are those of so much
 * text. A bounded queue, first come, first served; one more is LIMIT. */
#ifndef LT_SERVE_WORKER_POOL_H
#define LT_SERVE_WORKER_POOL_H

#include <event2/event.h>

#include "serve/api/ask.h"
#include "serve/fifo.h"

typedef struct lt_worker_pool lt_worker_pool;
typedef struct lt_pool_job lt_pool_job;

#define LT_WORKER_POOL_THREADS 4                 /* At most. */
#define LT_WORKER_POOL_BYTES   ((size_t)8 << 20) /* What LT_BODY_VALUES take at least. */

struct lt_pool_job {
    lt_fifo_link link;              /* The threads'. */
    size_t bytes;                   /* Of its text. */
    void (*work)(lt_pool_job *job); /* On a thread. */
    void (*done)(lt_pool_job *job); /* On the loop; NULL: nobody is told. */
};

/* Starts n_threads of 1 to LT_WORKER_POOL_THREADS. */
LT_MUST_USE lt_err lt_worker_pool_open(lt_worker_pool **out, struct event_base *base, int n_threads,
                                       int64_t max_waiting);
/* On the loop's thread: what has begun is ended and told, jobs that wait are forgotten, trees are
 * freed, and from here on at once. Accepts NULL. */
void lt_worker_pool_stop(lt_worker_pool *a);
void lt_worker_pool_close(lt_worker_pool *a); /* Trees must be free. */

LT_MUST_USE lt_err lt_worker_pool_submit(lt_worker_pool *a, lt_pool_job *job);
/* True: it had not begun, and is the caller's again. False: done() will be called for it. */
bool lt_worker_pool_cancel(lt_worker_pool *a, lt_pool_job *job);
int lt_worker_pool_thread(const lt_worker_pool *a); /* Which of its threads this is; -1: none. */

/* Memory for a text of so many bytes was freed. Of megabytes, what the allocator keeps goes back to
 * the system; on a thread, as soon as one has nothing else to do. Accepts NULL. */
void lt_worker_pool_give_back(lt_worker_pool *a, size_t bytes);

/* A tree with its way back to a thread, which frees it. */
struct lt_body {
    lt_pool_job job;
    lt_worker_pool *pool;
    json_t *root; /* NULL: error says why. */
    lt_api_error error;
};

/* Parse the text. NULL: out of memory. */
lt_body *lt_body_open(lt_worker_pool *a, const char *text, size_t bytes);
/* From any thread; at once on one of these, soon else. Accepts NULL. */
void lt_body_free(lt_body *b);

#endif

/* engine_disk.c: pages that the prefix cache evicts go to files (page_disk.h), and come back when a
 * prompt begins with their tokens.
 *
 *     engine's thread                                   thread of the disk
 *     a page is evicted ─▶ copy it into `staged` ─────▶ write its file
 *     a request begins, and files follow the pages
 *       that the pool has of its prompt: take pages
 *       for them, park the request ───────────────────▶ read and check the files into the pages
 *     publish the pages, start the request ◀───────────
 *
 * No step waits for a file. A page is copied at once, because the next step writes to its place; if
 * all of `staged` is still being written, the page is not kept (n_unkept). A request is parked at
 * most once, before it begins, and only if a file has pages that the pool lacks. Reads go before
 * writes. At the end of the engine the pages of the pool are written as well, for the next engine.
 *
 * On a device, pages are evicted to host memory first (engine_host.c), and staged when their slot
 * there gets another page; at the end, those of all slots are written. Pages that are read go from
 * one buffer to the device by a queue of the disk's thread; when they are there, the engine's
 * thread publishes them. Copies that are queued with the steps may still read the old contents of
 * the pages taken for them, so the engine waits for those copies once, before it parks the
 * request. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "serve/engine_impl.h"

/* Pages waiting to be written: a step of prompts evicts at most step_tokens / page_tokens. */
#define STAGED_BYTES ((int64_t)64 << 20)
#define STAGED_LEAST 4

static void disk_carve(lt_engine_disk *k, int64_t page_bytes, int64_t page_tokens, lt_arena *a) {
    const size_t n = (size_t)k->most_staged;
    k->chains = lt_arena_take(a, n * sizeof *k->chains, LT_ARENA_ALIGN);
    k->tokens = lt_arena_take(a, n * (size_t)page_tokens * sizeof *k->tokens, LT_ARENA_ALIGN);
    k->data = lt_arena_take(a, n * (size_t)page_bytes, LT_ARENA_ALIGN);
}

static char *staged_data(const lt_engine *e, int64_t i) {
    return e->disk.data + i * e->cache.page_bytes;
}

static int32_t *staged_tokens(const lt_engine *e, int64_t i) {
    return e->disk.tokens + i * e->o.page_tokens;
}

/* ---- The engine's thread ---- */

/* The slot in the ring for a page's data, or -1: it is already on disk, or there is no room. Only
 * this thread adds to the ring, so the slot after its end belongs to it. */
static int64_t stage(lt_engine *e, lt_page_chain chain, const int32_t *tokens) {
    lt_engine_disk *k = &e->disk;
    int64_t at;
    bool full;
    if (lt_page_disk_touch(k->disk, chain)) {
        return -1;
    }
    pthread_mutex_lock(&k->lock);
    at = (k->first_staged + k->n_staged) % k->most_staged;
    full = k->n_staged == k->most_staged;
    k->n_unkept += full;
    pthread_mutex_unlock(&k->lock);
    if (full) {
        return -1;
    }
    k->chains[at] = chain;
    memcpy(staged_tokens(e, at), tokens, (size_t)e->o.page_tokens * sizeof *k->tokens);
    return at;
}

/* The slot's data is complete. */
static void staged(lt_engine_disk *k) {
    pthread_mutex_lock(&k->lock);
    k->n_staged++;
    pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&k->lock);
}

static void stage_evicted(void *engine, int32_t page) {
    lt_engine *e = engine;
    const int64_t at = stage(e, e->sched.pages.page[page].chain,
                             lt_pages_tokens(&e->sched.pages, page));
    if (at >= 0) {
        lt_paged_forward_get_set(e->forward, &page, staged_data(e, at));
        staged(&e->disk);
    }
}

void lt_engine_stage(lt_engine *e, lt_page_chain chain, const int32_t *tokens, const void *data) {
    const int64_t at = e->disk.disk != NULL ? stage(e, chain, tokens) : -1;
    if (at >= 0) {
        memcpy(staged_data(e, at), data, (size_t)e->cache.page_bytes);
        staged(&e->disk);
    }
}

/* The first sequence of a job. */
static lt_seq *first_seq(lt_job *j) {
    int64_t i = 0;
    while (i + 1 < j->r.n_choices && j->choices[i].finish != LT_FINISH_NONE) {
        i++;
    }
    return &j->choices[i].seq;
}

/* The chain of the pages of the job's prompt that the pool had. */
static lt_page_chain chain_found(const lt_engine *e, const lt_job *j, const lt_seq *seq) {
    return lt_pages_chain_of(&e->sched.pages,
                             j->n_found > 0 ? seq->table[j->n_found - 1] : LT_NO_PAGE, seq->salt);
}

/* Take pages for the files that follow the pages found in the pool, as long as one more page is
 * left for each running sequence. */
static void take_pages(lt_engine *e, lt_job *j, const lt_seq *seq, int64_t n) {
    lt_pages *p = &e->sched.pages;
    lt_page_chain chain = chain_found(e, j, seq);
    for (int64_t i = j->n_found; i < n && lt_pages_available(p) > e->sched.running.n; i++) {
        chain = lt_pages_chain_next(p, chain, seq->tokens + i * p->page_tokens);
        if (!lt_page_disk_has(e->disk.disk, chain)) {
            return;
        }
        seq->table[i] = lt_pages_take(p);
        j->n_coming++;
    }
}

bool lt_engine_park(lt_engine *e, lt_job *j) {
    lt_engine_disk *k = &e->disk;
    lt_seq *seq = k->disk != NULL ? first_seq(j) : NULL;
    const int64_t n = seq != NULL ? (seq->n_tokens - 1) / e->o.page_tokens : 0;
    int64_t behind;
    if (n == 0 || seq->fresh) {
        return false;
    }
    lt_engine_bring(e, seq); /* First from host memory, which is faster. */
    j->n_found = lt_pages_match(&e->sched.pages, seq->salt, seq->tokens, n * e->o.page_tokens,
                                seq->table, &behind);
    j->n_coming = 0;
    take_pages(e, j, seq, n);
    if (j->n_coming > 0 && k->queue != NULL && lt_paged_forward_sync(e->forward) != LT_OK) {
        lt_pages_drop_chain(&e->sched.pages, seq->table, j->n_found, j->n_found + j->n_coming);
        j->n_coming = 0;
    }
    if (j->n_coming == 0) {
        lt_pages_drop_chain(&e->sched.pages, seq->table, 0, j->n_found);
        return false;
    }
    j->parked = true;
    j->next = NULL;
    e->n_parked++;
    pthread_mutex_lock(&k->lock);
    *(k->parked == NULL ? &k->parked : &k->parked_last->next) = j;
    k->parked_last = j;
    pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&k->lock);
    return true;
}

/* Its pages were read, the first n_read of them without damage. */
static void unpark(lt_engine *e, void *arg) {
    lt_job *j = arg;
    lt_seq *seq = first_seq(j);
    for (int64_t i = j->n_found; i < j->n_found + j->n_read; i++) {
        lt_pages_publish(&e->sched.pages, &seq->table[i], i > 0 ? &seq->table[i - 1] : NULL,
                         seq->salt, seq->tokens + i * e->o.page_tokens);
    }
    lt_pages_drop_chain(&e->sched.pages, seq->table, 0, j->n_found + j->n_coming);
    e->n_disk_tokens += j->n_read * e->o.page_tokens;
    e->n_parked--;
    j->parked = false;
    lt_step_begin_parked(e, j);
}

/* ---- The thread of the disk ---- */

static bool read_page(lt_engine *e, lt_page_chain chain, const int32_t *tokens, int32_t page) {
    if (lt_page_disk_get(e->disk.disk, chain, tokens, e->disk.page) != LT_OK) {
        lt_log_warn("cache on disk: a page is computed again: %s", lt_error_message());
        return false;
    }
    if (e->disk.queue == NULL) {
        lt_paged_forward_put_set(e->forward, &page, e->disk.page);
    } else if (lt_paged_forward_load_page(e->forward, e->disk.queue, page, e->disk.page) != LT_OK) {
        lt_log_warn("cache on disk: a page is computed again: %s", lt_error_message());
        return false;
    }
    return true;
}

static void read_pages(lt_engine *e, lt_job *j) {
    const lt_pages *p = &e->sched.pages;
    const lt_seq *seq = first_seq(j);
    /* These pages are held, so they stay published. */
    lt_page_chain chain = chain_found(e, j, seq);
    j->n_read = 0;
    for (int64_t i = j->n_found; i < j->n_found + j->n_coming; i++) {
        const int32_t *tokens = seq->tokens + i * p->page_tokens;
        chain = lt_pages_chain_next(p, chain, tokens);
        if (!read_page(e, chain, tokens, seq->table[i])) {
            break;
        }
        j->n_read++;
    }
    lt_engine_ask(e, unpark, j);
}

/* A disk that stays full is reported only once. */
static void put(lt_engine *e, lt_page_chain chain, const int32_t *tokens, const void *page) {
    const bool failed = lt_page_disk_put(e->disk.disk, chain, tokens, page) != LT_OK;
    if (failed && !e->disk.failing) {
        lt_log_warn("cache on disk: %s", lt_error_message());
    }
    e->disk.failing = failed;
}

/* Read the pages of a parked job; if there is none, write a page. The lock is held at the call and
 * at the return, and released meanwhile. */
static void work(lt_engine *e) {
    lt_engine_disk *k = &e->disk;
    lt_job *j = k->parked;
    const int64_t at = k->first_staged;
    if (j != NULL) {
        k->parked = j->next;
        pthread_mutex_unlock(&k->lock);
        read_pages(e, j);
        pthread_mutex_lock(&k->lock);
        return;
    }
    pthread_mutex_unlock(&k->lock);
    put(e, k->chains[at], staged_tokens(e, at), staged_data(e, at));
    pthread_mutex_lock(&k->lock);
    k->first_staged = (at + 1) % k->most_staged;
    k->n_staged--;
}

static void *run(void *engine) {
    lt_engine *e = engine;
    lt_engine_disk *k = &e->disk;
    pthread_mutex_lock(&k->lock);
    while (!k->closing) {
        if (k->parked != NULL || k->n_staged > 0) {
            work(e);
        } else {
            pthread_cond_wait(&k->wake, &k->lock);
        }
    }
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

/* ---- Opening and closing ---- */

static lt_err check(const lt_engine *e) {
    const char *why = e->o.n_beside > 0 ? "models beside the served one have pages of their own"
                      : e->model->steering != NULL
                          ? "keys and values depend on steering vectors, which have only numbers"
                          : NULL;
    LT_TRY(lt_engine_check_pages(e, true));
    if (why != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "a cache on disk is not possible: %s", why);
    }
    return LT_OK;
}

/* Open the buffer through which pages are read and, at the end, written; on a device, also its
 * queue. */
static lt_err open_page(lt_engine *e) {
    const size_t bytes = (size_t)e->cache.page_bytes;
    const lt_backend *b = e->model->backend;
    lt_engine_disk *k = &e->disk;
    if (b->host_memory) {
        k->page = malloc(bytes);
        return k->page != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "a page of %zu bytes", bytes);
    }
    LT_TRY(b->host_alloc(e->model->device, &k->page, bytes, "a page of the cache on disk"));
    return b->queue_open(e->model->device, &k->queue);
}

static void close_page(lt_engine *e) {
    const lt_backend *b = e->model->backend;
    lt_engine_disk *k = &e->disk;
    if (k->queue != NULL) {
        b->queue_close(k->queue);
    }
    if (b->host_memory) {
        free(k->page);
    } else if (k->page != NULL) {
        b->host_release(e->model->device, k->page, (size_t)e->cache.page_bytes);
    }
}

lt_err lt_engine_open_disk(lt_engine *e) {
    lt_engine_disk *k = &e->disk;
    lt_page_file_head head;
    LT_TRY(check(e));
    LT_TRY(lt_engine_page_head(&head, e, 1));
    const int64_t n = STAGED_BYTES / head.page_bytes;
    LT_TRY(open_page(e));
    LT_TRY(lt_page_disk_open(&k->disk, e->o.disk, e->o.disk_bytes, &head));
    k->most_staged = n > STAGED_LEAST ? n : STAGED_LEAST;
    disk_carve(k, head.page_bytes, head.page_tokens, &k->arena);
    LT_TRY(lt_arena_open(&k->arena, "pages on their way to the disk"));
    disk_carve(k, head.page_bytes, head.page_tokens, &k->arena);
    e->sched.pages.seed = lt_page_disk_seed(k->disk);
    if (k->queue == NULL) { /* Otherwise host memory comes first. */
        e->sched.pages.on_evict = stage_evicted;
        e->sched.pages.owner = e;
    }
    if (pthread_create(&k->thread, NULL, run, e) != 0) {
        LT_FAIL(LT_ERR_OOM, "engine: cannot start the thread of the disk");
    }
    k->running = true;
    return LT_OK;
}

void lt_engine_stop_disk(lt_engine *e) {
    lt_engine_disk *k = &e->disk;
    if (!k->running) {
        return;
    }
    pthread_mutex_lock(&k->lock);
    k->closing = true;
    pthread_cond_signal(&k->wake);
    pthread_mutex_unlock(&k->lock);
    pthread_join(k->thread, NULL);
}

static void put_page(lt_engine *e, int32_t page) {
    const lt_pages *p = &e->sched.pages;
    if (e->disk.queue == NULL) {
        lt_paged_forward_get_set(e->forward, &page, e->disk.page);
    } else if (lt_paged_forward_send_page(e->forward, page, e->disk.page) != LT_OK ||
               lt_paged_forward_sync(e->forward) != LT_OK) {
        return;
    }
    put(e, p->page[page].chain, lt_pages_tokens(p, page), e->disk.page);
}

/* Write the pages in host memory, the oldest first; all copies that were queued to fill it have
 * ended. */
static void put_host(lt_engine *e) {
    const lt_engine_host *h = &e->host;
    if (e->disk.queue == NULL || lt_paged_forward_sync(e->forward) != LT_OK) {
        return;
    }
    for (int32_t s = h->index.oldest; s != LT_NO_SLOT; s = h->index.slots[s].next) {
        put(e, h->index.slots[s].chain, h->tokens + s * e->o.page_tokens,
            h->data + s * e->cache.page_bytes);
    }
}

/* Write the pages of the pool: the cached ones, the oldest first, then those that are held. */
static void put_pool(lt_engine *e) {
    const lt_pages *p = &e->sched.pages;
    for (int32_t page = p->aged.oldest; page != LT_NO_PAGE; page = p->page[page].next) {
        put_page(e, page);
    }
    for (int32_t page = p->kept.oldest; page != LT_NO_PAGE; page = p->page[page].next) {
        put_page(e, page);
    }
    for (int32_t page = 0; page < p->n_pages; page++) {
        if (p->page[page].published && p->page[page].refs > 0) {
            put_page(e, page);
        }
    }
}

void lt_engine_close_disk(lt_engine *e) {
    lt_engine_disk *k = &e->disk;
    const double start_s = lt_clock_s();
    lt_page_disk_counts before, after;
    if (k->running) {
        lt_page_disk_get_counts(k->disk, &before);
        for (; k->n_staged > 0; k->n_staged--, k->first_staged++) {
            const int64_t at = k->first_staged % k->most_staged;
            put(e, k->chains[at], staged_tokens(e, at), staged_data(e, at));
        }
        put_host(e);
        put_pool(e);
        lt_page_disk_get_counts(k->disk, &after);
        lt_log_debug("cache on disk: %lld more pages were written in %.2f s",
                     (long long)(after.written - before.written), lt_clock_s() - start_s);
    }
    lt_page_disk_close(k->disk);
    lt_arena_close(&k->arena);
    close_page(e);
    pthread_cond_destroy(&k->wake);
    pthread_mutex_destroy(&k->lock);
}

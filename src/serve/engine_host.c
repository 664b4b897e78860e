/* engine_host.c: on a device, pages that the prefix cache evicts go to memory of the host, and come
 * back when a prompt begins with their tokens.
 *
 *     a page is evicted ─▶ its copy to a slot of the host is queued ─▶ the next step, which writes
 *                                                                       to its place, is queued
 *     a request begins, and slots follow the pages that the pool has of its prompt
 *                       ─▶ pages are taken, their copies to the device are queued, published
 *
 * All copies are in the queue of the steps, so slots and pages are written before they are read,
 * and nothing waits. The host itself reads a slot only if a cache on disk takes the page that
 * leaves it (engine_disk.c); then it waits for the page's copy, unless that has ended. Only the
 * engine's thread runs this file. Slots hold pages of the engine's current weights; a refresh
 * forgets them. */
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "serve/engine_impl.h"

static char *slot_data(const lt_engine *e, int32_t slot) {
    return e->host.data + slot * e->cache.page_bytes;
}

/* The page leaves its slot. */
static void leave(lt_engine *e, int32_t slot, lt_page_chain chain) {
    const lt_engine_host *h = &e->host;
    if (h->tokens == NULL || (!lt_paged_forward_passed(e->forward, h->sends[slot]) &&
                              lt_paged_forward_sync(e->forward) != LT_OK)) {
        return;
    }
    lt_engine_stage(e, chain, h->tokens + slot * e->o.page_tokens, slot_data(e, slot));
}

/* For the disk: whose page it is, and when it will be complete. */
static void note(lt_engine *e, int32_t slot, int32_t page) {
    const lt_engine_host *h = &e->host;
    if (h->tokens != NULL) {
        memcpy(h->tokens + slot * e->o.page_tokens, lt_pages_tokens(&e->sched.pages, page),
               (size_t)e->o.page_tokens * sizeof *h->tokens);
        h->sends[slot] = lt_paged_forward_next(e->forward);
    }
}

static void save_evicted(void *engine, int32_t page) {
    lt_engine *e = engine;
    lt_engine_host *h = &e->host;
    const lt_page_chain chain = e->sched.pages.page[page].chain;
    int32_t slot = lt_page_index_find(&h->index, chain);
    lt_page_chain gone;
    bool any_gone;
    if (slot != LT_NO_SLOT) {
        lt_page_index_touch(&h->index, slot);
        return;
    }
    slot = lt_page_index_add(&h->index, chain, &gone, &any_gone);
    if (any_gone) {
        leave(e, slot, gone);
    }
    if (lt_paged_forward_send_page(e->forward, page, slot_data(e, slot)) != LT_OK) {
        lt_log_warn("cache in host memory: %s", lt_error_message());
        lt_page_index_remove(&h->index, slot);
        return;
    }
    note(e, slot, page);
    h->n_written++;
}

/* The next page of a text from host memory, held and published; LT_NO_PAGE: it is not there, or no
 * page is free for it. */
static int32_t bring_page(lt_engine *e, lt_page_chain chain, const int32_t *parent,
                          const lt_seq *seq, const int32_t *tokens) {
    lt_engine_host *h = &e->host;
    const int32_t slot = lt_page_index_find(&h->index, chain);
    int32_t page;
    if (slot == LT_NO_SLOT || lt_pages_available(&e->sched.pages) <= e->sched.running.n) {
        return LT_NO_PAGE;
    }
    /* The page that is evicted to make room must not take its slot. */
    lt_page_index_touch(&h->index, slot);
    page = lt_pages_take(&e->sched.pages);
    if (lt_paged_forward_fetch_page(e->forward, page, slot_data(e, slot)) != LT_OK) {
        lt_log_warn("cache in host memory: %s", lt_error_message());
        lt_pages_drop(&e->sched.pages, page);
        return LT_NO_PAGE;
    }
    h->n_read++;
    lt_pages_publish(&e->sched.pages, &page, parent, seq->salt, tokens);
    return page;
}

void lt_engine_bring(lt_engine *e, lt_seq *seq) {
    lt_pages *p = &e->sched.pages;
    const int64_t n = e->host.data != NULL && !seq->fresh ? (seq->n_tokens - 1) / p->page_tokens
                                                          : 0;
    lt_page_chain chain;
    int64_t n_held, behind;
    if (n == 0) {
        return;
    }
    n_held = lt_pages_match(p, seq->salt, seq->tokens, n * p->page_tokens, seq->table, &behind);
    chain = lt_pages_chain_of(p, n_held > 0 ? seq->table[n_held - 1] : LT_NO_PAGE, seq->salt);
    for (; n_held < n; n_held++) {
        const int32_t *tokens = seq->tokens + n_held * p->page_tokens;
        chain = lt_pages_chain_next(p, chain, tokens);
        seq->table[n_held] = bring_page(e, chain, n_held > 0 ? &seq->table[n_held - 1] : NULL, seq,
                                        tokens);
        if (seq->table[n_held] == LT_NO_PAGE) {
            break;
        }
        e->host.n_tokens += p->page_tokens;
    }
    lt_pages_drop_chain(p, seq->table, 0, n_held);
}

void lt_engine_forget_host(lt_engine *e) {
    if (e->host.data != NULL) {
        lt_page_index_reset(&e->host.index);
    }
}

static lt_err check(const lt_engine *e) {
    const char *why =
        e->model->backend->host_memory
            ? "keys and values are in host memory already, where a larger cache holds more"
        : !e->o.prefix_cache        ? "the prefix cache is off"
        : e->o.n_beside > 0         ? "models beside the served one have pages of their own"
        : lt_engine_has_drafter(e)  ? "a draft model has keys and values of its own"
        : e->limits.rope_switch > 0 ? "its rotary embedding depends on the length of the text"
                                    : NULL;
    if (why != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "a cache in host memory beside that of the device: %s", why);
    }
    return LT_OK;
}

static void host_carve(lt_engine *e, lt_arena *a) {
    lt_engine_host *h = &e->host;
    const size_t n = (size_t)h->index.n_slots;
    lt_page_index_carve(&h->index, a);
    if (e->o.disk != NULL) {
        h->tokens = lt_arena_take(a, n * (size_t)e->o.page_tokens * sizeof *h->tokens,
                                  LT_ARENA_ALIGN);
        h->sends = lt_arena_take(a, n * sizeof *h->sends, LT_ARENA_ALIGN);
    }
}

lt_err lt_engine_open_host(lt_engine *e) {
    lt_engine_host *h = &e->host;
    lt_device *device = e->model->device;
    const int64_t n = e->o.host_bytes / e->cache.page_bytes;
    LT_TRY(check(e));
    if (n < 1) {
        LT_FAIL(LT_ERR_LIMIT, "a cache of %lld bytes in host memory: a page has %lld",
                (long long)e->o.host_bytes, (long long)e->cache.page_bytes);
    }
    h->index.n_slots = n < INT32_MAX - 1 ? n : INT32_MAX - 1;
    host_carve(e, &h->arena);
    LT_TRY(lt_arena_open(&h->arena, "index of the cache in host memory"));
    host_carve(e, &h->arena);
    lt_page_index_reset(&h->index);
    h->bytes = (size_t)(h->index.n_slots * e->cache.page_bytes);
    LT_TRY(e->model->backend->host_alloc(device, (void **)&h->data, h->bytes, "cached pages"));
    e->sched.pages.on_evict = save_evicted;
    e->sched.pages.owner = e;
    return LT_OK;
}

void lt_engine_close_host(lt_engine *e) {
    lt_engine_host *h = &e->host;
    if (h->data != NULL) {
        e->model->backend->host_release(e->model->device, h->data, h->bytes);
    }
    lt_arena_close(&h->arena);
}

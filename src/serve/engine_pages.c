/* engine_pages.c: a text's pages in a file (lateen/serve.h, "Pages in files").
 *
 * Only the engine's thread changes who holds a page, so it is asked to, between two steps
 * (lt_engine_ask). Copies and files, which take long, run on the thread of the caller, and no step
 * waits for them:
 *
 *     save      ask: find the text's pages, hold them ─▶ write them ─▶ ask: drop them
 *     restore   read the file's head ─▶ ask: hold those that are there, take new ones
 *                 ─▶ check and copy pages ─▶ ask: publish them, drop them
 *
 * A page that is published and held does not change, and no other thread uses one that was taken
 * and not published. While pages are lent in this way the weights are not refreshed (refresh.c).
 * Only CPUs do this: on a device, pages would have to be copied in the order of its queue. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "model/fingerprint.h"
#include "model/params.h"
#include "serve/engine_impl.h"
#include "serve/page_file.h"

/* ---- Asking the engine's thread ---- */

void lt_engine_ask(lt_engine *e, void (*run)(lt_engine *e, void *arg), void *arg) {
    lt_engine_question q = {.run = run, .arg = arg};
    lt_engine_question **last = &e->questions;
    pthread_mutex_lock(&e->lock);
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = &q;
    pthread_cond_signal(&e->wake);
    while (!q.done) {
        pthread_cond_wait(&e->rested, &e->lock);
    }
    pthread_mutex_unlock(&e->lock);
}

void lt_engine_count_pages(lt_engine *e) {
    e->stats.pages_cached = e->sched.pages.n_cached;
    e->stats.pages_used = e->stats.pages - lt_pages_available(&e->sched.pages);
}

void lt_engine_answer(lt_engine *e) {
    lt_engine_question *q;
    pthread_mutex_lock(&e->lock);
    while ((q = e->questions) != NULL) {
        e->questions = q->next;
        pthread_mutex_unlock(&e->lock);
        q->run(e, q->arg);
        pthread_mutex_lock(&e->lock);
        lt_engine_count_pages(e);
        q->done = true;
        pthread_cond_broadcast(&e->rested);
    }
    pthread_mutex_unlock(&e->lock);
}

/* ---- Pages of a text ---- */

typedef struct {
    uint64_t salt, version; /* version: of the weights with which the pages were computed. */
    const int32_t *tokens;
    int64_t n_pages;          /* Number of whole sets of pages (pages.h) of the text. */
    int32_t *table;           /* (n_pages, groups): the held pages: */
    int64_t n_found, n_taken; /* published ones, then new ones; */
    int64_t n_behind;         /* without the first ones of windowed groups. */
} lent;

static void drop(lt_engine *e, const lent *w) {
    lt_pages_drop_text(&e->sched.pages, w->table, w->n_behind, w->n_found + w->n_taken);
}

static int32_t *set_of(const lt_engine *e, const lent *w, int64_t i) {
    return w->table + i * lt_pages_groups(&e->sched.pages);
}

static void find(lt_engine *e, void *arg) {
    lent *w = arg;
    w->n_found = lt_pages_match(&e->sched.pages, w->salt, w->tokens, w->n_pages * e->o.page_tokens,
                                w->table, &w->n_behind);
    w->version = e->version;
    e->n_lent++;
}

static void give_back(lt_engine *e, void *arg) {
    drop(e, arg);
    e->n_lent--;
}

/* Take new pages for the rest of the text, as long as each running sequence can get one more. */
static void find_and_take(lt_engine *e, void *arg) {
    lent *w = arg;
    const int64_t groups = lt_pages_groups(&e->sched.pages);
    find(e, w);
    while (w->n_found + w->n_taken < w->n_pages &&
           lt_pages_available(&e->sched.pages) >= (e->sched.running.n + 1) * groups) {
        int32_t *set = set_of(e, w, w->n_found + w->n_taken++);
        for (int64_t g = 0; g < groups; g++) {
            set[g] = lt_pages_take(&e->sched.pages);
        }
    }
}

/* Publish the new pages, whose data is complete. */
static void publish(lt_engine *e, void *arg) {
    lent *w = arg;
    for (int64_t i = w->n_found; i < w->n_found + w->n_taken && w->version == e->version; i++) {
        lt_pages_publish(&e->sched.pages, set_of(e, w, i), i > 0 ? set_of(e, w, i - 1) : NULL,
                         w->salt, w->tokens + i * e->o.page_tokens);
    }
    give_back(e, w);
}

static void erase(lt_engine *e, void *arg) {
    lent *w = arg;
    w->n_found = lt_pages_erase(&e->sched.pages, w->salt, w->tokens, w->n_pages * e->o.page_tokens,
                                w->table);
}

static lt_err lent_open(lent *w, const lt_engine *e, uint64_t salt, const int32_t *tokens,
                        int64_t n) {
    *w = (lent){.salt = salt, .tokens = tokens, .n_pages = n / e->o.page_tokens};
    w->table = malloc((size_t)((w->n_pages + 1) * lt_pages_groups(&e->sched.pages)) *
                      sizeof *w->table);
    if (w->table == NULL) {
        LT_FAIL(LT_ERR_OOM, "a table of %lld pages", (long long)w->n_pages);
    }
    return LT_OK;
}

lt_err lt_engine_check_pages(const lt_engine *e, bool by_host) {
    const bool on_device = !e->model->backend->host_memory;
    const char *why = on_device && !by_host ? "keys and values are in a device's memory"
                      : on_device && e->host.data == NULL
                          ? "keys and values are in a device's memory, whose pages go there by way "
                            "of a cache in host memory (--cache-host)"
                      : !e->o.prefix_cache       ? "the prefix cache is off"
                      : lt_engine_has_drafter(e) ? "a draft model has keys and values of its own"
                      : e->model->lora != NULL   ? "adapters are part of the model"
                      : e->limits.rope_switch > 0
                          ? "its rotary embedding depends on the length of the text"
                          : NULL;
    if (why != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "pages cannot be saved or restored: %s", why);
    }
    return LT_OK;
}

lt_err lt_engine_page_head(lt_page_file_head *out, const lt_engine *e, int64_t n_pages) {
    *out = (lt_page_file_head){.keys = e->o.cache_dtype,
                               .values = e->o.value_dtype,
                               .page_tokens = e->o.page_tokens,
                               .page_bytes = (int64_t)lt_paged_forward_page_bytes(
                                   e->spec, e->o.page_tokens, e->o.cache_dtype, e->o.value_dtype),
                               .n_pages = n_pages};
    return lt_model_fingerprint(&out->fingerprint, e->model);
}

/* ---- Saving ---- */

static lt_err write_pages(const lt_engine *e, const char *path, const lent *w, int64_t *bytes) {
    lt_page_file_head head;
    lt_err err = LT_OK;
    lt_page_file *f = NULL;
    void *page;
    LT_TRY(lt_engine_page_head(&head, e, w->n_found));
    page = malloc((size_t)head.page_bytes);
    if (page == NULL) {
        LT_FAIL(LT_ERR_OOM, "a page of %lld bytes", (long long)head.page_bytes);
    }
    LT_TRY_DONE(lt_page_file_create(&f, path, &head, w->tokens));
    for (int64_t i = 0; i < w->n_found; i++) {
        lt_paged_forward_get_set(e->forward, set_of(e, w, i), page);
        LT_TRY_DONE(lt_page_file_put(f, page));
    }
    LT_TRY_DONE(lt_page_file_commit(f, true, bytes));
done:
    lt_page_file_close(f);
    free(page);
    return err;
}

lt_err lt_engine_save(lt_engine *e, const char *path, uint64_t salt, const int32_t *tokens,
                      int64_t n, lt_engine_kept *out) {
    lt_err err = LT_OK;
    lent w;
    LT_TRY(lt_engine_check_pages(e, false));
    LT_TRY(lent_open(&w, e, salt, tokens, n));
    lt_engine_ask(e, find, &w);
    *out = (lt_engine_kept){.tokens = w.n_found * e->o.page_tokens};
    if (w.n_found > 0 && w.n_behind == 0) {
        err = write_pages(e, path, &w, &out->bytes);
    }
    lt_engine_ask(e, give_back, &w);
    free(w.table);
    if (w.n_behind > 0) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "a text of %lld tokens cannot be saved: its first %lld lie behind the model's "
                "window of %lld, and their pages are not kept",
                (long long)n, (long long)(w.n_behind * e->o.page_tokens),
                (long long)e->sched.pages.window);
    }
    if (err == LT_OK && out->tokens == 0) {
        LT_FAIL(LT_ERR_NOT_FOUND,
                "the cache holds no page of this text of %lld tokens; a page has %lld tokens",
                (long long)n, (long long)e->o.page_tokens);
    }
    return err;
}

/* ---- Restoring ---- */

static lt_err check_head(const lt_engine *e, const lt_page_file_view *v) {
    const lt_page_file_head *h = &v->head;
    lt_page_file_head ours;
    LT_TRY(lt_engine_page_head(&ours, e, v->head.n_pages));
    if (h->chain.low != 0 || h->chain.high != 0) {
        LT_FAIL(LT_ERR_STATE, "%s has a page of the cache on disk, not a text", v->name);
    }
    if (h->fingerprint != ours.fingerprint) {
        LT_FAIL(LT_ERR_STATE, "%s has pages of another model, or of another compute type", v->name);
    }
    if (h->keys != ours.keys || h->values != ours.values || h->page_tokens != ours.page_tokens ||
        h->page_bytes != ours.page_bytes) {
        LT_FAIL(LT_ERR_STATE,
                "%s has pages of %lld tokens with keys in %s and values in %s; here they have %lld "
                "tokens, %s and %s",
                v->name, (long long)h->page_tokens, lt_dtype_name(h->keys),
                lt_dtype_name(h->values), (long long)ours.page_tokens, lt_dtype_name(ours.keys),
                lt_dtype_name(ours.values));
    }
    return LT_OK;
}

static lt_err check_tokens(const lt_engine *e, const int32_t *tokens, int64_t n, const char *name) {
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= e->spec->vocab_size) {
            LT_FAIL(LT_ERR_FORMAT, "%s is damaged: token %lld is %d, of %lld", name, (long long)i,
                    tokens[i], (long long)e->spec->vocab_size);
        }
    }
    return LT_OK;
}

/* All pages are checked, even those that the pool already has or has no room for: a damaged file is
 * not used. */
static lt_err fill_pages(lt_engine *e, const lt_page_file_view *v, const lent *w) {
    for (int64_t i = 0; i < v->head.n_pages; i++) {
        const void *page;
        LT_TRY(lt_page_file_page(v, i, &page));
        if (i >= w->n_found && i < w->n_found + w->n_taken) {
            lt_paged_forward_put_set(e->forward, set_of(e, w, i), page);
        }
    }
    return LT_OK;
}

static lt_err restore(lt_engine *e, const lt_page_file_view *v, uint64_t salt, int32_t *tokens,
                      lt_engine_kept *out) {
    const int64_t n = v->head.n_pages * v->head.page_tokens;
    lt_err err;
    lent w;
    memcpy(tokens, v->tokens, (size_t)n * sizeof *tokens);
    LT_TRY(check_tokens(e, tokens, n, v->name));
    LT_TRY(lent_open(&w, e, salt, tokens, n));
    lt_engine_ask(e, find_and_take, &w);
    err = fill_pages(e, v, &w);
    lt_engine_ask(e, err == LT_OK ? publish : give_back, &w);
    out->tokens = (w.n_found + w.n_taken) * v->head.page_tokens;
    out->bytes = (w.n_found + w.n_taken) * v->head.page_bytes;
    free(w.table);
    return err;
}

lt_err lt_engine_restore(lt_engine *e, const char *path, uint64_t salt, lt_engine_kept *out) {
    lt_err err = LT_OK;
    lt_file_map map = {0};
    lt_page_file_view v;
    int32_t *tokens = NULL;
    LT_TRY(lt_engine_check_pages(e, false));
    LT_TRY(lt_file_map_open(&map, path));
    LT_TRY_DONE(lt_page_file_parse(&v, map.data, map.size_bytes, path));
    LT_TRY_DONE(check_head(e, &v));
    tokens = malloc((size_t)(v.head.n_pages * v.head.page_tokens) * sizeof *tokens);
    if (tokens == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "tokens of %lld pages", (long long)v.head.n_pages);
    }
    LT_TRY_DONE(restore(e, &v, salt, tokens, out));
done:
    free(tokens);
    lt_file_map_close(&map);
    return err;
}

lt_err lt_engine_erase(lt_engine *e, uint64_t salt, const int32_t *tokens, int64_t n,
                       lt_engine_kept *out) {
    lent w;
    LT_TRY(lt_engine_check_pages(e, false));
    LT_TRY(lent_open(&w, e, salt, tokens, n));
    lt_engine_ask(e, erase, &w);
    *out = (lt_engine_kept){.tokens = w.n_found * e->o.page_tokens};
    free(w.table);
    return LT_OK;
}

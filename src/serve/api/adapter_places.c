/* adapter_places.c: see adapters.h: the places of the pool, which are filled when a request needs
 * them. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/adapters_impl.h"

/* A place that the worker pool is filling. */
typedef struct {
    lt_pool_job job;
    lt_adapter_set *adapters;
    int32_t place;
    uint64_t generation; /* Generation of the set. */
    lt_lora_source sources[LT_ADAPTERS_OF_REQUEST];
    char paths[LT_ADAPTERS_OF_REQUEST][LT_PATH_BYTES];
    int n;
    lt_failure failure;
} filling;

static lt_reply *reply_of(lt_adapter_choice *c) {
    return (lt_reply *)((char *)c - offsetof(lt_reply, adapters));
}

/* Is the scale of a request's adapters each row's own? Those of several are part of their sum, and
 * DoRA's lengths of rows depend on it (model/lora/lora_pool.h). */
static bool scales_rows(const lt_adapter_choice *c) {
    return c->n == 1 && !c->uses[0].dora;
}

/* Whether n uses have the same contents in memory as those of a choice. */
static bool are_same(const lt_adapter_use *uses, int n, const lt_adapter_choice *c) {
    bool same = n == c->n;
    for (int i = 0; same && i < n; i++) {
        same = uses[i].number == c->uses[i].number &&
               (scales_rows(c) || uses[i].scale == c->uses[i].scale);
    }
    return same;
}

static bool holds(const lt_adapter_place *p, const lt_adapter_choice *c) {
    return p->state != LT_PLACE_EMPTY && are_same(p->uses, p->n, c);
}

/* The place to fill: an empty one, or the one used longest ago among those that no request holds.
 * NULL: all are held. */
static lt_adapter_place *find_free(const lt_adapter_set *a) {
    lt_adapter_place *best = NULL;
    for (int32_t i = 0; i < a->n_places; i++) {
        lt_adapter_place *p = &a->places[i];
        if (p->state == LT_PLACE_EMPTY) {
            return p;
        }
        if (p->state == LT_PLACE_FILLED && lt_lora_pool_holds(a->pool, i) == 0 &&
            (best == NULL || p->used < best->used)) {
            best = p;
        }
    }
    return best;
}

/* Whether an earlier reply waits for the same adapters. */
static bool is_awaited(const lt_adapter_set *a, const lt_adapter_choice *c) {
    for (const lt_fifo_link *l = a->waiting.first; l != NULL; l = l->next) {
        const lt_adapter_choice *other = (const lt_adapter_choice *)l;
        if (other != c && are_same(other->uses, other->n, c)) {
            return true;
        }
    }
    return false;
}

/* From now on one more place takes no new requests: of those that do, the one that was filled
 * first. */
static void ask_to_leave(const lt_adapter_set *a) {
    lt_adapter_place *first = NULL;
    for (int32_t i = 0; i < a->n_places; i++) {
        lt_adapter_place *p = &a->places[i];
        if (p->state == LT_PLACE_FILLED && !p->leaving &&
            (first == NULL || p->filled < first->filled)) {
            first = p;
        }
    }
    if (first != NULL) {
        first->leaving = true;
    }
}

static void fill_work(lt_pool_job *job) {
    filling *f = (filling *)job;
    lt_adapter_set *a = f->adapters;
    lt_lora_image image = {0};
    lt_err err;
    if (!lt_adapter_set_begin_read(a, f->generation)) {
        return;
    }
    err = lt_lora_image_open(&image, a->pool, f->sources, f->n);
    err = err == LT_OK ? lt_lora_pool_fill(a->pool, f->place, &image) : err;
    lt_failure_keep(&f->failure, err);
    lt_lora_image_close(&image);
    lt_adapter_set_end_read(a);
}

/* Tell the replies that wait for the place that it could not be filled. */
static void refuse_waiting(lt_adapter_set *a, const lt_adapter_place *p, const lt_failure *why) {
    lt_fifo all = a->waiting;
    lt_api_error e;
    (void)lt_api_refuse_error(&e, "model", lt_failure_raise(why));
    a->waiting = (lt_fifo){NULL, NULL};
    for (lt_fifo_link *l = lt_fifo_pop(&all); l != NULL; l = lt_fifo_pop(&all)) {
        lt_adapter_choice *c = (lt_adapter_choice *)l;
        if (holds(p, c)) {
            c->waits = false;
            lt_reply_adapted(reply_of(c), &e);
        } else {
            lt_fifo_push(&a->waiting, l);
        }
    }
}

static void fill_done(lt_pool_job *job) {
    filling *f = (filling *)job;
    lt_adapter_set *a = f->adapters;
    lt_adapter_place *p;
    if (f->generation != a->generation) { /* The model has been unloaded meanwhile. */
        free(f);
        return;
    }
    p = &a->places[f->place];
    if (f->failure.err == LT_OK) {
        a->n_loads++;
        p->state = LT_PLACE_FILLED;
        p->used = p->filled = ++a->clock;
    } else {
        a->n_load_failures++;
        refuse_waiting(a, p, &f->failure);
        p->state = LT_PLACE_EMPTY;
    }
    free(f);
    event_active(a->on_retry, 0, 0);
}

/* Start to fill a place with the adapters of the choice. */
static lt_adapter_take fill_place(lt_adapter_set *a, lt_adapter_place *p,
                                  const lt_adapter_choice *c, lt_api_error *e) {
    filling *f = calloc(1, sizeof *f);
    lt_err err;
    bool known = f != NULL;
    if (f == NULL) {
        lt_api_refuse_oom(e);
        return LT_ADAPTER_REFUSED;
    }
    f->job = (lt_pool_job){.work = fill_work, .done = fill_done};
    f->adapters = a;
    f->place = (int32_t)(p - a->places);
    f->n = c->n;
    f->generation = a->generation;
    pthread_mutex_lock(&a->lock);
    for (int i = 0; i < c->n && known; i++) {
        const lt_adapter *d = lt_adapter_of_number(a, c->uses[i].number);
        known = d != NULL;
        snprintf(f->paths[i], LT_PATH_BYTES, "%s", known ? d->path : "");
        f->sources[i] = (lt_lora_source){f->paths[i], scales_rows(c) ? 1.0f : c->uses[i].scale};
    }
    pthread_mutex_unlock(&a->lock);
    if (!known) {
        free(f);
        lt_api_refuse(e, "model", "the adapter was unloaded before the request began");
        e->status = 404;
        return LT_ADAPTER_REFUSED;
    }
    err = lt_worker_pool_submit(a->server->pool, &f->job);
    if (err != LT_OK) {
        free(f);
        lt_api_refuse_error(e, NULL, err);
        return LT_ADAPTER_REFUSED;
    }
    *p = (lt_adapter_place){.state = LT_PLACE_LOADING, .n = c->n};
    memcpy(p->uses, c->uses, sizeof p->uses);
    return LT_ADAPTER_WAIT;
}

static lt_adapter_take find_place(lt_adapter_set *a, lt_reply *j, lt_api_error *e) {
    lt_adapter_choice *c = &j->adapters;
    lt_adapter_place *p = NULL;
    for (int32_t i = 0; i < a->n_places && p == NULL; i++) {
        p = holds(&a->places[i], c) ? &a->places[i] : NULL;
    }
    if (p != NULL && p->state == LT_PLACE_FILLED && !p->leaving) {
        c->place = (int32_t)(p - a->places) + 1;
        lt_lora_pool_hold(a->pool, c->place - 1);
        p->used = ++a->clock;
        j->request.adapter = c->place;
        j->request.adapter_scale = scales_rows(c) ? c->uses[0].scale : 1.0f;
        return LT_ADAPTER_TAKEN;
    }
    if (p != NULL) {
        return LT_ADAPTER_WAIT;
    }
    p = find_free(a);
    if (p == NULL && !is_awaited(a, c)) {
        ask_to_leave(a);
    }
    return p != NULL ? fill_place(a, p, c, e) : LT_ADAPTER_WAIT;
}

lt_adapter_take lt_adapter_set_take(lt_reply *j, lt_api_error *e) {
    lt_adapter_set *a = j->server->adapters;
    lt_adapter_take how = LT_ADAPTER_TAKEN;
    if (j->adapters.n > 0) {
        how = find_place(a, j, e);
    }
    if (how == LT_ADAPTER_WAIT) {
        j->adapters.waits = true;
        lt_fifo_push(&a->waiting, &j->adapters.link);
    }
    return how;
}

/* Try again each waiting reply, in order. A place that was to leave for a reply that has gone since
 * takes requests again, even if no other reply waits. */
void lt_adapter_set_retry(evutil_socket_t fd, short what, void *arg) {
    lt_adapter_set *a = arg;
    lt_fifo all = a->waiting;
    (void)fd;
    (void)what;
    a->waiting = (lt_fifo){NULL, NULL};
    for (int32_t i = 0; i < a->n_places; i++) {
        a->places[i].leaving = false;
    }
    for (lt_fifo_link *l = lt_fifo_pop(&all); l != NULL; l = lt_fifo_pop(&all)) {
        lt_adapter_choice *c = (lt_adapter_choice *)l;
        lt_reply *j = reply_of(c);
        lt_api_error e;
        c->waits = false;
        const lt_adapter_take how = lt_adapter_set_take(j, &e);
        if (how != LT_ADAPTER_WAIT) {
            lt_reply_adapted(j, how == LT_ADAPTER_TAKEN ? NULL : &e);
        }
    }
}

void lt_adapter_set_drop(lt_reply *j) {
    lt_adapter_set *a = j->server->adapters;
    lt_adapter_choice *c = &j->adapters;
    if (c->waits) {
        (void)lt_fifo_take_out(&a->waiting, &c->link);
        c->waits = false;
        event_active(a->on_retry, 0, 0);
    }
    if (c->place > 0) {
        lt_lora_pool_release(a->pool, c->place - 1);
        c->place = 0;
        if (a->waiting.first != NULL) {
            event_active(a->on_retry, 0, 0);
        }
    }
}

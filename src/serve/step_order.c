/* step_order.c: the order of a step's rows. On a GPU sequences that begin with the same page come
 * one behind the other, so that they may be a pack (model/infer/packs.h). The forward pass needs
 * rows with adapters first, place by place (model/lora/lora_pool.h); items of one adapter keep
 * their order. */
#include <string.h>

#include "model/infer/packs.h"
#include "model/lora/lora_pool.h"
#include "serve/engine_impl.h"

void lt_step_carve_order(lt_engine *e, lt_arena *a) {
    const lt_lora_pool *pool = e->model->lora_pool;
    const size_t places = pool != NULL ? (size_t)lt_lora_pool_places(pool) + 2 : 0;
    const size_t items = (size_t)(e->o.max_running + e->most_branches);
    const size_t rows = pool != NULL ? (size_t)e->o.step_tokens : 0;
    lt_step_room *s = &e->room;
    s->item_at = lt_arena_take(a, items * sizeof *s->item_at, LT_ARENA_ALIGN);
    s->order = lt_arena_take(a, items * sizeof *s->order, LT_ARENA_ALIGN);
    s->first_page = lt_arena_take(a, items * sizeof *s->first_page, LT_ARENA_ALIGN);
    s->order_scratch = lt_arena_take(a, LT_PACKS_ORDER_WORDS(items) * sizeof *s->order_scratch,
                                     LT_ARENA_ALIGN);
    s->adapter_start = lt_arena_take(a, places * sizeof *s->adapter_start, LT_ARENA_ALIGN);
    s->adapter_scale = lt_arena_take(a, rows * sizeof *s->adapter_scale, LT_ARENA_ALIGN);
}

/* The place of the choice's adapter; n_places: it has none. */
static int32_t place_of(const lt_job_choice *choice, int32_t n_places) {
    const int32_t adapter = choice->job->r.adapter;
    return adapter > 0 ? adapter - 1 : n_places;
}

/* Turn counts[p + 1] of each place into the index of its first row, in counts[p]. */
static void sum_up(int32_t *counts, int32_t n) {
    for (int32_t p = 0; p < n; p++) {
        counts[p + 1] += counts[p];
    }
}

/* order: the plan's items, with those that begin with the same page adjacent. On the host,
 * attention treats each sequence alone. */
static void order_by_page(lt_engine *e) {
    const lt_sched_item *items = e->sched.items;
    lt_step_room *r = &e->room;
    if (e->model->backend->host_memory) {
        for (int64_t i = 0; i < e->sched.n_items; i++) {
            r->order[i] = (int32_t)i;
        }
        return;
    }
    for (int64_t i = 0; i < e->sched.n_items; i++) {
        r->first_page[i] = items[i].seq->n_pages > 0 ? items[i].seq->table[0] : -1;
    }
    lt_packs_order(r->order, r->first_page, e->sched.n_items, r->order_scratch);
}

void lt_step_order(lt_engine *e) {
    const lt_sched_item *items = e->sched.items;
    lt_step_room *r = &e->room;
    int32_t *next = r->adapter_start; /* (places + 2), before it has rows. */
    order_by_page(e);
    if (e->model->lora_pool == NULL) {
        for (int64_t i = 0; i < e->sched.n_items; i++) {
            r->item_at[r->order[i]] = (int32_t)i;
        }
        return;
    }
    const int32_t n = lt_lora_pool_places(e->model->lora_pool);
    memset(next, 0, ((size_t)n + 2) * sizeof *next);
    for (int64_t i = 0; i < e->sched.n_items; i++) {
        next[place_of(items[i].seq->owner, n) + 1]++;
    }
    sum_up(next, n + 1);
    for (int64_t i = 0; i < e->sched.n_items; i++) {
        const int32_t item = r->order[i];
        r->item_at[item] = next[place_of(items[item].seq->owner, n)]++;
    }
}

void lt_step_adapt(lt_engine *e, const lt_step *s, lt_paged_forward_rows *out) {
    lt_step_room *r = &e->room;
    const int32_t n = lt_lora_pool_places(e->model->lora_pool);
    if (e->model->lora_pool == NULL) {
        return;
    }
    memset(r->adapter_start, 0, ((size_t)n + 2) * sizeof *r->adapter_start);
    for (int64_t i = 0; i < s->n_items; i++) {
        const lt_step_item *item = &s->items[i];
        const lt_request *request = &item->choice->job->r;
        if (request->adapter == 0) {
            break; /* All that follow have none, either. */
        }
        r->adapter_start[request->adapter] += (int32_t)item->n;
        for (int64_t k = 0; k < item->n; k++) {
            r->adapter_scale[out->n_adapted + k] = request->adapter_scale;
        }
        out->n_adapted += item->n;
        if (request->adapter_scale != 1.0f) {
            out->adapter_scale = r->adapter_scale;
        }
    }
    sum_up(r->adapter_start, n);
    out->adapter_start = r->adapter_start;
}

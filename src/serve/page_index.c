/* page_index.c: see page_index.h. */
#include "serve/page_index.h"

#include "base/error.h"

void lt_page_index_carve(lt_page_index *x, lt_arena *a) {
    LT_ASSERT(x->n_slots > 0 && x->n_slots < INT32_MAX);
    x->n_buckets = 1;
    while (x->n_buckets < 2 * x->n_slots) {
        x->n_buckets *= 2;
    }
    x->slots = lt_arena_take(a, (size_t)x->n_slots * sizeof *x->slots, LT_ARENA_ALIGN);
    x->bucket = lt_arena_take(a, (size_t)x->n_buckets * sizeof *x->bucket, LT_ARENA_ALIGN);
}

void lt_page_index_reset(lt_page_index *x) {
    for (int64_t i = 0; i < x->n_slots; i++) {
        x->slots[i] = (lt_page_slot){.hash_next = i + 1 < x->n_slots ? (int32_t)(i + 1)
                                                                     : LT_NO_SLOT,
                                     .prev = LT_NO_SLOT,
                                     .next = LT_NO_SLOT};
    }
    for (int64_t i = 0; i < x->n_buckets; i++) {
        x->bucket[i] = LT_NO_SLOT;
    }
    x->free_first = 0;
    x->oldest = x->newest = LT_NO_SLOT;
    x->n_used = 0;
}

static int32_t *bucket_of(const lt_page_index *x, lt_page_chain chain) {
    return &x->bucket[chain.low & (uint64_t)(x->n_buckets - 1)];
}

int32_t lt_page_index_find(const lt_page_index *x, lt_page_chain chain) {
    int32_t slot = *bucket_of(x, chain);
    while (slot != LT_NO_SLOT && !lt_page_chain_same(x->slots[slot].chain, chain)) {
        slot = x->slots[slot].hash_next;
    }
    return slot;
}

static void age_remove(lt_page_index *x, const lt_page_slot *s) {
    *(s->prev == LT_NO_SLOT ? &x->oldest : &x->slots[s->prev].next) = s->next;
    *(s->next == LT_NO_SLOT ? &x->newest : &x->slots[s->next].prev) = s->prev;
}

static void age_append(lt_page_index *x, int32_t slot) {
    x->slots[slot].prev = x->newest;
    x->slots[slot].next = LT_NO_SLOT;
    *(x->newest == LT_NO_SLOT ? &x->oldest : &x->slots[x->newest].next) = slot;
    x->newest = slot;
}

void lt_page_index_touch(lt_page_index *x, int32_t slot) {
    age_remove(x, &x->slots[slot]);
    age_append(x, slot);
}

void lt_page_index_remove(lt_page_index *x, int32_t slot) {
    lt_page_slot *s = &x->slots[slot];
    int32_t *link = bucket_of(x, s->chain);
    while (*link != slot) {
        LT_ASSERT(*link != LT_NO_SLOT);
        link = &x->slots[*link].hash_next;
    }
    *link = s->hash_next;
    age_remove(x, s);
    s->hash_next = x->free_first;
    x->free_first = slot;
    x->n_used--;
}

int32_t lt_page_index_add(lt_page_index *x, lt_page_chain chain, lt_page_chain *gone,
                          bool *any_gone) {
    int32_t slot, *bucket = bucket_of(x, chain);
    LT_ASSERT(lt_page_index_find(x, chain) == LT_NO_SLOT);
    *any_gone = x->free_first == LT_NO_SLOT;
    if (*any_gone) {
        *gone = x->slots[x->oldest].chain;
        lt_page_index_remove(x, x->oldest);
    }
    slot = x->free_first;
    x->free_first = x->slots[slot].hash_next;
    x->slots[slot].chain = chain;
    x->slots[slot].hash_next = *bucket;
    *bucket = slot;
    age_append(x, slot);
    x->n_used++;
    return slot;
}

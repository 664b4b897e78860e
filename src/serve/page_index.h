/* page_index.h: which page is in which slot of a store of fixed size. If it is full, a new page
 * takes the slot of the least recently used one. A plain struct without threads or files. */
#ifndef LT_SERVE_PAGE_INDEX_H
#define LT_SERVE_PAGE_INDEX_H

#include "base/arena.h"
#include "serve/pages.h"

#define LT_NO_SLOT (-1)

typedef struct {
    lt_page_chain chain;
    int32_t hash_next;  /* The next in its bucket, or the next free slot. */
    int32_t prev, next; /* The pages used before and after it. */
} lt_page_slot;

typedef struct {
    int64_t n_slots; /* Set before carving; below 2^31. */
    int64_t n_buckets, n_used;
    lt_page_slot *slots; /* (n_slots) */
    int32_t *bucket;     /* (n_buckets) */
    int32_t free_first, oldest, newest;
} lt_page_index;

void lt_page_index_carve(lt_page_index *x, lt_arena *a);
void lt_page_index_reset(lt_page_index *x); /* All slots become free. */

int32_t lt_page_index_find(const lt_page_index *x, lt_page_chain chain); /* Or LT_NO_SLOT. */
/* The page becomes the newest. */
void lt_page_index_touch(lt_page_index *x, int32_t slot);
/* Give a slot to a page that has none. The page becomes the newest. If no slot is free, it takes
 * that of the oldest page, whose chain is written to *gone, and *any_gone is true. */
int32_t lt_page_index_add(lt_page_index *x, lt_page_chain chain, lt_page_chain *gone,
                          bool *any_gone);
void lt_page_index_remove(lt_page_index *x, int32_t slot);

#endif

/* pages.c: see pages.h. */
#include "serve/pages.h"

#include <string.h>
#include <xxhash.h>

#include "base/error.h"

void lt_pages_carve(lt_pages *p, lt_arena *a) {
    LT_ASSERT(p->n_pages > 0 && p->n_pages < INT32_MAX && p->page_tokens > 0);
    p->n_buckets = 1;
    while (p->n_buckets < 2 * p->n_pages) {
        p->n_buckets *= 2;
    }
    p->page = lt_arena_take(a, (size_t)p->n_pages * sizeof *p->page, LT_ARENA_ALIGN);
    p->tokens = lt_arena_take(a, (size_t)(p->n_pages * p->page_tokens) * sizeof *p->tokens,
                              LT_ARENA_ALIGN);
    p->bucket = lt_arena_take(a, (size_t)p->n_buckets * sizeof *p->bucket, LT_ARENA_ALIGN);
}

/* The i-th page that is taken from a new pool. A set takes one for each group; the pages of a group
 * are contiguous, since attention reads them in turn. */
static int32_t nth_free(const lt_pages *p, int64_t i) {
    const int64_t groups = lt_pages_groups(p), of_group = p->n_pages / groups;
    return (int32_t)(i < groups * of_group ? i % groups * of_group + i / groups : i);
}

void lt_pages_reset(lt_pages *p) {
    LT_ASSERT(lt_pages_groups(p) > 0 && (p->window > 0) == (p->n_windowed > 0));
    LT_ASSERT(p->n_windowed > 0 || p->n_full == 1);
    for (int64_t i = 0; i < p->n_pages; i++) {
        p->page[nth_free(p, i)] = (lt_page){.parent = LT_NO_PAGE,
                                            .hash_next = LT_NO_PAGE,
                                            .prev = LT_NO_PAGE,
                                            .next = i + 1 < p->n_pages ? nth_free(p, i + 1)
                                                                       : LT_NO_PAGE};
    }
    for (int64_t i = 0; i < p->n_buckets; i++) {
        p->bucket[i] = LT_NO_PAGE;
    }
    p->free_first = 0;
    p->aged = p->kept = (lt_page_ages){LT_NO_PAGE, LT_NO_PAGE};
    p->n_free = p->n_pages;
    p->n_cached = p->n_evicted = p->n_kept = 0;
    p->looked_s = p->now_s;
}

static lt_page *at(const lt_pages *p, int32_t page) {
    LT_ASSERT(page >= 0 && page < p->n_pages);
    return &p->page[page];
}

/* The pages of a set are in the same bucket. */
static int32_t *bucket_of(const lt_pages *p, lt_page_chain chain) {
    return &p->bucket[chain.low & (uint64_t)(p->n_buckets - 1)];
}

lt_page_chain lt_pages_chain_of(const lt_pages *p, int32_t page, uint64_t salt) {
    XXH128_hash_t h;
    if (page != LT_NO_PAGE) {
        return at(p, page)->chain;
    }
    h = XXH3_128bits_withSeed(&salt, sizeof salt, p->seed);
    return (lt_page_chain){h.low64, h.high64};
}

lt_page_chain lt_pages_chain_next(const lt_pages *p, lt_page_chain before, const int32_t *tokens) {
    const XXH128_hash_t own = XXH3_128bits_withSeed(tokens, (size_t)p->page_tokens * sizeof *tokens,
                                                    p->seed);
    const uint64_t both[] = {before.low, before.high, own.low64, own.high64};
    const XXH128_hash_t h = XXH3_128bits_withSeed(both, sizeof both, p->seed);
    return (lt_page_chain){h.low64, h.high64};
}

static lt_page_ages *ages_of(lt_pages *p, const lt_page *g) {
    return g->keep_until_s > 0.0 ? &p->kept : &p->aged;
}

static void age_append(lt_pages *p, int32_t page) {
    lt_page *g = at(p, page);
    lt_page_ages *ages = ages_of(p, g);
    g->prev = ages->newest;
    g->next = LT_NO_PAGE;
    *(ages->newest == LT_NO_PAGE ? &ages->oldest : &p->page[ages->newest].next) = page;
    ages->newest = page;
    p->n_cached++;
}

static void age_remove(lt_pages *p, int32_t page) {
    lt_page *g = at(p, page);
    lt_page_ages *ages = ages_of(p, g);
    *(g->prev == LT_NO_PAGE ? &ages->oldest : &p->page[g->prev].next) = g->next;
    *(g->next == LT_NO_PAGE ? &ages->newest : &p->page[g->next].prev) = g->prev;
    g->prev = g->next = LT_NO_PAGE;
    p->n_cached--;
}

static void keep_no_longer(lt_pages *p, lt_page *g) {
    p->n_kept -= g->keep_until_s > 0.0;
    g->keep_until_s = 0.0;
}

void lt_pages_keep(lt_pages *p, int32_t page, double until_s) {
    lt_page *g = at(p, page);
    const bool is_kept = g->keep_until_s > 0.0;
    LT_ASSERT(g->refs > 0 && g->published);
    if (until_s <= p->now_s || until_s <= g->keep_until_s ||
        (!is_kept && p->n_kept >= p->most_kept) ||
        (g->parent != LT_NO_PAGE && at(p, g->parent)->keep_until_s < until_s)) {
        return;
    }
    p->n_kept += !is_kept;
    g->keep_until_s = until_s;
}

#define LOOK_S 1.0

/* Cached pages whose time is over join the others. A child comes before its parent and is kept no
 * longer, so leaves still come first. */
static void end_keeping(lt_pages *p) {
    if (p->kept.oldest == LT_NO_PAGE || p->now_s - p->looked_s < LOOK_S) {
        return;
    }
    p->looked_s = p->now_s;
    for (int32_t page = p->kept.oldest, next; page != LT_NO_PAGE; page = next) {
        lt_page *g = at(p, page);
        next = g->next;
        if (g->keep_until_s <= p->now_s) {
            age_remove(p, page);
            keep_no_longer(p, g);
            age_append(p, page);
        }
    }
}

/* Remove a page from its bucket and from its parent's children. */
static void forget(lt_pages *p, int32_t page) {
    lt_page *g = at(p, page);
    int32_t *link = bucket_of(p, g->chain);
    LT_ASSERT(g->published && g->n_children == 0);
    while (*link != page) {
        link = &at(p, *link)->hash_next;
    }
    *link = g->hash_next;
    if (g->parent != LT_NO_PAGE) {
        at(p, g->parent)->n_children--;
    }
    g->published = false;
    g->parent = g->hash_next = LT_NO_PAGE;
    keep_no_longer(p, g);
}

/* Evict the oldest cached page, so that it can no longer be found. */
static int32_t evict(lt_pages *p, bool tell) {
    int32_t page;
    end_keeping(p);
    page = p->aged.oldest != LT_NO_PAGE ? p->aged.oldest : p->kept.oldest;
    if (tell && p->on_evict != NULL) {
        p->on_evict(p->owner, page);
    }
    age_remove(p, page);
    forget(p, page);
    p->n_evicted++;
    return page;
}

static void set_free(lt_pages *p, int32_t page) {
    at(p, page)->next = p->free_first;
    p->free_first = page;
    p->n_free++;
}

int32_t lt_pages_take(lt_pages *p) {
    int32_t page = p->free_first;
    if (page != LT_NO_PAGE) {
        p->free_first = p->page[page].next;
        p->page[page].next = LT_NO_PAGE;
        p->n_free--;
    } else if (p->n_cached > 0) {
        page = evict(p, true);
    } else {
        return LT_NO_PAGE;
    }
    LT_ASSERT(p->page[page].refs == 0);
    p->page[page].refs = 1;
    p->page[page].n_drafted = 0;
    return page;
}

void lt_pages_hold(lt_pages *p, int32_t page) {
    lt_page *g = at(p, page);
    if (g->refs == 0) {
        LT_ASSERT(g->published);
        age_remove(p, page);
    }
    g->refs++;
}

void lt_pages_drop(lt_pages *p, int32_t page) {
    lt_page *g = at(p, page);
    LT_ASSERT(g->refs > 0);
    if (--g->refs > 0) {
        return;
    }
    if (!g->published) {
        set_free(p, page);
        return;
    }
    age_append(p, page);
    if (p->n_cached > p->most_cached) {
        set_free(p, evict(p, true));
    }
}

/* Drop the pages of groups [0, n) in set `at` of a table. */
static void drop_set(lt_pages *p, const int32_t *table, int64_t at, int64_t n) {
    for (int64_t g = n - 1; g >= 0; g--) {
        lt_pages_drop(p, table[at * lt_pages_groups(p) + g]);
    }
}

void lt_pages_drop_chain(lt_pages *p, const int32_t *table, int64_t first, int64_t end) {
    while (end > first) {
        drop_set(p, table, --end, lt_pages_groups(p));
    }
}

void lt_pages_drop_text(lt_pages *p, const int32_t *table, int64_t behind, int64_t n) {
    lt_pages_drop_chain(p, table, behind, n);
    while (behind > 0) {
        drop_set(p, table, --behind, p->n_full);
    }
}

void lt_pages_hold_text(lt_pages *p, const int32_t *table, int64_t behind, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t held = i < behind ? p->n_full : lt_pages_groups(p);
        for (int64_t g = 0; g < held; g++) {
            lt_pages_hold(p, table[i * lt_pages_groups(p) + g]);
        }
    }
}

void lt_pages_forget(lt_pages *p) {
    LT_ASSERT(lt_pages_available(p) == p->n_pages);
    while (p->n_cached > 0) {
        set_free(p, evict(p, false));
    }
}

/* Find the published page of the group with these tokens after parent. */
static int32_t find(const lt_pages *p, lt_page_chain chain, int32_t group, int32_t parent,
                    uint64_t salt, const int32_t *tokens) {
    const size_t bytes = (size_t)p->page_tokens * sizeof *tokens;
    int32_t page = *bucket_of(p, chain);
    parent = p->window > 0 ? LT_NO_PAGE : parent;
    while (page != LT_NO_PAGE) {
        const lt_page *g = at(p, page);
        if (lt_page_chain_same(g->chain, chain) && g->group == group && g->parent == parent &&
            g->salt == salt && memcmp(lt_pages_tokens(p, page), tokens, bytes) == 0) {
            return page;
        }
        page = g->hash_next;
    }
    return LT_NO_PAGE;
}

/* Whether the pages of groups [first, end) of a set are present. */
static bool has_all(const int32_t *set, int64_t first, int64_t end) {
    bool all = true;
    for (int64_t g = first; g < end; g++) {
        all = all && set[g] != LT_NO_PAGE;
    }
    return all;
}

/* Write the published pages of a text, or LT_NO_PAGE, to table. It ends where a page of a full
 * group is missing. Returns the number of sets. */
static int64_t walk(const lt_pages *p, uint64_t salt, const int32_t *tokens, int64_t n,
                    int32_t *table) {
    const int64_t groups = lt_pages_groups(p);
    lt_page_chain chain = lt_pages_chain_of(p, LT_NO_PAGE, salt);
    int64_t i = 0;
    for (; (i + 1) * p->page_tokens <= n; i++) {
        const int32_t *piece = tokens + i * p->page_tokens;
        const int32_t parent = i > 0 ? table[(i - 1) * groups] : LT_NO_PAGE;
        chain = lt_pages_chain_next(p, chain, piece);
        for (int32_t g = 0; g < groups; g++) {
            table[i * groups + g] = find(p, chain, g, parent, salt, piece);
        }
        if (!has_all(table + i * groups, 0, p->n_full)) {
            break;
        }
    }
    return i;
}

/* Number of sets before the window of the row that follows n sets; the last set is always held, so
 * that the next one has its parent. */
static int64_t behind_of(const lt_pages *p, int64_t n) {
    const int64_t behind = lt_pages_behind(p, n * p->page_tokens);
    return behind < n ? behind : n - 1;
}

int64_t lt_pages_match(lt_pages *p, uint64_t salt, const int32_t *tokens, int64_t n, int32_t *table,
                       int64_t *behind) {
    const int64_t groups = lt_pages_groups(p), walked = walk(p, salt, tokens, n, table);
    int64_t count = p->n_windowed == 0 ? walked : 0, in_a_row = 0;
    for (int64_t i = 0; i < walked && p->n_windowed > 0; i++) {
        in_a_row = has_all(table + i * groups, p->n_full, groups) ? in_a_row + 1 : 0;
        if (in_a_row > 0 && in_a_row >= i + 1 - behind_of(p, i + 1)) {
            count = i + 1;
        }
    }
    *behind = count > 0 ? behind_of(p, count) : 0;
    lt_pages_hold_text(p, table, *behind, count);
    for (int64_t i = 0; i < *behind; i++) {
        for (int64_t g = p->n_full; g < groups; g++) {
            table[i * groups + g] = table[*behind * groups + g];
        }
    }
    return count;
}

int64_t lt_pages_erase(lt_pages *p, uint64_t salt, const int32_t *tokens, int64_t n,
                       int32_t *table) {
    const int64_t groups = lt_pages_groups(p);
    int64_t erased = 0;
    for (int64_t i = walk(p, salt, tokens, n, table) - 1; i >= 0; i--) {
        bool any = false;
        for (int64_t k = i * groups; k < (i + 1) * groups; k++) {
            const lt_page *g = table[k] != LT_NO_PAGE ? at(p, table[k]) : NULL;
            if (g != NULL && g->refs == 0 && g->n_children == 0) {
                age_remove(p, table[k]);
                forget(p, table[k]);
                set_free(p, table[k]);
                any = true;
            }
        }
        erased += any;
    }
    return erased;
}

/* Publish the page of one group. Returns it or, after dropping it, an equal page, held. */
static int32_t publish(lt_pages *p, int32_t page, lt_page_chain chain, int32_t group,
                       int32_t parent, uint64_t salt, const int32_t *tokens) {
    const int32_t equal = find(p, chain, group, parent, salt, tokens);
    lt_page *g = at(p, page);
    int32_t *bucket = bucket_of(p, chain);

    LT_ASSERT(g->refs > 0 && !g->published);
    if (equal != LT_NO_PAGE) {
        lt_pages_hold(p, equal);
        lt_pages_drop(p, page);
        return equal;
    }
    memcpy(p->tokens + page * p->page_tokens, tokens, (size_t)p->page_tokens * sizeof *tokens);
    g->chain = chain;
    g->salt = salt;
    g->group = group;
    g->parent = p->window > 0 ? LT_NO_PAGE : parent;
    g->published = true;
    g->hash_next = *bucket;
    *bucket = page;
    if (g->parent != LT_NO_PAGE) {
        at(p, parent)->n_children++;
    }
    return page;
}

void lt_pages_publish(lt_pages *p, int32_t *set, const int32_t *parent, uint64_t salt,
                      const int32_t *tokens) {
    const int32_t before = parent != NULL ? *parent : LT_NO_PAGE;
    const lt_page_chain chain = lt_pages_chain_next(p, lt_pages_chain_of(p, before, salt), tokens);
    LT_ASSERT(before == LT_NO_PAGE || at(p, before)->published);
    for (int32_t g = 0; g < lt_pages_groups(p); g++) {
        set[g] = publish(p, set[g], chain, g, before, salt, tokens);
    }
}

/* Count the pages of an age list. False: one is held, unpublished, badly linked, or in the wrong
 * list. */
static bool check_ages(const lt_pages *p, const lt_page_ages *ages, bool kept, int64_t *n) {
    int32_t before = LT_NO_PAGE;
    for (int32_t i = ages->oldest; i != LT_NO_PAGE; before = i, i = p->page[i].next, ++*n) {
        const lt_page *g = &p->page[i];
        if (g->refs != 0 || !g->published || g->prev != before || *n > p->n_pages ||
            (g->keep_until_s > 0.0) != kept) {
            return false;
        }
    }
    return ages->newest == before;
}

const char *lt_pages_check(const lt_pages *p) {
    int64_t n_free = 0, n_cached = 0, n_published = 0, n_found = 0, n_idle = 0, n_children = 0,
            n_parents = 0, n_kept = 0;
    for (int32_t i = p->free_first; i != LT_NO_PAGE; i = p->page[i].next, n_free++) {
        if (p->page[i].refs != 0 || p->page[i].published || n_free > p->n_pages) {
            return "a page of the free list is held, published, or in a loop";
        }
    }
    if (!check_ages(p, &p->aged, false, &n_cached) || !check_ages(p, &p->kept, true, &n_cached)) {
        return "a page of an age list is held, unpublished, badly linked or in the wrong list";
    }
    if (n_cached > p->most_cached) {
        return "more pages are cached than may be";
    }
    for (int64_t i = 0; i < p->n_pages; i++) {
        const lt_page *g = &p->page[i];
        n_idle += g->refs == 0;
        n_published += g->published;
        n_children += g->n_children;
        n_parents += g->published && g->parent != LT_NO_PAGE;
        n_kept += g->keep_until_s > 0.0;
        if (g->keep_until_s > 0.0 && g->parent != LT_NO_PAGE &&
            p->page[g->parent].keep_until_s < g->keep_until_s) {
            return "a page is kept longer than its parent";
        }
        if (g->refs < 0 || (!g->published && g->n_children != 0)) {
            return "references below zero, or children of an unpublished page";
        }
        if (g->published && g->parent != LT_NO_PAGE &&
            (!p->page[g->parent].published || (g->refs > 0 && p->page[g->parent].refs == 0))) {
            return "a published page outlives its parent";
        }
    }
    for (int64_t b = 0; b < p->n_buckets; b++) {
        for (int32_t i = p->bucket[b]; i != LT_NO_PAGE; i = p->page[i].hash_next, n_found++) {
            if (!p->page[i].published || bucket_of(p, p->page[i].chain) != &p->bucket[b] ||
                n_found > p->n_pages) {
                return "a page in a wrong bucket";
            }
        }
    }
    return n_free != p->n_free || n_cached != p->n_cached ? "the counts are wrong"
           : n_idle != n_free + n_cached                  ? "a page is lost"
           : n_found != n_published                       ? "a published page cannot be found"
           : n_children != n_parents                      ? "children are miscounted"
           : n_kept != p->n_kept || n_kept > p->most_kept ? "pages that are kept are miscounted"
                                                          : NULL;
}

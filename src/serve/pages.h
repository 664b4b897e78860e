/* pages.h: which sequences hold which page of the key/value cache. A plain struct without threads,
 * clocks or device that manages page numbers.
 *
 * A page is one of
 *
 *     free ──take──▶ held (refs >= 1) ──last drop, unpublished──▶ free
 *                      │ publish: it is full, and its tokens are known
 *                      ▼
 *                    held, published ──last drop──▶ cached (refs 0) ──match──▶ held, published
 *                                                     ├──evicted by take, oldest first──▶ held
 *                                                     └──over most_cached, oldest first──▶ free
 *
 * Cached pages that are to be kept until some time (lt_pages_keep) have a separate list, from which
 * one is evicted only if the other list is empty. Keeping pages thus changes the order of eviction,
 * but never takes a page from a sequence that needs one.
 *
 * A published page is found by its content: the page before it and its own tokens. So pages form
 * chains: the identity of a page is (parent page, tokens) and, for the first, a salt, compared
 * exactly, so sequences with different salts share no page. The hash, chained over the parent's,
 * only selects the bucket. A sequence holds all pages of a chain from its start and drops the last
 * one first, so a parent is never evicted before its children: evicting the oldest first evicts
 * leaves first. Two sequences may fill equal pages independently; publish then gives the second one
 * the page of the first.
 *
 * GROUPS   A page holds the keys and values of page_tokens tokens in the layers of one group
 *          (model/infer/page_groups.h): the first n_full groups have layers that see all tokens,
 *          the next n_windowed groups layers that see the last `window` tokens. The pages of
 *          all groups for the same tokens are a set, and a table has one set after the other:
 *          table[k * n_groups + g] is the page of group g for tokens [k, k + 1) * page_tokens. All
 *          groups take their pages from the same pool, as a page is equally large in each. Most
 *          models have one group, where a set is a page.
 * WINDOW   A sequence drops the pages of windowed groups that its window has left while it runs, so
 *          they are evicted before their children. Where there is a windowed group, a page is
 *          therefore not identified by its parent, but by (group, hash of the chain before it,
 *          salt, tokens), with a hash of 128 bits from a secret seed. A prompt that begins with the
 *          tokens of c sets can go on after them if the pages that the next row reads are there: in
 *          full groups all, in windowed groups those of the window. match looks for the largest
 *          such c, and says how many sets the window has left.
 *
 * Invariants (lt_pages_check): every page is in exactly one of free list, age lists, or held; the
 * parent of a page that is kept is kept at least as long; a cached page is published; a published
 * page is in its hash bucket once and its parent is published; the counts agree. */
#ifndef LT_SERVE_PAGES_H
#define LT_SERVE_PAGES_H

#include <stdbool.h>

#include "base/arena.h"

#define LT_NO_PAGE (-1)

/* The hash of all tokens of a text up to the end of a page, and of its salt. */
typedef struct {
    uint64_t low, high;
} lt_page_chain;

typedef struct {
    lt_page_chain chain;
    uint64_t salt; /* Salt of the sequences that may share it. */
    int32_t refs;
    /* LT_NO_PAGE: it begins a sequence, or there is a window. Set for published pages only, as
     * are */
    int32_t parent;
    int32_t group;       /* the group of its layers, */
    int32_t n_children;  /* the number of published pages whose parent it is, */
    int32_t hash_next;   /* and the next in its bucket. */
    int32_t prev, next;  /* In an age list; the free list uses next. */
    double keep_until_s; /* 0: it is not kept. */
    bool published;
    /* For the owner: how many of its tokens, from the first, a draft model has also run. 0 when it
     * is taken. */
    int32_t n_drafted;
} lt_page;

typedef struct {
    int32_t oldest, newest;
} lt_page_ages;

typedef struct {
    int64_t n_pages, page_tokens; /* Set before carving. */
    /* Groups of layers; at least one. Set before the reset, as are */
    int64_t n_full, n_windowed;
    /* the number of tokens that each row reads in windowed groups, including its own, 0 without
     * windows, and the seed of the hashes. */
    int64_t window;
    uint64_t seed;
    /* Most pages without a holder that are kept; beyond that, the oldest becomes free. Set before
     * the reset. */
    int64_t most_cached;
    int64_t most_kept; /* Most pages with a time until which they are kept. */
    double now_s;      /* The time, as last reported by the owner. */
    /* Called before a published page is evicted, while it still has its chain and tokens, but not
     * by forget and erase; may be NULL. */
    void (*on_evict)(void *owner, int32_t page);
    void *owner;
    int64_t n_buckets;
    lt_page *page;      /* (n_pages) */
    int32_t *tokens;    /* (n_pages, page_tokens) of published pages */
    int32_t *bucket;    /* (n_buckets) first page, or LT_NO_PAGE */
    int32_t free_first; /* Head of the free list. */
    lt_page_ages aged, kept;
    int64_t n_kept;                      /* Number of pages with keep_until_s. */
    double looked_s;                     /* When `kept` was last checked. */
    int64_t n_free, n_cached, n_evicted; /* n_evicted: since the start. */
} lt_pages;

void lt_pages_carve(lt_pages *p, lt_arena *a); /* Measure, then place (base/arena.h). */
/* All pages become free. Call it once after placing. */
void lt_pages_reset(lt_pages *p);

/* A page with one reference: a free one, otherwise the oldest cached one. LT_NO_PAGE if all are
 * held. */
int32_t lt_pages_take(lt_pages *p);
void lt_pages_hold(lt_pages *p, int32_t page);
void lt_pages_drop(lt_pages *p, int32_t page);
/* Drop sets [first, end) of a table, the last one first, so that a chain is evicted from its
 * end. */
void lt_pages_drop_chain(lt_pages *p, const int32_t *table, int64_t first, int64_t end);
/* Drop, in the same order, what a sequence of n sets holds, without the first `behind` sets of
 * windowed groups. */
void lt_pages_drop_text(lt_pages *p, const int32_t *table, int64_t behind, int64_t n);
/* Hold what lt_pages_drop_text would drop. */
void lt_pages_hold_text(lt_pages *p, const int32_t *table, int64_t behind, int64_t n);

/* Free all cached pages, so that none can be found. No page may be held. */
void lt_pages_forget(lt_pages *p);

static inline int64_t lt_pages_groups(const lt_pages *p) {
    return p->n_full + p->n_windowed;
}
/* Number of pages held by a sequence of n sets, the first `behind` of which are before its
 * window. */
static inline int64_t lt_pages_held(const lt_pages *p, int64_t behind, int64_t n) {
    return p->n_full * n + p->n_windowed * (n - behind);
}

/* Number of sets, from the start of a text, of which windowed groups need nothing at position `at`
 * or later. */
static inline int64_t lt_pages_behind(const lt_pages *p, int64_t at) {
    return p->window > 0 && at >= p->window ? (at - p->window + 1) / p->page_tokens : 0;
}

/* The chain of a published page, or with LT_NO_PAGE the chain before the first page of a text; and
 * the chain of the page that follows it with these tokens. */
lt_page_chain lt_pages_chain_of(const lt_pages *p, int32_t page, uint64_t salt);
lt_page_chain lt_pages_chain_next(const lt_pages *p, lt_page_chain before, const int32_t *tokens);
static inline bool lt_page_chain_same(lt_page_chain a, lt_page_chain b) {
    return a.low == b.low && a.high == b.high;
}
/* The tokens of a published page. */
static inline const int32_t *lt_pages_tokens(const lt_pages *p, int32_t page) {
    return p->tokens + page * p->page_tokens;
}

/* Find the longest chain of published sets with which tokens (n) begin, and hold those of its pages
 * that later rows read. Writes page numbers to table (n / page_tokens sets) and returns the number
 * of sets. In windowed groups the first *behind are not held: any valid number stands in their
 * place. Only whole sets are found. */
int64_t lt_pages_match(lt_pages *p, uint64_t salt, const int32_t *tokens, int64_t n, int32_t *table,
                       int64_t *behind);
/* Free the pages of such a chain that no sequence holds, from its end on; table has room for all.
 * Returns the number of sets that lost a page. */
int64_t lt_pages_erase(lt_pages *p, uint64_t salt, const int32_t *tokens, int64_t n,
                       int32_t *table);
/* Publish a held set that is full with `tokens` (page_tokens), after the set `parent`; NULL: it
 * begins a text. If an equal page is already published, the set holds that page instead. */
void lt_pages_publish(lt_pages *p, int32_t *set, const int32_t *parent, uint64_t salt,
                      const int32_t *tokens);

/* Keep a held, published page until then, if that is in the future: other cached pages are evicted
 * before it. No-op if most_kept pages are kept, or if its parent is kept less long. */
void lt_pages_keep(lt_pages *p, int32_t page, double until_s);

static inline int64_t lt_pages_available(const lt_pages *p) {
    return p->n_free + p->n_cached;
}

/* NULL, or the violated invariant. For tests, because it checks everything. */
const char *lt_pages_check(const lt_pages *p);

#endif

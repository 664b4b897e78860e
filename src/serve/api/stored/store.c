/* store.c: see store.h. Entries that can be found are in a hash table with chains and in a list
 * ordered by last use; `refs` counts the table, holds and later turns. Texts never change, so only
 * the bookkeeping is under the mutex. */
#include "serve/api/stored/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"

#define N_CHAINS 1024 /* Chains of the hash table: a few entries each with the usual limit. */

struct lt_stored {
    lt_stored *previous;      /* The previous turn; held. */
    lt_stored *chain;         /* The next entry with its hash. */
    lt_stored *older, *newer; /* In the order of use. */
    int64_t refs;
    uint64_t number; /* Number of the put that made it. */
    double used_s;
    size_t bytes, n;
    char id[64];
    char *owner, *text; /* They follow the struct in memory. */
};

struct lt_store {
    lt_store_options o;
    pthread_mutex_t lock;
    lt_stored *chains[N_CHAINS];
    lt_stored *oldest, *newest;
    uint64_t n_puts;
    lt_store_stats stats;
};

lt_err lt_store_open(lt_store **out, const lt_store_options *o) {
    lt_store *s = calloc(1, sizeof *s);
    if (s == NULL) {
        LT_FAIL(LT_ERR_OOM, "store of answers");
    }
    s->o = *o;
    pthread_mutex_init(&s->lock, NULL);
    *out = s;
    return LT_OK;
}

/* ---- Under the lock ---- */

static lt_stored **chain_of(lt_store *s, const char *id) {
    return &s->chains[XXH3_64bits(id, strlen(id)) % N_CHAINS];
}

/* A conversation may be long, so its turns are freed in a loop. */
static void drop(lt_store *s, lt_stored *e) {
    while (e != NULL && --e->refs == 0) {
        lt_stored *previous = e->previous;
        s->stats.bytes -= e->bytes;
        free(e);
        e = previous;
    }
}

static void unlink_use(lt_store *s, lt_stored *e) {
    *(e->older != NULL ? &e->older->newer : &s->oldest) = e->newer;
    *(e->newer != NULL ? &e->newer->older : &s->newest) = e->older;
    e->older = e->newer = NULL;
}

static void use(lt_store *s, lt_stored *e, double now_s) {
    e->used_s = now_s;
    e->older = s->newest;
    *(s->newest != NULL ? &s->newest->newer : &s->oldest) = e;
    s->newest = e;
}

/* Insert the entry, which can be found from now on. */
static void let_in(lt_store *s, lt_stored *e, double now_s) {
    e->chain = *chain_of(s, e->id);
    *chain_of(s, e->id) = e;
    use(s, e, now_s);
    s->stats.entries++;
}

/* Remove the entry, which cannot be found any more. The caller releases the table's hold. */
static void detach(lt_store *s, lt_stored *e) {
    lt_stored **at = chain_of(s, e->id);
    while (*at != e) {
        at = &(*at)->chain;
    }
    *at = e->chain;
    e->chain = NULL;
    unlink_use(s, e);
    s->stats.entries--;
}

static void take_out(lt_store *s, lt_stored *e) {
    detach(s, e);
    drop(s, e);
}

static void make_room(lt_store *s, size_t bytes, double now_s) {
    while (s->oldest != NULL && (now_s - s->oldest->used_s > s->o.lifetime_s ||
                                 s->stats.entries + (bytes > 0) > s->o.max_entries ||
                                 s->stats.bytes + bytes > s->o.max_bytes)) {
        take_out(s, s->oldest);
    }
}

static lt_stored *find(lt_store *s, const char *id, const char *owner) {
    for (lt_stored *e = *chain_of(s, id); e != NULL; e = e->chain) {
        if (strcmp(e->id, id) == 0) {
            return strcmp(e->owner, owner) == 0 ? e : NULL;
        }
    }
    return NULL;
}

static bool is_match(const lt_stored *e, const char *prefix, const char *owner) {
    return strcmp(e->owner, owner) == 0 && strncmp(e->id, prefix, strlen(prefix)) == 0;
}

/* ---- The door ---- */

/* An entry that is not yet in a list; NULL: it cannot fit, or there is no memory. */
static lt_stored *made(const lt_store *s, const char *id, const char *owner, lt_stored *previous,
                       const char *text, size_t n) {
    const size_t owner_n = strlen(owner) + 1, bytes = sizeof(lt_stored) + owner_n + n + 1;
    lt_stored *e;

    LT_ASSERT(strlen(id) < sizeof e->id);
    e = bytes <= s->o.max_bytes && s->o.max_entries > 0 ? calloc(1, bytes) : NULL;
    if (e == NULL) {
        return NULL;
    }
    *e = (lt_stored){.previous = previous, .refs = 1, .bytes = bytes, .n = n};
    memcpy(e->id, id, strlen(id) + 1);
    e->owner = (char *)(e + 1);
    e->text = e->owner + owner_n;
    memcpy(e->owner, owner, owner_n);
    memcpy(e->text, text, n);
    return e;
}

void lt_store_close(lt_store *s) {
    if (s == NULL) {
        return;
    }
    while (s->oldest != NULL) {
        take_out(s, s->oldest);
    }
    LT_ASSERT(s->stats.bytes == 0); /* Every hold was released. */
    pthread_mutex_destroy(&s->lock);
    free(s);
}

bool lt_store_put(lt_store *s, const char *id, const char *owner, lt_stored *previous,
                  const char *text, size_t n, double now_s) {
    lt_stored *e = made(s, id, owner, previous, text, n);
    bool kept;

    if (e == NULL) {
        return false;
    }
    pthread_mutex_lock(&s->lock);
    make_room(s, e->bytes, now_s);
    /* Turns that are still held may fill the store. */
    kept = s->stats.bytes + e->bytes <= s->o.max_bytes;
    if (kept) {
        e->number = s->n_puts++;
        let_in(s, e, now_s);
        s->stats.bytes += e->bytes;
        if (previous != NULL) {
            previous->refs++;
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (!kept) {
        free(e);
    }
    return kept;
}

lt_stored *lt_store_hold(lt_store *s, const char *id, const char *owner, double now_s) {
    lt_stored *e;
    pthread_mutex_lock(&s->lock);
    make_room(s, 0, now_s);
    e = find(s, id, owner);
    if (e != NULL) {
        e->refs++;
        unlink_use(s, e);
        use(s, e, now_s);
    }
    pthread_mutex_unlock(&s->lock);
    return e;
}

bool lt_store_replace(lt_store *s, lt_stored *entry, const char *text, size_t n, double now_s) {
    lt_stored *e = made(s, entry->id, entry->owner, entry->previous, text, n);
    bool kept = false;

    if (e == NULL) {
        return false;
    }
    e->number = entry->number;
    pthread_mutex_lock(&s->lock);
    if (find(s, entry->id, entry->owner) == entry) {
        detach(s, entry);
        make_room(s, e->bytes, now_s); /* The old text still counts, because the caller holds it. */
        kept = s->stats.bytes + e->bytes <= s->o.max_bytes;
        let_in(s, kept ? e : entry, now_s);
    }
    if (kept) {
        s->stats.bytes += e->bytes;
        if (e->previous != NULL) {
            e->previous->refs++;
        }
        drop(s, entry);
    }
    pthread_mutex_unlock(&s->lock);
    if (!kept) {
        free(e);
    }
    return kept;
}

static int by_number(const void *a, const void *b) {
    const lt_stored *x = *(lt_stored *const *)a, *y = *(lt_stored *const *)b;
    return (x->number > y->number) - (x->number < y->number);
}

lt_stored **lt_store_list(lt_store *s, const char *prefix, const char *owner, double now_s,
                          size_t *n) {
    lt_stored **list;
    pthread_mutex_lock(&s->lock);
    make_room(s, 0, now_s);
    *n = 0;
    list = malloc(((size_t)s->stats.entries + 1) * sizeof(lt_stored *));
    for (lt_stored *e = s->oldest; list != NULL && e != NULL; e = e->newer) {
        if (is_match(e, prefix, owner)) {
            e->refs++;
            list[(*n)++] = e;
        }
    }
    pthread_mutex_unlock(&s->lock);
    if (list != NULL) {
        qsort(list, *n, sizeof(lt_stored *), by_number);
    }
    return list;
}

lt_stored *lt_store_search(lt_store *s, const char *prefix, const char *words, const char *owner,
                           double now_s) {
    lt_stored *e;
    pthread_mutex_lock(&s->lock);
    make_room(s, 0, now_s);
    e = s->newest;
    while (e != NULL && (!is_match(e, prefix, owner) || strstr(e->text, words) == NULL)) {
        e = e->older;
    }
    if (e != NULL) {
        e->refs++;
    }
    pthread_mutex_unlock(&s->lock);
    return e;
}

void lt_store_release(lt_store *s, lt_stored *entry) {
    if (entry != NULL) {
        pthread_mutex_lock(&s->lock);
        drop(s, entry);
        pthread_mutex_unlock(&s->lock);
    }
}

bool lt_store_forget(lt_store *s, const char *id, const char *owner, double now_s) {
    lt_stored *e;
    pthread_mutex_lock(&s->lock);
    make_room(s, 0, now_s);
    e = find(s, id, owner);
    if (e != NULL) {
        take_out(s, e);
    }
    pthread_mutex_unlock(&s->lock);
    return e != NULL;
}

const lt_stored *lt_stored_previous(const lt_stored *entry) {
    return entry->previous;
}

const lt_stored **lt_stored_line(const lt_stored *last, size_t *n) {
    const lt_stored **line;
    size_t at = 0;
    for (const lt_stored *e = last; e != NULL; e = e->previous) {
        at++;
    }
    *n = at;
    line = malloc((at + 1) * sizeof *line);
    for (const lt_stored *e = last; line != NULL && e != NULL; e = e->previous) {
        line[--at] = e;
    }
    return line;
}

const char *lt_stored_text(const lt_stored *entry, size_t *n) {
    *n = entry->n;
    return entry->text;
}

const char *lt_stored_id(const lt_stored *entry) {
    return entry->id;
}

lt_store_stats lt_store_get_stats(lt_store *s) {
    lt_store_stats stats;
    pthread_mutex_lock(&s->lock);
    stats = s->stats;
    pthread_mutex_unlock(&s->lock);
    return stats;
}

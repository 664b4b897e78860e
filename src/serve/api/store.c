/* store.c: see store.h. Entries that can be found are in a hash table with chains and in a list
 * ordered by last use; `refs` counts the table, holds and later turns. Texts never change, so only
 * the bookkeeping is under the mutex. */
#include "serve/api/store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/error.h"

#define N_CHAINS 1024 /* Of the hash table: a few entries a chain at the usual bound. */

struct lt_stored {
    lt_stored *previous;      /* The turn before; held. */
    lt_stored *chain;         /* The next of its hash. */
    lt_stored *older, *newer; /* By use. */
    int64_t refs;
    double used_s;
    size_t bytes, n;
    char id[64];
    char *owner, *text; /* Behind the struct. */
};

struct lt_store {
    lt_store_options o;
    pthread_mutex_t lock;
    lt_stored *chains[N_CHAINS];
    lt_stored *oldest, *newest;
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

/* Remove the entry, so that it is no longer found. */
static void take_out(lt_store *s, lt_stored *e) {
    lt_stored **at = chain_of(s, e->id);
    while (*at != e) {
        at = &(*at)->chain;
    }
    *at = e->chain;
    e->chain = NULL;
    unlink_use(s, e);
    s->stats.entries--;
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

/* ---- The door ---- */

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
    const size_t owner_n = strlen(owner) + 1, bytes = sizeof(lt_stored) + owner_n + n + 1;
    lt_stored *e;
    bool kept;

    LT_ASSERT(strlen(id) < sizeof e->id);
    e = bytes <= s->o.max_bytes && s->o.max_entries > 0 ? calloc(1, bytes) : NULL;
    if (e == NULL) {
        return false;
    }
    *e = (lt_stored){.previous = previous, .refs = 1, .bytes = bytes, .n = n};
    memcpy(e->id, id, strlen(id) + 1);
    e->owner = (char *)(e + 1);
    e->text = e->owner + owner_n;
    memcpy(e->owner, owner, owner_n);
    memcpy(e->text, text, n);
    pthread_mutex_lock(&s->lock);
    make_room(s, bytes, now_s);
    kept = s->stats.bytes + bytes <= s->o.max_bytes; /* Turns held by others may fill the store. */
    if (kept) {
        e->chain = *chain_of(s, id);
        *chain_of(s, id) = e;
        use(s, e, now_s);
        s->stats.entries++;
        s->stats.bytes += bytes;
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

lt_stored *lt_store_search(lt_store *s, const char *words, const char *owner, double now_s) {
    lt_stored *e;
    pthread_mutex_lock(&s->lock);
    make_room(s, 0, now_s);
    e = s->newest;
    while (e != NULL && (strcmp(e->owner, owner) != 0 || strstr(e->text, words) == NULL)) {
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

lt_store_stats lt_store_get_stats(lt_store *s) {
    lt_store_stats stats;
    pthread_mutex_lock(&s->lock);
    stats = s->stats;
    pthread_mutex_unlock(&s->lock);
    return stats;
}

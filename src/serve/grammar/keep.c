/* grammar/keep.c: see grammar/keep.h. There are few entries in an array: comparing each hash costs
 * less than the JSON around it.
 *
 * The lock protects only the list. put measures grammars before it takes the lock (each needs its
 * own lock, which is held while a mask is made) and closes evicted ones after it has released the
 * lock. Only put changes the list, so it may read it without the lock. */
#include "serve/grammar/keep.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/error.h"

#define MOST 256

typedef struct {
    uint64_t hash;
    char *key;
    size_t key_bytes, bytes; /* bytes: of the grammar, at the last put. */
    lt_grammar *grammar;
    int64_t used; /* Number of the call of find or put that used it last. */
} entry;

struct lt_grammar_keep {
    size_t most_bytes;
    pthread_mutex_t lock;
    entry entries[MOST];
    int n;
    int64_t now;
    lt_grammar_keep_stats stats;
};

lt_err lt_grammar_keep_open(lt_grammar_keep **out, size_t most_bytes) {
    lt_grammar_keep *k = calloc(1, sizeof *k);
    if (k == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammars that are kept");
    }
    k->most_bytes = most_bytes;
    pthread_mutex_init(&k->lock, NULL);
    *out = k;
    return LT_OK;
}

static void drop(const entry *e) {
    free(e->key);
    lt_grammar_close(e->grammar);
}

void lt_grammar_keep_close(lt_grammar_keep *k) {
    if (k == NULL) {
        return;
    }
    for (int i = 0; i < k->n; i++) {
        drop(&k->entries[i]);
    }
    pthread_mutex_destroy(&k->lock);
    free(k);
}

static entry *look_up(lt_grammar_keep *k, uint64_t hash, const char *key, size_t key_bytes) {
    for (int i = 0; i < k->n; i++) {
        entry *e = &k->entries[i];
        if (e->hash == hash && e->key_bytes == key_bytes && memcmp(e->key, key, key_bytes) == 0) {
            return e;
        }
    }
    return NULL;
}

lt_grammar *lt_grammar_keep_find(lt_grammar_keep *k, const char *key, size_t key_bytes) {
    const uint64_t hash = XXH3_64bits(key, key_bytes);
    lt_grammar *found = NULL;
    entry *e;
    pthread_mutex_lock(&k->lock);
    e = look_up(k, hash, key, key_bytes);
    if (e != NULL) {
        k->stats.found++;
        e->used = ++k->now;
        found = lt_grammar_hold(e->grammar);
    }
    pthread_mutex_unlock(&k->lock);
    return found;
}

/* Remove the least recently used entry from the list. */
static entry take_oldest(lt_grammar_keep *k) {
    int at = 0;
    for (int i = 1; i < k->n; i++) {
        at = k->entries[i].used < k->entries[at].used ? i : at;
    }
    const entry oldest = k->entries[at];
    k->entries[at] = k->entries[--k->n];
    return oldest;
}

/* Measure the memory of all entries again. */
static size_t measure(lt_grammar_keep *k) {
    size_t all = 0;
    for (int i = 0; i < k->n; i++) {
        k->entries[i].bytes = lt_grammar_bytes(k->entries[i].grammar) + k->entries[i].key_bytes;
        all += k->entries[i].bytes;
    }
    return all;
}

void lt_grammar_keep_put(lt_grammar_keep *k, const char *key, size_t key_bytes, lt_grammar *g) {
    entry gone[MOST], e = {.hash = XXH3_64bits(key, key_bytes),
                           .key_bytes = key_bytes,
                           .bytes = lt_grammar_bytes(g) + key_bytes,
                           .grammar = g};
    size_t all = measure(k) + e.bytes;
    int n_gone = 0;
    const bool fits = e.bytes <= k->most_bytes && look_up(k, e.hash, key, key_bytes) == NULL;
    e.key = fits ? malloc(key_bytes > 0 ? key_bytes : 1) : NULL;
    pthread_mutex_lock(&k->lock);
    k->stats.made++;
    if (e.key == NULL) {
        pthread_mutex_unlock(&k->lock);
        return;
    }
    memcpy(e.key, key, key_bytes);
    (void)lt_grammar_hold(g);
    while (k->n > 0 && (k->n == MOST || all > k->most_bytes)) {
        gone[n_gone] = take_oldest(k);
        all -= gone[n_gone++].bytes;
    }
    e.used = ++k->now;
    k->entries[k->n++] = e;
    k->stats.n = k->n;
    k->stats.bytes = (int64_t)all;
    pthread_mutex_unlock(&k->lock);
    for (int i = 0; i < n_gone; i++) {
        drop(&gone[i]);
    }
}

void lt_grammar_keep_get_stats(lt_grammar_keep *k, lt_grammar_keep_stats *out) {
    pthread_mutex_lock(&k->lock);
    *out = k->stats;
    pthread_mutex_unlock(&k->lock);
}

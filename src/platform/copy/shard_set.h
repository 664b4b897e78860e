/* shard_set.h: which shards an address names, for shard_cache.h. */
#ifndef LT_PLATFORM_COPY_SHARD_SET_H
#define LT_PLATFORM_COPY_SHARD_SET_H

#include <pthread.h>
#include <stdatomic.h>

#include "platform/copy/shard_cache.h"

#define LT_SET_KEY_BYTES 33

typedef struct {
    lt_far_shard far;           /* First: the loader knows the shard by its address. */
    char key[LT_SET_KEY_BYTES]; /* Names its files in FOLDER/shards. */
    char *bin, *mask;           /* Addresses; mask NULL: it has none. */
    char *prefix;               /* Its index is prefix.idx. */
    int64_t index, next, first; /* In entries: itself, the one after it, its source's first. */
    atomic_llong at;            /* Of a first one: what was read last of the source; -1: nothing. */
    atomic_bool checked;        /* This process has fetched its files, or compared their hash. */
    atomic_llong touched_s;     /* When the date of KEY.use was set, by the monotonic clock. */
} lt_set_shard;

struct lt_shard_cache {
    lt_shard_store store; /* First: what a loader has of the cache. */
    char folder[LT_PATH_BYTES], shards[LT_PATH_BYTES], lock_path[LT_PATH_BYTES];
    int64_t budget_bytes;
    bool in_order;
    atomic_llong near_bytes; /* lt_shard_cache_spare */
    lt_set_shard **entries;  /* (n) */
    size_t n;
    pthread_t thread;
    bool has_thread;
    atomic_bool stop;
    atomic_llong last;    /* Shard that was read last. */
    atomic_bool reading;  /* One has been read. */
    pthread_mutex_t lock; /* Protects the following, and what the thread waits for. */
    pthread_cond_t changed;
    int64_t n_waits;
    double wait_s;
    atomic_llong fetched_bytes, n_fetched, n_deleted;
};

void lt_set_shard_free(lt_set_shard *e); /* Accepts NULL. */

#endif

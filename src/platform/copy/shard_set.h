/* shard_set.h: finds the shards that an address names, for shard_cache.h. */
#ifndef LT_PLATFORM_COPY_SHARD_SET_H
#define LT_PLATFORM_COPY_SHARD_SET_H

#include <pthread.h>
#include <stdatomic.h>

#include "platform/copy/shard_cache.h"

#define LT_SET_KEY_BYTES 33

typedef struct {
    /* It is the first member, because the loader identifies the shard by its address. */
    lt_far_shard far;
    char key[LT_SET_KEY_BYTES]; /* Names its files in FOLDER/shards. */
    char *bin, *mask;           /* Addresses; mask NULL: it has none. */
    char *prefix;               /* Its index is prefix.idx. */
    /* Indices in entries: this one, the one after it, the first of its source. */
    int64_t index, next, first;
    /* In the first one: the shard of the source that was last read; -1: none. */
    atomic_llong at;
    atomic_bool checked;    /* This process has fetched its files, or compared their hash. */
    atomic_llong touched_s; /* When the date of KEY.use was set, by the monotonic clock. */
} lt_set_shard;

struct lt_shard_cache {
    lt_shard_store store; /* It is the first member: the interface to the loader. */
    char folder[LT_PATH_BYTES], shards[LT_PATH_BYTES], lock_path[LT_PATH_BYTES];
    int64_t budget_bytes;
    bool in_order;
    atomic_llong near_bytes; /* lt_shard_cache_spare */
    lt_set_shard **entries;  /* (n) */
    size_t n;
    pthread_t thread;
    bool has_thread;
    atomic_bool stop;
    atomic_llong last;   /* The shard that was last read. */
    atomic_bool reading; /* A shard has been read. */
    /* Protects the following, and the conditions for which the thread waits. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t n_waits;
    double wait_s;
    atomic_llong fetched_bytes, n_fetched, n_deleted;
};

void lt_set_shard_free(lt_set_shard *e); /* Accepts NULL. */

#endif

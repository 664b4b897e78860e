/* shard_cache.h: fetches remote shards of tokens as a loader reads them, through a folder on a
 * local disk with a limited number of bytes (data.cache, data.cache_bytes).
 *
 *     FOLDER/lock                   held (flock) while room is made
 *     FOLDER/sets/SET/NAME.idx      indexes of the shards of one address, which are never deleted
 *     FOLDER/shards/KEY.bin, .mask  counted by the budget; during the fetch KEY.bin.lateen-part,
 *                                   which has its full size from the beginning
 *     FOLDER/shards/KEY.sum         XXH3 of both, computed after the fetch
 *     FOLDER/shards/KEY.use         its date is the time when they were read last
 *
 * KEY is a hash of address, sizes and dates: runs that read the same shard share it, and a changed
 * shard has another KEY. Processes and threads can share a folder. Byte 0 of KEY.use is locked
 * (open file description lock, shared) while a shard is read or fetched. To make room, the least
 * recently read shards are deleted, but only those whose byte 0 can be locked exclusively. A reader
 * holds a shard for one read only, so no process waits for room while an idle reader holds a shard.
 * Byte 1 is locked by the process that fetches, or that checks what an earlier process left.
 *
 * Fetched bytes are compared with the source's checksum (lateen/copy.h); files that an earlier
 * process left must have the hash in KEY.sum, or they are fetched again.
 *
 * A thread prefetches the shards that follow the one that was read last. It always uses free room;
 * it deletes other shards only if shards are read in order, and then none that is read before the
 * one that it fetches. */
#ifndef LT_PLATFORM_COPY_SHARD_CACHE_H
#define LT_PLATFORM_COPY_SHARD_CACHE_H

#include "base/file.h"
#include "lateen/copy.h"
#include "lateen/data.h"

/* Connections and memory of a fetch; reader and thread may fetch at the same time. */
#define LT_SHARD_CACHE_CONNECTIONS 4
#define LT_SHARD_CACHE_PART_BYTES  ((int64_t)4 << 20)
#define LT_SHARD_CACHE_BYTES                                                                       \
    (2 * (size_t)LT_SHARD_CACHE_CONNECTIONS * (size_t)LT_SHARD_CACHE_PART_BYTES)

typedef struct lt_shard_cache lt_shard_cache;

typedef struct {
    int64_t fetched_bytes, n_fetched, n_deleted; /* By this process. */
    int64_t n_waits;                             /* Reads that had to wait, */
    double wait_s;                               /* and their total time. */
} lt_shard_cache_report;

/* Open the cache. in_order: shards are read one after the other. */
LT_MUST_USE lt_err lt_shard_cache_open(lt_shard_cache **out, const char *folder,
                                       int64_t budget_bytes, bool in_order);
void lt_shard_cache_close(lt_shard_cache *c); /* No loader may read any more. Accepts NULL. */

/* Whether this address (one of data.train) names shards, and not a file of conversations. */
bool lt_shard_cache_takes(const char *text);

/* Add the shards of an address: PREFIX[.bin], a pattern of names (".../web_*"), or ".../" for all;
 * fetch their indexes. path: what a loader opens. Call it before any loader reads. ARG: a shard is
 * larger than the budget. */
LT_MUST_USE lt_err lt_shard_cache_add(lt_shard_cache *c, char path[LT_PATH_BYTES],
                                      const char *text);

/* Rows are drawn from windows of this many bytes: shards that are nearer than that to the last one
 * read from their source are deleted last, and never to make room for a prefetched shard. */
void lt_shard_cache_spare(lt_shard_cache *c, size_t near_bytes);

lt_shard_store *lt_shard_cache_store(lt_shard_cache *c);
void lt_shard_cache_tell(lt_shard_cache *c, lt_shard_cache_report *out);

#endif

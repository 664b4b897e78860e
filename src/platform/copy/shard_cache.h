/* shard_cache.h: shards of tokens that stream in from elsewhere, as a loader reads them, through a
 * folder on a local disk that holds no more bytes than it may (data.cache, data.cache_bytes).
 *
 *     FOLDER/lock                   held (flock) while room is made
 *     FOLDER/sets/SET/NAME.idx      indexes of the shards of one address: always here
 *     FOLDER/shards/KEY.bin, .mask  what the budget counts; during the fetch KEY.bin.lateen-part,
 *                                   which has its full size from the beginning
 *     FOLDER/shards/KEY.sum         XXH3 of both, computed after the fetch
 *     FOLDER/shards/KEY.use         its date: when they were read last
 *
 * KEY is a hash of address, sizes and dates: runs that read the same share it, and a shard that has
 * changed is another one. Processes and threads share a folder. Byte 0 of KEY.use is locked (open
 * file description lock, shared) while a shard is read or fetched; whoever makes room deletes the
 * least recently read ones, and only those whose byte 0 it can lock alone. A reader holds a shard
 * for one read only, so nobody waits for room while somebody else sleeps on it. Byte 1 is locked by
 * the one who fetches, or compares what an earlier process left.
 *
 * What is fetched is compared with the source's checksum (lateen/copy.h); what an earlier process
 * left must have the hash in KEY.sum, or it is fetched again.
 *
 * A thread fetches the shards that follow the one that was read last. It always uses free room; it
 * deletes other shards only where shards are read in order. */
#ifndef LT_PLATFORM_COPY_SHARD_CACHE_H
#define LT_PLATFORM_COPY_SHARD_CACHE_H

#include "base/file.h"
#include "lateen/copy.h"
#include "lateen/data.h"

/* Memory of a fetch; reader and thread may fetch at the same time. */
#define LT_SHARD_CACHE_CONNECTIONS 4
#define LT_SHARD_CACHE_PART_BYTES  ((int64_t)4 << 20)
#define LT_SHARD_CACHE_BYTES                                                                       \
    (2 * (size_t)LT_SHARD_CACHE_CONNECTIONS * (size_t)LT_SHARD_CACHE_PART_BYTES)

typedef struct lt_shard_cache lt_shard_cache;

typedef struct {
    int64_t fetched_bytes, n_fetched, n_deleted; /* By this process. */
    int64_t n_waits;                             /* Reads that had to wait, */
    double wait_s;                               /* together for so long. */
} lt_shard_cache_report;

/* in_order: shards are read one after the other. */
LT_MUST_USE lt_err lt_shard_cache_open(lt_shard_cache **out, const char *folder,
                                       int64_t budget_bytes, bool in_order);
void lt_shard_cache_close(lt_shard_cache *c); /* No loader may read any more. Accepts NULL. */

/* Does this address (one of those in data.train) name shards, and not a file of conversations? */
bool lt_shard_cache_takes(const char *text);

/* Add the shards of an address: PREFIX[.bin], a pattern of names (".../web_*"), or ".../" for all;
 * bring their indexes. path: what a loader opens. Before any loader reads. ARG: one is larger than
 * the budget. */
LT_MUST_USE lt_err lt_shard_cache_add(lt_shard_cache *c, char path[LT_PATH_BYTES],
                                      const char *text);

/* Rows are drawn from windows of so many bytes: shards that lie nearer than that to the one that
 * was read last of their source are deleted last, and never for a shard that nobody waits for. */
void lt_shard_cache_spare(lt_shard_cache *c, size_t near_bytes);

lt_shard_store *lt_shard_cache_store(lt_shard_cache *c);
void lt_shard_cache_tell(lt_shard_cache *c, lt_shard_cache_report *out);

#endif

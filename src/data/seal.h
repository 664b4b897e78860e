/* seal.h: what tells that a shard is still the one a run began with, for the manifest of a
 * checkpoint.
 *
 *   one source   [{"file": "corpus.bin", "bytes": B, "mtime_ns": T, "sampled": S, "xxh3": "16 hex
 *                digits"[, "whole": "..."]}, ...]
 *
 * Each shard has one entry a file: .bin, .idx and .mask. xxh3 is of S bytes: all of a file that has
 * no more; else 64 blocks at equal distances, the first and the last bytes among them. 256 MiB are
 * read of all sources, at most 64 MiB and at least 64 KiB a file. "whole" is of every byte. A
 * source of so many files that manifests would grow large (32,768 over all sources) has one entry
 * for them together. */
#ifndef LT_DATA_SEAL_H
#define LT_DATA_SEAL_H

#include <jansson.h>

#include "lateen/data.h"

/* The seal of one of a loader's sources; whole: read every byte. */
LT_MUST_USE lt_err lt_seal_source(json_t **out, const lt_loader *l, int64_t source, bool whole);

/* STATE, naming the file and the numbers, unless `now` holds what `then` did. Time and folder of a
 * file may differ: a copy is the same data. `option` and `l` lead to the files: one whose time is
 * new and whose whole checksum is known is read again, all of it. */
LT_MUST_USE lt_err lt_seal_compare(const json_t *then, const json_t *now, const lt_loader *l,
                                   int64_t source, const char *option);

#endif

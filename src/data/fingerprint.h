/* fingerprint.h: a fingerprint identifies the content of a shard. The manifest of a checkpoint
 * holds it, so that a resumed run can check that its data is unchanged.
 *
 *   one source   [{"file": "corpus.bin", "bytes": B, "mtime_ns": T, "sampled": S, "xxh3": "16 hex
 *                digits"[, "whole": "..."]}, ...]
 *
 * Each shard has one entry per file: .bin, .idx and .mask. xxh3 covers S bytes: the whole file if
 * it has no more, otherwise 64 blocks at equal distances, including the first and the last bytes.
 * In total 256 MiB are read from all sources, at least 64 KiB and at most 64 MiB per file.
 * "whole" covers every byte. A source with so many files that manifests would grow large (32,768
 * over all sources) has a single entry for all of them. */
#ifndef LT_DATA_FINGERPRINT_H
#define LT_DATA_FINGERPRINT_H

#include <jansson.h>

#include "lateen/data.h"

/* Compute the fingerprint of one source of a loader; whole: read every byte. */
LT_MUST_USE lt_err lt_fingerprint_source(json_t **out, const lt_loader *l, int64_t source,
                                         bool whole);

/* Fails with STATE, naming the file and the numbers, unless `now` describes the same data as
 * `then`. Time and folder of a file may differ, because a copy is the same data. A file whose time
 * has changed and whose whole checksum is known is read again completely; `option` and `l` give its
 * path. */
LT_MUST_USE lt_err lt_fingerprint_compare(const json_t *then, const json_t *now, const lt_loader *l,
                                          int64_t source, const char *option);

#define LT_FINGERPRINT_HEX 17
/* A checksum of a model: of one file, or of a folder's *.safetensors, config.json and
 * tokenizer.json. Names, sizes and samples as above count; times do not. */
LT_MUST_USE lt_err lt_fingerprint_model(char hex[LT_FINGERPRINT_HEX], const char *path);

#endif

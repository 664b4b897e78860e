/* doc_stream.h: one source of the mixture: one or several shards as a single stream of documents,
 * with BOS and EOD inserted, restricted to one side of the validation split.
 *
 *     shard 0            shard 1
 *     [doc][doc][doc   ] [doc][doc       ][doc]       each document includes its BOS and EOD
 *     0            |lo                   |hi          positions of the stream; the view is [lo, hi)
 *
 * Documents are counted through all shards; one that crosses lo or hi is clipped. */
#ifndef LT_DATA_DOC_STREAM_H
#define LT_DATA_DOC_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lateen/data.h"

typedef struct {
    /* For messages: the string of the options, which must outlive the stream. */
    const char *path;
    lt_shard **shards;
    size_t n_shards;
    uint64_t *first_document;           /* (n_shards + 1) */
    uint64_t *first_position;           /* (n_shards + 1) */
    uint64_t extra;                     /* Tokens inserted in each document: BOS, EOD or both. */
    int64_t bos_id, eod_id, vocab_size; /* -1: not inserted. */
    uint64_t lo, hi;                    /* The view, in positions. */
    uint64_t doc_lo, doc_hi;            /* Documents that overlap it. */
    bool masked;                        /* At least one shard has a label mask. */
} lt_doc_stream;

/* Open every shard that `path` (a shard or a glob pattern) names, and restrict the view to a side
 * of the split. */
LT_MUST_USE lt_err lt_doc_stream_open(lt_doc_stream *s, const char *path,
                                      const lt_loader_options *o);
void lt_doc_stream_close(lt_doc_stream *s); /* Accepts a zeroed stream. */

/* Bytes of the shards' files. lt_doc_stream_forget releases their resident pages. */
size_t lt_doc_stream_mapped_bytes(const lt_doc_stream *s);
void lt_doc_stream_forget(const lt_doc_stream *s);

/* The document of the view that holds a position in [lo, hi). O(log documents). */
uint64_t lt_doc_stream_find(const lt_doc_stream *s, uint64_t position);

/* The part of document d (in [doc_lo, doc_hi)) within the view. */
void lt_doc_stream_document(const lt_doc_stream *s, uint64_t d, uint64_t *first, uint64_t *n);

/* The ids of n positions from `position` on, all within document d, and, unless silent is NULL,
 * which of them are silent (not labels). In a masked shard an inserted BOS is silent, and an
 * inserted EOD is a label when the token before it is: the end of an answer is learnt, that of a
 * prompt is not. */
LT_MUST_USE lt_err lt_doc_stream_read(const lt_doc_stream *s, uint64_t d, uint64_t position,
                                      size_t n, int32_t *ids, bool *silent);

#endif

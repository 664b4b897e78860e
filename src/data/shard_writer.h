/* shard_writer.h: writes a Megatron shard so that it exists completely or not at all, and so that
 * writing can be resumed after a crash. While it grows:
 *
 *     PREFIX.bin.part     ids, appended            PREFIX.sizes.part   tokens of each document
 *                                                                      (i32), appended
 *     PREFIX.mask.part    one byte per token, appended, if the shard has a label mask
 *
 * lt_shard_writer_sync makes the appended data durable and returns its size (the mark); the caller
 * keeps marks in its own journal. After a crash, open truncates the files to the last mark. finish
 * writes PREFIX.idx.part, then renames: .bin first, then .mask, .idx last. So a shard exists when
 * its .idx does. */
#ifndef LT_DATA_SHARD_WRITER_H
#define LT_DATA_SHARD_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include "lateen/base.h"

typedef struct lt_shard_writer lt_shard_writer;

typedef struct {
    uint64_t n_documents, n_tokens;
} lt_shard_mark;

/* Start (mark NULL) or continue from a mark. Ids are stored in 2 bytes when vocab_size < 65500
 * (Megatron's rule), otherwise in 4. STATE: the files are shorter than the mark. */
LT_MUST_USE lt_err lt_shard_writer_open(lt_shard_writer **out, const char *prefix,
                                        int64_t vocab_size, const lt_shard_mark *mark);

/* Give the shard a label mask. Call it directly after each open, also when resuming. */
LT_MUST_USE lt_err lt_shard_writer_add_mask(lt_shard_writer *w);

/* Close without finishing: the .part files stay for a later open. Accepts NULL. */
void lt_shard_writer_close(lt_shard_writer *w);

/* Append one document of n ids, each in [0, vocab_size); another id fails with FORMAT. */
LT_MUST_USE lt_err lt_shard_writer_append(lt_shard_writer *w, const int32_t *ids, size_t n);

/* The same with a mask: mask[i] is LT_MASK_LABEL or LT_MASK_SILENT. All documents of a shard with a
 * mask must be appended with this function. */
LT_MUST_USE lt_err lt_shard_writer_append_masked(lt_shard_writer *w, const int32_t *ids,
                                                 const unsigned char *mask, size_t n);

LT_MUST_USE lt_err lt_shard_writer_sync(lt_shard_writer *w, lt_shard_mark *mark);

/* Complete the shard: afterwards PREFIX.bin and PREFIX.idx exist, and no .part does. An older shard
 * of the same name is replaced. */
LT_MUST_USE lt_err lt_shard_writer_finish(lt_shard_writer *w);

/* What has been appended so far, durable or not. */
lt_shard_mark lt_shard_writer_mark(const lt_shard_writer *w);
int lt_shard_writer_token_bytes(const lt_shard_writer *w);

/* Remove the .part files of an unfinished shard. */
LT_MUST_USE lt_err lt_shard_writer_discard(const char *prefix);

#endif

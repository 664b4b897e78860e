/* tokenize_journal.h: what `lateen tokenize` leaves beside a shard.
 *
 *     PREFIX.journal   while unfinished: up to where inputs are durable in the .part files
 *     PREFIX.json      with the shard: tokenizer, vocabulary, EOD, counts; with a mask also how
 *                      many labels
 *
 * Both are small JSON files written whole (aside, synced, renamed), so they are never half there.
 * Both hold the fingerprint of inputs (path, size, time of change) and options: only the same
 * command goes on. */
#ifndef LT_DATA_TOKENIZE_JOURNAL_H
#define LT_DATA_TOKENIZE_JOURNAL_H

#include "data/shard_writer.h"
#include "data/tokenize.h"

typedef struct {
    uint64_t input, offset, line; /* The next record: of which input, where. */
    uint64_t empty, text_bytes;
    uint64_t labels; /* Of a shard with a mask. */
    lt_shard_mark mark;
} lt_tokenize_position;

/* Does the shard get a label mask? */
bool lt_tokenize_is_masked(const lt_tokenize_options *o);

LT_MUST_USE lt_err lt_tokenize_fingerprint(uint64_t *out, uint64_t *total_bytes,
                                           const lt_tokenize_options *o);

typedef enum { LT_OUTPUT_NONE, LT_OUTPUT_UNFINISHED, LT_OUTPUT_COMPLETE } lt_output_state;

/* What stands under the prefix; *at is where to go on (UNFINISHED) or what the shard holds
 * (COMPLETE). STATE when it has another fingerprint; but an unfinished one in which no document
 * stands yet is as good as none. */
LT_MUST_USE lt_err lt_tokenize_find_output(lt_output_state *state, lt_tokenize_position *at,
                                           const char *prefix, uint64_t fingerprint);

LT_MUST_USE lt_err lt_tokenize_save_journal(const char *prefix, uint64_t fingerprint,
                                            const lt_tokenize_position *at);
LT_MUST_USE lt_err lt_tokenize_save_manifest(const lt_tokenize_options *o, uint64_t fingerprint,
                                             const lt_tokenize_position *at);
LT_MUST_USE lt_err lt_tokenize_remove_journal(const char *prefix);
/* Shard, parts, journal and manifest. */
LT_MUST_USE lt_err lt_tokenize_remove_output(const char *prefix);

#endif

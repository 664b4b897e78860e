/* tokenize_journal.h: the files that `lateen tokenize` writes beside a shard.
 *
 *     PREFIX.journal   while unfinished: how much of the inputs is durable in the .part files
 *     PREFIX.json      with the shard: tokenizer, vocabulary, EOD, counts; with a mask also the
 *                      number of labels
 *
 * Both are small JSON files that are replaced atomically. Both hold the fingerprint of inputs
 * (path, size, modification time) and options, so that only the same command resumes. */
#ifndef LT_DATA_TOKENIZE_JOURNAL_H
#define LT_DATA_TOKENIZE_JOURNAL_H

#include "data/shard_writer.h"
#include "data/tokenize.h"

typedef struct {
    uint64_t input, offset, line; /* The next record: its input and its place in it. */
    uint64_t empty, text_bytes;
    uint64_t labels; /* Labels, if the shard has a mask. */
    lt_shard_mark mark;
} lt_tokenize_position;

/* Whether the shard gets a label mask. */
bool lt_tokenize_is_masked(const lt_tokenize_options *o);

LT_MUST_USE lt_err lt_tokenize_fingerprint(uint64_t *out, uint64_t *total_bytes,
                                           const lt_tokenize_options *o);

typedef enum { LT_OUTPUT_NONE, LT_OUTPUT_UNFINISHED, LT_OUTPUT_COMPLETE } lt_output_state;

/* Find the output of the prefix; *at is where to resume (UNFINISHED) or what the shard holds
 * (COMPLETE). Fails with STATE if it has another fingerprint; an unfinished shard without a
 * document is treated as absent. */
LT_MUST_USE lt_err lt_tokenize_find_output(lt_output_state *state, lt_tokenize_position *at,
                                           const char *prefix, uint64_t fingerprint);

/* Fails if one of the shard's files or temporary files is one of the inputs or the tokenizer; and,
 * without overwrite, if one of these files exists but belongs to no shard. */
LT_MUST_USE lt_err lt_tokenize_spare(const lt_tokenize_options *o);

LT_MUST_USE lt_err lt_tokenize_save_journal(const char *prefix, uint64_t fingerprint,
                                            const lt_tokenize_position *at);
LT_MUST_USE lt_err lt_tokenize_save_manifest(const lt_tokenize_options *o, uint64_t fingerprint,
                                             const lt_tokenize_position *at);
LT_MUST_USE lt_err lt_tokenize_remove_journal(const char *prefix);
/* Remove shard, parts, journal and manifest. */
LT_MUST_USE lt_err lt_tokenize_remove_output(const char *prefix);

#endif

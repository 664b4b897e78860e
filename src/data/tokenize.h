/* tokenize.h: turns text files into a Megatron shard: the engine of `lateen tokenize`.
 *
 * The shard has the same bytes for any number of threads, and after any interruption: a journal
 * (PREFIX.journal) records how much is durable, and the same call continues from there. The encoder
 * is a callback, so this file does not depend on a tokenizer. */
#ifndef LT_DATA_TOKENIZE_H
#define LT_DATA_TOKENIZE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/text_reader.h"
#include "lateen/base.h"
#include "lateen/tokenizer.h"

/* A growing buffer for the ids of one job. */
typedef struct {
    int32_t *ids;
    size_t n, room;
} lt_id_buffer;

LT_MUST_USE lt_err lt_id_buffer_reserve(lt_id_buffer *b, size_t room);

/* Append the ids of text to *out. Called from many threads at once; worker (0 .. n_threads - 1)
 * is the number of the thread. */
typedef lt_err (*lt_encode_fn)(void *ctx, int worker, const char *text, size_t bytes,
                               lt_id_buffer *out);

/* A JSON line (valid UTF-8) and, for messages, its position. */
typedef struct {
    const char *text;
    size_t bytes;
    const char *file;
    uint64_t number; /* From 1. */
} lt_record_line;

/* Append the ids of a line to *out, and LT_MASK_* for each to *mask. If it appends none, the line
 * is left out. *text_bytes is the length of its text. An error ends the work; file and line are put
 * before its message. */
typedef lt_err (*lt_encode_record_fn)(void *ctx, int worker, const lt_record_line *line,
                                      lt_id_buffer *out, lt_text_buffer *mask, size_t *text_bytes);

typedef struct {
    uint64_t documents; /* Documents in the shard. */
    uint64_t empty;     /* Documents without a token, which are left out. */
    uint64_t tokens;    /* Tokens, including EOD. */
    uint64_t labels;    /* Tokens that are labels by the mask; 0 without a mask. */
    uint64_t text_bytes;
    /* Bytes of the (compressed) inputs: read so far, and in total; total 0: unknown. */
    uint64_t file_bytes, file_bytes_total;
    /* file_bytes and text_bytes when this call began. */
    uint64_t resumed_bytes, resumed_text_bytes;
    bool was_complete; /* The shard existed already, so nothing was done. */
} lt_tokenize_stats;

typedef struct {
    const char *const *inputs; /* Files; "-" is standard input. A pipe cannot be resumed. */
    size_t n_inputs;
    lt_text_options text;
    /* JSONL: the member that holds a prompt, which is put before the text; its tokens are masked,
     * so the shard gets a .mask. NULL: none. */
    const char *prompt_field;
    const char *out_prefix;
    int64_t vocab_size;
    int64_t bos_id, eod_id; /* Put before and after every document; -1: none. */
    const char *tokenizer;  /* Name for the manifest. */
    /* Hash of its content: another tokenizer must not continue this shard. */
    uint64_t tokenizer_hash;
    int n_threads;
    bool overwrite; /* Replace the shard of this prefix, complete or unfinished. */
    lt_encode_fn encode;
    /* JSONL, instead of encode: whole lines (conversations); the shard gets a .mask. NULL: none. */
    lt_encode_record_fn encode_record;
    uint64_t record_hash; /* Hash of everything else that ids and masks depend on. */
    void *encode_ctx;
    /* Called after each job, on the calling thread; may be NULL. */
    void (*progress)(void *ctx, const lt_tokenize_stats *stats);
    void *progress_ctx;
    /* A signal handler sets it to stop: jobs that have begun are finished and saved, and the result
     * is INTERRUPTED. May be NULL. */
    const volatile sig_atomic_t *stop;
    double commit_every_s; /* Seconds between two commits; 0: 1 s. */
} lt_tokenize_options;

/* A hash that identifies a tokenizer: that of the file at path, or of the vocabulary if path is a
 * folder. */
LT_MUST_USE lt_err lt_tokenize_hash(uint64_t *out, const lt_tokenizer *t, const char *path);
/* Find out whether, according to PREFIX.json, the shard was made with another tokenizer. If so,
 * *made_with is its name, which the caller frees; NULL: it was made with this one, or PREFIX.json
 * does not say. */
LT_MUST_USE lt_err lt_tokenize_other_tokenizer(char **made_with, const char *prefix,
                                               const lt_tokenizer *t, const char *path);

/* Make the shard. Fails with STATE if the prefix has a shard, finished or not, of other inputs or
 * options. */
LT_MUST_USE lt_err lt_tokenize_files(const lt_tokenize_options *o, lt_tokenize_stats *stats);

#endif

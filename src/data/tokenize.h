/* tokenize.h: text files in, a Megatron shard out: the engine of `lateen tokenize`.
 *
 * Same bytes for any number of threads, and after any interruption: a journal (PREFIX.journal) says
 * how far the shard is durable, and the same call goes on from there. The encoder is a callback, so
 * this file knows no tokenizer. */
#ifndef LT_DATA_TOKENIZE_H
#define LT_DATA_TOKENIZE_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "data/text_reader.h"
#include "lateen/base.h"
#include "lateen/tokenizer.h"

/* Ids of one job; grows. */
typedef struct {
    int32_t *ids;
    size_t n, room;
} lt_id_buffer;

LT_MUST_USE lt_err lt_id_buffer_reserve(lt_id_buffer *b, size_t room);

/* Append the ids of text to *out. Called from many threads at once; worker (0 .. n_threads - 1)
 * tells which. */
typedef lt_err (*lt_encode_fn)(void *ctx, int worker, const char *text, size_t bytes,
                               lt_id_buffer *out);

/* Append the ids of a JSON line (valid UTF-8) to *out and make *mask reach as far: LT_MASK_* of
 * each. *text_bytes is what its text has. */
typedef lt_err (*lt_encode_record_fn)(void *ctx, int worker, const char *line, size_t bytes,
                                      lt_id_buffer *out, lt_text_buffer *mask, size_t *text_bytes);

typedef struct {
    uint64_t documents; /* In the shard. */
    uint64_t empty;     /* Documents without a token: left out. */
    uint64_t tokens;    /* With EOD. */
    uint64_t labels;    /* Of them, those that the mask leaves as labels; 0 without a mask. */
    uint64_t text_bytes;
    uint64_t file_bytes,
        file_bytes_total; /* Of the (packed) inputs: read so far, and all; total 0: not known. */
    uint64_t resumed_bytes,
        resumed_text_bytes; /* Of file_bytes and text_bytes, when this call began. */
    bool was_complete;      /* Nothing to do: the shard was there. */
} lt_tokenize_stats;

typedef struct {
    const char *const *inputs; /* Files; "-" is standard input; pipes can not be gone on with. */
    size_t n_inputs;
    lt_text_options text;
    /* JSONL: the member that holds a prompt, put before the text; its tokens are masked: the shard
     * gets a .mask. NULL: none. */
    const char *prompt_field;
    const char *out_prefix;
    int64_t vocab_size;
    int64_t bos_id, eod_id;  /* Put before, appended to every document; -1: none. */
    const char *tokenizer;   /* Name for the manifest. */
    uint64_t tokenizer_hash; /* Of its content: another tokenizer must not go on with this shard. */
    int n_threads;
    bool overwrite; /* Discard what stands under the prefix, whole or unfinished. */
    lt_encode_fn encode;
    /* JSONL, instead of encode: whole lines (conversations); the shard gets a .mask. NULL: none. */
    lt_encode_record_fn encode_record;
    uint64_t record_hash; /* What else its ids and masks depend on. */
    void *encode_ctx;
    void (*progress)(
        void *ctx,
        const lt_tokenize_stats *stats); /* After each job, on the calling thread; may be NULL. */
    void *progress_ctx;
    /* Set by a signal handler: finish what is begun, save, return INTERRUPTED; may be NULL. */
    const volatile sig_atomic_t *stop;
    double commit_every_s; /* Seconds between two durable positions; 0: one. */
} lt_tokenize_options;

/* One hash that tells tokenizers apart: of the file at path; of a folder, of its vocabulary. */
LT_MUST_USE lt_err lt_tokenize_hash(uint64_t *out, const lt_tokenizer *t, const char *path);
/* Does PREFIX.json say that the shard was made with this tokenizer? *made_with (caller frees) names
 * another, NULL: it is this one, or nobody knows. */
LT_MUST_USE lt_err lt_tokenize_other_tokenizer(char **made_with, const char *prefix,
                                               const lt_tokenizer *t, const char *path);

/* STATE: an unfinished or a finished shard of other inputs or options stands there. */
LT_MUST_USE lt_err lt_tokenize_files(const lt_tokenize_options *o, lt_tokenize_stats *stats);

#endif

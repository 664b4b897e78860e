/* bpe_train.h: trains byte-level BPE on text files and writes a tokenizer.json.
 *
 * The merges are those that Hugging Face's BpeTrainer finds on the same documents (initial
 * alphabet: all bytes; ties: the pair with the smaller ids), for any number of threads. */
#ifndef LT_DATA_BPE_TRAIN_H
#define LT_DATA_BPE_TRAIN_H

#include <stddef.h>
#include <stdint.h>

#include "data/text_reader.h"
#include "lateen/base.h"

typedef struct {
    const char *stage;    /* "read" or "merge" */
    uint64_t done, total; /* Bytes read of all inputs, or ids made of the requested number. */
    uint64_t words;       /* Distinct words so far. */
} lt_bpe_train_progress;

typedef struct {
    const char *const *inputs; /* .txt or .jsonl files, which may be compressed (.gz, .zst) */
    size_t n_inputs;
    lt_text_options text;
    const char *pattern;        /* "gpt2", "cl100k", ... or a regular expression; NULL: gpt2 */
    const char *const *special; /* Special tokens: ids 0, 1, ... */
    size_t n_special;
    uint32_t vocab_size;    /* Total number of ids: special tokens, 256 bytes, merges. */
    uint64_t min_frequency; /* Pairs seen less often are not merged. */
    int n_threads;          /* 0: all. */
    void (*progress)(void *ctx, const lt_bpe_train_progress *p); /* May be NULL. */
    void *progress_ctx;
} lt_bpe_train_options;

typedef struct {
    uint64_t text_bytes, documents, words; /* words: distinct ones */
    /* At most vocab_size; fewer if the text has no more pairs. */
    uint32_t n_ids;
    double read_s, merge_s;
} lt_bpe_train_stats;

/* Train, and write `out` (a tokenizer.json) atomically. */
LT_MUST_USE lt_err lt_bpe_train(const lt_bpe_train_options *o, const char *out,
                                lt_bpe_train_stats *stats);

#endif

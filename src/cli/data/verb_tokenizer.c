/* verb_tokenizer.c: `lateen tokenizer train`: trains a tokenizer.json on text files. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"
#include "cli/verb.h"
#include "data/tokenizer/bpe_train.h"

#define MAX_FILES   4096
#define MAX_SPECIAL (LT_OPTION_STR_BYTES / 2) /* As many as the option can name. */

#define TOKENIZER_OPTIONS(X)                                                                       \
    X(STR, out, "out", "tokenizer.json", 0, 1, "path", "file that the tokenizer is written to")    \
    X(I64, vocab_size, "vocab-size", "32768", 257, 1048574, "ids",                                 \
      "special tokens, 256 bytes and merges together")                                             \
    X(STR, pattern, "pattern", "gpt2", 0, 1, "name",                                               \
      "pre-tokenizer: gpt2, cl100k, qwen2, o200k, tekken, or a regular expression")                \
    X(STR, special, "special", "<|endoftext|>", 0, 0, "a,b",                                       \
      "special tokens, separated by commas; they get the first ids")                               \
    X(I64, min_frequency, "min-frequency", "0", 0, 1e15, "times",                                  \
      "do not merge pairs that occur less often")                                                  \
    X(STR, field, "field", "text", 0, 1, "name", "JSON lines: the member that holds the text")     \
    X(STR, split_on, "split-on", "file", 0, 1, "how",                                              \
      "text files: how they are split into documents: file, line, blank, or a separator line")     \
    X(I64, threads, "threads", "0", 0, 4096, "", "0: all cores")

typedef struct {
    TOKENIZER_OPTIONS(LT_OPTION_FIELD)
} tokenizer_options;
#define LT_OPTION_STRUCT tokenizer_options
static const lt_option rows[] = {TOKENIZER_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_tokenizer_options = LT_OPTION_TABLE("tokenizer train", rows);

static void show(void *ctx, const lt_bpe_train_progress *p) {
    if (strcmp(p->stage, "read") == 0) {
        lt_progress_show(ctx, "reading: %.1f MB of %.1f", (double)p->done / 1e6,
                         (double)p->total / 1e6);
    } else {
        lt_progress_show(ctx, "merging: %llu of %llu ids (%llu different words)",
                         (unsigned long long)p->done, (unsigned long long)p->total,
                         (unsigned long long)p->words);
    }
}

/* Split text at its commas, in place. */
static size_t split_list(char *text, const char **items, size_t max) {
    size_t n = 0;
    for (char *at = text, *next; *at != '\0' && n < max; at = next) {
        char *comma = strchr(at, ',');
        next = comma != NULL ? comma + 1 : at + strlen(at);
        if (comma != NULL) {
            *comma = '\0';
        }
        if (*at != '\0') {
            items[n++] = at;
        }
    }
    return n;
}

static int train(tokenizer_options *o, const char *const *files, size_t n_files) {
    const char *special[MAX_SPECIAL];
    lt_progress line = {.plain_every_s = 10};
    lt_bpe_train_stats stats;
    lt_bpe_train_options how = {
        .inputs = files,
        .n_inputs = n_files,
        .text = {.field = o->field, .split_on = o->split_on, .utf8 = LT_UTF8_REPLACE},
        .pattern = o->pattern,
        .special = special,
        .n_special = split_list(o->special, special, MAX_SPECIAL),
        .vocab_size = (uint32_t)o->vocab_size,
        .min_frequency = (uint64_t)o->min_frequency,
        .n_threads = (int)o->threads,
        .progress = show,
        .progress_ctx = &line,
    };
    lt_err err;

    if (o->threads > 0) {
        lt_thread_set_count((int)o->threads);
    }
    err = lt_bpe_train(&how, o->out, &stats);
    lt_progress_end(&line);
    if (err != LT_OK) {
        return lt_verb_fail(err);
    }
    lt_log_info("%s: %u ids from %llu documents, %.1f MB, %llu different words; read in %.2f s, "
                "merged in %.2f s",
                o->out, stats.n_ids, (unsigned long long)stats.documents,
                (double)stats.text_bytes / 1e6, (unsigned long long)stats.words, stats.read_s,
                stats.merge_s);
    if (stats.n_ids < how.vocab_size) {
        lt_log_warn("the text has no more pairs to merge: %u ids of the %u asked for", stats.n_ids,
                    how.vocab_size);
    }
    return LT_EXIT_DONE;
}

int lt_verb_tokenizer(int argc, char **argv);
int lt_verb_tokenizer(int argc, char **argv) {
    static const char usage[] = "tokenizer train FILES... --vocab-size N --out tokenizer.json "
                                "[--pattern NAME] [--special a,b]";
    tokenizer_options o;
    const char **files = calloc(MAX_FILES + 1, sizeof *files);
    int n = 0, status = LT_EXIT_DONE;

    if (files == NULL) {
        return lt_verb_fail(lt_error_set(LT_ERR_OOM, "list of files"));
    }
    if (lt_verb_parse(&lt_verb_tokenizer_options, &o, argc, argv, usage,
                      "Train a byte-level BPE tokenizer on .txt and .jsonl files (plain, .gz or "
                      ".zst). The merges are those of Hugging\n"
                      "Face's trainer on the same documents, for any number of threads.",
                      files, MAX_FILES, &n, &status)) {
        if (n < 2 || strcmp(files[0], "train") != 0) {
            status = lt_verb_fail(lt_error_set(LT_ERR_ARG, "tokenizer: usage: lateen %s", usage));
        } else {
            status = train(&o, files + 1, (size_t)n - 1);
        }
    }
    free(files);
    return status;
}

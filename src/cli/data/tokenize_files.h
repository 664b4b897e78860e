/* tokenize_files.h: `lateen tokenize INPUT... --out PREFIX`: turns files into a token shard. Its
 * options are in the table of verb_tokenize.c. */
#ifndef LT_CLI_TOKENIZE_FILES_H
#define LT_CLI_TOKENIZE_FILES_H

#include "base/option.h"
#include "data/chat_source.h"
#include "lateen/tokenizer.h"

#define TOKENIZE_FILES_OPTIONS(X)                                                                  \
    X(STR, out, "out", "", 0, 0, "prefix",                                                         \
      "files: write PREFIX.bin, PREFIX.idx (Megatron's format) and PREFIX.json")                   \
    X(STR, field, "field", "text", 0, 1, "name",                                                   \
      "files: member of a .jsonl line that holds the text")                                        \
    X(STR, prompt_field, "prompt-field", "", 0, 0, "name",                                         \
      "files: member of a .jsonl line that holds a prompt; it is put before the text, and "        \
      "training does not learn it (PREFIX.mask marks it)")                                         \
    X(ENUM, format, "format", "auto", 0, 0, "auto|text|jsonl",                                     \
      "files: their format; auto decides by the name")                                             \
    X(STR, split_on, "split-on", "file", 0, 1, "rule",                                             \
      "files: how a text file is split into documents: one document (file), one a line (line), "   \
      "at blank lines (blank), or at lines that equal this text")                                  \
    X(ENUM, utf8, "invalid-utf8", "auto", 0, 0, "auto|fail|replace",                               \
      "text that is not UTF-8: refuse it, or replace each such part by U+FFFD and report how "     \
      "many there were; auto: refuse it in files, replace it in --text and --jsonl")               \
    X(BOOL, append_eod, "append-eod", "false", 0, 0, "",                                           \
      "files: end every document with the end token")                                              \
    X(BOOL, prepend_bos, "prepend-bos", "false", 0, 0, "",                                         \
      "files: begin every document with the BOS token")                                            \
    X(STR, eod, "eod", "", 0, 0, "token", "files: the end token; empty: the tokenizer's EOS")      \
    X(I64, threads, "threads", "0", 0, 1024, "threads",                                            \
      "files: threads that tokenise; 0: one for each core")                                        \
    X(F64, commit_every, "commit-every", "1", 0.001, 3600, "s",                                    \
      "files: seconds between two points from which an interrupted run continues")                 \
    X(BOOL, overwrite, "overwrite", "false", 0, 0, "",                                             \
      "files: replace an existing shard of this prefix")

/* The order of --invalid-utf8's choices. */
enum { LT_TOKENIZE_UTF8_AUTO, LT_TOKENIZE_UTF8_FAIL, LT_TOKENIZE_UTF8_REPLACE };

typedef struct {
    TOKENIZE_FILES_OPTIONS(LT_OPTION_FIELD)
} lt_tokenize_files_options;

/* Read the inputs, write the shard, print the statistics. flags: only LT_ENCODE_PARSE_SPECIAL is
 * read. chat: how conversations become ids; NULL: the lines are texts. */
LT_MUST_USE lt_err lt_tokenize_files_run(const lt_tokenize_files_options *o,
                                         const char *const *inputs, size_t n_inputs,
                                         const lt_tokenizer *t, const char *tokenizer_path,
                                         unsigned flags, const lt_chat_source *chat);

#endif

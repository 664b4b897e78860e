/* conversations.h: makes a file of conversations into what training reads: a shard of tokens with
 * a label mask, which is made once and later found by its content.
 *
 *     chat.jsonl ──template, tokenizer──▶ FOLDER/chat-<hash>.bin .idx .mask .json
 *
 * The hash covers the bytes of the file, the tokenizer, the template and the options below, so a
 * shard that is found is the one that would be made. A document is one conversation. Messages name
 * the first LT_CONVERSATIONS_TOLD conversations that cannot be used, with file, line and reason. */
#ifndef LT_DATA_CONVERSATIONS_H
#define LT_DATA_CONVERSATIONS_H

#include "base/file.h"
#include "data/chat_source.h"

#define LT_CONVERSATIONS_TOLD 10

/* What to do with a line that is not a conversation, that the template refuses, or that has no
 * label. */
#define LT_BAD_ROWS_CHOICES "skip|fail"
typedef enum { LT_BAD_ROWS_SKIP, LT_BAD_ROWS_FAIL } lt_bad_rows;

/* What to do with a conversation of more than `longest` tokens: keep its first tokens, leave it
 * out, or fail. */
#define LT_TOO_LONG_CHOICES "cut|skip|fail"
typedef enum { LT_TOO_LONG_CUT, LT_TOO_LONG_SKIP, LT_TOO_LONG_FAIL } lt_too_long;

typedef struct {
    const char *path; /* JSON lines, plain, .gz or .zst. */
    const char *folder;
    const lt_chat_source *source;
    const char *tokenizer_path;
    int64_t longest; /* In tokens. */
    lt_bad_rows bad_rows;
    lt_too_long too_long;
    int n_threads;
} lt_conversations_options;

typedef struct {
    uint64_t documents, tokens, labels;
    uint64_t left_out; /* Conversations that are bad or too long. */
    uint64_t cut;      /* 0 (unknown) if the shard existed already. */
    bool existed;
} lt_conversations_stats;

/* Make the shard, or find it; prefix is its path. FORMAT: the file holds an array instead of lines,
 * or none of its conversations has a label. */
LT_MUST_USE lt_err lt_conversations_shard(char prefix[LT_PATH_BYTES], lt_conversations_stats *stats,
                                          const lt_conversations_options *o);

#endif

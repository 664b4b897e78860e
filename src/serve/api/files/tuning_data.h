/* tuning_data.h: a line of a file of fine-tuning, checked and written as `lateen train` reads it.
 *
 *     supervised   {"messages": [...], "tools": [...]}        ─▶ the same
 *     dpo          {"input": {"messages", "tools"},
 *                   "preferred_output": [...],
 *                   "non_preferred_output": [...]}  ─▶ {"prompt", "chosen", "rejected", "tools"},
 *                                                      TRL's shape
 *
 * Messages pass through the same code as those of a chat request (conversation.h), so that the
 * model learns on the prompts that the server will make. An answer whose "weight" is 0 is context.
 * A member that would have no effect is refused by name. */
#ifndef LT_SERVE_TUNING_DATA_H
#define LT_SERVE_TUNING_DATA_H

#include "serve/api/server.h"

typedef struct {
    int64_t tokens;  /* Tokens of the conversation, or of both conversations of a pair. */
    int64_t longest; /* Tokens of the longer one. */
} lt_tuning_line_size;

/* Append the line and a line break to *out. False: *e says what is wrong with it. `most`: most
 * tokens of a conversation. Called on a thread of the worker pool. */
bool lt_tuning_line_read(lt_server *s, bool pairs, const char *text, size_t n, int64_t most,
                         lt_json_out *out, lt_tuning_line_size *size, lt_api_error *e);

#endif

/* chat_rows.h: lines {"messages": [...]} to token ids and a label mask: the data of supervised
 * fine-tuning.
 *
 * The ids are those of the whole conversation as the chat template writes it. The mask is 1 on what
 * the assistant said:
 *     the template has {% generation %} tags   what stands between them, as transformers'
 *                                              return_assistant_tokens_mask
 *     it has none                              the difference of prefixes: what message i adds to
 *                                              the text, behind the opening of the turn that
 *                                              add_generation_prompt writes; so the content and the
 *                                              end of the turn
 * Beside "messages" a line may hold "tools", "documents" and "chat_template_kwargs" (more variables
 * of the template).
 *
 * One of these is read-only; threads share it, each with its scratch. */
#ifndef LT_DATA_CHAT_ROWS_H
#define LT_DATA_CHAT_ROWS_H

#include <stdbool.h>

#include "data/chat_template.h"
#include "lateen/tokenizer.h"

typedef struct {
    const lt_chat_template *template;
    const lt_tokenizer *tokenizer;
    const char *messages; /* The member that holds the list of messages. */
    const char *prompt,
        /* Not NULL: instead of messages these members' strings are the user's and the
         * assistant's. */
        *answer;
    bool last_only; /* Only the last message is learnt. */
} lt_chat_rows;

/* Append the ids of one line (valid UTF-8) to *ids; *mask, malloc'ed, has a byte for each of them;
 * *text_bytes is the conversation's length. FORMAT, NOT_FOUND: not such a line. ARG: the template
 * refuses the conversation, or writes a turn otherwise once others follow it, so that no difference
 * of prefixes tells it. Messages begin with the column or the message; the caller knows file and
 * line. */
LT_MUST_USE lt_err lt_chat_rows_encode(const lt_chat_rows *c, lt_tokenizer_scratch *s,
                                       const char *line, size_t bytes, lt_ids *ids,
                                       unsigned char **mask, size_t *text_bytes);

#endif

/* chat_rows.h: encodes lines {"messages": [...]} as token ids and a label mask, for supervised
 * fine-tuning.
 *
 * The ids are those of the whole conversation as rendered by the chat template. The mask is 1 on
 * the assistant's answers, which are found in one of two ways:
 *     the template has {% generation %} tags   the text between them, as in transformers'
 *                                              return_assistant_tokens_mask
 *     it has none                              the difference of prefixes: what message i adds to
 *                                              the text after the opening of its turn, which
 *                                              add_generation_prompt writes: the content and the
 *                                              end of the turn
 * An answer whose message has "weight": 0 (OpenAI's member) is context and not a label. Besides
 * "messages", a line may have "tools" (a list, or JSON text of one), "documents" and
 * "chat_template_kwargs" (further variables of the template). Lines of other shapes: chat_shape.h.
 *
 * An lt_chat_rows is read-only; threads share it, each with its own scratch. */
#ifndef LT_DATA_CHAT_ROWS_H
#define LT_DATA_CHAT_ROWS_H

#include <stdbool.h>

#include "data/chat_template.h"
#include "lateen/tokenizer.h"

typedef struct {
    const lt_chat_template *template;
    const lt_tokenizer *tokenizer;
    /* The member that holds the list of messages; a line without it may have another shape. */
    const char *messages;
    /* If not NULL, lines have no messages: these members hold the texts of the user and of the
     * assistant. */
    const char *prompt, *answer;
    bool last_only; /* Only the last message is a label. */
} lt_chat_rows;

/* Append the ids of one line (valid UTF-8) to *ids; *mask, malloc'ed, has a byte for each of them;
 * *text_bytes is the conversation's length. FORMAT, NOT_FOUND: the line has another form. ARG: the
 * template refuses the conversation, or changes a turn when others follow, so that the difference
 * of prefixes does not exist. Error texts begin with the column or the message; the caller adds
 * file and line. */
LT_MUST_USE lt_err lt_chat_rows_encode(const lt_chat_rows *c, lt_tokenizer_scratch *s,
                                       const char *line, size_t bytes, lt_ids *ids,
                                       unsigned char **mask, size_t *text_bytes);

/* Append the ids of a line's question: its messages without the assistant's turns at the end,
 * followed by the opening of an answer. A line of another shape gets the member of messages. Errors
 * as above. */
LT_MUST_USE lt_err lt_chat_rows_prompt(const lt_chat_rows *c, lt_tokenizer_scratch *s, json_t *line,
                                       lt_ids *ids);

/* Append the ids of a line's messages; those from n_prompt on are a completion. [*first, *end): the
 * completion's tokens among those appended. They begin after the opening of an answer, which
 * add_generation_prompt writes, and end with the text, or with the last answer if the template has
 * {% generation %} tags; *first = *end: the completion is empty. The line is changed. Errors as
 * above. */
LT_MUST_USE lt_err lt_chat_rows_completion(const lt_chat_rows *c, lt_tokenizer_scratch *s,
                                           json_t *line, size_t n_prompt, lt_ids *ids,
                                           size_t *first, size_t *end);

#endif

/* conversation.h: from messages to the prompt a chat model was taught. Chat, responses, messages
 * and apply-template all come through here, in OpenAI's message shape. */
#ifndef LT_SERVE_CONVERSATION_H
#define LT_SERVE_CONVERSATION_H

#include "serve/api/server.h"

typedef struct {
    const json_t *messages; /* OpenAI's list. */
    const json_t *tools;    /* OpenAI's list, or NULL. */
    const json_t *kwargs;   /* More variables for the template, or NULL. */
    /* NULL; "none" switches thinking off where the template knows how. */
    const char *reasoning_effort;
    const json_t *enable_thinking; /* NULL; true or false: the template's variable. */
    const char *verbosity;         /* NULL; how long answers are: low, medium, high. */
    bool add_generation_prompt;
    bool continue_final; /* The last message is the beginning of the answer. */
} lt_conversation;

/* The rendered prompt, malloc'ed. */
bool lt_conversation_text(const lt_server *s, const lt_conversation *c, char **text, size_t *n,
                          lt_api_error *e);
/* opened: the prompt ends with the mark that opens the reasoning; NULL: nobody is to answer, the
 * ids are only counted, so that any length will do. Its ids: special tokens are recognised, and BOS
 * put before where the tokenizer does and the template does not. */
bool lt_conversation_ids(lt_server *s, const lt_conversation *c, lt_ids *out, bool *opened,
                         lt_api_error *e);

/* The same, but what is too long loses its oldest turns, until there is room for max_tokens (below
 * 0: for an answer). The last turn is never cut. */
bool lt_conversation_fit(lt_server *s, const lt_conversation *c, int64_t max_tokens, lt_ids *out,
                         bool *opened, lt_api_error *e);

/* For templates that know no tools: messages (changed) tell of the tools (may be NULL), of calls
 * and results in plain words. */
void lt_conversation_teach(json_t *messages, const json_t *tools);

/* The leading system message (made where there is none) says how long answers are to be: for
 * templates that have no variable for it. */
void lt_conversation_steer(json_t *messages, const char *verbosity);

/* The text of a message's content: a string, or parts of which all are text, joined. NULL: *e. A
 * new reference. */
json_t *lt_content_text(const json_t *content, const char *where, lt_api_error *e);

#endif

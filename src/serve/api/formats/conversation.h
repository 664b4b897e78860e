/* conversation.h: turns messages into the prompt format of a chat model. Chat, responses, messages
 * and apply-template all use it, with messages in OpenAI's format. */
#ifndef LT_SERVE_CONVERSATION_H
#define LT_SERVE_CONVERSATION_H

#include "serve/api/server.h"

typedef struct {
    const json_t *messages; /* OpenAI's list. */
    const json_t *tools;    /* OpenAI's list, or NULL. */
    const json_t *kwargs;   /* More variables for the template, or NULL. */
    /* May be NULL; "none" switches thinking off if the template supports that. */
    const char *reasoning_effort;
    const json_t *enable_thinking; /* May be NULL; true or false: the template's variable. */
    const char *verbosity;         /* May be NULL; the length of answers: low, medium, high. */
    bool add_generation_prompt;
    bool continue_final; /* The last message is the beginning of the answer. */
} lt_conversation;

/* The conversation described by the fields of a chat request. */
lt_conversation lt_conversation_of(const lt_api_params *a);

/* A new reference to what the template receives: the messages with texts as contents and arguments
 * of calls as objects, the tools, further variables. NULL: *e. Can be called on any thread. */
json_t *lt_conversation_context(const lt_server *s, const lt_conversation *c, lt_api_error *e);
/* The rendered prompt, malloc'ed. */
bool lt_conversation_text(const lt_server *s, const lt_conversation *c, char **text, size_t *n,
                          lt_api_error *e);
/* The ids of the prompt: special tokens are recognised, and BOS is put before them if the tokenizer
 * adds one and the template did not. *opened: the prompt ends with the mark that opens the
 * reasoning. opened NULL: the ids are only counted, so any length is accepted. */
bool lt_conversation_ids(lt_server *s, const lt_conversation *c, lt_ids *out, bool *opened,
                         lt_api_error *e);

/* The same, but a conversation that is too long loses its oldest turns until max_tokens fit (below
 * 0: an answer of any length). The last turn is never dropped. */
bool lt_conversation_fit(lt_server *s, const lt_conversation *c, int64_t max_tokens, lt_ids *out,
                         bool *opened, lt_api_error *e);

/* For templates without tools: change messages so that they describe the tools (may be NULL), the
 * calls and the results in plain text. */
void lt_conversation_teach(json_t *messages, const json_t *tools);

/* For templates without a variable for verbosity: state it in the leading system message, which is
 * added if there is none. */
void lt_conversation_steer(json_t *messages, const char *verbosity);

/* A new reference to the text of a message's content: a string, or the parts, if all are text, with
 * gap between two of them. NULL: *e. */
json_t *lt_content_text(const json_t *content, const char *gap, const char *where, lt_api_error *e);
/* The gap for a message: lt_server's part_gap, but none for the assistant, whose parts are pieces
 * of what a model wrote. */
const char *lt_content_gap(const char *part_gap, const char *role);

#endif

/* chat_output.h: the output of a chat model as a list of items in order: content, reasoning, tool
 * calls. The formatters of chat, responses and messages hold one for each choice and receive each
 * piece through `on`. parse.h separates the text. */
#ifndef LT_SERVE_CHAT_OUTPUT_H
#define LT_SERVE_CHAT_OUTPUT_H

#include "serve/api/reply.h"

typedef enum { LT_CHAT_CONTENT, LT_CHAT_REASONING, LT_CHAT_CALL } lt_chat_item_kind;

typedef struct {
    lt_chat_item_kind kind;
    int call;                  /* CALL: its index among the calls, from 0. */
    char id[48];               /* Its id; CALL: the tool's result refers to it. */
    char *name;                /* CALL: the function. Owned. */
    lt_json_out text;          /* CALL: the arguments. */
    size_t logs_from, logs_to; /* Rows of the choice's logs with its tokens, if logs are kept. */
} lt_chat_item;

typedef struct {
    lt_parser *parser;
    lt_chat_item *items;
    int n_items, room, n_calls;
} lt_chat_output;

/* Item i of a choice whose state is a chat output. */
static inline const lt_chat_item *lt_chat_item_at(const lt_reply_choice *c, int i) {
    return &((const lt_chat_output *)c->state)->items[i];
}

/* Check tools and tool_choice; a->tools is then what the prompt shows: NULL for none, also by
 * tool_choice. What may be called goes to l. For calls that only render or count a prompt, too. */
bool lt_chat_output_tools(lt_api_params *a, lt_listen *l, lt_api_error *e);
/* Decide into which parts a reply is separated, by the request's tools, tool_choice and
 * reasoning_format. Call it before the prompt is rendered. */
bool lt_chat_output_prepare(lt_reply *r, lt_api_error *e);
/* Take the rendered prompt, whose ids move into the reply or are freed, and set the grammar and
 * thinking budget of the whole answer. Call it once listen.opened is known. */
bool lt_chat_output_add(lt_reply *r, lt_ids *prompt, lt_api_error *e);

/* Members of a formatter whose choices are chat outputs; its `piece` receives each piece as soon as
 * it is final. c->state is the lt_chat_output, from the first text on. */
void lt_chat_output_token(lt_reply_choice *c); /* token: counts those of the reasoning. */
void lt_chat_output_text(lt_reply_choice *c, const char *text, size_t n); /* text */
/* Call it first in choice_end: it reports what was held back. False: out of memory. */
bool lt_chat_output_finish(lt_reply_choice *c);
void lt_chat_output_close(lt_reply_choice *c);

void lt_chat_output_answer(const lt_reply_choice *c, lt_json_out *out); /* answer: the content. */

/* Append all text of a kind to out. */
void lt_chat_output_gather(const lt_chat_output *s, lt_chat_item_kind kind, lt_json_out *out);
bool lt_chat_output_has(const lt_chat_output *s, lt_chat_item_kind kind);

#endif

/* speech.h: the output of a chat model as a list of items in order: content, reasoning, tool calls.
 * The formatters of chat, responses and messages hold one for each choice and receive each piece
 * through `on`. parse.h separates the text. */
#ifndef LT_SERVE_SPEECH_H
#define LT_SERVE_SPEECH_H

#include "serve/api/reply.h"

typedef enum { LT_SPEECH_CONTENT, LT_SPEECH_REASONING, LT_SPEECH_CALL } lt_speech_kind;

typedef struct {
    lt_speech_kind kind;
    int call;                  /* CALL: its index among the calls, from 0. */
    char id[48];               /* Its id; CALL: the tool's result refers to it. */
    char *name;                /* CALL: the function. Owned. */
    lt_json_out text;          /* CALL: the arguments. */
    size_t logs_from, logs_to; /* Rows of the choice's logs with its tokens, if logs are kept. */
} lt_speech_item;

typedef struct {
    lt_parser *parser;
    lt_speech_item *items;
    int n_items, room, n_calls;
} lt_speech;

/* Decide which parts a reply separates, by the request's tools, tool_choice and reasoning_format.
 * Call it before the prompt is rendered. */
bool lt_speech_prepare(lt_reply *r, lt_api_error *e);
/* Take the rendered prompt, whose ids move into the reply or are freed, and set grammar and
 * thinking budget of the whole answer. Call it once listen.opened is known. */
bool lt_speech_add(lt_reply *r, lt_ids *prompt, lt_api_error *e);

/* Members of a formatter whose choices are speech; its `piece` receives each piece as soon as it is
 * final. c->state is the lt_speech, from the first text on. */
void lt_speech_token(lt_reply_choice *c); /* token: counts those of the reasoning. */
void lt_speech_text(lt_reply_choice *c, const char *text, size_t n); /* text */
/* To be called first in choice_end: reports what was held back. False: out of memory. */
bool lt_speech_finish(lt_reply_choice *c);
void lt_speech_close(lt_reply_choice *c);

/* All text of a kind, appended to out. */
void lt_speech_gather(const lt_speech *s, lt_speech_kind kind, lt_json_out *out);
bool lt_speech_has(const lt_speech *s, lt_speech_kind kind);

#endif

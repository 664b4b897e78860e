/* speech.h: what a chat model says, taken apart: content, reasoning, calls of tools. The faces of chat, responses and messages hold one for
 * each choice and hear of each piece through `on`.
 *
 * Which marks a model uses is read from its template: <think> and [THINK] for reasoning; <tool_call> (Hermes, Qwen), [TOOL_CALLS] (Mistral) or bare JSON
 * (Llama 3, and whatever a grammar forces) for calls. Text that may become a mark is held back; a call is told when it is complete; what looks
 * like a call and is none is content.
 *
 * The speech is a list of items in the order in which they were said; text goes to the last one until another kind begins. */
#ifndef LT_SERVE_SPEECH_H
#define LT_SERVE_SPEECH_H

#include "serve/reply.h"

typedef enum { LT_SPEECH_CONTENT, LT_SPEECH_REASONING, LT_SPEECH_CALL } lt_speech_kind;

typedef struct {
    lt_speech_kind kind;
    int call;         /* CALL: the how-manieth, from 0. */
    char id[48];      /* Made for it; CALL: by which the tool's answer names it. */
    char *name;       /* CALL: the function. Owned. */
    lt_json_out text; /* CALL: the arguments. */
} lt_speech_item;

typedef enum {
    LT_HEARING_START,
    LT_HEARING_THINK,
    LT_HEARING_TEXT,
    LT_HEARING_CALL, /* Between the marks of a call. */
    LT_HEARING_BARE  /* JSON without marks, to the end. */
} lt_hearing;

typedef struct {
    lt_speech_item *items;
    int n_items, room, n_calls;
    lt_hearing state;
    lt_json_out held; /* Not said yet: the text of a call, or what may become a mark. */
    bool trim;        /* White space is dropped until something else comes. */
} lt_speech;

/* Called with each piece as soon as it is certain. fresh: the item has just begun; a call begins with no text. */
typedef void (*lt_speech_fn)(lt_strand *c, int item, bool fresh, const char *text, size_t n);

/* What a reply listens for: from the request's tools, tool_choice and reasoning_format, before the prompt is rendered. With a forced call the grammar
 * is opened here. */
bool lt_speech_prepare(lt_reply *r, lt_api_error *e);

/* The marks of a template. */
lt_speech_marks lt_speech_detect(const char *template_text);

/* c->face becomes the choice's speech. False: out of memory. */
bool lt_speech_open(lt_strand *c);
void lt_speech_close(lt_strand *c);
void lt_speech_feed(lt_strand *c, const char *text, size_t n, lt_speech_fn on);
void lt_speech_end(lt_strand *c, lt_speech_fn on);
bool lt_speech_in_reasoning(const lt_strand *c); /* What comes next belongs to the reasoning. */

/* All text of a kind, appended to out. */
void lt_speech_gather(const lt_speech *s, lt_speech_kind kind, lt_json_out *out);
bool lt_speech_has(const lt_speech *s, lt_speech_kind kind);

#endif

/* speech.h: what a chat model says, taken apart: content, reasoning, calls of tools. The faces of chat, responses and messages hold one for
 * each choice and hear of each piece through `on`.
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

typedef struct {
    lt_speech_item *items;
    int n_items, room, n_calls;
    void *parser;
} lt_speech;

/* Called with each piece as soon as it is certain. fresh: the item has just begun; a call begins with no text. */
typedef void (*lt_speech_fn)(lt_strand *c, int item, bool fresh, const char *text, size_t n);

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

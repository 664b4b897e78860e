/* messages.h: the parts of /v1/messages: the request (messages.c), its conversation
 * (messages_read.c), the answer (messages_format.c). */
#ifndef LT_SERVE_MESSAGES_H
#define LT_SERVE_MESSAGES_H

#include "serve/api/reply.h"
#include "serve/api/stored/seal.h"
#include "serve/api/formats/chat_output.h"
#include "serve/api/stored/store.h"

/* A reply's format_state. */
typedef struct {
    bool keep;           /* The turn is stored, as part of a thread. */
    bool omitted;        /* Only the signature of thinking is sent. */
    bool edits;          /* context_management is asked for. */
    const json_t *own;   /* The request's messages, unchanged. */
    lt_stored *previous; /* Held; NULL: not a thread, or its first turn. */
    int64_t cleared_turns, cleared_tokens;
} lt_messages;

extern const lt_formatter lt_messages_formatter;

/* thread: {type: create} or {type: continue, previous_message_id}: earlier turns are added to the
 * parameters' messages, system and tools. */
bool lt_messages_thread(lt_api_params *a, const lt_call *call, lt_messages *st, lt_api_error *e);
/* Decrypt the thinking blocks from their signatures; blocks with another's signature are left
 * out. */
bool lt_messages_open_thinking(lt_api_params *a, const lt_call *call, lt_api_error *e);
/* Apply the edits of context_management: clear the thinking of all but the last turns. */
bool lt_messages_edit(lt_api_params *a, lt_messages *st, lt_api_error *e);

#endif

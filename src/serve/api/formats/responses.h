/* responses.h: /v1/responses in parts: the request (responses.c), the response object
 * (responses_write.c), the stream's events (responses_format.c), and stored responses
 * (stored/stored.c). */
#ifndef LT_SERVE_RESPONSES_H
#define LT_SERVE_RESPONSES_H

#include "serve/api/reply.h"
#include "serve/api/stored/seal.h"
#include "serve/api/formats/chat_output.h"
#include "serve/api/stored/store.h"

/* A reply's format_state. */
typedef struct {
    int64_t sequence; /* Number of the stream's next event. */
    bool summary;     /* The reasoning is also sent as its summary. */
    bool sealed;      /* It is also sent sealed: include reasoning.encrypted_content. */
    bool logprobs;
    bool keep;               /* The response is stored. */
    const json_t *input;     /* This request's items, each with an id. */
    lt_stored *previous;     /* Held; NULL: this is the first turn. */
    const lt_api_error *why; /* The response has failed with this error. */
} lt_responses;

typedef enum { LT_RESPONSE_RUNNING, LT_RESPONSE_DONE, LT_RESPONSE_FAILED } lt_response_state;

extern const lt_formatter lt_responses_formatter;

/* The choice that became the answer, once all have ended. */
lt_reply_choice *lt_response_choice(const lt_reply *j);
/* Write the response object. */
void lt_response_write(lt_json_out *o, const lt_reply *j, lt_response_state state);
/* Write an output item; the text of an unfinished one is omitted. */
void lt_response_item_write(lt_json_out *o, const lt_reply_choice *c, int index, bool done);
/* Write {type: output_text | reasoning_text | summary_text, text} of an item. */
void lt_response_part_write(lt_json_out *o, const lt_reply_choice *c, int index, bool with_text);
/* Write "logprobs": [...] of rows [from, to); nothing if none were requested. */
void lt_response_logprobs_write(lt_json_out *o, const lt_reply_choice *c, size_t from, size_t to);
/* Id of an item; a call has "fc_...". */
const char *lt_response_item_id(const lt_chat_item *item, char out[56]);

#endif

/* stored_chat.h: the store of chat completions: POST /v1/chat/completions with `store` fills it,
 * stored/stored_chat.c reads it. */
#ifndef LT_SERVE_STORED_CHAT_H
#define LT_SERVE_STORED_CHAT_H

#include "serve/api/api_params.h"

/* OpenAI's bounds of metadata: an object of at most 16 short strings. */
bool lt_metadata_check(const json_t *metadata, lt_api_error *e);

/* Does metadata (NULL: none) have each metadata[name]=value of the query? */
bool lt_metadata_fits(const json_t *metadata, const char *query);

#endif

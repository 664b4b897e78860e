/* stored_chat.h: the store of chat completions: POST /v1/chat/completions with `store` fills it,
 * stored/stored_chat.c reads it. */
#ifndef LT_SERVE_STORED_CHAT_H
#define LT_SERVE_STORED_CHAT_H

#include "serve/api/api_params.h"

/* Check OpenAI's limits of metadata: an object of at most 16 short strings. */
bool lt_metadata_check(const json_t *metadata, lt_api_error *e);

/* Whether metadata (NULL: none) has each metadata[name]=value of the query. */
bool lt_metadata_fits(const json_t *metadata, const char *query);

#endif

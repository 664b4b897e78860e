/* prompts.h: a prompt in any of its forms: a text, a list of texts, a list of ids, a list of lists
 * of ids, or llama-server's mix of texts and ids. */
#ifndef LT_SERVE_PROMPTS_H
#define LT_SERVE_PROMPTS_H

#include "serve/api/reply.h"

/* Each prompt becomes a part of the reply. NULL value: one prompt of the beginning-of-text token,
 * as OpenAI does. */
bool lt_prompts_add(lt_reply *j, const json_t *value, const char *param, lt_api_error *e);

/* llama-server: a list that mixes texts and ids is ONE prompt. */
bool lt_prompts_mixed(lt_server *s, const json_t *value, const char *param, bool add_special,
                      bool parse_special, lt_ids *out, lt_api_error *e);

#endif

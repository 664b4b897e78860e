/* tools_convert.h: converts conversations of other APIs to OpenAI's chat messages, which templates
 * understand. */
#ifndef LT_SERVE_TOOLS_CONVERT_H
#define LT_SERVE_TOOLS_CONVERT_H

#include "serve/api/api_params.h"

/* part_gap: what stands between two texts of a message that is not the assistant's. */

/* Anthropic's system and messages; a new list of messages, or NULL and *e. */
json_t *lt_convert_anthropic(const char *part_gap, const json_t *system, const json_t *messages,
                             lt_api_error *e);
/* Anthropic's tools: {name, description, input_schema}. NULL and no error status: none were
 * given. */
json_t *lt_convert_anthropic_tools(const json_t *tools, lt_api_error *e);

/* The items of /v1/responses, with the instructions before. */
json_t *lt_convert_responses(const char *part_gap, const char *instructions, const json_t *items,
                             lt_api_error *e);
/* Its tools: {type: function, name, parameters}. */
json_t *lt_convert_responses_tools(const json_t *tools, lt_api_error *e);

#endif

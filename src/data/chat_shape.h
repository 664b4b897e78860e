/* chat_shape.h: the shapes in which published data sets keep a conversation, as a list of messages.
 *
 *     messages                     [{"role", "content", ...}]                 OpenAI, transformers
 *     conversations                [{"from", "value"}]                        ShareGPT
 *     prompt, completion           lists of messages, or two strings          TRL
 *     instruction, input, output   strings; history: [[question, answer]...]  Alpaca
 *
 * A string "system" in the same line becomes the first message, of role system. Roles of
 * ShareGPT are those that LLaMA-Factory and Axolotl know (human, gpt, observation, function_call,
 * ...); Alpaca's instruction and input are joined by a line break, as in LLaMA-Factory. */
#ifndef LT_DATA_CHAT_SHAPE_H
#define LT_DATA_CHAT_SHAPE_H

#include "base/json.h"
#include "lateen/base.h"

/* If a line lacks the member `messages`, make it from whichever shape the line has. A line of
 * no known shape stays as it is. FORMAT: a member of the shape has another type; the message names
 * it. */
LT_MUST_USE lt_err lt_chat_shape(json_t *line, const char *messages);
/* Put the member "system" of a line before these messages. FORMAT: they begin with another one. */
LT_MUST_USE lt_err lt_chat_shape_system(const json_t *line, json_t *messages);

#endif

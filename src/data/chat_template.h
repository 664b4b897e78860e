/* chat_template.h: a conversation as the text a chat model was taught: the model's own Jinja
 * template, rendered.
 *
 *     lt_chat_template *t = NULL;
 *     LT_TRY(lt_chat_template_open_model(&t, "path/to/model", tokenizer, NULL));
 *     LT_TRY(lt_chat_template_render(t, context, &text, &bytes)); {"messages": [...],
 *     "add_generation_prompt": true}
 *
 * The language is the part of Jinja that published templates use, with the settings of Hugging Face
 * transformers (trim_blocks, lstrip_blocks, loop controls, the generation tag, raise_exception,
 * strftime_now, tojson without HTML escapes), and Python's rules for values and their text. A
 * template cannot reach files, the network or the process; steps, memory, depth and output are
 * bounded.
 *
 * An open template is read-only: any number of threads may render it at once. */
#ifndef LT_DATA_CHAT_TEMPLATE_H
#define LT_DATA_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"
#include "lateen/tokenizer.h"

typedef struct lt_chat_template lt_chat_template;

/* Compile a template text. name leads the messages. FORMAT: a syntax error, with its line. */
LT_MUST_USE lt_err lt_chat_template_open(lt_chat_template **out, const char *text, size_t bytes,
                                         const char *name);

/* A template of the table in chat_format.h (chatml, llama3, ...), for models that bring none. */
LT_MUST_USE lt_err lt_chat_template_open_format(lt_chat_template **out, const char *format);

/* The template of a model: chat_template.jinja or tokenizer_config.json's chat_template in (or
 * beside) path, else the GGUF metadata that the tokenizer holds; special tokens' texts (bos_token,
 * eos_token, ...) are taken along as defaults of the context. variant: which of several named
 * templates ("default", "tool_use"); NULL: default. tokenizer may be NULL. NOT_FOUND: the model
 * brings no template. */
LT_MUST_USE lt_err lt_chat_template_open_model(lt_chat_template **out, const char *path,
                                               const lt_tokenizer *tokenizer, const char *variant);

/* Before the template is shared: bos_token, eos_token, ... as the model in (or beside) path has
 * them. tokenizer may be NULL. */
LT_MUST_USE lt_err lt_chat_template_name_tokens(lt_chat_template *t, const char *path,
                                                const lt_tokenizer *tokenizer);

/* Before the template is shared: what a name of the context means when render's context lacks
 * it. */
LT_MUST_USE lt_err lt_chat_template_default(lt_chat_template *t, const char *name,
                                            const json_t *value);

/* Render. context: an object; its members are the template's variables (messages, tools, documents,
 * add_generation_prompt, bos_token, any keyword argument). "lateen_now" (seconds since 1970, a
 * number) sets the clock of strftime_now; else it is the present, local time. *text is malloc'ed
 * and 0-terminated. ARG: the template called raise_exception, or used a value wrongly (its message
 * and line); LIMIT: too many steps, too much memory, too deep. */
LT_MUST_USE lt_err lt_chat_template_render(const lt_chat_template *t, const json_t *context,
                                           char **text, size_t *bytes);

/* The same, and which bytes of the text the model would have said: those between {% generation %}
 * and {% endgeneration %}, in order, none empty. *answers is malloc'ed. */
LT_MUST_USE lt_err lt_chat_template_render_answers(const lt_chat_template *t, const json_t *context,
                                                   char **text, size_t *bytes,
                                                   lt_text_span **answers, size_t *n_answers);

/* Does the template have a {% generation %} tag? */
bool lt_chat_template_marks_answers(const lt_chat_template *t);

/* The template's text, 0-terminated; for what else depends on it (the format of tool calls:
 * serve/parse.h). */
const char *lt_chat_template_text(const lt_chat_template *t);

void lt_chat_template_close(lt_chat_template *t); /* Accepts NULL. */

/* ids of a rendered conversation get the tokenizer's BOS in front, where it adds one to a text and
 * the template did not write it. */
LT_MUST_USE lt_err lt_chat_ids_begin(lt_ids *ids, const lt_tokenizer_info *info);

#endif

/* chat_template.h: renders a conversation with the Jinja template of a chat model.
 *
 *     lt_chat_template *t = NULL;
 *     LT_TRY(lt_chat_template_open_model(&t, "path/to/model", tokenizer, NULL));
 *     context = {"messages": [...], "add_generation_prompt": true}
 *     LT_TRY(lt_chat_template_render(t, context, &text, &bytes));
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

#define LT_TEMPLATE_BYTES ((size_t)4 << 20) /* Most bytes of one template. */

typedef struct lt_chat_template lt_chat_template;

/* Compile a template text. Error texts begin with name. FORMAT: a syntax error, with its line. */
LT_MUST_USE lt_err lt_chat_template_open(lt_chat_template **out, const char *text, size_t bytes,
                                         const char *name);

/* Open a template of the table in chat_format.h (chatml, llama3, ...), for models without their
 * own. */
LT_MUST_USE lt_err lt_chat_template_open_format(lt_chat_template **out, const char *format);

/* Open the template of a model: chat_template.jinja or the chat_template of tokenizer_config.json
 * in (or beside) path, else that of the GGUF metadata in the tokenizer. The texts of special tokens
 * (bos_token, eos_token, ...) become defaults of the context. variant selects one of several named
 * templates ("default", "tool_use"); NULL: default. tokenizer may be NULL. NOT_FOUND: the model has
 * no template. */
LT_MUST_USE lt_err lt_chat_template_open_model(lt_chat_template **out, const char *path,
                                               const lt_tokenizer *tokenizer, const char *variant);

/* Set bos_token, eos_token, ... to those of the model in (or beside) path. Call it before the
 * template is shared. tokenizer may be NULL. */
LT_MUST_USE lt_err lt_chat_template_name_tokens(lt_chat_template *t, const char *path,
                                                const lt_tokenizer *tokenizer);

/* Set the value of a name that the context of render lacks. Call it before the template is
 * shared. */
LT_MUST_USE lt_err lt_chat_template_default(lt_chat_template *t, const char *name,
                                            const json_t *value);

/* Render. context: an object; its members are the template's variables (messages, tools, documents,
 * add_generation_prompt, bos_token, any keyword argument). "lateen_now" (seconds since 1970, a
 * number) sets the clock of strftime_now; else it is the current local time. *text is malloc'ed and
 * 0-terminated. ARG: the template called raise_exception, or used a value wrongly (its message and
 * line); LIMIT: too many steps, too much memory, too deep. */
LT_MUST_USE lt_err lt_chat_template_render(const lt_chat_template *t, const json_t *context,
                                           char **text, size_t *bytes);

/* The same, and report the spans between {% generation %} and {% endgeneration %}, which the model
 * would have generated: in order, none empty. *answers is malloc'ed. */
LT_MUST_USE lt_err lt_chat_template_render_answers(const lt_chat_template *t, const json_t *context,
                                                   char **text, size_t *bytes,
                                                   lt_text_span **answers, size_t *n_answers);

/* Whether the template has a {% generation %} tag. */
bool lt_chat_template_marks_answers(const lt_chat_template *t);

/* The template's text, 0-terminated, from which others infer e.g. the format of tool calls
 * (serve/parse.h). */
const char *lt_chat_template_text(const lt_chat_template *t);

void lt_chat_template_close(lt_chat_template *t); /* Accepts NULL. */

/* Put the tokenizer's BOS before the ids of a rendered conversation, if the tokenizer adds one to a
 * text and the template did not write it. */
LT_MUST_USE lt_err lt_chat_ids_begin(lt_ids *ids, const lt_tokenizer_info *info);

#endif

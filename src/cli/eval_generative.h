/* eval_generative.h: the tasks of `lateen eval` whose answers are texts (align/generative.h). */
#ifndef LT_CLI_EVAL_GENERATIVE_H
#define LT_CLI_EVAL_GENERATIVE_H

#include "align/generative.h"
#include "cli/opened.h"

/* Run the task and print its scores. o: without load, progress and ctx. */
LT_MUST_USE lt_err lt_eval_generative(lt_generative_options o, const char *lora,
                                      const char *tokenizer, lt_opened_dtype dtype,
                                      const char *device, int64_t threads, bool json);

#endif

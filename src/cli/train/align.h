/* align.h: the parts of `lateen align` in files of their own; verb_align.c lists them. argv[0] is
 * the part's name. */
#ifndef LT_CLI_ALIGN_H
#define LT_CLI_ALIGN_H

#include "cli/opened.h"
#include "data/chat_source.h"

int lt_align_detect(int argc, char **argv);
int lt_align_logprobs(int argc, char **argv);
int lt_align_rewards(int argc, char **argv);
int lt_align_experiment(int argc, char **argv);

/* Does the model write, and has it seq positions? verb names the part in a message. */
LT_MUST_USE lt_err lt_align_check_model(const lt_model *m, const char *verb, int64_t seq);
/* The conversations of the options --tokenizer and --chat-template, read for this model. */
LT_MUST_USE lt_err lt_align_open_chat(lt_chat_source *out, const lt_opened *model,
                                      const char *tokenizer, const char *template, bool last_only);

#endif

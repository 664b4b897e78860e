/* align.h: the parts of `lateen align` that have separate files; verb_align.c lists them. argv[0]
 * is the part's name. */
#ifndef LT_CLI_ALIGN_H
#define LT_CLI_ALIGN_H

#include "cli/opened.h"
#include "data/chat_source.h"

int lt_align_detect(int argc, char **argv);
int lt_align_logprobs(int argc, char **argv);
int lt_align_rewards(int argc, char **argv);
int lt_align_experiment(int argc, char **argv);

/* Check that the model can generate text, and has seq positions. verb: name of the part, for the
 * message. */
LT_MUST_USE lt_err lt_align_check_model(const lt_model *m, const char *verb, int64_t seq);
/* How conversations become ids for this model, by the options --tokenizer and --chat-template. */
LT_MUST_USE lt_err lt_align_open_chat(lt_chat_source *out, const lt_opened *model,
                                      const char *tokenizer, const char *template, bool last_only);

#endif

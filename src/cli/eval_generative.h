/* eval_generative.h: the tasks of `lateen eval` whose answers are texts (align/generative.h). */
#ifndef LT_CLI_EVAL_GENERATIVE_H
#define LT_CLI_EVAL_GENERATIVE_H

#include "align/generative.h"
#include "cli/beside.h"

/* Run the task and print its scores. o: all options but those of the model, progress, request and
 * ctx. request: JSON, the fields of every request; align: JSON, their member "alignment"; "":
 * none. */
LT_MUST_USE lt_err lt_eval_generative(lt_generative_options o, lt_served *served, const char *align,
                                      const char *request, bool json);

#endif

/* plan_verbs.h: the sub-verbs of `lateen plan`. */
#ifndef LT_CLI_PLAN_VERBS_H
#define LT_CLI_PLAN_VERBS_H

#include "base/file.h"
#include "cli/verb.h"

int lt_plan_validate_verb(int argc, char **argv);
int lt_plan_fit_verb(int argc, char **argv);
int lt_plan_serve_verb(int argc, char **argv);
int lt_plan_schedule_verb(int argc, char **argv);

/* plan_own.c. Does --model name a training recipe of Lateen, or a run folder? If so, recipe is its
 * path. */
bool lt_plan_is_own(const char *model, char recipe[LT_PATH_BYTES]);
/* cluster "": only memory. */
int lt_plan_own_run(const char *recipe, const char *cluster, bool json);

#endif

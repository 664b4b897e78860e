/* plan_verbs.h: the sub-verbs of `lateen plan`. */
#ifndef LT_CLI_PLAN_VERBS_H
#define LT_CLI_PLAN_VERBS_H

#include "cli/verb.h"

int lt_plan_validate_verb(int argc, char **argv);
int lt_plan_fit_verb(int argc, char **argv);
int lt_plan_serve_verb(int argc, char **argv);

#endif

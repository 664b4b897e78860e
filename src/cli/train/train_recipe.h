/* train_recipe.h: the recipe that a command line of `lateen train` describes. */
#ifndef LT_CLI_TRAIN_RECIPE_H
#define LT_CLI_TRAIN_RECIPE_H

#include "train/recipe/recipe.h"

/* argv[1..]: the words after `train`, a recipe and flags that override it. Refuses flags without
 * effect and recipes without `out` or `data.train`. If the recipe has stages, reads the one that
 * --stage names. *help: --help was among the words, and r was not read. */
LT_MUST_USE lt_err lt_cli_recipe_load(lt_recipe *r, int argc, char **argv, bool *help);

#endif

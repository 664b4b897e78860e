/* plan_verbs.h: the sub-verbs of `lateen plan`. */
#ifndef LT_CLI_PLAN_VERBS_H
#define LT_CLI_PLAN_VERBS_H

#include "base/file.h"
#include "cli/verb.h"
#include "train/recipe/recipe.h"

int lt_plan_validate_verb(int argc, char **argv);
int lt_plan_fit_verb(int argc, char **argv);
int lt_plan_serve_verb(int argc, char **argv);
int lt_plan_schedule_verb(int argc, char **argv);
/* A verb of `lateen simulate`. */
int lt_simulate_policy_verb(int argc, char **argv);

/* plan_own.c. Whether --model names a training recipe of Lateen, or a run folder. If so, recipe
 * becomes its path. */
bool lt_plan_is_own(const char *model, char recipe[LT_PATH_BYTES]);
/* cluster "": predict only memory. n_ranks > 0: print the `top` fastest layouts of a run on that
 * many ranks. */
int lt_plan_own_run(const char *recipe, const char *cluster, int n_ranks, int top, bool json);

/* plan_layouts.c. Choose the mesh and the level of ZeRO for a recipe with `layout: auto` and the
 * ranks of this run, and write the prediction to OUT/layout.json on rank 0. */
LT_MUST_USE lt_err lt_plan_choose_layout(lt_recipe *r);
/* The same for a mesh that the recipe gives: only write the prediction. Nothing is written for a
 * single rank, for sites, or if a prediction is not possible. */
LT_MUST_USE lt_err lt_plan_predict_layout(const lt_recipe *r);
/* Remove the prediction, and the folder if it is empty, of a run that failed before it had a
 * recipe.yaml. */
void lt_plan_withdraw_layout(const lt_recipe *r);
/* What `lateen plan --gpus N` prints for a recipe; n_ranks 0: for the recipe's own mesh. */
int lt_plan_layouts(const lt_recipe *r, const char *cluster, int n_ranks, int top, bool json);

#endif

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

/* plan_own.c. Does --model name a training recipe of Lateen, or a run folder? If so, recipe is its
 * path. */
bool lt_plan_is_own(const char *model, char recipe[LT_PATH_BYTES]);
/* cluster "": only memory. n_ranks > 0: the `top` fastest layouts of a run on that many ranks. */
int lt_plan_own_run(const char *recipe, const char *cluster, int n_ranks, int top, bool json);

/* plan_layouts.c. Write the mesh and the level of ZeRO into a recipe with `layout: auto`, for the
 * ranks that this process is one of; and, on rank 0, what is predicted of it to OUT/layout.json. */
LT_MUST_USE lt_err lt_plan_choose_layout(lt_recipe *r);
/* For a mesh that is given: on rank 0, write what is predicted of it, as above. Nothing is written
 * for one rank and for sites, nor where a prediction is not possible. */
LT_MUST_USE lt_err lt_plan_predict_layout(const lt_recipe *r);
/* A run that failed before it had a recipe.yaml leaves no prediction, nor an empty folder. */
void lt_plan_withdraw_layout(const lt_recipe *r);
/* What `lateen plan --gpus N` prints of a recipe; with n_ranks 0: of the recipe's own mesh. */
int lt_plan_layouts(const lt_recipe *r, const char *cluster, int n_ranks, int top, bool json);

#endif

/* changes.h: a recipe beside the one of a checkpoint, name by name. The table says what may change
 * (LT_RECIPE_MAY_CHANGE); any other difference is refused with both values unless allow_change
 * names it. Data is compared by content (resume.c), not by path: data.train and data.tokenizer are
 * no change where the checkpoint knows their contents. A checkpoint from before manifests had a
 * recipe is compared with the recipe.yaml of its run folder, whose 0 and "family" stand for what
 * the model had. */
#ifndef LT_TRAIN_CHANGES_H
#define LT_TRAIN_CHANGES_H

#include "train/run.h"

/* {name: text} of every row but those of one start; what a manifest keeps. */
json_t *lt_recipe_json(const lt_recipe *r);

/* Recipe and data of the checkpoint in a folder, NULL where nothing tells; *resolved false: sizes
 * as they were given. json_decref both. */
LT_MUST_USE lt_err lt_changes_recipe_of(json_t **out, json_t **data, bool *resolved,
                                        const char *checkpoint);

/* Fill t->changes; STATE, with every field and its values, when one may not change. */
LT_MUST_USE lt_err lt_changes_compare(lt_training *t, const json_t *then, const json_t *data,
                                      bool resolved, const char *checkpoint);

/* Is this the command that wrote a recipe? Where and how it computes does not matter. */
bool lt_changes_same_command(const lt_training *t, const json_t *then);

/* allow_change's "a,b": does it hold the row; and are all of them options? */
bool lt_changes_allowed(const char *list, const lt_option *row);
LT_MUST_USE lt_err lt_changes_check_allowed(const char *list);

#endif

/* changes.h: compares a recipe with that of a checkpoint, option by option. The table says what may
 * change (LT_RECIPE_MAY_CHANGE); any other difference is refused with both values unless
 * allow_change names it. Data is compared by content (resume.c), not by path, so other paths in
 * data.train and data.tokenizer are not a change if the checkpoint has a fingerprint of their
 * contents. A checkpoint whose manifest has no recipe (an older version) is compared with the
 * recipe.yaml of its run folder, where 0 and "family" stand for the values that the model had. */
#ifndef LT_TRAIN_CHANGES_H
#define LT_TRAIN_CHANGES_H

#include "train/run.h"

/* {name: text} of every row except those with ONCE, for a manifest. */
json_t *lt_recipe_json(const lt_recipe *r);

/* Recipe and data of the checkpoint in a folder, NULL if not known; *resolved false: sizes as
 * given. json_decref both. */
LT_MUST_USE lt_err lt_changes_recipe_of(json_t **out, json_t **data, bool *resolved,
                                        const char *checkpoint);

/* Fill t->changes; STATE, with every field and its values, if one must not change. */
LT_MUST_USE lt_err lt_changes_compare(lt_training *t, const json_t *then, const json_t *data,
                                      bool resolved, const char *checkpoint);

/* Whether this command has the options of a recipe; where and how it computes does not matter. */
bool lt_changes_same_command(const lt_training *t, const json_t *then);

/* Whether "a,b" of allow_change names the row; whether all its names are options. */
bool lt_changes_allowed(const char *list, const lt_option *row);
LT_MUST_USE lt_err lt_changes_check_allowed(const char *list);

#endif

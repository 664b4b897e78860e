/* named_recipes.h: a list in a recipe whose entries have names and their own options: `stages`
 * (train_stages.h) and `adapters` (train_adapters.h).
 *
 *     optim.lr: 1e-4                 an option of all entries
 *     adapters:
 *       support: {data.train: support.jsonl, lora.rank: 16}      options of one entry
 *       legal:   {data.train: legal.jsonl}
 *
 * The options of an entry override those of all, and flags override both. */
#ifndef LT_CLI_NAMED_RECIPES_H
#define LT_CLI_NAMED_RECIPES_H

#include "train/together.h"

/* How a list is read. */
typedef struct {
    const char *key;  /* "stages" */
    const char *what; /* "stage", for messages. */
    int most;         /* Most entries of the list. */
    /* Reads the value of a name that has text instead of options, e.g. the path of a recipe; may be
     * NULL. first: the name is the first of the list. */
    lt_err (*value)(lt_named_recipe *of, const char *text, bool first);
    /* Fails if an entry may not have its own value of this option; NULL: all are allowed. */
    lt_err (*may_have)(const lt_option *row, const char *name, const char *origin);
} lt_named_kind;

/* Reads the list of the recipe file `path` into out, which has room for kind->most entries; *n 0:
 * the recipe has no such list. *common becomes the options outside the list, with the flags. argv:
 * the flags, as for lt_options_parse. Free the entries with lt_named_recipes_free, also after a
 * failure. */
LT_MUST_USE lt_err lt_named_recipes_read(lt_named_recipe *out, int *n, lt_recipe *common,
                                         const lt_named_kind *kind, const char *path, int argc,
                                         char **argv);
void lt_named_recipes_free(lt_named_recipe *of, int n);

/* Sets an option to folder/name. */
LT_MUST_USE lt_err lt_named_recipe_path(lt_recipe *r, const char *option, const char *folder,
                                        const char *name, const char *origin);
/* Sets the run folder of each entry to common->out/NAME, and appends NAME to its checkpoint.mirror
 * if it has one. ARG: common->out is empty, or an entry has another `out`. */
LT_MUST_USE lt_err lt_named_recipes_place(lt_named_recipe *of, int n, const lt_recipe *common,
                                          const lt_named_kind *kind);
/* Checks that an entry has data, and that its options fit together (lt_recipe_check). */
LT_MUST_USE lt_err lt_named_recipe_check(const lt_named_recipe *of, const char *what);

#endif

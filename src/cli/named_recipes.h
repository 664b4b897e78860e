/* named_recipes.h: the parts of a recipe that have names and options of their own, under one key:
 * `stages` (train_stages.h) and `adapters` (train_adapters.h).
 *
 *     optim.lr: 1e-4                 what all have in common
 *     adapters:
 *       support: {data.train: support.jsonl, lora.rank: 16}      options of one, over these
 *       legal:   {data.train: legal.jsonl}
 *
 * Flags are options of every one. */
#ifndef LT_CLI_NAMED_RECIPES_H
#define LT_CLI_NAMED_RECIPES_H

#include "train/together.h"

/* How a list is read. */
typedef struct {
    const char *key;  /* "stages" */
    const char *what; /* "stage", for messages. */
    int most;
    /* NULL, or: the value of a name without options, e.g. a path. index: its place. */
    lt_err (*value)(lt_named_recipe *of, const char *text, bool first);
    /* NULL, or: may one of them have this option? Fails if not. */
    lt_err (*may_have)(const lt_option *row, const char *name, const char *origin);
} lt_named_kind;

/* Reads the list of a recipe into at most kind->most places; *n 0: it has none. common: what stands
 * beside the list, flags included. argv: the flags, as of lt_options_parse. The recipes are the
 * caller's to free, whatever this returns (lt_named_recipes_free). */
LT_MUST_USE lt_err lt_named_recipes_read(lt_named_recipe *out, int *n, lt_recipe *common,
                                         const lt_named_kind *kind, const char *path, int argc,
                                         char **argv);
void lt_named_recipes_free(lt_named_recipe *of, int n);

/* Sets an option to folder/name. */
LT_MUST_USE lt_err lt_named_recipe_path(lt_recipe *r, const char *option, const char *folder,
                                        const char *name, const char *origin);
/* Gives each the folder common->out/NAME, and such a checkpoint.mirror if it has one; ARG: there is
 * no common folder, or one of them has another. */
LT_MUST_USE lt_err lt_named_recipes_place(lt_named_recipe *of, int n, const lt_recipe *common,
                                          const lt_named_kind *kind);
/* The options of one fit together (lt_recipe_check), and it has data. */
LT_MUST_USE lt_err lt_named_recipe_check(const lt_named_recipe *of, const char *what);

#endif

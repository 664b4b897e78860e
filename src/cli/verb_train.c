/* verb_train.c: `lateen train RECIPE [--key value ...]` */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "cli/verb.h"
#include "train/recipe.h"
#include "train/run.h"

#define LT_OPTION_STRUCT lt_recipe
static const lt_option rows[] = {LT_RECIPE_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_train_options = LT_OPTION_TABLE("a training recipe", rows);

static const char usage[] = "train [RECIPE.yaml] [--KEY VALUE ...]";
static const char prose[] =
    "Train a model. The recipe gives the options below as YAML (optim.lr is `lr` under `optim`); "
    "flags override it.\n"
    "Everything goes into the run folder --out. A stopped run goes on with the same command.";

/* The recipe is read before the flags, so that flags win: find the one word that is not a flag or a flag's value. */
static lt_err load(lt_recipe *r, int argc, char **argv, bool *help) {
    const char *recipe[1] = {NULL};
    int n = 0;
    lt_options_default(&lt_recipe_table, r);
    LT_TRY(lt_options_parse(&lt_recipe_table, r, argc, argv, recipe, 1, &n, help));
    if (n == 1 && !*help) {
        lt_options_default(&lt_recipe_table, r);
        LT_TRY(lt_options_load_yaml(&lt_recipe_table, r, recipe[0]));
        LT_TRY(lt_options_parse(&lt_recipe_table, r, argc, argv, recipe, 1, &n, help));
    }
    if (!*help && r->out[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "no run folder: give --out FOLDER, or out: in the recipe");
    }
    if (!*help && r->train[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "no data: give --data.train SHARD, or data.train in the recipe");
    }
    return LT_OK;
}

int lt_verb_train(int argc, char **argv);
int lt_verb_train(int argc, char **argv) {
    lt_recipe *r = calloc(1, sizeof *r);
    bool help = false;
    lt_err err = r != NULL ? load(r, argc, argv, &help) : lt_error_set(LT_ERR_OOM, "recipe");

    if (help) {
        printf("usage: lateen %s\n\n%s\n\noptions:\n", usage, prose);
        lt_options_help(&lt_recipe_table, stdout);
    } else if (err == LT_OK) {
        err = lt_run_training(r, NULL);
        if (err == LT_ERR_INTERRUPTED) {
            lt_log_info("%s", lt_error_message());
            err = LT_OK;
        }
    }
    free(r);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}

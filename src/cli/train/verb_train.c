/* verb_train.c: `lateen train RECIPE [--key value ...]` */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "align/train.h"
#include "base/error.h"
#include "cli/platform/copying.h"
#include "cli/plan/plan_verbs.h"
#include "cli/train/train_adapters.h"
#include "cli/train/train_recipe.h"
#include "cli/train/train_stages.h"
#include "cli/verb.h"
#include "train/recipe/recipe.h"
#include "train/run.h"

#define HELP_COLUMNS 100

#define LT_OPTION_STRUCT lt_recipe
static const lt_option rows[] = {LT_RECIPE_OPTIONS(LT_OPTION_ROW)};
static const lt_option_short shorts[] = {LT_RECIPE_SHORTS};
const lt_option_table lt_verb_train_options = LT_OPTION_TABLE_SHORT("a training recipe", rows,
                                                                    shorts);

static const char usage[] = "train [RECIPE.yaml] [--KEY VALUE ...]";
static const char prose[] =
    "Train a model. The recipe gives the options below as YAML (optim.lr is `lr` under `optim`); "
    "flags override it. A recipe with `stages` trains them one after the other, each from the "
    "model of the one before; a recipe with `adapters` trains several adapters of one model at "
    "the same time.\n"
    "Everything is written to the run folder --out. The same command continues a stopped run.\n"
    "Exit status: 0 finished, 1 failed, 2 usage, 74 the device failed, 75 stopped by a signal or "
    "the file OUT/exit, with everything saved, 76 another rank failed, 77 a later attempt of the "
    "same "
    "job has taken the run folder, 78 ranks do not hold the same bits (guard.replicas).";

/* Print the options that a resumed run may change, from the table. */
static void print_changeable(void) {
    size_t column = 0;
    printf("\nA resumed run may change these options; --allow-change NAME,... permits others:\n");
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        if ((row->flags & LT_RECIPE_MAY_CHANGE) == 0 || (row->flags & LT_RECIPE_ONCE) != 0) {
            continue;
        }
        if (column + strlen(row->name) > HELP_COLUMNS) {
            putchar('\n');
            column = 0;
        }
        column += (size_t)printf("%s%s", column == 0 ? "  " : " ", row->name);
    }
    putchar('\n');
}

/* Refuse a flag that has no effect together with the others; an option of a recipe file without
 * effect is only reported (lt_training_open). */
static lt_err refuse_idle_flags(const lt_recipe *r, int argc, char **argv) {
    lt_err err = LT_OK;
    char value[LT_OPTION_STR_BYTES];
    const char *recipe[1] = {NULL};
    bool help = false;
    int n = 0;
    lt_recipe *flags = calloc(1, sizeof *flags);

    if (flags == NULL) {
        LT_FAIL(LT_ERR_OOM, "recipe");
    }
    lt_options_default(&lt_recipe_table, flags);
    LT_TRY_DONE(lt_options_parse(&lt_recipe_table, flags, argc, argv, recipe, 1, &n, &help));
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        const char *needs = lt_recipe_idle(r, row);
        if (needs != NULL && !lt_recipe_is_default(flags, row, value)) {
            LT_FAIL_DONE(LT_ERR_ARG, "--%s %s has no effect: it needs %s", row->name, value, needs);
        }
    }
done:
    free(flags);
    return err;
}

/* What a recipe trains: one run, stages, or adapters at once. */
typedef struct {
    lt_recipe *one;
    lt_life life;          /* n 0: it has no stages. */
    lt_many_adapters many; /* n 0: it has no adapters. */
} work;

/* A flag must have an effect in at least one stage, or adapter. */
static lt_err refuse_idle_everywhere(const lt_named_recipe *of, int n, int argc, char **argv) {
    lt_err err = LT_OK;
    for (int i = 0; i < n; i++) {
        err = refuse_idle_flags(of[i].recipe, argc, argv);
        if (err == LT_OK) {
            return LT_OK;
        }
    }
    return err;
}

static lt_err load_lists(work *w, const char *path, int argc, char **argv) {
    LT_TRY(lt_life_open(&w->life, path, argc, argv));
    if (w->life.n > 0) {
        return refuse_idle_everywhere(w->life.stages, w->life.n, argc, argv);
    }
    LT_TRY(lt_many_adapters_open(&w->many, path, argc, argv));
    return refuse_idle_everywhere(w->many.adapters, w->many.n, argc, argv);
}

/* The recipe is read before the flags, so that flags override it: find the one word that is neither
 * a flag nor a flag's value. */
static lt_err load(work *w, int argc, char **argv, bool *help) {
    lt_recipe *r = w->one;
    const char *recipe[1] = {NULL};
    int n = 0;
    lt_options_default(&lt_recipe_table, r);
    LT_TRY(lt_options_parse(&lt_recipe_table, r, argc, argv, recipe, 1, &n, help));
    if (n == 1 && !*help) {
        LT_TRY(load_lists(w, recipe[0], argc, argv));
        if (w->life.n > 0 || w->many.n > 0) {
            return LT_OK;
        }
        lt_options_default(&lt_recipe_table, r);
        LT_TRY(lt_options_load_yaml(&lt_recipe_table, r, recipe[0]));
        LT_TRY(lt_options_parse(&lt_recipe_table, r, argc, argv, recipe, 1, &n, help));
    }
    if (!*help && r->stage[0] != '\0') {
        LT_FAIL(LT_ERR_ARG, "--stage %s needs a recipe with stages", r->stage);
    }
    if (!*help && r->out[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "no run folder: give --out FOLDER, or out: in the recipe");
    }
    if (!*help && r->train[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "no data: give --data.train SHARD, or data.train in the recipe");
    }
    return *help ? LT_OK : refuse_idle_flags(r, argc, argv);
}

static void close_work(work *w) {
    lt_life_close(&w->life);
    lt_many_adapters_close(&w->many);
}

lt_err lt_cli_recipe_load(lt_recipe *r, int argc, char **argv, bool *help) {
    work w = {.one = r};
    lt_err err = load(&w, argc, argv, help);
    if (err == LT_OK && w.many.n > 0) {
        err = lt_error_set(LT_ERR_UNSUPPORTED,
                           "a recipe with several adapters: only `lateen train` accepts it");
    } else if (err == LT_OK && w.life.n > 0) {
        err = lt_life_stage(&w.life, r);
    }
    close_work(&w);
    return err;
}

/* Fetch what the recipe names by hf://, s3:// or https://. */
static lt_err bring(lt_recipe *r) {
    const bool streams = r->cache[0] != '\0' && r->objective == LT_RECIPE_OBJECTIVE_sft;
    LT_TRY(lt_cli_bring_option(r->init));
    LT_TRY(lt_cli_bring_option(r->config));
    LT_TRY(lt_cli_bring_option(r->lora_init));
    LT_TRY(strstr(r->train, "://") != NULL ? lt_cli_bring_data(r->train, streams) : LT_OK);
    LT_TRY(strstr(r->valid, "://") != NULL ? lt_cli_bring_data(r->valid, streams) : LT_OK);
    LT_TRY(lt_cli_bring_option(r->distill_teacher));
    LT_TRY(lt_cli_bring_option(r->rl_reward_model));
    return lt_cli_bring_option(r->tokenizer);
}

static lt_err train(lt_recipe *r) {
    lt_err err;
    LT_TRY(bring(r));
    LT_TRY(r->layout == LT_LAYOUT_AUTO ? lt_plan_choose_layout(r) : lt_plan_predict_layout(r));
    err = lt_align_train(r, NULL);
    if (err != LT_OK) {
        lt_plan_withdraw_layout(r);
    }
    return err;
}

static lt_err train_many(const lt_many_adapters *m) {
    for (int i = 0; i < m->n; i++) {
        LT_TRY(bring(m->adapters[i].recipe));
    }
    return lt_run_together(m->adapters, m->n, m->common->micro, m->common->out);
}

/* From the status a launcher decides whether to start the run again. */
static int status_of(lt_err err) {
    const int status = lt_verb_fail(err);
    return err == LT_ERR_REMOTE     ? LT_EXIT_LOST
           : err == LT_ERR_DEVICE   ? LT_EXIT_DEVICE
           : err == LT_ERR_REPLACED ? LT_EXIT_REPLACED
           : err == LT_ERR_CORRUPT  ? LT_EXIT_CORRUPT
                                    : status;
}

int lt_verb_train(int argc, char **argv);
int lt_verb_train(int argc, char **argv) {
    work w = {.one = calloc(1, sizeof *w.one)};
    bool help = false;
    lt_err err = w.one != NULL ? load(&w, argc, argv, &help) : lt_error_set(LT_ERR_OOM, "recipe");

    if (help) {
        printf("usage: lateen %s\n\n%s\n\noptions:\n", usage, prose);
        lt_options_help(&lt_recipe_table, stdout);
        print_changeable();
    } else if (err == LT_OK) {
        err = w.life.n > 0   ? lt_life_train(&w.life, train)
              : w.many.n > 0 ? train_many(&w.many)
                             : train(w.one);
    }
    close_work(&w);
    free(w.one);
    return err == LT_OK ? LT_EXIT_DONE : status_of(err);
}

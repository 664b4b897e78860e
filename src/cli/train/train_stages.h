/* train_stages.h: recipes with stages, which train one model several times, one stage behind the
 * other:
 *
 *     out: runs/life               each stage has a run folder of its own, runs/life/NAME
 *     data.tokenizer: words        what all stages have in common
 *     stages:
 *       base: {steps: 4000, data.train: text}             options of one stage, over the common
 *       mid:  {steps: 1000, data.train: long, data.seq: 4096}
 *       sft:  recipes/mine.yaml                           or a recipe
 *       grpo: {objective.kind: grpo, data.train: problems.jsonl}
 *
 * A stage begins with the model that the one before it has written (NAME/model); behind a stage
 * that trains adapters, with its model and its adapters (NAME/adapter). So no stage but the first
 * may say what it begins with. Flags are options of every stage; model.init and lora.init are those
 * of the first.
 *
 * RESUMING   OUT/stages.json lists the finished stages, in order, with the options that they had;
 * it is replaced in one piece behind each. The same command skips these, and continues the one that
 * was cut off as any run is continued. A finished stage whose options have changed is refused by
 * their name: the stages behind it have begun, or would begin, from another model than the recipe
 * says. More steps of the last finished stage are trained, if no later one has begun. */
#ifndef LT_CLI_TRAIN_STAGES_H
#define LT_CLI_TRAIN_STAGES_H

#include "base/file.h"
#include "cli/train/named_recipes.h"

#define LT_LIFE_STAGES 16

typedef struct {
    lt_named_recipe stages[LT_LIFE_STAGES];
    int n;
    char record[LT_PATH_BYTES]; /* OUT/stages.json */
} lt_life;

/* Reads the stages of a recipe; n 0: it has none. argv: the flags, as of lt_options_parse. ARG
 * names what contradicts. Free with lt_life_close, whatever it returns. */
LT_MUST_USE lt_err lt_life_open(lt_life *l, const char *path, int argc, char **argv);
void lt_life_close(lt_life *l);

/* The recipe of the stage that --stage names; ARG: it names none. */
LT_MUST_USE lt_err lt_life_stage(const lt_life *l, lt_recipe *out);

/* Trains all stages, or the one that --stage names, by `train`. */
LT_MUST_USE lt_err lt_life_train(const lt_life *l, lt_err (*train)(lt_recipe *r));

#endif

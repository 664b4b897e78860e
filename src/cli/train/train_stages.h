/* train_stages.h: recipes with stages, which train one model several times, one stage after the
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
 * A stage begins with the model that the one before it has written (NAME/model) or, after a stage
 * that trains adapters, with that stage's model and adapters (NAME/adapter). So only the first
 * stage may name the model that it begins with. Flags are options of every stage, except that
 * model.init and lora.init belong to the first.
 *
 * RESUMING   OUT/stages.json lists the finished stages, in order, with the options that they had;
 * it is replaced atomically after each stage. The same command skips finished stages, and resumes
 * the stage that was cut off like any other run. If options of a finished stage have changed, it is
 * refused, and the message names them: the later stages have begun, or would begin, from another
 * model than the recipe describes. If `steps` of the last finished stage has grown and no later
 * stage has begun, the further steps are trained. */
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
 * names the options that contradict each other. Free with lt_life_close, also after a failure. */
LT_MUST_USE lt_err lt_life_open(lt_life *l, const char *path, int argc, char **argv);
void lt_life_close(lt_life *l);

/* The recipe of the stage that --stage names; ARG: it names none. */
LT_MUST_USE lt_err lt_life_stage(const lt_life *l, lt_recipe *out);

/* Trains all stages, or the one that --stage names, with `train`. */
LT_MUST_USE lt_err lt_life_train(const lt_life *l, lt_err (*train)(lt_recipe *r));

#endif

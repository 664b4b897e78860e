/* train_adapters.h: recipes with several adapters of one model, which are trained at the same time
 * (train/together.h):
 *
 *     out: runs/many               each adapter has a run folder of its own, runs/many/NAME
 *     model.init: hf://HuggingFaceTB/SmolLM2-135M
 *     lora.rank: 16                what all adapters have in common
 *     adapters:
 *       support: {data.train: support.jsonl}
 *       legal:   {data.train: legal.jsonl, lora.rank: 8, optim.lr: 1e-4, steps: 400}
 *
 * An adapter may have its own data, seed, steps, batch.size, lora, optimiser, schedule, guard,
 * validation, samples and checkpoints. batch.micro counts rows of all adapters. The model, data.seq
 * and the options of the process are common to all adapters; if an adapter has one of these, it is
 * refused by name. */
#ifndef LT_CLI_TRAIN_ADAPTERS_H
#define LT_CLI_TRAIN_ADAPTERS_H

#include "cli/train/named_recipes.h"

typedef struct {
    lt_named_recipe adapters[LT_TOGETHER_MAX];
    int n;
    lt_recipe *common; /* The options beside the list; its `out` is the folder above the others. */
} lt_many_adapters;

/* Reads the adapters of a recipe; n 0: it has none. Free with lt_many_adapters_close, also after a
 * failure. */
LT_MUST_USE lt_err lt_many_adapters_open(lt_many_adapters *m, const char *path, int argc,
                                         char **argv);
void lt_many_adapters_close(lt_many_adapters *m);

#endif

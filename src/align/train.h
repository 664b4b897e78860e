/* train.h: a training run with an objective of this folder. */
#ifndef LT_ALIGN_TRAIN_H
#define LT_ALIGN_TRAIN_H

#include "lateen/device.h"
#include "train/recipe/recipe.h"

/* lt_run_training with the objective that objective.kind names. device NULL: the recipe's. */
LT_MUST_USE lt_err lt_align_train(const lt_recipe *r, lt_device *device);

#endif

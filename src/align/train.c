/* train.c: see train.h. */
#include "align/train.h"

#include "align/learner.h"

lt_err lt_align_train(const lt_recipe *r, lt_device *device) {
    lt_learner l = {.t = NULL};
    const lt_objective objective = lt_learner_objective(&l);
    return lt_recipe_is_rl(r) ? lt_run_training_with(r, device, &objective)
                              : lt_run_training(r, device);
}

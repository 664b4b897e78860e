/* train.c: see train.h. */
#include "align/train.h"

#include "align/distill.h"
#include "align/learner.h"
#include "align/preference.h"

static lt_err reinforce(const lt_recipe *r, lt_device *device) {
    lt_learner l = {.t = NULL};
    const lt_objective objective = lt_learner_objective(&l);
    return lt_run_training_with(r, device, &objective);
}

static lt_err prefer(const lt_recipe *r, lt_device *device) {
    lt_preference_objective p;
    const lt_objective objective = lt_preference_open(&p, r);
    return lt_run_training_with(r, device, &objective);
}

static lt_err distill(const lt_recipe *r, lt_device *device) {
    lt_distill d = {.t = NULL};
    const lt_objective objective = lt_distill_objective(&d, r);
    return lt_run_training_with(r, device, &objective);
}

lt_err lt_align_train(const lt_recipe *r, lt_device *device) {
    return lt_recipe_is_rl(r)                            ? reinforce(r, device)
           : lt_recipe_align(r) != NULL                  ? prefer(r, device)
           : r->objective == LT_RECIPE_OBJECTIVE_distill ? distill(r, device)
                                                         : lt_run_training(r, device);
}

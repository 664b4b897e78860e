/* learner.h: reinforcement learning as an objective of training (train/objective.h): what stands
 * between a run and the answers that it learns from (reinforce.h).
 *
 * The rows of a step are its questions with their answers. They are drawn when the step begins, by
 * the engine on the very weights that the run trains. A run stops, and a checkpoint is made, only
 * where all answers of a draw have been learnt from, so that no answers need to be kept. With
 * rl.staleness those of the next step are drawn meanwhile (ahead.h). */
#ifndef LT_ALIGN_LEARNER_H
#define LT_ALIGN_LEARNER_H

#include "align/ahead.h"
#include "align/reinforce.h"
#include "train/run.h"

typedef struct {
    lt_training *t;       /* NULL before it is open. */
    lt_answerer answerer; /* Set by a test; else the engine. */
    lt_problems problems, held_out;
    lt_rewards *rewards;
    lt_curriculum curriculum; /* Zeroed: none. */
    lt_rollouts *rollouts;
    lt_reinforce r;
    lt_ahead ahead;
    lt_model *reference; /* NULL: none, or the base of adapters. */
    lt_pass *reference_pass;
    bool began; /* A step was begun, and not ended. */
} lt_learner;

/* The objective of a zeroed learner, which must outlive the run. */
lt_objective lt_learner_objective(lt_learner *l);

/* What the recipe says. ARG or UNSUPPORTED: what contradicts it, or is not supported with it. */
LT_MUST_USE lt_err lt_reinforce_read(lt_reinforce_options *o, const lt_training *t);
lt_curriculum_options lt_reinforce_curriculum(const lt_recipe *r);
LT_MUST_USE lt_err lt_reinforce_check_recipe(const lt_recipe *r, bool on_device);

#endif

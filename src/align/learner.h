/* learner.h: reinforcement learning as a training objective (train/objective.h): it connects a
 * training run with the answers that it learns from (reinforce.h).
 *
 * The rows of a step are its questions with their answers. They are drawn when the step begins, by
 * an engine that uses the weights of the run in place. A run stops, and a checkpoint is written,
 * only after all answers of a draw have been learnt from, so checkpoints need not hold answers.
 * With rl.staleness the answers of the next step are drawn during this one (ahead.h). */
#ifndef LT_ALIGN_LEARNER_H
#define LT_ALIGN_LEARNER_H

#include "align/ahead.h"
#include "align/reinforce.h"
#include "train/run.h"

typedef struct {
    lt_training *t;       /* NULL before it is open. */
    lt_answerer answerer; /* Set by a test; otherwise the engine. */
    lt_problems problems, held_out;
    lt_rewards *rewards;
    lt_curriculum curriculum; /* Zeroed: none. */
    lt_rollouts *rollouts;
    lt_reinforce r;
    lt_ahead ahead;
    lt_model *reference; /* NULL: none, or the base of adapters. */
    lt_pass *reference_pass;
    bool began; /* A step has begun and not ended. */
} lt_learner;

/* The objective of a zeroed learner, which must outlive the run. */
lt_objective lt_learner_objective(lt_learner *l);

/* Read the recipe's options. ARG or UNSUPPORTED: options contradict each other, or are not
 * supported together. */
LT_MUST_USE lt_err lt_reinforce_read(lt_reinforce_options *o, const lt_training *t);
lt_curriculum_options lt_reinforce_curriculum(const lt_recipe *r);
LT_MUST_USE lt_err lt_reinforce_check_recipe(const lt_recipe *r);

#endif

/* together.h: runs that train adapters of one model, several at once.
 *
 * Each adapter has a run of its own: recipe, data, optimiser, guard, metrics, checkpoints and
 * folder, as if it were trained alone. What they share is the model, and the pass that computes
 * their gradients (lt_pass_join): a step takes the next rows of every run through the model
 * together.
 *
 *     run 0   rows ─┐                                 ┌─ gradients, losses 0 ─▶ clip, update 0
 *     run 1   rows ─┼─▶ one batch ── one model, each ─┼─                   1 ─▶ clip, update 1
 *     run 2   rows ─┘                adapter its rows └─                   2 ─▶ clip, update 2
 *
 * On a mesh each rank has its share of the rows of every run, and a part of model and adapters as a
 * run of one adapter has it; each run's gradients are summed and divided apart (parallel/zero.h).
 *
 * Run 0 opens the model and the pass, and is closed last. A run that has taken its steps writes its
 * adapter and leaves; a run whose loss is no longer finite leaves, too, and the others go on. Each
 * run resumes from its own newest checkpoint. The runs need not be at the same step: no step of one
 * depends on a step of another. */
#ifndef LT_TRAIN_TOGETHER_H
#define LT_TRAIN_TOGETHER_H

#include "parallel/world.h"
#include "train/recipe/recipe.h"

#define LT_TOGETHER_MAX 64

/* The recipe of an adapter, or of a stage (cli/train/train_stages.h), by its name. */
typedef struct {
    char name[64];
    lt_recipe *recipe;
} lt_named_recipe;

/* May each adapter have a value of its own for this option of a recipe? */
bool lt_together_own(const lt_option *row);

/* UNSUPPORTED: a recipe has an option that does not work for adapters trained together. */
LT_MUST_USE lt_err lt_together_check(const lt_named_recipe *named, int n);

/* Trains all runs to their ends, on the mesh of their recipes. micro: most rows of all runs in one
 * pass of a rank, but at least one of each run; 0: all rows of a step, or as many as suit a
 * pipeline. out: the folder above those of the runs; its log.txt has the messages of all, and a
 * file `exit` there stops them. INTERRUPTED: they were stopped, and are saved. */
LT_MUST_USE lt_err lt_run_together(const lt_named_recipe *named, int n, int64_t micro,
                                   const char *out);
/* The same as a rank of a world, which it closes. */
LT_MUST_USE lt_err lt_run_together_in(lt_world *world, const lt_named_recipe *named, int n,
                                      int64_t micro, const char *out);

#endif

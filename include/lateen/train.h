/* train.h: train a model by a recipe. A run folder holds everything about the run:
 *
 *   recipe.yaml    the effective configuration
 *   metrics.jsonl  numbers, a line for each logged step
 *   log.txt        messages
 *   checkpoints/   see docs/formats.md
 *   report.html    curves, samples and configuration in one page
 *   model/         the result as a Hugging Face folder
 */
#ifndef LATEEN_TRAIN_H
#define LATEEN_TRAIN_H

#include "lateen/base.h"

/* Train by a recipe file; overrides[i] is "name=value" and replaces an option of the recipe.
 * Returns INTERRUPTED after a clean stop, by a signal (SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2,
 * SIGXCPU) or a file named `exit` in the run folder: everything is saved, and the same call resumes
 * the run. */
LT_MUST_USE lt_err lt_train(const char *recipe_path, const char *const *overrides, int n_overrides);

#endif

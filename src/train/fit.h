/* fit.h: does a run fit in the device's memory? Checked before anything is allocated. */
#ifndef LT_TRAIN_FIT_H
#define LT_TRAIN_FIT_H

#include "model/pass.h"
#include "parallel/shards.h"
#include "train/recipe.h"

/* The pass that a recipe trains with: its micro-batches (batch.micro, or the largest step). */
lt_pass_options lt_fit_pass_options(const lt_recipe *r, bool on_device);

/* Bytes of device memory that a run of this model needs: weights, gradients, optimiser, and a pass
 * with the options o. shards: what ranks divide between them; NULL: nothing. */
LT_MUST_USE lt_err lt_fit_bytes(size_t *out, const lt_recipe *r, const lt_model_spec *spec,
                                lt_dtype dtype, const lt_pass_options *o, const lt_shards *shards);

/* OOM unless that fits in `left`: the message says what is needed, what is missing, and which
 * batch.micro and model.recompute would fit (or that none does). */
LT_MUST_USE lt_err lt_fit_check(const lt_recipe *r, const lt_model_spec *spec, lt_dtype dtype,
                                const lt_pass_options *o, const lt_shards *shards, size_t left);
/* The same for a rank's stages of a pipeline, whose passes were measured; the message names no
 * way. */
LT_MUST_USE lt_err lt_fit_check_stages(const lt_recipe *r, const lt_model_spec *spec,
                                       lt_dtype dtype, const lt_pass_options *o,
                                       const lt_pass_memory *passes, const lt_shards *shards,
                                       size_t left);

#endif

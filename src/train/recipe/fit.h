/* fit.h: whether a run fits in the device's memory, checked before anything is allocated. */
#ifndef LT_TRAIN_FIT_H
#define LT_TRAIN_FIT_H

#include "model/pass/pass.h"
#include "parallel/shards.h"
#include "train/recipe/recipe.h"

/* The pass that a recipe trains with: its micro-batches (batch.micro, or the largest step). */
lt_pass_options lt_fit_pass_options(const lt_recipe *r, bool on_device);

/* The parts of the model and of its adapters that a rank computes with, and that it keeps. They
 * point to the shards and to the world's layout. */
typedef struct {
    lt_partition model, own_model, lora, own_lora;
} lt_rank_parts;

/* The shards of a recipe: of the model, or of the adapters that it trains (lt_shards_open). */
LT_MUST_USE lt_err lt_fit_shards_open(lt_shards *s, const lt_world *w, const lt_recipe *r);
lt_rank_parts lt_fit_parts(const lt_shards *s, bool adapters);
/* The pass of such a rank. divided: in a mesh whose ranks do not all hold and keep the same. */
void lt_fit_divide(lt_pass_options *o, const lt_shards *s, const lt_rank_parts *parts,
                   bool divided);

/* Bytes of device memory that a run of this model needs: weights, gradients, optimiser, and a pass
 * with the options o. shards: how ranks divide it; NULL: not at all. */
LT_MUST_USE lt_err lt_fit_bytes(size_t *out, const lt_recipe *r, const lt_model_spec *spec,
                                lt_dtype dtype, const lt_pass_options *o, const lt_shards *shards);

/* *o gets keep_logits where the recipe asks for it and the logits of a batch take at most half of
 * what is left of `left` without them. passes: the memory of a rank's stages of a pipeline without
 * and with keep_logits; NULL: of one pass, measured here. */
LT_MUST_USE lt_err lt_fit_keep_logits(lt_pass_options *o, const lt_recipe *r,
                                      const lt_model_spec *spec, lt_dtype dtype,
                                      const lt_pass_memory passes[2], const lt_shards *shards,
                                      size_t left);
bool lt_fit_asks_logits(const lt_recipe *r); /* Whether the recipe requests it. */
/* The memory that a run on the host may still take, as `left` of these functions. */
size_t lt_fit_host_left(void);

/* OOM unless a run fits in `left` bytes. The message says what is needed, what is missing, and
 * which batch.micro and model.recompute would fit (or that none does). */
LT_MUST_USE lt_err lt_fit_check(const lt_recipe *r, const lt_model_spec *spec, lt_dtype dtype,
                                const lt_pass_options *o, const lt_shards *shards, size_t left);
/* The same for a rank's stages of a pipeline, whose passes were measured; the message proposes no
 * options. */
LT_MUST_USE lt_err lt_fit_check_stages(const lt_recipe *r, const lt_model_spec *spec,
                                       lt_dtype dtype, const lt_pass_options *o,
                                       const lt_pass_memory *passes, const lt_shards *shards,
                                       size_t left);

#endif

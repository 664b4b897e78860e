/* adapters.h: a run that trains adapters (model/lora/lora.h) and does not change the model. */
#ifndef LT_TRAIN_ADAPTERS_H
#define LT_TRAIN_ADAPTERS_H

#include <jansson.h>

#include "model/lora/lora.h"
#include "parallel/layout.h"
#include "train/recipe/recipe.h"

/* The adapters that a recipe trains; rank 0: none. The strings belong to the recipe. */
lt_lora_options lt_recipe_lora(const lt_recipe *r);

/* UNSUPPORTED: an option of the recipe that does not work with adapters. zero: mesh.zero. */
LT_MUST_USE lt_err lt_adapters_check(const lt_recipe *r, int zero);

/* Replaces the recipe's values by those of lora.init, and refuses given values that differ. Decides
 * what lora.base = auto stands for. spec is that of the base; on_device says whether the run
 * computes on a GPU. */
LT_MUST_USE lt_err lt_adapters_resolve(lt_recipe *r, const lt_model_spec *spec, bool on_device);
/* Whether the base of a resolved recipe is kept in other types than model.dtype
 * (model/files/decoded.h). */
bool lt_adapters_decode(const lt_recipe *r);
/* Set how the model of a run is opened: for training, or beside adapters; other options are
 * unchanged. */
void lt_adapters_base(lt_model_options *o, const lt_recipe *r);

/* Open the adapters of a recipe over `base`: new ones, or those of lora.init. parts: as for
 * lt_lora_open_parts. */
LT_MUST_USE lt_err lt_adapters_open(lt_lora **out, lt_model *base, const lt_recipe *r,
                                    const lt_lora_parts *parts);

/* FLOPs of training on one token of rows of seq tokens, as counted for MFU: without gradients of
 * the base's weights, and with the three products of each adapter. */
double lt_adapters_train_flops(const lt_lora *l, const lt_model_spec *base, int64_t seq);

#endif

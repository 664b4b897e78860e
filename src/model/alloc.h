/* alloc.h: the memory of a model's weights; used by lt_model_create (random) and lt_model_open (files). */
#ifndef LT_MODEL_ALLOC_H
#define LT_MODEL_ALLOC_H

#include "model/params.h"

/* A model with its table and zeroed buffers. options NULL: F32, not trainable. A master exists when F32 or trainable. */
LT_MUST_USE lt_err lt_model_alloc(lt_model **out, const lt_model_spec *spec,
                                  const lt_model_options *options);

/* Bytes of the weights of a spec: compute copy and master. */
size_t lt_model_weights_bytes(const lt_param_table *t, const lt_model_options *options);

/* Refresh the compute copy from the F32 master (nothing to do when they are one). */
void lt_model_sync_weights(lt_model *m);

/* Store elements [first, first + count) of the flat layout from F32 values into master and compute copy alike. */
void lt_model_set(lt_model *m, int64_t first, const float *values, int64_t count);

#endif

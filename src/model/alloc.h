/* alloc.h: the memory of a model's weights; used by lt_model_create (random) and lt_model_open
 * (files). */
#ifndef LT_MODEL_ALLOC_H
#define LT_MODEL_ALLOC_H

#include "model/params.h"

/* Bytes that are sent to a device in one piece; measured (docs/speed/start-up.md). */
#define LT_MODEL_PIECE_BYTES ((size_t)4 << 20)

/* A model with its table and zeroed buffers. options NULL: F32, not trainable. A master exists if
 * the type is F32 or the model is trainable. */
LT_MUST_USE lt_err lt_model_alloc(lt_model **out, const lt_model_spec *spec,
                                  const lt_model_options *options);
/* The same in two steps: first the table, then buffers for the parameters that the table holds at
 * that time. */
LT_MUST_USE lt_err lt_model_begin(lt_model **out, const lt_model_spec *spec,
                                  const lt_model_options *options);
LT_MUST_USE lt_err lt_model_place(lt_model *m);

/* Bytes of the weights of a spec: compute copy and master. */
size_t lt_model_weights_bytes(const lt_param_table *t, const lt_model_options *options);

/* Memory of the weights on the device, including the mapped file if they are read from it. */
size_t lt_model_bytes(const lt_model *m);
/* Host memory of a model's weights after all have been loaded and read; 0 on a device with its own
 * memory. */
size_t lt_model_host_bytes(const lt_model *m);

/* Refresh the compute copy from the F32 master (a no-op if they are the same). */
LT_MUST_USE lt_err lt_model_sync_weights(lt_model *m);

/* Store values of a type (no block type) as elements [first, first + count) of the held part of a
 * parameter, in both the master and the compute copy. Any thread may call it. A failure of the
 * device is kept for lt_model_settle, which must be called after filling a model. */
void lt_model_set(lt_model *m, const lt_param *p, int64_t first, const void *values, lt_dtype type,
                  int64_t count);
/* The same for BF16 values that are stored unchanged. False: some are NaN or infinite, and not all
 * were stored. */
bool lt_model_set_finite(lt_model *m, const lt_param *p, int64_t first, const void *values,
                         int64_t count);
LT_MUST_USE lt_err lt_model_settle(lt_model *m);

/* Copy bytes of a buffer of the model's backend from and to the host. Any thread may call them; the
 * copy is complete on return, and waits for no other queue. */
LT_MUST_USE lt_err lt_model_upload(const lt_model *m, void *dst, const void *host, size_t bytes);
LT_MUST_USE lt_err lt_model_download(const lt_model *m, void *host, const void *src, size_t bytes);

#endif

/* steering.h: steering vectors (Turner et al. 2023, "Activation Addition", arXiv:2308.10248; Zou et
 * al. 2023, arXiv:2310.01405): directions that are added to the residual stream after a layer,
 * while a text is generated, with a factor that each request chooses.
 *
 *     stream after layer N += scale * direction.N
 *
 * FILE     safetensors with tensors direction.N of C numbers, N the layer, counted from 0. Layers
 *          without a tensor are not changed. llama.cpp's control vectors (repeng) have the same
 *          names and meaning, in GGUF.
 * PRODUCT  After a layer, S V^T is added to the block's contribution to the stream: S (rows, K)
 * has a
 *          row's scale in the column of its vector and zeros otherwise, V (C, K) the vectors. So
 *          rows of many requests, each with its own vector or none, take one product, which is
 *          omitted in a step without steered rows. A row without a vector keeps its bits. */
#ifndef LT_MODEL_STEERING_H
#define LT_MODEL_STEERING_H

#include "lateen/model.h"
#include "lateen/tensor.h"

#define LT_STEERING_MOST       64 /* Most vectors of a model. */
#define LT_STEERING_NAME_BYTES 64
#define LT_STEERING_SCALE      1000.0 /* The largest absolute scale. */

typedef struct lt_steering lt_steering;

/* Load vectors for a model, which closes them; a paged forward that is opened later can add them.
 * what: "NAME=FILE,NAME=FILE,...". ARG: a name is empty, too long or given twice, or there are too
 * many. FORMAT: a file has no direction, or one for a layer that the model lacks, of another shape,
 * or not finite. */
LT_MUST_USE lt_err lt_steering_open(lt_model *m, const char *what);
void lt_steering_close(lt_steering *s); /* Called by lt_model_close. Accepts NULL. */

/* The number of a vector, from 1. NOT_FOUND: none has this name; s may be NULL. */
LT_MUST_USE lt_err lt_steering_find(const lt_steering *s, const char *name, int32_t *out);
int32_t lt_steering_count(const lt_steering *s); /* Number of vectors; s may be NULL. */

/* ---- For the paged forward ---- */

/* K: the count, rounded up so that rows of S are aligned. */
int64_t lt_steering_columns(const lt_steering *s);
/* Write S (n, K) in the model's type. which (n): numbers of vectors, 0: none. */
void lt_steering_fill(const lt_steering *s, void *rows, const int32_t *which, const float *scale,
                      int64_t n);
/* V (C, K) of a layer; absent if no vector has a direction for it. */
lt_tensor lt_steering_of_layer(const lt_steering *s, int64_t layer);

#endif

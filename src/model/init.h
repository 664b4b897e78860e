/* init.h: random weights in a block type, for lt_stored_weights_make; and the stream of random
 * numbers of a parameter, for lora.c. */
#ifndef LT_MODEL_INIT_H
#define LT_MODEL_INIT_H

#include "model/params.h"

/* Set the held part of a parameter to the values of lt_model_create. */
void lt_init_param(lt_model *m, const lt_param *p, uint64_t seed);

/* Encode the values that lt_model_create gives this matrix. dst has memory for its rows, each of
 * whole blocks. */
void lt_init_blocks(void *dst, lt_dtype type, const lt_model *m, const lt_param *p, uint64_t seed);

/* Elements [first, first + count) of a stream of normally distributed numbers with mean 0. */
void lt_init_normals(float *values, uint64_t seed, uint64_t stream, double std, int64_t first,
                     int64_t count);

/* The stream of random numbers that belongs to a parameter's name (base/rng.h). */
uint64_t lt_init_stream(const char *name);

#endif

/* checksum.h: a checksum of a model's weights, which ranks that divide them compute together. It is
 * the same on any mesh: a sum over the elements of a function of their bits and their index in the
 * whole model. Weights in block types count by their bytes. */
#ifndef LT_TRAIN_CHECKSUM_H
#define LT_TRAIN_CHECKSUM_H

#include "parallel/shards.h"

/* A collective call of the ranks of world; NULL, or without ranks: m is whole. shards: of m, if
 * ZeRO divides its weights; NULL: each rank holds its part of the layout. */
LT_MUST_USE lt_err lt_weights_checksum(uint64_t *out, const lt_model *m, const lt_world *world,
                                       const lt_shards *shards);

#endif

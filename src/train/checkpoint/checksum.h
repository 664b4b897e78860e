/* checksum.h: a checksum of a model's weights that ranks which divide them compute together, and
 * that is the same on any mesh: a sum over the elements, of each one's bits and its index in the
 * whole model. Weights in block types count by their bytes. */
#ifndef LT_TRAIN_CHECKSUM_H
#define LT_TRAIN_CHECKSUM_H

#include "parallel/shards.h"

/* world: a collective call of its ranks; NULL, or without ranks: m is whole. shards: those by which
 * m is kept, if its weights are divided by ZeRO; NULL: each rank holds what its layout says. */
LT_MUST_USE lt_err lt_weights_checksum(uint64_t *out, const lt_model *m, const lt_world *world,
                                       const lt_shards *shards);

#endif

/* whole.h: brings all weights of a model that ranks divide to each of these ranks, for code that
 * runs on a whole model: an engine that draws answers.
 *
 *     unit by unit   zeros ─▶ each rank puts in the boxes that it sends ─▶ sum over all ranks
 *
 * The sum adds words as integers, of which all but one rank's are 0, so every bit arrives, whatever
 * divides the model: tp, pp, ep, or ZeRO's slices. A rank sends and receives 2 (n - 1) / n times
 * the bytes of the model, and needs no memory besides the model that receives the weights. */
#ifndef LT_PARALLEL_WHOLE_H
#define LT_PARALLEL_WHOLE_H

#include "model/lora/lora.h"
#include "parallel/shards.h"

/* Whether this rank, and no other rank that holds the box, sends it. shards: those of which it
 * keeps a slice; NULL: it keeps all that the layout gives it. */
bool lt_whole_sends(const lt_world *w, const lt_shards *shards, const lt_param *p,
                    const lt_box *box);

/* A collective call of all ranks: copies the weights of `from`, of which each rank has its part,
 * and their version into `to`, which has room for all. shards: as above. queue: the one on which
 * both are used. */
LT_MUST_USE lt_err lt_whole_bring(const lt_world *w, const lt_shards *shards, const lt_model *from,
                                  lt_model *to, lt_queue *queue);

/* The same for adapters, whose parts the layout defines. DoRA's magnitudes arrive in F32. */
LT_MUST_USE lt_err lt_whole_bring_adapters(const lt_world *w, const lt_lora *from, lt_lora *to,
                                           lt_queue *queue);

#endif

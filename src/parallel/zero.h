/* zero.h: the ranks that hold the same, at work: gradients are summed, the state is divided.
 *
 *   level  this rank keeps                     a step
 *   0      everything                          all-reduce of gradients
 *   1      its slices of master and moments    reduce-scatter of gradients, all-gather of weights
 *   2      and of gradients                    reduce-scatter of each micro-batch's gradients
 *   3      and of weights                      and all-gather of a unit's weights whenever it is
 *                                              used, forward and backward
 *
 * Two models: `trained` has what this rank keeps, with its master, and is all that the optimiser,
 * checkpoints and initial weights know. `model` is what passes run on: its weights are gathered
 * from the trained ones of all ranks. At level 0 both are one.
 *
 * Everything goes by units, beside the computation: the pass says when it enters and leaves one
 * (lt_pass_units). Units whose gradients are complete are reduced while earlier layers go backward;
 * weights are gathered while layers before them run. What a step waits for nevertheless is counted.
 *
 *     weights, level 3     rooms A, B   | 1 | 3 |      layer u computes in one room while the next
 *                                       | 2 | 4 |      one, u + 1 or u - 1, comes into the other
 *     gradients, level 2+  rooms A, B   layer u goes backward in one while the sum of u + 1's
 *                                       leaves the other
 *     the embeddings and the head have rooms of their own
 *
 * (Rajbhandari et al. 2020, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277.) */
#ifndef LT_PARALLEL_ZERO_H
#define LT_PARALLEL_ZERO_H

#include "base/arena.h"
#include "model/pass.h"
#include "parallel/shards.h"

#define LT_ZERO_ROOMS 4 /* Embeddings, head, two layers. */

typedef struct {
    float *data; /* Or of the weights' type. */
    int unit;    /* What lies in it; -1: nothing. */
    bool in_use; /* Entered and not left. */
    lt_comm_work work;
} lt_zero_room;

typedef struct {
    const lt_shards *shards;
    lt_model *model, *trained;
    lt_pass *passes[LT_MAX_LAYERS]; /* One, or those of a pipeline's chunks. */
    int n_passes;
    const lt_param_buffer *whole; /* Gradients, as passes make them. */
    lt_arena arena;
    /* Level 2 and 3: over the table of `trained`, each unit's slice. Level 1: in the pass's own. */
    lt_param_buffer gradients;
    lt_zero_room gradient_rooms[LT_ZERO_ROOMS], weight_rooms[LT_ZERO_ROOMS];
    lt_comm_work *gathers; /* (n_units): levels 1 and 2, of weights; 0: waited for. */
    bool *summed;          /* (n_units): the step's gradients have a first part. */
    int64_t *left;         /* (n_units): batches of the step that have left their gradients. */
    int64_t n_batches;
    lt_comm_work last_sum;
    double waited_s; /* For other ranks, since the step began. */
    lt_pass_units units;
} lt_zero;

/* gradients: of the passes. All that is given outlives it. Levels above 1: one pass. Close accepts
 * a zeroed one. */
LT_MUST_USE lt_err lt_zero_open(lt_zero *z, const lt_shards *s, lt_model *model, lt_model *trained,
                                const lt_param_buffer *gradients, lt_pass *const *passes,
                                int n_passes);
void lt_zero_close(lt_zero *z);
/* What open takes: of gradients, of weights. dtype: of the weights. */
typedef struct {
    size_t gradients_bytes, weights_bytes;
} lt_zero_memory;
void lt_zero_measure(lt_zero_memory *out, const lt_shards *s, lt_dtype dtype);

/* Before the first of a step's batches; levels above 1: before each; behind the last: gradients are
 * complete. */
void lt_zero_begin_step(lt_zero *z, int64_t n_batches);
LT_MUST_USE lt_err lt_zero_begin_batch(lt_zero *z);
LT_MUST_USE lt_err lt_zero_end_step(lt_zero *z);
/* Over the table of `trained`. */
const lt_param_buffer *lt_zero_gradients(const lt_zero *z);

/* The trained weights have changed: bring them to the model of all ranks; layers that are used wait
 * for theirs. settle: for all of them, before anybody else than a pass reads them; at level 3 they
 * never are all here. */
LT_MUST_USE lt_err lt_zero_gather(lt_zero *z);
LT_MUST_USE lt_err lt_zero_settle(lt_zero *z);

#endif

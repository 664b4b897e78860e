/* zero.h: the ranks that hold the same part of the model sum its gradients and divide its state
 * (ZeRO).
 *
 *   level  this rank keeps                     transfers of a step
 *   0      everything                          all-reduce of gradients
 *   1      its slices of master and moments    reduce-scatter of gradients, all-gather of weights
 *   2      also its slices of gradients        reduce-scatter of each micro-batch's gradients,
 *                                              all-gather of weights
 *   3      also its slices of weights          reduce-scatter as at level 2; all-gather of a unit's
 *                                              weights whenever it is used, forward and backward
 *
 * There are two models: `trained` has the weights that this rank keeps, with their master; the
 * optimiser, checkpoints and initial weights use only this one. Passes run on `model`, whose
 * weights are gathered from the trained ones of all ranks. At level 0 both are the same. Adapters
 * (model/lora/lora.h) are such a pair. The model beside them is not trained; at level 3 its weights
 * are gathered from `kept` when they are used.
 *
 * All transfers work unit by unit and overlap with the computation: the pass says when it enters
 * and leaves a unit (lt_pass_units). Units whose gradients are complete are reduced while the
 * backward pass of earlier layers runs; weights are gathered while the layers before them run.
 *
 *     weights, level 3     rooms A, B   | 1 | 3 |      layer u computes in one room while the next
 *                                       | 2 | 4 |      one, u + 1 or u - 1, comes into the other
 *     gradients, level 2+  rooms A, B   layer u goes backward in one while the sum of u + 1's
 *                                       leaves the other
 *     the embeddings and the head have rooms of their own
 *
 * A frozen model may be kept in blocks (model/files/stored_weights.h): the bytes of a unit's blocks
 * are divided and gathered beside its other weights.
 *
 * If tp has several ranks, the passes wait for its transfers, and all transfers go in the order of
 * their calls. So the sums of a unit, of which those over tp are small and slow, are called when
 * the next unit has begun a transfer of tp, and are done while that unit computes.
 *
 * In a pipeline a batch is a micro-batch's backward pass through a chunk of layers: each reduces
 * its gradients, and at level 3 gathers its layers' weights, once forward and once backward. If a
 * schedule defers the gradients of weights, a layer's gradients have a room only from the deferred
 * part on (model/blocks/deferred.h), and are reduced once, as elsewhere. If a V schedule gives both
 * ends of a tied model to one rank, one of its passes has the room of the embeddings.
 *
 * Several adapters of one pass (lt_pass_join) have an lt_zero each, as a list, with rooms and
 * slices of their own; the first gathers the weights of the model.
 *
 * (Rajbhandari et al. 2020, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277.) */
#ifndef LT_PARALLEL_ZERO_H
#define LT_PARALLEL_ZERO_H

#include "base/arena.h"
#include "model/pass/pass.h"
#include "parallel/shards.h"

#define LT_ZERO_ROOMS 4 /* For embeddings, head and two layers. */

typedef struct {
    float *data;           /* F32, or the weights' type. */
    unsigned char *blocks; /* Of weights kept in block types; NULL: there are none. */
    int unit;              /* The unit in it; -1: none. */
    lt_pass *pass;         /* For gradients: the pass that uses it. */
    bool in_use;           /* The pass has entered the unit and not yet left it. */
    lt_comm_work work;
} lt_zero_room;

typedef struct lt_zero {
    const lt_shards *shards;
    lt_model *model, *trained;
    const lt_lora *lora; /* As in lt_zero_args. */
    /* Index of these adapters among those of the passes; -1: the passes have only one. */
    int joined;
    struct lt_zero *next; /* The adapters that joined after these. */
    /* Weights that are gathered unit by unit when they are used: of `model`, or of the model beside
     * adapters. shards NULL: none. */
    struct {
        const lt_shards *shards;
        lt_model *model, *kept;
    } coming;
    lt_pass *passes[LT_MAX_LAYERS]; /* One pass, or those of a pipeline's chunks. */
    int n_passes;
    const lt_param_buffer *whole; /* Gradients as the passes produce them. */
    lt_arena arena;
    /* Levels 2 and 3: each unit's slice, over the table of `trained`. Level 1: within the pass's
     * own gradients. */
    lt_param_buffer gradients;
    lt_zero_room gradient_rooms[LT_ZERO_ROOMS], weight_rooms[LT_ZERO_ROOMS];
    lt_comm_work *gathers; /* (n_units): gathers of weights at levels 1 and 2; 0: done. */
    bool has_small;        /* The passes have the small parameters of a frozen model in F32. */
    /* (n_units): gathers begun by lt_zero_updated since the last lt_zero_gather. */
    bool *begun;
    /* (n_units): the step's gradients have been stored once, so that later ones are added. */
    bool *summed;
    int64_t *left; /* (n_units): batches of the step whose gradients are complete. */
    int64_t n_batches;
    int waiting; /* Levels 0, 1: the unit whose sum waits for a transfer of tp to begin, or -1. */
    lt_comm_work last_sum;
    lt_pass_units units;
} lt_zero;

typedef struct {
    lt_model *model, *trained;
    /* If s->frozen: the model beside adapters, and this rank's slices of it. */
    lt_model *base, *kept;
    const lt_lora *lora;              /* The adapters of `model`; NULL: a model is trained. */
    const lt_param_buffer *gradients; /* The gradients of the passes. */
    lt_pass *const *passes;
    int n_passes;
    bool joins;      /* The adapters have joined the passes, */
    lt_zero *before; /* after those of this lt_zero; NULL: they are the first. */
} lt_zero_args;
/* All arguments outlive it. Levels above 1: both stages of a tied embedding hold the same elements
 * of its unit. Close accepts a zeroed one; adapters that have joined are closed when no pass runs
 * any more. */
LT_MUST_USE lt_err lt_zero_open(lt_zero *z, const lt_shards *s, const lt_zero_args *a);
void lt_zero_close(lt_zero *z);
/* The memory that lt_zero_open takes, for gradients and for weights. dtype: of the weights. */
typedef struct {
    size_t gradients_bytes, weights_bytes;
} lt_zero_memory;
void lt_zero_measure(lt_zero_memory *out, const lt_shards *s, lt_dtype dtype);

/* begin_step: before the first batch of a step. begin_batch: before each batch, at levels above 1.
 * end_step: after the last batch; then gradients are complete. pass: which one goes backward.
 * Adapters for which no step was begun have no part in it. */
void lt_zero_begin_step(lt_zero *z, int64_t n_batches);
/* Levels above 1: discard the batches since begin_step; the step begins again. If adapters have
 * joined, a drop of the first drops those of all. */
LT_MUST_USE lt_err lt_zero_drop(lt_zero *z);
LT_MUST_USE lt_err lt_zero_begin_batch(lt_zero *z, int pass);
LT_MUST_USE lt_err lt_zero_end_step(lt_zero *z);
/* Levels 0 and 1, if no batch was marked as the last (n_batches INT64_MAX): the gradients of all
 * units are complete on this rank, so queue their sums, before end_step. */
LT_MUST_USE lt_err lt_zero_sum_step(lt_zero *z);
/* Over the table of `trained`. */
const lt_param_buffer *lt_zero_gradients(const lt_zero *z);

/* The trained weights have changed. gather brings them to the model of all ranks; a layer that is
 * used waits for its weights. updated: the weights of one unit have changed, and gather will
 * follow; they travel while other units are updated, unless they must wait for gather. settle waits
 * for all weights, before code other than a pass reads them; at level 3, which gathers weights when
 * they are used, they are never all on one rank. */
LT_MUST_USE lt_err lt_zero_updated(lt_zero *z, int unit);
LT_MUST_USE lt_err lt_zero_gather(lt_zero *z);
LT_MUST_USE lt_err lt_zero_settle(lt_zero *z);
/* A collective call, if weights are gathered when they are used: copies all weights and their
 * version into another model with the same table (lt_shards_full). */
LT_MUST_USE lt_err lt_zero_copy_whole(lt_zero *z, lt_model *to);

#endif

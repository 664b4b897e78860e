/* optimiser.h: the state of an optimiser over what is held of a model, and one step of it.
 *
 *   kind       moments, each (n_elements) of moment_dtype which parameters
 *   adamw      m, v                                      all
 *   ademamix   m, v, slow                                all
 *   lion       m                                         all
 *   muon       m, v                                      hidden matrices by Muon (m alone), the
 *                                                        rest by AdamW
 * With diloco.sites the parameters and the momentum of outer steps (diloco.h), F32, follow the
 * moments: no step here changes them, but they are kept, divided and saved as moments are.
 *
 * A step on a part has the bits of that slice of the whole step. A matrix that Muon updates is
 * whole or absent, or is divided into slices that one rank, its owner, brings together
 * (parallel/owners.h).
 *
 * Moments are F32; with optim.moments = bf16 those of AdamW and AdEMAMix are BF16, stored with
 * stochastic rounding by (seed, step, element): see tensor/ops.h. Weight decay applies to
 * parameters with `decays` set. */
#ifndef LT_TRAIN_OPTIMISER_H
#define LT_TRAIN_OPTIMISER_H

#include "base/arena.h"
#include "model/params.h"
#include "parallel/owners.h"
#include "tensor/backend.h"
#include "train/recipe/recipe.h"

#define LT_OPTIM_OUTER       2 /* Buffers of outer steps. */
#define LT_OPTIM_MAX_MOMENTS (3 + LT_OPTIM_OUTER)

/* What an optimiser updates: all that the model holds, or a share with a table of its own (ZeRO:
 * the weights are whole; master, moments and gradients are cut). master and copy are buffers over
 * the table, which may point into those of the model; copy: NULL where the weights are F32. */
typedef struct {
    const lt_param_table *table;
    const lt_param_buffer *master, *copy;
    const lt_shards *shards; /* Shards whose table is `own`; NULL: it is not a table of shards. */
} lt_optimiser_share;

typedef struct {
    const lt_recipe *recipe;
    lt_model *model;
    lt_optimiser_share share; /* Gradients and moments are also buffers over its table. */
    lt_queue *queue;          /* The queue on which the gradients are computed. */
    lt_arena arena;           /* Moments, Muon's scratch, the sum of squares. */
    int n_moments;
    const char *moment_names[LT_OPTIM_MAX_MOMENTS]; /* Names in a checkpoint: "m", "v", "slow". */
    lt_param_buffer moments[LT_OPTIM_MAX_MOMENTS];
    float *muon_scratch;
    /* With shards: which rank orthogonalises which matrix; room for one whole matrix with its
     * gradient, momentum and weights; and the buffers of an exchange. */
    lt_owners owners;
    float *muon_whole, *muon_exchange;
    double *sumsq, *host_sumsq; /* (1): on the device and, after a sync, on the host. */
    /* Called in a step when the update of a unit is queued, while others follow; NULL: no call. Not
     * called if owners orthogonalise matrices after the other parameters' update. */
    lt_err (*updated)(void *of, int unit);
    void *of;
    bool gathers_late; /* It is not called in the next step: more changes of the weights follow. */
} lt_optimiser;

/* queue: on which the gradients are computed; steps are queued after them. It must outlive the
 * optimiser. UNSUPPORTED: Muon with a part of a matrix. */
LT_MUST_USE lt_err lt_optimiser_open(lt_optimiser *o, const lt_recipe *r, lt_model *m,
                                     lt_queue *queue);
LT_MUST_USE lt_err lt_optimiser_open_share(lt_optimiser *o, const lt_recipe *r, lt_model *m,
                                           const lt_optimiser_share *share, lt_queue *queue);
void lt_optimiser_close(lt_optimiser *o);

/* Bytes that open takes for a model with this table, of shards or not (NULL). */
LT_MUST_USE lt_err lt_optimiser_measure(size_t *bytes, const lt_recipe *r, const lt_param_table *t,
                                        const lt_shards *shards);

/* Bytes that a checkpoint stores for a model with this table: master weights and moments. */
size_t lt_optimiser_state_bytes(const lt_recipe *r, const lt_param_table *t);

/* Queue the sum of squares of the gradients, which are contiguous; after a sync it is in
 * *o->host_sumsq. For parts: norm.h. */
LT_MUST_USE lt_err lt_optimiser_sumsq(lt_optimiser *o, const lt_param_buffer *gradients);

/* The state of outer steps, with a recipe of several sites. */
typedef struct {
    const lt_param_buffer *outer, *momentum;
} lt_outer_state;
lt_outer_state lt_optimiser_outer(lt_optimiser *o);

/* Queue one update of all parameters with gradients (n_elements), F32, times grad_scale, with the
 * plan's step and rates. */
LT_MUST_USE lt_err lt_optimiser_step(lt_optimiser *o, const lt_param_buffer *gradients,
                                     float grad_scale, const lt_step_plan *plan);

#endif

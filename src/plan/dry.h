/* dry.h: a training step of Lateen without a device: the same code queues the same ops on a backend
 * that computes nothing and sums the time that each would take.
 *
 * Only the sizes of tensors, not their contents, determine the ops of a step. So parameters,
 * activations and gradients get addresses without memory, and the pass and the optimiser queue the
 * same ops as on a GPU, for every family, level of recomputation and optimiser, without a second
 * description here. */
#ifndef LT_PLAN_DRY_H
#define LT_PLAN_DRY_H

#include "tensor/ops.h"
#include "train/recipe/recipe.h"

/* Seconds that an op with these arguments takes; ctx belongs to the caller. */
typedef double lt_dry_clock(const void *ctx, lt_op op, const void *args);
/* The same for bytes that are zeroed or copied. */
typedef double lt_dry_stream(const void *ctx, double bytes);

typedef struct {
    lt_dry_clock *clock;
    lt_dry_stream *stream;
    const void *ctx;
} lt_dry_rates;

/* Seconds of one optimiser step, by part. */
typedef struct {
    double ops_s[LT_OP_COUNT]; /* Seconds of each op in the pass and the optimiser. */
    int64_t calls[LT_OP_COUNT];
    double stream_s; /* Zeroing and copies. */
    double step_s;   /* The sum. */
} lt_dry_step;

/* One step of `micros` micro-batches on a device, with the rows and recompute level of o. */
LT_MUST_USE lt_err lt_dry_step_run(lt_dry_step *out, const lt_recipe *r, const lt_model_spec *spec,
                                   lt_dtype dtype, const lt_pass_options *o, int64_t micros,
                                   const lt_dry_rates *rates);

#endif

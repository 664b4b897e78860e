/* dry.h: a step of our own training without a device: the same code queues the same ops on a
 * backend that computes nothing and asks what each would take.
 *
 * The sizes of tensors decide which ops a step has; their contents decide nothing. So parameters,
 * activations and gradients get addresses that nobody may touch, and what the pass and the
 * optimiser queue is what they would queue on a GPU, for every family, level of recomputation and
 * optimiser, without a second description of them here. */
#ifndef LT_PLAN_DRY_H
#define LT_PLAN_DRY_H

#include "tensor/ops.h"
#include "train/recipe.h"

/* What one op takes: seconds of the arguments; ctx is the caller's. */
typedef double lt_dry_clock(const void *ctx, lt_op op, const void *args);
/* The same of bytes that are set to zero or copied. */
typedef double lt_dry_stream(const void *ctx, double bytes);

typedef struct {
    lt_dry_clock *clock;
    lt_dry_stream *stream;
    const void *ctx;
} lt_dry_rates;

/* Seconds of one optimiser step, and where they go. */
typedef struct {
    double ops_s[LT_OP_COUNT]; /* Of the pass and the optimiser. */
    int64_t calls[LT_OP_COUNT];
    double stream_s; /* Zeroing and copies. */
    double step_s;   /* The sum. */
} lt_dry_step;

/* One step of `micros` micro-batches of rows and recompute level as in o, on a device. */
LT_MUST_USE lt_err lt_dry_step_run(lt_dry_step *out, const lt_recipe *r, const lt_model_spec *spec,
                                   lt_dtype dtype, const lt_pass_options *o, int64_t micros,
                                   const lt_dry_rates *rates);

#endif

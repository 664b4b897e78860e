/* norm.h: the norm of gradients that are held in parts, summed in a fixed order.
 *
 * The layout of the whole model (lt_param.whole_at) is cut into cells of LT_NORM_CELL elements. A
 * part that holds elements of a cell has a partial sum for it: the sum of their squares, in order
 * of position. The total is the sum over the cells in rising order and, within a cell, over the
 * parts in rising order. So it depends on the partition but never on timing or threads; and if each
 * cell lies in one part (cuts at multiples of LT_NORM_CELL), it has the bits of the sum over the
 * whole.
 *
 * On a CPU, the total equals lt_optimiser_sumsq of the whole bit for bit, because the CPU's op sums
 * in these cells. On a GPU, lt_optimiser_sumsq has another order. */
#ifndef LT_TRAIN_NORM_H
#define LT_TRAIN_NORM_H

#include "model/params.h"
#include "parallel/shards.h"
#include "tensor/backend.h"

#define LT_NORM_CELL ((int64_t)1 << 16)

int64_t lt_norm_cells(const lt_param_table *t);

/* Queue the partial sums of the held elements: cells (lt_norm_cells) in F64, in device memory. */
LT_MUST_USE lt_err lt_norm_partials(double *cells, const lt_backend *be, lt_queue *queue,
                                    const lt_param_table *t, const lt_param_buffer *gradients);

/* The sum of squares from the partial sums of n parts, each (n_cells), on the host. */
double lt_norm_total(const double *const *parts, int n, int64_t n_cells);

/* Ranks that hold the same each sum a slice (parallel/slice.h) of every unit. Queue the sum of
 * squares of this rank's slices of the boxes that it answers for; *sum: F64, in the backend's
 * memory. Over all ranks each element of the model counts once, with the same bits at every ZeRO
 * level. t: the table of all that this rank of pp x tp holds; gradients: over it, or with a ZeRO
 * level of the slices alone. */
LT_MUST_USE lt_err lt_norm_share(double *sum, const lt_backend *be, lt_queue *queue,
                                 const lt_shards *shards, const lt_param_table *t,
                                 const lt_param_buffer *gradients);

#endif

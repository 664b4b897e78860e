/* dp.h: data parallelism. Rank r of n trains on rows r, r + n, ... of each step with weights that
  * are the same on all; gradients are then summed over the ranks, in their order, so every rank
  * makes the same update with the same bits. */
#ifndef LT_PARALLEL_DP_H
#define LT_PARALLEL_DP_H

#include "lateen/comm.h"
#include "model/params.h"

/* Each unit's gradients become their sum over the group, in place, F32; host memory. Units are
 * reduced one after the other while the caller goes through them. */
LT_MUST_USE lt_err lt_dp_sum_gradients(lt_group *g, const lt_param_buffer *gradients,
                                       const lt_param_table *table);

#endif

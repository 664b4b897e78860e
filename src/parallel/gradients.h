/* gradients.h: the gradients of a step become their sum over all ranks that hold the same
 * parameters.
 *
 *   which gradients                                are summed over which ranks
 *   all but experts'                               dp x cp: each has seen other tokens
 *   experts'                                       edp: ranks of ep have exchanged their tokens
 *   norms, routers, ... that tp does not divide    also tp: each rank has a part of the sum
 *   k and v rows that tp ranks share               also these ranks
 *   a tied embedding that two stages hold          also both stages
 *
 * Sums are in F32, in the order of the ranks, so every rank that holds a box gets the same bits.
 * All are collective calls, unit by unit in the same order on every rank; a rank's calls end in
 * order, so waiting for the last means waiting for all. Buffers are in the memory of the
 * device of lt_world_open_device, else in host memory. */
#ifndef LT_PARALLEL_GRADIENTS_H
#define LT_PARALLEL_GRADIENTS_H

#include "parallel/world.h"

/* Sum all units; complete on return. */
LT_MUST_USE lt_err lt_gradients_sum(const lt_world *w, const lt_param_table *t,
                                    const lt_param_buffer *gradients);
/* Queue the sums of one unit. *last: the last call; unchanged if there was none. */
LT_MUST_USE lt_err lt_gradients_sum_unit(const lt_world *w, const lt_param_table *t,
                                         const lt_param_buffer *gradients, int unit,
                                         lt_comm_work *last);
/* Queue only the sums over tp and, with `stages`, over both stages of a tied embedding; not those
 * over dp x cp. */
LT_MUST_USE lt_err lt_gradients_sum_copies(const lt_world *w, const lt_param_table *t,
                                           const lt_param_buffer *gradients, int unit, bool stages,
                                           lt_comm_work *last);

#endif

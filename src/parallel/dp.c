/* dp.c: see dp.h. */
#include "parallel/dp.h"

#include "base/error.h"

lt_err lt_dp_sum_gradients(lt_group *g, const lt_param_buffer *gradients,
                           const lt_param_table *table) {
    lt_comm_work last = 0;
    if (lt_group_size(g) == 1) {
        return LT_OK;
    }
    for (int u = 0; u < table->n_units; u++) {
        float *unit = gradients->base[u];
        if (unit != NULL && table->units[u].n_elements > 0) {
            LT_TRY(lt_all_reduce(g, unit, unit, table->units[u].n_elements, LT_F32, LT_REDUCE_SUM,
                                 &last));
        }
    }
    /* Collectives are done in the order of their calls. */
    return last > 0 ? lt_comm_wait(lt_group_comm(g), last) : LT_OK;
}

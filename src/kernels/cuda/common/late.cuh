/* late.cuh: ids that another op chooses: see lt_embed_args of tensor/ops.h. */
#ifndef LT_LATE_CUH
#define LT_LATE_CUH

#include "common/types.cuh"

/* id -1 - k stands for late[k], and for 0 if nothing was chosen. late NULL: all ids stand for
 * themselves. */
INLINE int late_id(int id, const int *late) {
    return id >= 0 || !late ? id : max(late[-1 - id], 0);
}

#endif

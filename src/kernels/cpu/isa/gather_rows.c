/* gather_rows.c: each row of y is the sum of some rows of x.
 *
 * MOVES     Parallel over rows of y. A row that names one other is copied; the terms of a sum are
 *           added vector by vector in registers. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/rows.h"

static void copy_row(const lt_gather_rows_args *a, int64_t i, int32_t row) {
    const size_t bytes = (size_t)a->y.shape[1] * lt_dtype_bytes(a->y.dtype);
    void *const y = at_element(&a->y, i * a->y.stride[0]);
    if (row < 0) {
        memset(y, 0, bytes);
    } else {
        memcpy(y, at_element(&a->x, row * a->x.stride[0]), bytes);
    }
}

LT_INLINE void sum_rows(const lt_gather_rows_args *a, int64_t i, const int32_t *index, int64_t n,
                        const lt_dtype dtype) {
    for (int64_t c = 0; c < a->y.shape[1]; c += VEC) {
        const int64_t columns = a->y.shape[1] - c;
        vf sum = {0};
        for (int64_t j = 0; j < n; j++) {
            if (index[j] >= 0) {
                sum += v_get(a->x.data, dtype, index[j] * a->x.stride[0] + c, columns);
            }
        }
        v_put(a->y.data, dtype, i * a->y.stride[0] + c, sum, columns);
    }
}

LT_INLINE void all_rows(const lt_gather_rows_args *a, const lt_dtype dtype) {
    const int32_t *const start = a->start.data, *const index = a->index.data;
    const int64_t rows = a->y.shape[0];
#pragma omp parallel for schedule(static) if (rows * a->y.shape[1] > PARALLEL_MIN)
    for (int64_t i = 0; i < rows; i++) {
        const int64_t first = start != NULL ? start[i] : i;
        const int64_t n = start != NULL ? start[i + 1] - first : 1;
        if (n == 1) {
            copy_row(a, i, index[first]);
        } else {
            sum_rows(a, i, index + first, n, dtype);
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_gather_rows)(lt_queue *q, const void *args) {
    const lt_gather_rows_args *a = args;
    (void)q;
    BY_DTYPE(a->y.dtype, all_rows, a);
    return LT_OK;
}

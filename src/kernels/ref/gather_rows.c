/* gather_rows.c (ref): y[i] = the sum of the rows of x that row i names. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

lt_err lt_ref_gather_rows(lt_queue *q, const lt_gather_rows_args *a) {
    (void)q;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < a->y.shape[0]; i++) {
        const bool sums = present(&a->start);
        const int64_t first = sums ? get_i32(&a->start, i) : i;
        const int64_t end = sums ? get_i32(&a->start, i + 1) : i + 1;
        for (int64_t c = 0; c < a->y.shape[1]; c++) {
            double y = 0.0;
            for (int64_t j = first; j < end; j++) {
                const int64_t row = get_i32(&a->index, j);
                y += row >= 0 ? get(&a->x, at2(&a->x, row, c)) : 0.0;
            }
            set(&a->y, at2(&a->y, i, c), y);
        }
    }
    return LT_OK;
}

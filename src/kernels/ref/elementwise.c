/* elementwise.c (ref): y = alpha a (+ beta b), sums of several, y = x converted, and the sum of
 * squares. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

static int64_t at_flat(const lt_tensor *t, int64_t row, int64_t c) {
    return row_start(t, row) + c * t->stride[t->n_dims - 1];
}

/* y = alpha a + beta b; y may be a or b. */
lt_err lt_ref_add(lt_queue *q, const lt_add_args *a) {
    (void)q;
    LT_ASSERT(n_rows(&a->y) == n_rows(&a->a) && row_width(&a->y) == row_width(&a->a));
    LT_ASSERT(!present(&a->b) || lt_tensor_count(&a->b) == lt_tensor_count(&a->y));
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < n_rows(&a->y); row++) {
        for (int64_t c = 0; c < row_width(&a->y); c++) {
            double y = (double)a->alpha * get(&a->a, at_flat(&a->a, row, c));
            if (present(&a->b)) {
                y += (double)a->beta * get(&a->b, at_flat(&a->b, row, c));
            }
            set(&a->y, at_flat(&a->y, row, c), y);
        }
    }
    return LT_OK;
}

/* In F32, unlike the other references: it defines the bits of sums over ranks. */
lt_err lt_ref_sum(lt_queue *q, const lt_sum_args *a) {
    (void)q;
    LT_ASSERT(a->n >= 1 && a->n <= LT_SUM_MOST);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < lt_tensor_count(&a->y); i++) {
        float y = present(&a->part) ? (float)get(&a->part, i) : 0.0f;
        for (int k = 0; k < a->n; k++) {
            const float x = (float)get(&a->x[k], i);
            y = k == 0 && !present(&a->part) ? x : y + x;
        }
        set(&a->y, i, y);
    }
    return LT_OK;
}

/* y = x, rounded to y's type. */
lt_err lt_ref_cast(lt_queue *q, const lt_cast_args *a) {
    (void)q;
    LT_ASSERT(n_rows(&a->y) == n_rows(&a->x) && row_width(&a->y) == row_width(&a->x));
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < n_rows(&a->y); row++) {
        for (int64_t c = 0; c < row_width(&a->y); c++) {
            set(&a->y, at_flat(&a->y, row, c), get(&a->x, at_flat(&a->x, row, c)));
        }
    }
    return LT_OK;
}

/* out (+)= sum of x^2, elements rising, on one thread. */
lt_err lt_ref_sumsq(lt_queue *q, const lt_sumsq_args *a) {
    double sum = 0.0;
    (void)q;
    LT_ASSERT(lt_tensor_contiguous(&a->x));
    for (int64_t i = 0; i < lt_tensor_count(&a->x); i++) {
        const double x = get(&a->x, i);
        sum += x * x;
    }
    set(&a->out, 0, sum + (a->accumulate ? get(&a->out, 0) : 0.0));
    return LT_OK;
}

/* rope.c (ref): rotary embedding, halves convention. With (c, s) = table[position][i] and N = 2 *
 * table.shape[1]:
 *     y[i] = x[i] c - x[i + N/2] s,   y[i + N/2] = x[i + N/2] c + x[i] s,   i < N/2;
 *                                     y[i] = x[i], i >= N
 * inverse takes -s for s: the transpose of the rotation, which is its backward pass. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

static void rotate_row(const lt_rope_args *a, int64_t r, int64_t h, int64_t pos) {
    const int64_t half = a->table.shape[1];
    for (int64_t i = 0; i < half; i++) {
        const double c = get(&a->table, at3(&a->table, pos, i, 0));
        const double s = get(&a->table, at3(&a->table, pos, i, 1)) * (a->inverse ? -1.0 : 1.0);
        const double x0 = get(&a->x, at3(&a->x, r, h, i));
        const double x1 = get(&a->x, at3(&a->x, r, h, i + half));
        set(&a->y, at3(&a->y, r, h, i), x0 * c - x1 * s);
        set(&a->y, at3(&a->y, r, h, i + half), x1 * c + x0 * s);
    }
    for (int64_t i = 2 * half; i < a->x.shape[2]; i++) {
        set(&a->y, at3(&a->y, r, h, i), get(&a->x, at3(&a->x, r, h, i)));
    }
}

lt_err lt_ref_rope(lt_queue *q, const lt_rope_args *a) {
    (void)q;
    LT_ASSERT(a->x.n_dims == 3 && a->y.n_dims == 3 && a->table.n_dims == 3);
    LT_ASSERT(a->table.shape[2] == 2 && 2 * a->table.shape[1] <= a->x.shape[2]);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->x.shape[0]; r++) {
        const int32_t pos = get_i32(&a->positions, at1(&a->positions, r));
        LT_ASSERT(pos >= 0 && pos < a->table.shape[0]);
        for (int64_t h = 0; h < a->x.shape[1]; h++) {
            rotate_row(a, r, h, pos);
        }
    }
    return LT_OK;
}

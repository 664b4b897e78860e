/* drop.c (ref): dropout; the formula is in tensor/ops.h. Four columns share a block of random
 * words. */
#include "base/rng.h"
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

/* The index of the first block of a row. */
static uint64_t block_of(const lt_drop_args *a, int64_t r) {
    const int64_t t = r % a->seq;
    const uint64_t row = a->first_row + (uint64_t)(r / a->seq) * a->row_step,
                   place = (uint64_t)(a->starts[t / a->piece] + t % a->piece);
    return ((row << LT_DROP_ROW_BITS) + place) * (uint64_t)a->blocks;
}

static void drop_row(const lt_drop_args *a, int64_t r) {
    const uint64_t first = block_of(a, r);
    for (int64_t c = 0; c < a->x.shape[1];) {
        const int64_t column = a->column + c;
        uint32_t words[4];
        lt_rng_block(words, a->seed, a->stream, first + (uint64_t)column / 4);
        for (int64_t k = column % 4; k < 4 && c < a->x.shape[1]; k++, c++) {
            const int64_t to = at2(&a->y, r, c);
            const double kept = words[k] < a->threshold
                                    ? 0.0
                                    : (double)a->factor * get(&a->x, at2(&a->x, r, c));
            set(&a->y, to, a->add ? get(&a->y, to) + kept : kept);
        }
    }
}

lt_err lt_ref_drop(lt_queue *q, const lt_drop_args *a) {
    (void)q;
    LT_ASSERT(a->x.shape[0] == a->y.shape[0] && a->x.shape[1] == a->y.shape[1]);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->x.shape[0]; r++) {
        drop_row(a, r);
    }
    return LT_OK;
}

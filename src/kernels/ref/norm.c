/* norm.c (ref): RMSNorm and LayerNorm, forward and backward, over the last dimension (C wide) of
 * any number of rows.
 *
 * Forward, with x' = x (+ add), as it was stored to sum when sum is there:
 *     rms:    rstd = 1 / sqrt(mean(x'^2) + eps),  y = x' rstd (gain_offset + gain)
 *     layer:  mean = mean(x'), rstd = 1 / sqrt(mean((x' - mean)^2) + eps),
 *             y = (x' - mean) rstd gain + bias
 * Backward, with n = the normalised x, w = the whole gain and g = dy w:
 *     rms:    dx = rstd (g - n mean(g n))              dgain += sum over rows of dy n
 *     layer:  dx = rstd (g - mean(g) - n mean(g n))    dgain as above, dbias += sum over rows of dy
 * dgain and dbias are summed before any dx is written, because dx may be dy's own memory. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

static double row_get(const lt_tensor *t, int64_t row, int64_t c) {
    return get(t, row_start(t, row) + c * t->stride[t->n_dims - 1]);
}

static void row_put(const lt_tensor *t, int64_t row, int64_t c, double v) {
    set(t, row_start(t, row) + c * t->stride[t->n_dims - 1], v);
}

/* Store x' = x + add to sum, each element once: sum may be in the memory of x or add. */
static void fold_row(const lt_tensor *x, const lt_tensor *add, const lt_tensor *sum, int64_t row) {
    if (present(sum)) {
        for (int64_t c = 0; c < row_width(x); c++) {
            row_put(sum, row, c, row_get(x, row, c) + (present(add) ? row_get(add, row, c) : 0.0));
        }
    }
}

/* x' of one element. If it is stored, this is the stored value, so that a norm recomputed from
 * sum gives the same bits. */
static double folded(const lt_tensor *x, const lt_tensor *add, const lt_tensor *sum, int64_t row,
                     int64_t c) {
    if (present(sum)) {
        return row_get(sum, row, c);
    }
    return row_get(x, row, c) + (present(add) ? row_get(add, row, c) : 0.0);
}

lt_err lt_ref_rmsnorm_fwd(lt_queue *q, const lt_rmsnorm_args *a) {
    const int64_t width = row_width(&a->x);

    (void)q;
    LT_ASSERT(row_width(&a->y) == width && n_rows(&a->y) == n_rows(&a->x));
    LT_ASSERT(a->gain.shape[0] == width);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < n_rows(&a->x); row++) {
        double sum_sq = 0.0, rstd;

        fold_row(&a->x, &a->add, &a->sum, row);
        for (int64_t c = 0; c < width; c++) {
            const double v = folded(&a->x, &a->add, &a->sum, row, c);
            sum_sq += v * v;
        }
        if (a->part == LT_NORM_MEASURE) {
            set(&a->rstd, row, sum_sq / (double)width);
            continue;
        }
        rstd = a->part == LT_NORM_GIVEN ? get(&a->rstd, row) : sum_sq / (double)width;
        rstd = 1.0 / sqrt(rstd + (double)a->eps);
        for (int64_t c = 0; c < width; c++) {
            const double v = folded(&a->x, &a->add, &a->sum, row, c);
            const double gain = (double)a->gain_offset + get(&a->gain, at1(&a->gain, c));
            row_put(&a->y, row, c, v * rstd * gain);
        }
        if (present(&a->rstd)) {
            set(&a->rstd, row, rstd);
        }
    }
    return LT_OK;
}

/* What both backward passes need: mean (0 for rms), rstd and gain of a row, and the two column
 * sums. */
typedef struct {
    lt_tensor dx, dgain, dbias, dy, x, gain, mean, rstd, mean_gn;
    double gain_offset;
    bool centred, add_dx;
    lt_norm_part part;
} norm_bwd;

static double normalised(const norm_bwd *b, int64_t row, int64_t c) {
    const double mean = b->centred ? get(&b->mean, row) : 0.0;
    return (row_get(&b->x, row, c) - mean) * get(&b->rstd, row);
}

static void bwd_params(const norm_bwd *b) {
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < row_width(&b->x); c++) {
        double dgain = 0.0, dbias = 0.0;
        for (int64_t row = 0; row < n_rows(&b->x); row++) {
            const double dy = row_get(&b->dy, row, c);
            dgain += dy * normalised(b, row, c);
            dbias += dy;
        }
        if (present(&b->dgain)) {
            const int64_t at = at1(&b->dgain, c);
            set(&b->dgain, at, get(&b->dgain, at) + dgain);
        }
        if (present(&b->dbias)) {
            const int64_t at = at1(&b->dbias, c);
            set(&b->dbias, at, get(&b->dbias, at) + dbias);
        }
    }
}

static void bwd_input(const norm_bwd *b) {
    const int64_t width = row_width(&b->x);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < n_rows(&b->x); row++) {
        const double rstd = get(&b->rstd, row);
        double mean_g = 0.0, mean_gn = 0.0;
        for (int64_t c = 0; c < width; c++) {
            const double g = row_get(&b->dy, row, c) *
                             (b->gain_offset + get(&b->gain, at1(&b->gain, c)));
            mean_g += g / (double)width;
            mean_gn += g * normalised(b, row, c) / (double)width;
        }
        if (b->part == LT_NORM_MEASURE) {
            set(&b->mean_gn, row, mean_gn);
            continue;
        }
        mean_gn = b->part == LT_NORM_GIVEN ? get(&b->mean_gn, row) : mean_gn;
        for (int64_t c = 0; c < width; c++) {
            const double g = row_get(&b->dy, row, c) *
                             (b->gain_offset + get(&b->gain, at1(&b->gain, c)));
            double dx = g - normalised(b, row, c) * mean_gn;
            if (b->centred) {
                dx -= mean_g;
            }
            row_put(&b->dx, row, c, rstd * dx + (b->add_dx ? row_get(&b->dx, row, c) : 0.0));
        }
    }
}

lt_err lt_ref_rmsnorm_bwd(lt_queue *q, const lt_rmsnorm_bwd_args *a) {
    const norm_bwd b = {.dx = a->dx,
                        .dgain = a->dgain,
                        .dy = a->dy,
                        .x = a->x,
                        .gain = a->gain,
                        .rstd = a->rstd,
                        .mean_gn = a->mean,
                        .gain_offset = (double)a->gain_offset,
                        .add_dx = a->add_dx,
                        .part = a->part};
    (void)q;
    LT_ASSERT(n_rows(&a->dy) == n_rows(&a->x) && present(&a->rstd));
    if (a->part != LT_NORM_MEASURE) {
        bwd_params(&b);
    }
    bwd_input(&b);
    return LT_OK;
}

lt_err lt_ref_layernorm_fwd(lt_queue *q, const lt_layernorm_args *a) {
    const int64_t width = row_width(&a->x);

    (void)q;
    LT_ASSERT(row_width(&a->y) == width && n_rows(&a->y) == n_rows(&a->x));
    LT_ASSERT(a->gain.shape[0] == width);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < n_rows(&a->x); row++) {
        double mean = 0.0, var = 0.0, rstd;

        fold_row(&a->x, &a->add, &a->sum, row);
        for (int64_t c = 0; c < width; c++) {
            mean += folded(&a->x, &a->add, &a->sum, row, c) / (double)width;
        }
        for (int64_t c = 0; c < width; c++) {
            const double d = folded(&a->x, &a->add, &a->sum, row, c) - mean;
            var += d * d / (double)width;
        }
        rstd = 1.0 / sqrt(var + (double)a->eps);
        for (int64_t c = 0; c < width; c++) {
            const double n = (folded(&a->x, &a->add, &a->sum, row, c) - mean) * rstd;
            const double bias = present(&a->bias) ? get(&a->bias, at1(&a->bias, c)) : 0.0;
            row_put(&a->y, row, c, n * get(&a->gain, at1(&a->gain, c)) + bias);
        }
        if (present(&a->mean)) {
            set(&a->mean, row, mean);
        }
        if (present(&a->rstd)) {
            set(&a->rstd, row, rstd);
        }
    }
    return LT_OK;
}

lt_err lt_ref_layernorm_bwd(lt_queue *q, const lt_layernorm_bwd_args *a) {
    const norm_bwd b = {.dx = a->dx,
                        .dgain = a->dgain,
                        .dbias = a->dbias,
                        .dy = a->dy,
                        .x = a->x,
                        .gain = a->gain,
                        .mean = a->mean,
                        .rstd = a->rstd,
                        .centred = true,
                        .add_dx = a->add_dx};
    (void)q;
    LT_ASSERT(n_rows(&a->dy) == n_rows(&a->x) && present(&a->rstd) && present(&a->mean));
    bwd_params(&b);
    bwd_input(&b);
    return LT_OK;
}

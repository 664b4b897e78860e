/* norm.c: RMSNorm and LayerNorm, forward and backward, over the last dimension of (R, C) or (R, H,
 * C) rows.
 *
 * MOVEMENT  A row is read from memory once and stays in L1 for the second pass (C floats). Forward
 *           moves x (+ add), y (+ sum); backward dy, x, dx: both memory bound (about 1 flop a
 *           byte).
 * THREADS   Rows are independent. dgain and dbias are summed over fixed chunks of rows (rows.h)
 *           into partial rows, which are then added in order: the same bits for any number of
 *           threads.
 * NUMERICS  LayerNorm's variance is two-pass (mean first). With sum, the row is normalised as it
 *           was stored there.
 * IN PLACE  dx may be dy: all of a row's dy is read before its dx is written. */
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scratch.h"

typedef struct {
    lt_tensor y, x, add, sum, gain, bias, mean, rstd;
    float eps, gain_offset;
    bool centred;
    lt_norm_part part;
    const float *gains, *biases; /* F32 copies; gains includes the offset, biases may be NULL. */
} norm_fwd;

/* Where the (possibly folded) input of a row is after the first pass. */
LT_INLINE void fold_row(const void *x, const void *add, void *sum, int64_t width,
                        const lt_dtype dtype) {
    for (int64_t c = 0; c < width; c += VEC) {
        const int64_t n = width - c;
        v_put(sum, dtype, c, v_get(x, dtype, c, n) + v_get(add, dtype, c, n), n);
    }
}

LT_INLINE void norm_row(const norm_fwd *f, int64_t row, int64_t outer, int64_t inner,
                        const lt_dtype dtype) {
    const int64_t width = width_of(&f->x);
    const void *x = at_element(&f->x, row_at(&f->x, outer, inner));
    void *y = at_element(&f->y, row_at(&f->y, outer, inner));
    if (f->sum.data != NULL) {
        void *sum = at_element(&f->sum, row_at(&f->sum, outer, inner));
        if (f->add.data != NULL) {
            fold_row(x, at_element(&f->add, row_at(&f->add, outer, inner)), sum, width, dtype);
        } else if (sum != x) {
            memcpy(sum, x, (size_t)width * (dtype == LT_F32 ? 4 : 2));
        }
        x = sum;
    }
    vf acc = {0};
    float mean = 0.0f;
    if (f->centred) {
        for (int64_t c = 0; c < width; c += VEC) {
            acc += v_get(x, dtype, c, width - c);
        }
        mean = v_sum(acc) / (float)width;
        acc = (vf){0};
    }
    for (int64_t c = 0; c < width; c += VEC) {
        const vf d = v_first(v_get(x, dtype, c, width - c) - mean, width - c, 0.0f);
        acc += d * d;
    }
    float *kept = f->rstd.data != NULL ? (float *)f->rstd.data + row : NULL;
    float mean_square = v_sum(acc) / (float)width;
    if (f->part == LT_NORM_MEASURE) {
        *kept = mean_square;
        return;
    }
    mean_square = f->part == LT_NORM_GIVEN ? *kept : mean_square;
    const float rstd = 1.0f / __builtin_sqrtf(mean_square + f->eps);
    for (int64_t c = 0; c < width; c += VEC) {
        const int64_t n = width - c;
        vf out = (v_get(x, dtype, c, n) - mean) * rstd * v_get(f->gains, LT_F32, c, n);
        if (f->biases != NULL) {
            out += v_get(f->biases, LT_F32, c, n);
        }
        v_put(y, dtype, c, out, n);
    }
    if (kept != NULL) {
        *kept = rstd;
    }
    if (f->mean.data != NULL) {
        ((float *)f->mean.data)[row] = mean;
    }
}

LT_INLINE void norm_rows(const norm_fwd *f, const lt_dtype dtype) {
    const int64_t inner = rows_inner(&f->x);
    const int64_t rows = rows_of(&f->x);
#pragma omp parallel for schedule(static) if (rows * width_of(&f->x) > PARALLEL_MIN)
    for (int64_t row = 0; row < rows; row++) {
        norm_row(f, row, row / inner, row % inner, dtype);
    }
}

/* gain (+ offset) and bias as F32 rows in scratch, followed by room for `extra` floats at *rest. */
static lt_err param_rows(const lt_tensor *gain, float offset, const lt_tensor *bias, int64_t extra,
                         const float **gains, const float **biases, float **rest) {
    const int64_t width = gain->shape[0];
    const int64_t room = (width + VEC - 1) / VEC * VEC;
    float *mem = NULL;
    LT_TRY(lt_cpu_scratch(&mem, LT_CPU_SLOT_PARTIAL, (size_t)(2 * room + extra) * sizeof *mem));
    for (int64_t c = 0; c < width; c++) {
        mem[c] = offset + f_load_as(gain->data, gain->dtype, c);
    }
    *gains = mem;
    *biases = NULL;
    if (bias != NULL && bias->data != NULL) {
        for (int64_t c = 0; c < width; c++) {
            mem[room + c] = f_load_as(bias->data, bias->dtype, c);
        }
        *biases = mem + room;
    }
    *rest = mem + 2 * room;
    return LT_OK;
}

static lt_err run_forward(norm_fwd *f) {
    float *unused;
    /* There is no memory for x', so y holds it, row by row. */
    if (f->sum.data == NULL && f->add.data != NULL) {
        f->sum = f->y;
    }
    LT_TRY(param_rows(&f->gain, f->gain_offset, &f->bias, 0, &f->gains, &f->biases, &unused));
    BY_DTYPE(f->x.dtype, norm_rows, f);
    return LT_OK;
}

lt_err LT_ISA_NAME(lt_cpu_rmsnorm_fwd)(lt_queue *q, const void *args) {
    const lt_rmsnorm_args *a = args;
    norm_fwd f = {.y = a->y,
                  .x = a->x,
                  .add = a->add,
                  .sum = a->sum,
                  .gain = a->gain,
                  .rstd = a->rstd,
                  .eps = a->eps,
                  .gain_offset = a->gain_offset,
                  .part = a->part};
    (void)q;
    return run_forward(&f);
}

lt_err LT_ISA_NAME(lt_cpu_layernorm_fwd)(lt_queue *q, const void *args) {
    const lt_layernorm_args *a = args;
    norm_fwd f = {.y = a->y,
                  .x = a->x,
                  .add = a->add,
                  .sum = a->sum,
                  .gain = a->gain,
                  .bias = a->bias,
                  .mean = a->mean,
                  .rstd = a->rstd,
                  .eps = a->eps,
                  .centred = true};
    (void)q;
    return run_forward(&f);
}

typedef struct {
    lt_tensor dx, dgain, dbias, dy, x, gain, mean, rstd, mean_gn;
    float gain_offset;
    bool centred, add_dx;
    lt_norm_part part;
    const float *gains;
    float *partial; /* (n_chunks, C) of dgain, then of dbias. */
    int64_t n_chunks;
} norm_bwd;

/* One row: its share of dgain and dbias is added to the chunk's partial rows, then dx is
 * written. */
LT_INLINE void norm_bwd_row(const norm_bwd *b, int64_t row, int64_t outer, int64_t inner,
                            float *dgain, float *dbias, const lt_dtype dtype) {
    const int64_t width = width_of(&b->x);
    const void *x = at_element(&b->x, row_at(&b->x, outer, inner));
    const void *dy = at_element(&b->dy, row_at(&b->dy, outer, inner));
    void *dx = at_element(&b->dx, row_at(&b->dx, outer, inner));
    const float rstd = ((const float *)b->rstd.data)[row];
    const float mean = b->centred ? ((const float *)b->mean.data)[row] : 0.0f;
    vf sum_g = {0};
    vf sum_gn = {0};
    for (int64_t c = 0; c < width; c += VEC) { /* dy is 0 in lanes beyond the row. */
        const int64_t n = width - c;
        const vf d = v_get(dy, dtype, c, n);
        const vf norm = (v_get(x, dtype, c, n) - mean) * rstd;
        const vf g = d * v_get(b->gains, LT_F32, c, n);
        sum_g += g;
        sum_gn += g * norm;
        v_put(dgain, LT_F32, c, v_get(dgain, LT_F32, c, n) + d * norm, n);
        if (dbias != NULL) {
            v_put(dbias, LT_F32, c, v_get(dbias, LT_F32, c, n) + d, n);
        }
    }
    const float mean_g = b->centred ? v_sum(sum_g) / (float)width : 0.0f;
    float mean_gn = v_sum(sum_gn) / (float)width;
    if (b->part == LT_NORM_MEASURE) {
        ((float *)b->mean_gn.data)[row] = mean_gn;
        return;
    }
    mean_gn = b->part == LT_NORM_GIVEN ? ((const float *)b->mean_gn.data)[row] : mean_gn;
    for (int64_t c = 0; c < width; c += VEC) {
        const int64_t n = width - c;
        const vf norm = (v_get(x, dtype, c, n) - mean) * rstd;
        const vf g = v_get(dy, dtype, c, n) * v_get(b->gains, LT_F32, c, n);
        vf out = rstd * (g - mean_g - norm * mean_gn);
        if (b->add_dx) {
            out += v_get(dx, dtype, c, n);
        }
        v_put(dx, dtype, c, out, n);
    }
}

LT_INLINE void norm_bwd_rows(const norm_bwd *b, const lt_dtype dtype) {
    const int64_t inner = rows_inner(&b->x);
    const int64_t rows = rows_of(&b->x);
    const int64_t width = width_of(&b->x);
#pragma omp parallel for schedule(static) if (rows * width > PARALLEL_MIN)
    for (int64_t chunk = 0; chunk < b->n_chunks; chunk++) {
        float *dgain = b->partial + chunk * width;
        float *dbias = b->dbias.data != NULL ? b->partial + (b->n_chunks + chunk) * width : NULL;
        memset(dgain, 0, (size_t)width * sizeof *dgain);
        if (dbias != NULL) {
            memset(dbias, 0, (size_t)width * sizeof *dbias);
        }
        for (int64_t row = chunk_start(rows, b->n_chunks, chunk);
             row < chunk_start(rows, b->n_chunks, chunk + 1); row++) {
            norm_bwd_row(b, row, row / inner, row % inner, dgain, dbias, dtype);
        }
    }
}

static lt_err run_backward(norm_bwd *b) {
    const int64_t width = width_of(&b->x);
    const float *unused;
    b->n_chunks = row_chunks(rows_of(&b->x));
    LT_TRY(param_rows(&b->gain, b->gain_offset, NULL, 2 * b->n_chunks * width, &b->gains, &unused,
                      &b->partial));
    BY_DTYPE(b->x.dtype, norm_bwd_rows, b);
    if (b->dgain.data != NULL && b->part != LT_NORM_MEASURE) {
        add_partials(b->dgain.data, b->partial, b->n_chunks, width);
    }
    if (b->dbias.data != NULL) {
        add_partials(b->dbias.data, b->partial + b->n_chunks * width, b->n_chunks, width);
    }
    return LT_OK;
}

lt_err LT_ISA_NAME(lt_cpu_rmsnorm_bwd)(lt_queue *q, const void *args) {
    const lt_rmsnorm_bwd_args *a = args;
    norm_bwd b = {.dx = a->dx,
                  .dgain = a->dgain,
                  .dy = a->dy,
                  .x = a->x,
                  .gain = a->gain,
                  .rstd = a->rstd,
                  .mean_gn = a->mean,
                  .gain_offset = a->gain_offset,
                  .add_dx = a->add_dx,
                  .part = a->part};
    (void)q;
    return run_backward(&b);
}

lt_err LT_ISA_NAME(lt_cpu_layernorm_bwd)(lt_queue *q, const void *args) {
    const lt_layernorm_bwd_args *a = args;
    norm_bwd b = {.dx = a->dx,
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
    return run_backward(&b);
}

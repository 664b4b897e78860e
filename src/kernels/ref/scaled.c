/* scaled.c (ref): matrices of 8-bit floats with scales: y = x rounded, and products of two of them.
 *
 * A block's scale is lt_scale_of its largest magnitude; y = x / scale to the nearest of the 8-bit
 * type. Products: sum over k, rising, of (a scale_a) (b scale_b), in double, so neither scaling
 * rounds. */
#include "kernels/host.h"
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

lt_tensor lt_scale_tensor(void *data, lt_scale_kind kind, int64_t rows, int64_t cols) {
    const int64_t across = (cols + LT_SCALE_SPAN - 1) / LT_SCALE_SPAN,
                  down = (rows + LT_SCALE_SPAN - 1) / LT_SCALE_SPAN;
    return kind == LT_SCALE_TENSOR ? lt_tensor_1d(data, LT_F32, 1)
           : kind == LT_SCALE_ROW  ? lt_tensor_2d(data, LT_F32, across, rows)
                                   : lt_tensor_2d(data, LT_F32, down, across);
}

/* The scale of element (r, c). */
static double scale_at(const lt_tensor *scale, lt_scale_kind kind, int64_t r, int64_t c) {
    return kind == LT_SCALE_TENSOR ? get(scale, 0)
           : kind == LT_SCALE_ROW  ? get(scale, at2(scale, c / LT_SCALE_SPAN, r))
                                   : get(scale, at2(scale, r / LT_SCALE_SPAN, c / LT_SCALE_SPAN));
}

/* The matrix x, or x transposed. */
typedef struct {
    const lt_tensor *x;
    bool transposed;
    int64_t rows, cols;
} source;

static double value(const source *s, int64_t r, int64_t c) {
    return get(s->x, s->transposed ? at2(s->x, c, r) : at2(s->x, r, c));
}

static void round_by(const source *s, const lt_tensor *y, int64_t r0, int64_t r1, int64_t c0,
                     int64_t c1, float inverse) {
    for (int64_t r = r0; r < r1; r++) {
        for (int64_t c = c0; c < c1; c++) {
            set(y, at2(y, r, c), (double)((float)value(s, r, c) * inverse));
        }
    }
}

/* Round rows [r0, r1) of columns [c0, c1) with one scale. NaN counts as larger than any
 * number. */
static float round_block(const source *s, const lt_tensor *y, int64_t r0, int64_t r1, int64_t c0,
                         int64_t c1) {
    float amax = 0.0f, inverse, scale;
    for (int64_t r = r0; r < r1; r++) {
        for (int64_t c = c0; c < c1; c++) {
            const float x = fabsf((float)value(s, r, c));
            amax = x > amax || isnan(x) ? x : amax;
        }
    }
    scale = lt_scale_of(amax, y->dtype == LT_F8_E5M2, &inverse);
    round_by(s, y, r0, r1, c0, c1, inverse);
    return scale;
}

static void cast_to(const source *s, const lt_tensor *y, const lt_tensor *scale, lt_scale_kind kind,
                    bool given) {
    const int64_t n = LT_SCALE_SPAN;
    LT_ASSERT(y->n_dims == 2 && y->shape[0] == s->rows && y->shape[1] == s->cols);
    LT_ASSERT(y->dtype == LT_F8_E4M3 || y->dtype == LT_F8_E5M2);
    if (kind == LT_SCALE_TENSOR && given) {
        round_by(s, y, 0, s->rows, 0, s->cols, 1.0f / (float)get(scale, 0));
        return;
    }
    if (kind == LT_SCALE_TENSOR) {
        set(scale, 0, (double)round_block(s, y, 0, s->rows, 0, s->cols));
        return;
    }
    const int64_t high = kind == LT_SCALE_ROW ? 1 : n;
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < s->rows; r += high) {
        for (int64_t c = 0; c < s->cols; c += n) {
            const float x = round_block(s, y, r, min_i64(r + high, s->rows), c,
                                        min_i64(c + n, s->cols));
            set(scale, kind == LT_SCALE_ROW ? at2(scale, c / n, r) : at2(scale, r / n, c / n),
                (double)x);
        }
    }
}

lt_err lt_ref_cast_scaled(lt_queue *q, const lt_cast_scaled_args *a) {
    const source plain = {&a->x, false, a->x.shape[0], a->x.shape[1]},
                 transposed = {&a->x, true, a->x.shape[1], a->x.shape[0]};
    (void)q;
    LT_ASSERT(a->x.n_dims == 2);
    if (present(&a->y)) {
        cast_to(&plain, &a->y, &a->scale, a->kind, a->given);
    }
    if (present(&a->t)) {
        cast_to(&transposed, &a->t, &a->t_scale, a->t_kind, a->given);
    }
    return LT_OK;
}

/* The values of all 256 bytes. A table pays because a product reads every element once for each
 * row of the other matrix. */
static void byte_values(double values[256], lt_dtype dtype) {
    LT_ASSERT(dtype == LT_F8_E4M3 || dtype == LT_F8_E5M2);
    for (int byte = 0; byte < 256; byte++) {
        values[byte] = (double)lt_f8_to_f32((uint8_t)byte, dtype == LT_F8_E5M2);
    }
}

lt_err lt_ref_matmul_scaled(lt_queue *q, const lt_matmul_scaled_args *a) {
    const int64_t n_k = a->a.shape[1];
    const uint8_t *const a_bytes = a->a.data, *const b_bytes = a->b.data;
    double a_value[256], b_value[256];
    (void)q;
    LT_ASSERT(a->y.n_dims == 2 && a->a.shape[0] == a->y.shape[0]);
    LT_ASSERT(a->b.shape[0] == a->y.shape[1] && a->b.shape[1] == n_k);
    LT_ASSERT(a->a_kind != LT_SCALE_BLOCK && a->b_kind != LT_SCALE_ROW);
    byte_values(a_value, a->a.dtype);
    byte_values(b_value, a->b.dtype);
#pragma omp parallel for schedule(static)
    for (int64_t m = 0; m < a->y.shape[0]; m++) {
        for (int64_t n = 0; n < a->y.shape[1]; n++) {
            double sum = 0.0;
            /* A span with one pair of scales. */
            for (int64_t from = 0; from < n_k; from += LT_SCALE_SPAN) {
                double part = 0.0;
                for (int64_t k = from; k < min_i64(from + LT_SCALE_SPAN, n_k); k++) {
                    part += a_value[a_bytes[at2(&a->a, m, k)]] * b_value[b_bytes[at2(&a->b, n, k)]];
                }
                sum += part * scale_at(&a->a_scale, a->a_kind, m, from) *
                       scale_at(&a->b_scale, a->b_kind, n, from);
            }
            sum += present(&a->bias) ? get(&a->bias, at1(&a->bias, n)) : 0.0;
            sum += a->accumulate ? get(&a->y, at2(&a->y, m, n)) : 0.0;
            set(&a->y, at2(&a->y, m, n), sum);
        }
    }
    return LT_OK;
}

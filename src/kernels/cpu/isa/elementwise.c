/* elementwise.c: add, cast, column sums and sum of squares. All are memory bound, so each reads its
 * inputs once, in order. */
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/scratch.h"

/* All tensors of a call as (rows, width), which is a single row if everything is contiguous. */
typedef struct {
    int64_t rows, width;
} extent;

#define PIECE 8192 /* Elements that a thread takes at a time if there is only one row. */

static void add_piece(const lt_add_args *a, int64_t at_y, int64_t at_a, int64_t at_b,
                      int64_t count) {
    const float alpha = a->alpha;
    for (int64_t c = 0; c < count; c += VEC) {
        const int64_t n = count - c;
        vf y = alpha * get_any(a->a.data, a->a.dtype, at_a + c, n);
        if (a->b.data != NULL) {
            y += a->beta * get_any(a->b.data, a->b.dtype, at_b + c, n);
        }
        put_any(a->y.data, a->y.dtype, at_y + c, y, n);
    }
}

lt_err LT_ISA_NAME(lt_cpu_add)(lt_queue *q, const void *args) {
    const lt_add_args *a = args;
    const int64_t count = lt_tensor_count(&a->y);
    (void)q;
    if (lt_tensor_contiguous(&a->y) && lt_tensor_contiguous(&a->a) &&
        (a->b.data == NULL || lt_tensor_contiguous(&a->b))) {
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
        for (int64_t i = 0; i < count; i += PIECE) {
            add_piece(a, i, i, i, count - i < PIECE ? count - i : PIECE);
        }
        return LT_OK;
    }
    const int64_t inner = rows_inner(&a->y);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t r = 0; r < rows_of(&a->y); r++) {
        const int64_t at_b = a->b.data == NULL ? 0 : row_at(&a->b, r / inner, r % inner);
        add_piece(a, row_at(&a->y, r / inner, r % inner), row_at(&a->a, r / inner, r % inner), at_b,
                  width_of(&a->y));
    }
    return LT_OK;
}

lt_err LT_ISA_NAME(lt_cpu_cast)(lt_queue *q, const void *args) {
    const lt_cast_args *a = args;
    const lt_add_args copy = {.y = a->y, .a = a->x, .alpha = 1.0f};
    return LT_ISA_NAME(lt_cpu_add)(q, &copy);
}

/* y (N) += sums of the rows' columns: fixed chunks of rows into partial rows, four rows at a
 * time. */
LT_INLINE void colsum_chunk(const lt_tensor *x, int64_t from, int64_t to, float *sum,
                            const lt_dtype dtype) {
    const int64_t width = x->shape[1];
    const int64_t stride = x->stride[0];
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t r = from; r < to; r += 4) {
        const int64_t rows = to - r < 4 ? to - r : 4;
        for (int64_t c = 0; c < width; c += VEC) {
            const int64_t n = width - c;
            vf s = v_get(sum, LT_F32, c, n);
            if (rows == 4) {
                s += (v_get(x->data, dtype, r * stride + c, n) +
                      v_get(x->data, dtype, (r + 1) * stride + c, n)) +
                     (v_get(x->data, dtype, (r + 2) * stride + c, n) +
                      v_get(x->data, dtype, (r + 3) * stride + c, n));
            } else {
                for (int64_t i = 0; i < rows; i++) {
                    s += v_get(x->data, dtype, (r + i) * stride + c, n);
                }
            }
            v_put(sum, LT_F32, c, s, n);
        }
    }
}

LT_INLINE void colsum_chunks(const lt_tensor *x, float *partial, int64_t n_chunks,
                             const lt_dtype dtype) {
    const int64_t rows = x->shape[0];
#pragma omp parallel for schedule(static) if (rows * x->shape[1] > PARALLEL_MIN)
    for (int64_t chunk = 0; chunk < n_chunks; chunk++) {
        colsum_chunk(x, chunk_start(rows, n_chunks, chunk), chunk_start(rows, n_chunks, chunk + 1),
                     partial + chunk * x->shape[1], dtype);
    }
}

lt_err LT_ISA_NAME(lt_cpu_colsum)(lt_queue *q, const void *args) {
    const lt_colsum_args *a = args;
    const int64_t n_chunks = row_chunks(a->x.shape[0]);
    float *partial = NULL;
    (void)q;
    LT_ASSERT(a->y.shape[0] == a->x.shape[1]);
    LT_TRY(lt_cpu_scratch(&partial, LT_CPU_SLOT_PARTIAL,
                          (size_t)(n_chunks * a->x.shape[1]) * sizeof *partial));
    BY_DTYPE(a->x.dtype, colsum_chunks, &a->x, partial, n_chunks);
    add_partials(a->y.data, partial, n_chunks, a->x.shape[1]);
    return LT_OK;
}

/* 256 KB of elements: large enough to hide a thread's start, small enough to balance. */
#define SUMSQ_CHUNK 65536

/* Sum of squares of count floats, in double, so that a gradient of 1e30 does not overflow. */
static double sumsq_piece(const float *x, int64_t count) {
    vd low = {0};
    vd high = {0};
    double total = 0.0;
    int64_t i = 0;
    for (; i + VEC <= count; i += VEC) {
        const vd a = __builtin_convertvector(*(const vf_half_mem *)(x + i), vd);
        const vd b = __builtin_convertvector(*(const vf_half_mem *)(x + i + VEC / 2), vd);
        low += a * a;
        high += b * b;
    }
    low += high;
    for (int lane = 0; lane < VEC / 2; lane++) {
        total += low[lane];
    }
    for (; i < count; i++) {
        total += (double)x[i] * (double)x[i];
    }
    return total;
}

lt_err LT_ISA_NAME(lt_cpu_sumsq)(lt_queue *q, const void *args) {
    const lt_sumsq_args *a = args;
    const int64_t count = lt_tensor_count(&a->x);
    const int64_t n_chunks = (count + SUMSQ_CHUNK - 1) / SUMSQ_CHUNK;
    const float *x = a->x.data;
    double *out = a->out.data;
    double *partial = NULL;
    double sum = 0.0;
    (void)q;
    LT_TRY(lt_cpu_scratch(&partial, LT_CPU_SLOT_PARTIAL, (size_t)n_chunks * sizeof *partial));
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < n_chunks; i++) {
        const int64_t left = count - i * SUMSQ_CHUNK;
        partial[i] = sumsq_piece(x + i * SUMSQ_CHUNK, left < SUMSQ_CHUNK ? left : SUMSQ_CHUNK);
    }
    for (int64_t i = 0; i < n_chunks; i++) {
        sum += partial[i];
    }
    *out = sum + (a->accumulate ? *out : 0.0);
    return LT_OK;
}

/* lora.c: adapters, where each row may have another one (lora_add, lora_scale in tensor/ops.h).
 *
 * BOUND     Memory: with as many adapters as rows, a number of A or B is read once, for 2 flops.
 * MAP       One parallel region has both products of all parts; products of experts would need two
 *           regions a part. First a thread computes BLOCK_U numbers of u of a row, which read as
 *           many rows of A; then, after a barrier, BLOCK_N vectors of columns of a row of y. Rows
 *           with the same adapter follow each other, so the adapter is still in a cache.
 * ORDER     A number of u is a sum of vectors along K, and one of y a sum over rising rank. So the
 *           bits of a row depend neither on other rows nor on the threads. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/rows.h"

#define BLOCK_U 4
#define BLOCK_N 4

static int64_t pieces(int64_t count, int64_t size) {
    return (count + size - 1) / size;
}

static int64_t place_of(const lt_lora_add_args *a, int64_t row) {
    return ((const int32_t *)a->place.data)[row * a->place.stride[0]];
}

/* Numbers first .. first + n of a row's u. */
LT_INLINE void shrink(const lt_lora_add_args *a, int64_t row, int64_t place, int64_t first,
                      const int n, const lt_dtype dtype) {
    const int64_t K = a->x.shape[1], rank = a->b.shape[1], whole = K / VEC * VEC;
    int64_t at[BLOCK_U] = {0};
    vf sum[BLOCK_U] = {{0}};
#pragma GCC unroll 4
    for (int i = 0; i < n; i++) {
        const int64_t j = first + i;
        at[i] = place * a->a.stride[0] + j / rank * a->a.stride[1] + j % rank * a->a.stride[2];
    }
    for (int64_t k = 0; k < whole; k += VEC) {
        const vf x = v_load_as(a->x.data, dtype, row * a->x.stride[0] + k);
#pragma GCC unroll 4
        for (int i = 0; i < n; i++) {
            sum[i] = v_fma(v_load_as(a->a.data, dtype, at[i] + k), x, sum[i]);
        }
    }
    for (int i = 0; i < n; i++) {
        if (whole < K) {
            const vf x = v_load_as_n(a->x.data, dtype, row * a->x.stride[0] + whole, K - whole);
            sum[i] = v_fma(v_load_as_n(a->a.data, dtype, at[i] + whole, K - whole), x, sum[i]);
        }
        ((float *)a->u.data)[row * a->u.stride[0] + first + i] = v_sum(sum[i]);
    }
}

/* n columns of a part of a row of y, at most BLOCK_N vectors, starting at column `from` of the
 * part. */
LT_INLINE void expand(const lt_lora_add_args *a, int64_t row, int64_t place, int part, int64_t from,
                      int64_t n, const lt_dtype dtype) {
    const lt_lora_add_part *p = &a->parts[part];
    const int64_t rank = a->b.shape[1];
    const float *u = (const float *)a->u.data + row * a->u.stride[0] + part * rank;
    const float scale = a->scale.data != NULL
                            ? ((const float *)a->scale.data)[row * a->scale.stride[0]]
                            : 1.0f;
    const int64_t b = place * a->b.stride[0] + p->first_of_b + from,
                  y = row * a->y.stride[0] + p->first_of_y + from;
    vf sum[BLOCK_N] = {{0}};
    for (int64_t r = 0; r < rank; r++) {
        const vf x = v_set(u[r]);
#pragma GCC unroll 4
        for (int i = 0; i < BLOCK_N; i++) {
            if (i * VEC < n) {
                const int64_t at = b + r * a->b.stride[1] + i * VEC;
                sum[i] = v_fma(x, v_get(a->b.data, dtype, at, n - i * VEC), sum[i]);
            }
        }
    }
    for (int i = 0; i * VEC < n; i++) {
        const int64_t at = y + i * VEC, left = n - i * VEC;
        v_put(a->y.data, dtype, at, v_fma(v_set(scale), sum[i], v_get(a->y.data, dtype, at, left)),
              left);
    }
}

LT_INLINE void add_all(const lt_lora_add_args *a, const lt_dtype dtype) {
    const int64_t rows = a->x.shape[0], width = BLOCK_N * VEC;
    const int64_t n_u = a->n_parts * a->b.shape[1], u_pieces = pieces(n_u, BLOCK_U);
    int64_t columns = 0;
    for (int i = 0; i < a->n_parts; i++) {
        columns = a->parts[i].columns > columns ? a->parts[i].columns : columns;
    }
    const int64_t y_pieces = pieces(columns, width);
#pragma omp parallel if (rows * n_u * a->x.shape[1] > PARALLEL_MIN)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows * u_pieces; i++) {
            const int64_t row = i / u_pieces, first = i % u_pieces * BLOCK_U;
            const int64_t place = place_of(a, row);
            if (place >= 0 && first + BLOCK_U <= n_u) {
                shrink(a, row, place, first, BLOCK_U, dtype);
            } else if (place >= 0) {
                shrink(a, row, place, first, (int)(n_u - first), dtype);
            }
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows * a->n_parts * y_pieces; i++) {
            const int64_t row = i / (a->n_parts * y_pieces), from = i % y_pieces * width;
            const int part = (int)(i / y_pieces % a->n_parts);
            const int64_t place = place_of(a, row), left = a->parts[part].columns - from;
            if (place >= 0 && left >= width) {
                expand(a, row, place, part, from, width, dtype);
            } else if (place >= 0 && left > 0) {
                expand(a, row, place, part, from, left, dtype);
            }
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_lora_add)(lt_queue *q, const void *args) {
    const lt_lora_add_args *a = args;
    (void)q;
    BY_DTYPE(a->x.dtype, add_all, a);
    return LT_OK;
}

/* DoRA's factors: one pass over y, whose rows are divided among the threads. */
LT_INLINE void scale_rows(const lt_lora_scale_args *a, const lt_dtype dtype) {
    const int64_t rows = a->y.shape[0], cols = a->y.shape[1];
#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_MIN)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t place = ((const int32_t *)a->place.data)[row * a->place.stride[0]],
                      y = row * a->y.stride[0];
        for (int64_t c = 0; place >= 0 && c < cols; c += VEC) {
            const int64_t left = cols - c;
            const vf factor = v_get(a->factor.data, LT_F32, place * a->factor.stride[0] + c, left);
            const vf offset = a->offset.data != NULL ? v_get(a->offset.data, LT_F32,
                                                             place * a->offset.stride[0] + c, left)
                                                     : v_set(0.0f);
            v_put(a->y.data, dtype, y + c,
                  v_fma(factor, v_get(a->y.data, dtype, y + c, left), offset), left);
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_lora_scale)(lt_queue *q, const void *args) {
    const lt_lora_scale_args *a = args;
    (void)q;
    BY_DTYPE(a->y.dtype, scale_rows, a);
    return LT_OK;
}

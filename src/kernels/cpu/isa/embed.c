/* embed.c: embedding lookup, its gradient, and rotary embedding.
 *
 * EMBED     Forward copies rows (parallel over rows). Backward adds rows of dy to rows of the table
 *           in order of rows: parallel over blocks of columns, so every element of the table is
 *           summed by one thread in that order, for any number of threads. Tables of other types
 *           than F32 and BF16 are decoded.
 * ROPE      A row's cos and sin are split out of the interleaved table once and serve all its
 *           heads. y may be x. */
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/cpu.h"
#include "tensor/block.h"

#define COLUMNS 64 /* A backward task covers 256 bytes of each row. */

static bool holds(const lt_tensor *table, int64_t row) {
    return row >= 0 && row < table->shape[0];
}

/* The table's row for the id of row r, which another op may have chosen; -1: not in this part. */
static int64_t table_row(const lt_embed_args *a, int64_t r) {
    int32_t id = ((const int32_t *)a->ids.data)[r * a->ids.stride[0]];
    if (id < 0 && a->late.data != NULL) {
        LT_ASSERT(-1 - id < a->late.shape[0]);
        id = ((const int32_t *)a->late.data)[(-1 - id) * a->late.stride[0]];
        id = id < 0 ? 0 : id;
    }
    if (a->part) {
        return holds(&a->table, id - a->first) ? id - a->first : -1;
    }
    LT_ASSERT(holds(&a->table, id));
    return id;
}

static void zero_row(const lt_tensor *y, int64_t r) {
    memset(at_element(y, r * y->stride[0]), 0, (size_t)y->shape[1] * lt_dtype_bytes(y->dtype));
}

LT_INLINE void embed_row(const lt_embed_args *a, int64_t r, const lt_dtype table_dtype,
                         const lt_dtype y_dtype) {
    const int64_t row = table_row(a, r), at = row * a->table.stride[0];
    int64_t pos_at = 0;
    if (row < 0) {
        zero_row(&a->y, r);
        return;
    }
    if (a->pos_table.data != NULL) {
        const int32_t position = ((const int32_t *)a->positions.data)[r * a->positions.stride[0]];
        LT_ASSERT(position >= 0 && position < a->pos_table.shape[0]);
        pos_at = position * a->pos_table.stride[0];
    }
    for (int64_t c = 0; c < a->y.shape[1]; c += VEC) {
        const int64_t n = a->y.shape[1] - c;
        vf x = a->scale * v_get(a->table.data, table_dtype, at + c, n);
        if (a->pos_table.data != NULL) {
            x += v_get(a->pos_table.data, table_dtype, pos_at + c, n);
        }
        v_put(a->y.data, y_dtype, r * a->y.stride[0] + c, x, n);
    }
}

/* Decode a row of a quantised table to F32, 256 elements at a time. */
static void embed_row_decoded(const lt_embed_args *a, int64_t r) {
    const int64_t at = table_row(a, r), width = a->y.shape[1];
    float *y = (float *)a->y.data + r * a->y.stride[0];
    if (at < 0) {
        zero_row(&a->y, r);
        return;
    }
    const lt_tensor row = lt_tensor_rows(&a->table, at, 1);
    for (int64_t c = 0; c < width; c += LT_BLOCK_SUPER) {
        float x[LT_BLOCK_SUPER];
        const int64_t n = width - c < LT_BLOCK_SUPER ? width - c : LT_BLOCK_SUPER;
        const char *blocks = (const char *)row.data + lt_dtype_row_bytes(row.dtype, c);
        if (row.dtype == LT_NF4_DOUBLE) {
            lt_nf4_double_decode(x, blocks, a->table_scales.data, (at * width + c) / LT_BLOCK_NF4,
                                 n / LT_BLOCK_NF4);
        } else {
            lt_block_decode(x, row.dtype, blocks, (size_t)n);
        }
        for (int64_t i = 0; i < n; i++) {
            y[c + i] = a->scale * x[i];
        }
    }
    if (a->pos_table.data != NULL) {
        const int32_t position = ((const int32_t *)a->positions.data)[r * a->positions.stride[0]];
        LT_ASSERT(position >= 0 && position < a->pos_table.shape[0]);
        const float *pos = (const float *)a->pos_table.data + position * a->pos_table.stride[0];
        for (int64_t c = 0; c < width; c++) {
            y[c] += pos[c];
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_embed_fwd)(lt_queue *q, const void *args) {
    const lt_embed_args *a = args;
    const bool from_f32 = a->table.dtype == LT_F32;
    const bool to_f32 = a->y.dtype == LT_F32;
    const bool f32_positions = a->pos_table.data != NULL && a->pos_table.dtype == LT_F32;
    const bool decoded = to_f32 && !from_f32 && (a->table.dtype != LT_BF16 || f32_positions);
    const int64_t rows = a->y.shape[0];
    (void)q;
    LT_ASSERT(a->table.shape[1] == a->y.shape[1] && a->ids.shape[0] == rows);
#pragma omp parallel for schedule(static) if (rows * a->y.shape[1] > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        if (decoded) {
            embed_row_decoded(a, r);
        } else if (from_f32 && to_f32) {
            embed_row(a, r, LT_F32, LT_F32);
        } else if (from_f32) {
            embed_row(a, r, LT_F32, LT_BF16);
        } else if (to_f32) {
            embed_row(a, r, LT_BF16, LT_F32);
        } else {
            embed_row(a, r, LT_BF16, LT_BF16);
        }
    }
    return LT_OK;
}

/* A table whose gradient is accumulated: its ids, and the id of its first row. */
typedef struct {
    const lt_tensor *table, *ids;
    int64_t first;
    float scale;
} added;

/* Whether row r of dy belongs to this part. */
static bool counts(const lt_embed_bwd_args *a, int64_t r) {
    const int32_t id = ((const int32_t *)a->ids.data)[r * a->ids.stride[0]];
    return !a->part || holds(&a->dtable, id - a->first);
}

LT_INLINE void add_block(const lt_embed_bwd_args *a, const added *to_table, int64_t from,
                         int64_t to, const lt_dtype dtype) {
    const lt_tensor *const table = to_table->table, *const ids = to_table->ids, *const dy = &a->dy;
    const float scale = to_table->scale;
    for (int64_t r = 0; r < dy->shape[0]; r++) {
        const int64_t row = ((const int32_t *)ids->data)[r * ids->stride[0]] - to_table->first;
        if (!counts(a, r)) {
            continue;
        }
        LT_ASSERT(holds(table, row));
        float *dst = (float *)table->data + row * table->stride[0];
        for (int64_t c = from; c < to; c += VEC) {
            const vf d = v_get(dy->data, dtype, r * dy->stride[0] + c, to - c);
            v_put(dst, LT_F32, c, v_get(dst, LT_F32, c, to - c) + scale * d, to - c);
        }
    }
}

static void add_rows(const lt_embed_bwd_args *a, const added *to_table) {
    const int64_t width = a->dy.shape[1];
#pragma omp parallel for schedule(static) if (a->dy.shape[0] * width > PARALLEL_MIN)
    for (int64_t c = 0; c < width; c += COLUMNS) {
        const int64_t end = width - c < COLUMNS ? width : c + COLUMNS;
        BY_DTYPE(a->dy.dtype, add_block, a, to_table, c, end);
    }
}

lt_err LT_ISA_NAME(lt_cpu_embed_bwd)(lt_queue *q, const void *args) {
    const lt_embed_bwd_args *a = args;
    (void)q;
    if (a->dtable.data != NULL) {
        add_rows(a, &(added){&a->dtable, &a->ids, a->part ? a->first : 0, a->scale});
    }
    if (a->dpos_table.data != NULL) {
        add_rows(a, &(added){&a->dpos_table, &a->positions, 0, 1.0f});
    }
    return LT_OK;
}

LT_INLINE void rope_head(const void *x, void *y, const float *cosine, const float *sine,
                         int64_t half, int64_t width, const lt_dtype dtype) {
    for (int64_t i = 0; i < half; i += VEC) {
        const int64_t n = half - i;
        const vf a = v_get(x, dtype, i, n);
        const vf b = v_get(x, dtype, half + i, n);
        const vf c = v_load(cosine + i);
        const vf s = v_load(sine + i);
        v_put(y, dtype, i, a * c - b * s, n);
        v_put(y, dtype, half + i, b * c + a * s, n);
    }
    if (y != x) {
        for (int64_t i = 2 * half; i < width; i += VEC) {
            v_put(y, dtype, i, v_get(x, dtype, i, width - i), width - i);
        }
    }
}

LT_INLINE void rope_row(const lt_rope_args *a, int64_t r, const lt_dtype dtype) {
    const int64_t half = a->table.shape[1];
    float cosine[MAX_HALF + VEC];
    float sine[MAX_HALF + VEC];
    row_angles(cosine, sine, &a->positions, &a->table, r, a->inverse ? -1.0f : 1.0f);
    for (int64_t h = 0; h < a->x.shape[1]; h++) {
        rope_head(at_element(&a->x, row_at(&a->x, r, h)), at_element(&a->y, row_at(&a->y, r, h)),
                  cosine, sine, half, a->x.shape[2], dtype);
    }
}

LT_INLINE void rope_rows(const lt_rope_args *a, const lt_dtype dtype) {
    const int64_t rows = a->x.shape[0];
#pragma omp parallel for schedule(static) if (lt_tensor_count(&a->x) > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        rope_row(a, r, dtype);
    }
}

lt_err LT_ISA_NAME(lt_cpu_rope)(lt_queue *q, const void *args) {
    const lt_rope_args *a = args;
    (void)q;
    LT_ASSERT(a->x.n_dims == 3 && a->table.n_dims == 3 && a->table.shape[1] <= MAX_HALF);
    BY_DTYPE(a->x.dtype, rope_rows, a);
    return LT_OK;
}

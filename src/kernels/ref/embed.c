/* embed.c (ref): y[r][c] = scale * table[ids[r]][c] (+ pos_table[positions[r]][c]), and its
 * backward dtable[ids[r]][c] += scale * dy[r][c], dpos_table[positions[r]][c] += dy[r][c], r
 * rising. */
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"
#include "tensor/block.h"

static int64_t row_of(const lt_tensor *ids, int64_t r, const lt_tensor *table) {
    const int32_t id = get_i32(ids, at1(ids, r));
    LT_ASSERT(id >= 0 && id < table->shape[0]);
    return id;
}

/* Element c of a row whose table may be of a block type. */
static double table_at(const lt_embed_args *a, int64_t row, int64_t c) {
    const lt_tensor *table = &a->table;
    float values[LT_BLOCK_SUPER];
    if (!lt_dtype_is_block(table->dtype)) {
        return get(table, at2(table, row, c));
    }
    size_t bytes;
    const int64_t block = lt_dtype_block(table->dtype, &bytes);
    const lt_tensor whole = lt_tensor_rows(table, row, 1);
    const char *at = (const char *)whole.data + (size_t)(c / block) * bytes;
    if (table->dtype == LT_NF4_DOUBLE) {
        const int64_t first = row * (table->shape[1] / block) + c / block;
        lt_nf4_double_decode(values, at, a->table_scales.data, first, 1);
    } else {
        lt_block_decode(values, table->dtype, at, (size_t)block);
    }
    return (double)values[c % block];
}

/* The id of row r, which may be one that another op chose. */
static int64_t id_of(const lt_embed_args *a, int64_t r) {
    int32_t id = get_i32(&a->ids, at1(&a->ids, r));
    if (id < 0 && present(&a->late)) {
        LT_ASSERT(-1 - id < a->late.shape[0]);
        id = get_i32(&a->late, at1(&a->late, -1 - id));
        id = id < 0 ? 0 : id;
    }
    LT_ASSERT(a->part || (id >= 0 && id < a->table.shape[0]));
    return a->part ? id - a->first : id;
}

static bool holds(const lt_tensor *table, int64_t row) {
    return row >= 0 && row < table->shape[0];
}

lt_err lt_ref_embed_fwd(lt_queue *q, const lt_embed_args *a) {
    (void)q;
    LT_ASSERT(a->y.n_dims == 2 && a->ids.shape[0] == a->y.shape[0]);
    LT_ASSERT(a->table.shape[1] == a->y.shape[1]);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->y.shape[0]; r++) {
        const int64_t id = id_of(a, r);
        const int64_t pos = present(&a->pos_table) ? row_of(&a->positions, r, &a->pos_table) : 0;
        for (int64_t c = 0; c < a->y.shape[1]; c++) {
            double y = 0.0;
            if (holds(&a->table, id)) {
                y = (double)a->scale * table_at(a, id, c);
            }
            if (holds(&a->table, id) && present(&a->pos_table)) {
                y += get(&a->pos_table, at2(&a->pos_table, pos, c));
            }
            set(&a->y, at2(&a->y, r, c), y);
        }
    }
    return LT_OK;
}

/* Is row r of dy part of the gradient of this table? */
static bool counts(const lt_embed_bwd_args *a, int64_t r) {
    return !a->part || holds(&a->dtable, get_i32(&a->ids, at1(&a->ids, r)) - a->first);
}

static void add_rows(const lt_embed_bwd_args *a, const lt_tensor *table, const lt_tensor *ids,
                     int64_t first, double scale) {
    const lt_tensor *dy = &a->dy;
#pragma omp parallel for schedule(static)
    for (int64_t c = 0; c < dy->shape[1]; c++) {
        for (int64_t r = 0; r < dy->shape[0]; r++) {
            if (counts(a, r)) {
                const int64_t row = get_i32(ids, at1(ids, r)) - first, at = at2(table, row, c);
                LT_ASSERT(holds(table, row));
                set(table, at, get(table, at) + scale * get(dy, at2(dy, r, c)));
            }
        }
    }
}

lt_err lt_ref_embed_bwd(lt_queue *q, const lt_embed_bwd_args *a) {
    (void)q;
    LT_ASSERT(a->dy.n_dims == 2);
    if (present(&a->dtable)) {
        add_rows(a, &a->dtable, &a->ids, a->part ? a->first : 0, (double)a->scale);
    }
    if (present(&a->dpos_table)) {
        add_rows(a, &a->dpos_table, &a->positions, 0, 1.0);
    }
    return LT_OK;
}

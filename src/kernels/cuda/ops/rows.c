/* rows.c: launchers of xent.cu, embed.cu and col_sum.cu, and the products of the backend. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/sgemm/sgemm.h"

#define XENT_THREADS  1024
#define EMBED_THREADS 256
#define SORT_KEYS                                                                                  \
    2048 /* Of embed.cu: keys a block sorts, digits a pass, sorted rows a block adds. */
#define SORT_DIGITS 256
#define SPAN        32

/* ---- Cross-entropy ---- */

static const char *xent_refuse(const void *args) {
    const lt_xent_args *a = args;
    const lt_tensor *const rows[] = {&a->logits};
    return lt_cuda_refuse_rows(rows, 1, a->logits.dtype);
}
static lt_err xent_run(lt_queue *q, const void *args) {
    lt_xent_args a = *(const lt_xent_args *)args;
    const lt_tensor *const rows[] = {&a.logits};
    int cols = (int)a.logits.shape[1];
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&a.logits.data, &a.labels.data, &a.loss.data, &a.lse.data, &a.best.data,
                    &cols,          &a.grad_scale,  &a.softcap,   &a.z_coef};
    snprintf(defines, sizeof defines, "DTYPE=%s W=%d SOFTCAP=%d",
             lt_cuda_dtype_word(a.logits.dtype), lt_cuda_piece(rows, 1, a.logits.dtype, cols),
             a.softcap > 0.0f);
    return lt_cuda_run(q, "ops/xent.cu", "xent", defines, a.logits.shape[0], 1, XENT_THREADS, list);
}

/* ---- Embedding ---- */

static const char *embed_fwd_refuse(const void *args) {
    const lt_embed_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->table, &a->pos_table};
    return lt_cuda_refuse_rows(rows, 3, a->y.dtype);
}
static lt_err embed_fwd_run(lt_queue *q, const void *args) {
    lt_embed_args a = *(const lt_embed_args *)args;
    const lt_tensor *const rows[] = {&a.y, &a.table, &a.pos_table};
    int cols = (int)lt_cuda_width(&a.y);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&a.y.data,         &a.table.data, &a.ids.data, &a.pos_table.data,
                    &a.positions.data, &cols,         &a.scale};
    snprintf(defines, sizeof defines, "DTYPE=%s W=%d", lt_cuda_dtype_word(a.y.dtype),
             lt_cuda_piece(rows, 3, a.y.dtype, cols));
    return lt_cuda_run(q, "ops/embed.cu", "embed_fwd", defines, lt_cuda_rows(&a.y), 1,
                       EMBED_THREADS, list);
}

static const char *embed_bwd_refuse(const void *args) {
    const lt_embed_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->dy}, *const tables[] = {&a->dtable, &a->dpos_table};
    const char *why = lt_cuda_refuse_rows(rows, 1, a->dy.dtype);
    return why != NULL ? why : lt_cuda_refuse_rows(tables, 2, LT_F32);
}

/* One table's gradient: sort the rows by id, add the runs, join those that cross spans. */
static lt_err table_bwd(lt_queue *q, lt_tensor dtable, const lt_tensor *dy, lt_tensor ids,
                        float scale) {
    const lt_tensor *const aligned[] = {dy, &dtable};
    int n = (int)lt_cuda_rows(dy), cols = (int)lt_cuda_width(dy), n_counts;
    const int w = lt_cuda_piece(aligned, 2, dy->dtype, cols);
    const int64_t blocks = LT_CUDA_DIV_UP(n, SORT_KEYS), spans = LT_CUDA_DIV_UP(n, SPAN);
    const int cols_blocks = LT_CUDA_DIV_UP(cols, EMBED_THREADS * w);
    const size_t parts_bytes = (size_t)spans * 2 * (size_t)cols * 4,
                 list_bytes = ((size_t)n * 4 + 255) / 256 * 256;
    unsigned char *base;
    void *scratch, *counts, *keys[2], *rows[2], *parts;
    char defines[LT_CUDA_DEFINES_BYTES];
    const void *from_keys = ids.data, *from_rows = NULL;
    int turn = 0;
    if (n == 0) {
        return LT_OK;
    }
    LT_TRY(lt_cuda_scratch(
        q, parts_bytes + 4 * list_bytes + (size_t)blocks * SORT_DIGITS * 4 + 1024, &scratch));
    base = scratch;
    parts = base, base += (parts_bytes + 255) / 256 * 256;
    for (int i = 0; i < 2; i++) {
        keys[i] = base, base += list_bytes;
        rows[i] = base, base += list_bytes;
    }
    counts = base;
    n_counts = (int)blocks * SORT_DIGITS;
    snprintf(defines, sizeof defines, "DTYPE=%s W=%d", lt_cuda_dtype_word(dy->dtype), w);
    for (int shift = 0; shift == 0 || dtable.shape[0] - 1 >= (int64_t)1 << shift;
         shift += 8, turn ^= 1) {
        void *count[] = {&counts, &from_keys, &n, &shift}, *scan[] = {&counts, &n_counts};
        void *place[] = {&keys[turn], &rows[turn], &from_keys, &from_rows, &counts, &n, &shift};
        LT_TRY(lt_cuda_run(q, "ops/embed.cu", "digit_count", defines, blocks, 1, EMBED_THREADS,
                           count));
        LT_TRY(lt_cuda_run(q, "ops/embed.cu", "digit_scan", defines, 1, 1, 1024, scan));
        LT_TRY(lt_cuda_run(q, "ops/embed.cu", "digit_place", defines, blocks, 1, EMBED_THREADS,
                           place));
        from_keys = keys[turn], from_rows = rows[turn];
    }
    void *dy_data = dy->data;
    void *sum[] = {&dtable.data, &parts, &dy_data, &from_keys, &from_rows, &n, &cols, &scale};
    void *join[] = {&dtable.data, &parts, &from_keys, &n, &cols};
    LT_TRY(lt_cuda_run(q, "ops/embed.cu", "embed_sum", defines, spans, cols_blocks, EMBED_THREADS,
                       sum));
    return lt_cuda_run(q, "ops/embed.cu", "embed_join", defines, spans, cols_blocks, EMBED_THREADS,
                       join);
}

static lt_err embed_bwd_run(lt_queue *q, const void *args) {
    const lt_embed_bwd_args *a = args;
    if (a->dtable.data != NULL) {
        LT_TRY(table_bwd(q, a->dtable, &a->dy, a->ids, a->scale));
    }
    return a->dpos_table.data != NULL ? table_bwd(q, a->dpos_table, &a->dy, a->positions, 1.0f)
                                      : LT_OK;
}

/* ---- Sums of columns ---- */

static const char *colsum_refuse(const void *args) {
    const lt_colsum_args *a = args;
    return a->x.dtype != LT_F32 || a->y.dtype != LT_F32 || !lt_tensor_contiguous(&a->x)
               ? "not contiguous F32"
               : NULL;
}
static lt_err colsum_run(lt_queue *q, const void *args) {
    lt_colsum_args a = *(const lt_colsum_args *)args;
    int rows = (int)a.x.shape[0], cols = (int)a.x.shape[1];
    void *list[] = {&a.y.data, &a.x.data, &rows, &cols};
    return lt_cuda_run(q, "ops/col_sum.cu", "col_sum", "", LT_CUDA_DIV_UP(cols, 32), 1, 512, list);
}

/* ---- Products in fp32 ---- */

static const char *sgemm_refuse(const void *args) {
    const lt_matmul_args *a = args;
    if (a->a.dtype != LT_F32 || a->b.dtype != LT_F32 || a->y.dtype != LT_F32) {
        return "not F32";
    }
    if (a->trans_a || a->trans_b || a->b_packed != NULL) {
        return "an operand is transposed";
    }
    if (a->bias.data != NULL) {
        return "bias";
    }
    return a->a.stride[1] != 1 || a->b.stride[1] != 1 || a->y.stride[1] != 1 ? "rows not contiguous"
                                                                             : NULL;
}
static lt_err sgemm_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    if (lt_tensor_count(&a->y) == 0) {
        return LT_OK;
    }
    if (q->sgemm_workspace == NULL) {
        LT_TRY(lt_sgemm_workspace_open(q->gpu, &q->sgemm_workspace));
    }
    return lt_sgemm(q->gpu, q->stream,
                    &(lt_sgemm_args){.m = (int)a->y.shape[0],
                                     .n = (int)a->y.shape[1],
                                     .k = (int)a->a.shape[1],
                                     .lda = (int)a->a.stride[0],
                                     .ldb = (int)a->b.stride[0],
                                     .ldc = (int)a->y.stride[0],
                                     .alpha = 1.0f,
                                     .beta = a->accumulate ? 1.0f : 0.0f,
                                     .a = a->a.data,
                                     .b = a->b.data,
                                     .c = a->y.data,
                                     .workspace = q->sgemm_workspace});
}

#define ENTRY(op, name)                                                                            \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {{name, op##_refuse, op##_run}};
ENTRY(xent, "rows")
ENTRY(embed_fwd, "rows")
ENTRY(embed_bwd, "sorted")
ENTRY(colsum, "columns")
const lt_op_impl lt_cuda_matmul_impls[LT_REGISTRY_MAX_IMPLS] = {{"sgemm", sgemm_refuse, sgemm_run}};

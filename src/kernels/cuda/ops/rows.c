/* rows.c: launchers of xent_held.cu, xent.cu, xent_part.cu, embed.cu and col_sum.cu. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/col_parts_args.h"
#include "kernels/cuda/ops/col_sum_args.h"
#include "kernels/cuda/ops/decode_q.h"
#include "kernels/cuda/ops/embed_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/matmul_q.h"
#include "kernels/cuda/ops/xent_args.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_rows write them. */
#define XENT_WORDS      "DTYPE=%s W=%d SOFTCAP=%d%s"
#define XENT_HELD_WORDS "DTYPE=%s W=%d SOFTCAP=%d THREADS=%d PIECES=%d SMEM=%d%s"
#define ROW_WORDS       "DTYPE=%s W=%d"
#define EMBED_WORDS     "DTYPE=%s W=%d%s"
#define PART_WORD       " PART=1"

#define XENT_THREADS  1024
#define EMBED_THREADS 256
/* Sizes of embed.cu. */
#define SORT_KEYS   1024 /* Keys that a block sorts. */
#define SORT_DIGITS 256  /* Values of the digit that a pass sorts by. */
#define SORT_BLOCKS 64   /* For more blocks, digit_scan makes running sums. */
#define SUM_THREADS 128  /* Threads of a block that sums columns, */
#define SPAN        16   /* and the sorted rows that it sums. */

/* ---- Cross-entropy ---- */

/* WEIGHTS=1 adds the pointer of the weights as the last argument of the kernel. */
static const char *weights_define(const lt_xent_args *a) {
    return a->weights.data != NULL && a->grad_scale != 0.0f ? " WEIGHTS=1" : "";
}

static const char *xent_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_xent_args *a = args;
    const lt_tensor *const rows[] = {&a->logits};
    if (a->part.data != NULL || a->parts.data != NULL) {
        return "a part of the vocabulary";
    }
    return lt_cuda_refuse_rows(rows, 1, a->logits.dtype);
}
static lt_err xent_run(lt_queue *q, const void *args) {
    lt_xent_args a = *(const lt_xent_args *)args;
    const lt_tensor *const rows[] = {&a.logits};
    int cols = (int)a.logits.shape[1];
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_xent_args call = {.logits = a.logits.data,
                              .labels = a.labels.data,
                              .loss = a.loss.data,
                              .lse = a.lse.data,
                              .best = a.best.data,
                              .cols = cols,
                              .grad_scale = a.grad_scale,
                              .softcap = a.softcap,
                              .z_coef = a.z_coef,
                              .ld = a.logits.stride[0],
                              .weights = a.weights.data};
    void *list[] = {&call};
    snprintf(defines, sizeof defines, XENT_WORDS, lt_cuda_dtype_word(a.logits.dtype),
             lt_cuda_piece(rows, 1, a.logits.dtype, cols), a.softcap > 0.0f, weights_define(&a));
    return lt_cuda_run_early(q, "ops/xent.cu", "xent", defines, a.logits.shape[0], 1, XENT_THREADS,
                             list);
}

static const char *part_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_xent_args *a = args;
    const lt_tensor *const rows[] = {&a->logits};
    return a->part.data == NULL && a->parts.data == NULL
               ? "the whole vocabulary"
               : lt_cuda_refuse_rows(rows, 1, a->logits.dtype);
}

static lt_err part_run(lt_queue *q, const void *args) {
    lt_xent_args a = *(const lt_xent_args *)args;
    const lt_tensor *const rows[] = {&a.logits};
    const int cols = (int)a.logits.shape[1];
    const bool facts = a.part.data != NULL;
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_xent_facts_args to_facts = {.logits = a.logits.data,
                                        .labels = a.labels.data,
                                        .part = a.part.data,
                                        .cols = cols,
                                        .first = (int)a.first,
                                        .softcap = a.softcap,
                                        .ld = a.logits.stride[0]};
    lt_cuda_xent_rest_args to_rest = {.logits = a.logits.data,
                                      .labels = a.labels.data,
                                      .parts = a.parts.data,
                                      .loss = a.loss.data,
                                      .lse = a.lse.data,
                                      .best = a.best.data,
                                      .cols = cols,
                                      .first = (int)a.first,
                                      .n_parts = (int)a.parts.shape[0],
                                      .grad_scale = a.grad_scale,
                                      .softcap = a.softcap,
                                      .z_coef = a.z_coef,
                                      .ld = a.logits.stride[0],
                                      .weights = a.weights.data};
    void *list[] = {facts ? (void *)&to_facts : (void *)&to_rest};
    snprintf(defines, sizeof defines, XENT_WORDS, lt_cuda_dtype_word(a.logits.dtype),
             lt_cuda_piece(rows, 1, a.logits.dtype, cols), a.softcap > 0.0f,
             facts ? "" : weights_define(&a));
    return lt_cuda_run_early(q, "ops/xent_part.cu", facts ? "xent_facts" : "xent_rest", defines,
                             a.logits.shape[0], 1, XENT_THREADS, list);
}

/* Pieces of 16 bytes per thread, `smem` of which are in shared memory: constants of
 * xent_held.cu. */
typedef struct {
    int threads, pieces, smem;
} held_spec;

/* Bytes of a block's shared memory for the kernel's sums and for the driver's own use. */
#define HELD_RESERVED 2048
#define HELD_REGS     6 /* Pieces in registers, of the 64 registers of a thread. */

static size_t held_bytes(const held_spec *s) {
    return (size_t)LT_XENT_HELD_BYTES(s->threads, s->smem);
}

/* Two blocks per SM, or one for the longest rows. False: a row is longer than an SM can hold. */
static bool held_spec_make(held_spec *s, int64_t width, int w, size_t shared) {
    const int64_t a_half = LT_CUDA_DIV_UP(width, 512 * w);
    *s = (held_spec){512, (int)a_half, (int)a_half};
    if (a_half <= INT32_MAX && held_bytes(s) <= shared / 2 - HELD_RESERVED) {
        return true;
    }
    s->threads = 1024;
    s->pieces = (int)LT_CUDA_DIV_UP(width, s->threads * w);
    s->smem = (int)((shared - HELD_RESERVED) / (size_t)LT_XENT_HELD_BYTES(s->threads, 1));
    s->smem = s->smem < s->pieces ? s->smem : s->pieces;
    return s->pieces - s->smem <= HELD_REGS;
}

static int held_piece(const lt_xent_args *a) {
    const lt_tensor *const rows[] = {&a->logits};
    return lt_cuda_piece(rows, 1, a->logits.dtype, a->logits.shape[1]);
}

static const char *held_refuse(const void *args, const lt_device *device) {
    const lt_xent_args *a = args;
    const char *why = xent_refuse(args, device);
    held_spec s;
    if (why != NULL) {
        return why;
    }
    return a->grad_scale == 0.0f ? "no gradient: rows are read once"
           : held_piece(a) == 1  ? "rows not 16-byte aligned"
           : !held_spec_make(&s, a->logits.shape[1], held_piece(a),
                             lt_cuda_device_info(device)->shared_optin_bytes)
               ? "row longer than an SM holds"
               : NULL;
}

static lt_err held_run(lt_queue *q, const void *args) {
    lt_xent_args a = *(const lt_xent_args *)args;
    const lt_cuda_info *info = lt_cuda_get_info(q->gpu);
    int rows = (int)a.logits.shape[0], cols = (int)a.logits.shape[1], per_sm;
    const int w = held_piece(&a);
    int64_t blocks;
    char defines[LT_CUDA_DEFINES_BYTES];
    const lt_cuda_kernel *k;
    held_spec s;
    lt_cuda_xent_held_args call = {.logits = a.logits.data,
                                   .labels = a.labels.data,
                                   .loss = a.loss.data,
                                   .lse = a.lse.data,
                                   .best = a.best.data,
                                   .rows = rows,
                                   .cols = cols,
                                   .grad_scale = a.grad_scale,
                                   .softcap = a.softcap,
                                   .z_coef = a.z_coef,
                                   .ld = a.logits.stride[0],
                                   .weights = a.weights.data};
    void *list[] = {&call};
    if (rows == 0) {
        return LT_OK;
    }
    (void)held_spec_make(&s, cols, w, info->shared_optin_bytes);
    snprintf(defines, sizeof defines, XENT_HELD_WORDS, lt_cuda_dtype_word(a.logits.dtype), w,
             a.softcap > 0.0f, s.threads, s.pieces, s.smem, weights_define(&a));
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, "ops/xent_held.cu", "xent_held", defines));
    LT_TRY(lt_cuda_occupancy(q->gpu, k, s.threads, held_bytes(&s), &per_sm));
    blocks = (int64_t)info->n_sms * (per_sm > 0 ? per_sm : 1);
    return lt_cuda_launch(q->gpu, q->stream, k,
                          &(lt_cuda_dims){.grid = {(unsigned)(blocks < rows ? blocks : rows)},
                                          .block = {(unsigned)s.threads},
                                          .dynamic_shared_bytes = held_bytes(&s),
                                          .overlap_previous = info->cc >= 90},
                          list);
}

/* ---- Embedding ---- */

static const char *embed_fwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_embed_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->table, &a->pos_table};
    return a->part && a->late.data != NULL ? "late ids of a part of the vocabulary"
                                           : lt_cuda_refuse_rows(rows, 3, a->y.dtype);
}
static lt_err embed_fwd_run(lt_queue *q, const void *args) {
    lt_embed_args a = *(const lt_embed_args *)args;
    const lt_tensor *const rows[] = {&a.y, &a.table, &a.pos_table};
    int cols = (int)lt_cuda_width(&a.y);
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_embed_fwd_args call = {.y = a.y.data,
                                   .table = a.table.data,
                                   .ids = a.ids.data,
                                   .pos_table = a.pos_table.data,
                                   .positions = a.positions.data,
                                   .late = a.late.data,
                                   .cols = cols,
                                   .scale = a.scale,
                                   .ldy = a.y.stride[0],
                                   .ld_table = a.table.stride[0],
                                   .ld_pos = a.pos_table.stride[0],
                                   .first = (int)a.first,
                                   .n_ids = (int)a.table.shape[0]};
    void *list[] = {&call};
    snprintf(defines, sizeof defines, EMBED_WORDS, lt_cuda_dtype_word(a.y.dtype),
             lt_cuda_piece(rows, 3, a.y.dtype, cols), a.part ? PART_WORD : "");
    return lt_cuda_run_early(q, "ops/embed.cu", "embed_fwd", defines, lt_cuda_rows(&a.y), 1,
                             EMBED_THREADS, list);
}

static const char *embed_bwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_embed_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->dy}, *const tables[] = {&a->dtable, &a->dpos_table};
    const char *why = lt_cuda_refuse_rows(rows, 1, a->dy.dtype);
    return why != NULL ? why : lt_cuda_refuse_rows(tables, 2, LT_F32);
}

/* Sort (id, row) by id, and rows of the same id in ascending order, in memory of sort_bytes;
 * *keys and *rows point to the result. n_ids: all ids are below it. */
static size_t sort_bytes(int64_t n, int n_passes) {
    const size_t list = ((size_t)n * 4 + 255) / 256 * 256;
    return 4 * list + (size_t)(n_passes * LT_CUDA_DIV_UP(n, SORT_KEYS)) * SORT_DIGITS * 4;
}
static int sort_passes(int64_t n_ids) {
    int n = 1;
    while (n_ids - 1 >= (int64_t)1 << 8 * n) {
        n++;
    }
    return n;
}
static lt_err sort_ids(lt_queue *q, unsigned char *base, const char *defines, void *ids, int n,
                       int n_passes, void **keys, void **rows) {
    const size_t list = ((size_t)n * 4 + 255) / 256 * 256;
    const int64_t blocks = LT_CUDA_DIV_UP(n, SORT_KEYS);
    const int n_counts = (int)blocks * SORT_DIGITS, scanned = blocks > SORT_BLOCKS;
    void *lists[2][2] = {{base, base + list}, {base + 2 * list, base + 3 * list}};
    int *counts = (int *)(void *)(base + 4 * list);
    lt_cuda_digit_count_args to_count = {
        .counts = counts, .keys = ids, .n = n, .n_passes = n_passes};
    void *count[] = {&to_count};
    *keys = ids, *rows = NULL;
    LT_TRY(lt_cuda_run_early(q, "ops/embed.cu", "digit_count", defines, blocks, 1, EMBED_THREADS,
                             count));
    for (int pass = 0; pass < n_passes; pass++, counts += n_counts) {
        void **to = lists[pass % 2];
        lt_cuda_digit_scan_args to_scan = {.counts = counts, .n = n_counts};
        lt_cuda_digit_place_args to_place = {.keys_out = to[0],
                                             .rows_out = to[1],
                                             .keys = *keys,
                                             .rows = *rows,
                                             .counts = counts,
                                             .next_counts = pass + 1 < n_passes ? counts + n_counts
                                                                                : NULL,
                                             .n = n,
                                             .shift = 8 * pass,
                                             .scanned = scanned};
        void *scan[] = {&to_scan}, *place[] = {&to_place};
        if (scanned) {
            LT_TRY(lt_cuda_run_early(q, "ops/embed.cu", "digit_scan", defines, 1, 1, 1024, scan));
        }
        LT_TRY(lt_cuda_run_early(q, "ops/embed.cu", "digit_place", defines, blocks, 1,
                                 EMBED_THREADS, place));
        *keys = to[0], *rows = to[1];
    }
    return LT_OK;
}

/* keys (n): the table's row for each row of dy, or one past the last. */
static lt_err part_keys(lt_queue *q, int *keys, const char *defines, const lt_embed_bwd_args *a,
                        const lt_tensor *dtable, const lt_tensor *rows, int n) {
    lt_cuda_embed_keys_args call = {.keys = keys,
                                    .ids = a->ids.data,
                                    .rows = rows->data != a->ids.data ? rows->data : NULL,
                                    .n = n,
                                    .first = (int)a->first,
                                    .n_ids = (int)a->dtable.shape[0],
                                    .none_key = (int)dtable->shape[0]};
    void *list[] = {&call};
    return lt_cuda_run_early(q, "ops/embed.cu", "embed_keys", defines,
                             LT_CUDA_DIV_UP(n, EMBED_THREADS), 1, EMBED_THREADS, list);
}

/* The gradient of one table: sort the rows by id, add the runs, join those that cross spans.
 * rows: the row of the table for each row of dy, or ids of the whole vocabulary. part: only those
 * rows of dy whose id is in the part of the vocabulary that `a` names; the others get a key past
 * all rows. */
static lt_err table_bwd(lt_queue *q, const lt_embed_bwd_args *a, lt_tensor dtable, lt_tensor rows,
                        float scale) {
    const lt_tensor *const dy = &a->dy, *const aligned[] = {dy, &dtable};
    const int n = (int)lt_cuda_rows(dy), cols = (int)lt_cuda_width(dy);
    const int w = lt_cuda_piece(aligned, 2, dy->dtype, cols),
              n_passes = sort_passes(dtable.shape[0] + a->part);
    const size_t keys_bytes = a->part ? ((size_t)n * 4 + 255) / 256 * 256 : 0;
    const int64_t spans = LT_CUDA_DIV_UP(n, SPAN);
    const int cols_blocks = LT_CUDA_DIV_UP(cols, SUM_THREADS * w);
    const size_t parts_bytes = ((size_t)spans * 2 * (size_t)cols * 4 + 255) / 256 * 256;
    void *scratch, *keys, *sorted, *unsorted = rows.data;
    char defines[LT_CUDA_DEFINES_BYTES];
    if (n == 0) {
        return LT_OK;
    }
    LT_TRY(lt_cuda_scratch(q, parts_bytes + keys_bytes + sort_bytes(n, n_passes), &scratch));
    snprintf(defines, sizeof defines, EMBED_WORDS, lt_cuda_dtype_word(dy->dtype), w,
             a->part ? PART_WORD : "");
    if (a->part) {
        unsorted = (unsigned char *)scratch + parts_bytes;
        LT_TRY(part_keys(q, unsorted, defines, a, &dtable, &rows, n));
    }
    LT_TRY(sort_ids(q, (unsigned char *)scratch + parts_bytes + keys_bytes, defines, unsorted, n,
                    n_passes, &keys, &sorted));
    lt_cuda_embed_sum_args to_sum = {.dtable = dtable.data,
                                     .parts = scratch,
                                     .dy = dy->data,
                                     .keys = keys,
                                     .rows = sorted,
                                     .n = n,
                                     .cols = cols,
                                     .scale = scale,
                                     .none_key = (int)dtable.shape[0],
                                     .ld_table = dtable.stride[0],
                                     .lddy = dy->stride[0]};
    void *sum[] = {&to_sum};
    lt_cuda_embed_join_args to_join = {.dtable = dtable.data,
                                       .parts = scratch,
                                       .keys = keys,
                                       .n = n,
                                       .cols = cols,
                                       .ld_table = dtable.stride[0],
                                       .none_key = (int)dtable.shape[0]};
    void *join[] = {&to_join};
    LT_TRY(lt_cuda_run_early(q, "ops/embed.cu", "embed_sum", defines, spans, cols_blocks,
                             SUM_THREADS, sum));
    return lt_cuda_run_early(q, "ops/embed.cu", "embed_join", defines, spans, cols_blocks,
                             SUM_THREADS, join);
}

static lt_err embed_bwd_run(lt_queue *q, const void *args) {
    const lt_embed_bwd_args *a = args;
    if (a->dtable.data != NULL) {
        LT_TRY(table_bwd(q, a, a->dtable, a->ids, a->scale));
    }
    return a->dpos_table.data != NULL ? table_bwd(q, a, a->dpos_table, a->positions, 1.0f) : LT_OK;
}

/* ---- Sums of columns ---- */

#define COLSUM_ROWS 64 /* The least rows of a part, so that col_sum has few parts to add. */

static const char *colsum_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_colsum_args *a = args;
    const lt_tensor *const rows[] = {&a->x};
    return a->y.dtype != LT_F32 ? "y is not F32" : lt_cuda_refuse_rows(rows, 1, a->x.dtype);
}
static lt_err colsum_run(lt_queue *q, const void *args) {
    lt_colsum_args a = *(const lt_colsum_args *)args;
    const lt_tensor *const all[] = {&a.x};
    int rows = (int)a.x.shape[0], cols = (int)a.x.shape[1], n_parts, share;
    const int w = lt_cuda_piece(all, 1, a.x.dtype, cols);
    const int64_t blocks = LT_CUDA_DIV_UP(cols, 32 * w),
                  most = 4 * (int64_t)lt_cuda_get_info(q->gpu)->n_sms / (blocks > 0 ? blocks : 1);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *parts;
    if (rows == 0 || cols == 0) {
        return LT_OK;
    }
    n_parts = (int)LT_CUDA_DIV_UP(rows, COLSUM_ROWS);
    n_parts = n_parts > most ? (int)(most > 1 ? most : 1) : n_parts;
    share = LT_CUDA_DIV_UP(rows, n_parts);
    n_parts = LT_CUDA_DIV_UP(rows, share);
    LT_TRY(lt_cuda_scratch(q, (size_t)n_parts * (size_t)cols * 4, &parts));
    snprintf(defines, sizeof defines, ROW_WORDS, lt_cuda_dtype_word(a.x.dtype), w);
    lt_cuda_col_parts_args to_parts = {.parts = parts,
                                       .x = a.x.data,
                                       .rows = rows,
                                       .cols = cols,
                                       .share = share,
                                       .ld = a.x.stride[0]};
    lt_cuda_col_sum_args to_sum = {
        .dst = a.y.data, .parts = parts, .n_parts = n_parts, .cols = cols};
    void *first[] = {&to_parts}, *second[] = {&to_sum};
    LT_TRY(lt_cuda_run_early(q, "ops/col_parts.cu", "col_parts", defines, blocks, n_parts, 256,
                             first));
    return lt_cuda_run_early(q, "ops/col_sum.cu", "col_sum", "", LT_CUDA_DIV_UP(cols, 32), 1, 512,
                             second);
}

#define ENTRY(op, name)                                                                            \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {{name, op##_refuse, op##_run}};
const lt_op_impl lt_cuda_xent_impls[LT_REGISTRY_MAX_IMPLS] = {{"held", held_refuse, held_run},
                                                              {"rows", xent_refuse, xent_run},
                                                              {"part", part_refuse, part_run}};
const lt_op_impl lt_cuda_embed_fwd_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"blocks", lt_cuda_embed_q_refuse, lt_cuda_embed_q_run},
    {"stored blocks", lt_cuda_decode_q_refuse, lt_cuda_decode_q_run},
    {"rows", embed_fwd_refuse, embed_fwd_run}};
ENTRY(embed_bwd, "sorted")
ENTRY(colsum, "columns")

void lt_specs_rows(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "ops/xent.cu", XENT_WORDS, "bf16", 8, 0, "");
    lt_spec(l, LT_SM_ALL, "ops/xent.cu", XENT_WORDS, "bf16", 1, 1, "");
    lt_spec(l, LT_SM_ALL, "ops/xent.cu", XENT_WORDS, "fp32", 4, 0, "");
    lt_spec(l, LT_SM_ALL, "ops/xent.cu", XENT_WORDS, "bf16", 1, 1, " WEIGHTS=1");
    lt_spec(l, LT_SM_ALL, "ops/xent_held.cu", XENT_HELD_WORDS, "bf16", 8, 0, 512, 13, 13, "");
    lt_spec(l, LT_SM90, "ops/xent_held.cu", XENT_HELD_WORDS, "bf16", 8, 0, 1024, 16, 14, "");
    lt_spec(l, LT_SM90, "ops/xent_held.cu", XENT_HELD_WORDS, "bf16", 8, 0, 1024, 20, 14, "");
    lt_spec(l, LT_SM90, "ops/xent_held.cu", XENT_HELD_WORDS, "fp32", 4, 1, 1024, 13, 13, "");
    lt_spec(l, LT_SM_ALL, "ops/xent_held.cu", XENT_HELD_WORDS, "bf16", 8, 0, 512, 13, 13,
            " WEIGHTS=1");
    lt_spec(l, LT_SM_ALL, "ops/xent_part.cu", XENT_WORDS, "bf16", 8, 0, "");
    lt_spec(l, LT_SM_ALL, "ops/xent_part.cu", XENT_WORDS, "fp32", 1, 1, "");
    lt_spec(l, LT_SM_ALL, "ops/xent_part.cu", XENT_WORDS, "bf16", 8, 0, " WEIGHTS=1");
    lt_spec(l, LT_SM_ALL, "ops/embed.cu", EMBED_WORDS, "bf16", 8, "");
    lt_spec(l, LT_SM_ALL, "ops/embed.cu", EMBED_WORDS, "fp32", 4, "");
    lt_spec(l, LT_SM_ALL, "ops/embed.cu", EMBED_WORDS, "bf16", 1, "");
    lt_spec(l, LT_SM_ALL, "ops/embed.cu", EMBED_WORDS, "bf16", 8, PART_WORD);
    lt_spec(l, LT_SM_ALL, "ops/embed.cu", EMBED_WORDS, "fp32", 1, PART_WORD);
    lt_spec(l, LT_SM_ALL, "ops/col_parts.cu", ROW_WORDS, "bf16", 8);
    lt_spec(l, LT_SM_ALL, "ops/col_parts.cu", ROW_WORDS, "fp32", 1);
    lt_spec(l, LT_SM_ALL, "ops/col_sum.cu", "%s", "");
}

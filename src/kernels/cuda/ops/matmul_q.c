/* matmul_q.c: products with ggml's block formats (pack_q.cu, gemv_q.cu). matmul_pack lays a matrix out in rows of
 *     K numbers of 8 or 4 bits | K / 16 or K / 32 scales | K / 32 minima, fp16 | up to a multiple of 64 bytes
 * so that matrices packed one behind the other are one matrix. Few rows multiply that; for more, slabs of it become 16-bit in memory of the queue's own and
 * are multiplied as such. Activations are 16-bit: they are not rounded to 8 bits as a host's are. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/matmul.h"
#include "kernels/cuda/ops/matmul_q.h"

#define FEW_ROWS   8
#define SLAB_BYTES ((int64_t)64 << 20)
#define WARPS      4
#define TARGET_WARPS                                                                               \
    16 /* An SM: fewer do not keep enough loads under way, so that columns are shared. */

typedef struct {
    lt_dtype type;
    int bits, group, mins, offset;
} format;
static const format formats[] = {
    {LT_Q4_0, 4, 32, 0, 8}, {LT_Q4_1, 4, 32, 1, 0},   {LT_Q5_0, 8, 32, 0, 16},
    {LT_Q5_1, 8, 32, 1, 0}, {LT_Q8_0, 8, 32, 0, 128}, {LT_Q4_K, 4, 32, 1, 0},
    {LT_Q5_K, 8, 32, 1, 0}, {LT_Q6_K, 8, 16, 0, 32},
};

static const format *format_of(lt_dtype type) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (formats[i].type == type) {
            return &formats[i];
        }
    }
    return NULL;
}
static int64_t row_bytes(const format *f, int64_t k) {
    const int64_t bytes = k * f->bits / 8 + k / f->group * 2 + (f->mins ? k / 32 * 2 : 0);
    return LT_CUDA_DIV_UP(bytes, 64) * 64;
}

size_t lt_cuda_pack_bytes(const lt_tensor *b, bool trans_b) {
    const format *f = format_of(b->dtype);
    return f == NULL || !trans_b || b->n_dims != 2 || b->shape[1] % 32 != 0
               ? 0
               : (size_t)(b->shape[0] * row_bytes(f, b->shape[1]));
}

const char *lt_cuda_pack_refuse(const void *args) {
    const lt_matmul_pack_args *a = args;
    return lt_cuda_pack_bytes(&a->b, a->trans_b) > 0 ? NULL : "not of blocks";
}
lt_err lt_cuda_pack_run(lt_queue *q, const void *args) {
    lt_matmul_pack_args a = *(const lt_matmul_pack_args *)args;
    const format *f = format_of(a.b.dtype);
    int64_t rows = a.b.shape[0], k = a.b.shape[1], ld = row_bytes(f, k),
            src = (int64_t)lt_dtype_row_bytes(a.b.dtype, k);
    int groups = (int)(k / 32);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&a.dst, &a.b.data, &rows, &groups, &src, &ld};
    snprintf(defines, sizeof defines, "TYPE=%s BITS=%d GROUP=%d MINS=%d DTYPE=bf16",
             lt_dtype_name(f->type), f->bits, f->group, f->mins);
    LT_TRY(lt_cuda_run(q, "gemm/pack_q.cu", "pack_q", defines, LT_CUDA_DIV_UP(rows * groups, 128),
                       1, 128, list));
    return lt_cuda_sync(q->gpu, q->stream); /* gemv_q reads weights before it waits: early.cuh. */
}

const char *lt_cuda_embed_q_refuse(const void *args) {
    const lt_embed_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->pos_table};
    return format_of(a->table.dtype) == NULL ? "not of blocks"
                                             : lt_cuda_refuse_rows(rows, 2, a->y.dtype);
}
lt_err lt_cuda_embed_q_run(lt_queue *q, const void *args) {
    lt_embed_args a = *(const lt_embed_args *)args;
    const format *f = format_of(a.table.dtype);
    int64_t rows = a.y.shape[0], k = a.table.shape[1],
            src = (int64_t)lt_dtype_row_bytes(a.table.dtype, k);
    int groups = (int)(k / 32);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&a.y.data,
                    &a.table.data,
                    &a.ids.data,
                    &a.pos_table.data,
                    &a.positions.data,
                    &rows,
                    &groups,
                    &a.scale,
                    &a.y.stride[0],
                    &src,
                    &a.pos_table.stride[0]};
    snprintf(defines, sizeof defines, "TYPE=%s BITS=%d GROUP=%d MINS=%d DTYPE=%s",
             lt_dtype_name(f->type), f->bits, f->group, f->mins, lt_cuda_dtype_word(a.y.dtype));
    return lt_cuda_run_early(q, "gemm/pack_q.cu", "embed_q", defines,
                             LT_CUDA_DIV_UP(rows * groups, 128), 1, 128, list);
}

/* ---- Products ---- */

static const char *refuse_blocks(const lt_matmul_args *a) {
    if (a->b_packed == NULL || format_of(a->b.dtype) == NULL) {
        return "b is not packed blocks";
    }
    if ((a->a.dtype != LT_BF16 && a->a.dtype != LT_F16) || lt_cuda_dtype_word(a->y.dtype) == NULL) {
        return "activations not 16-bit";
    }
    if (a->trans_a || !a->trans_b || !lt_matmul_dense(&a->a) || !lt_matmul_dense(&a->y)) {
        return "weights not stored (N, K)";
    }
    return (uintptr_t)a->a.data % 16 != 0 || a->a.stride[0] % 8 != 0 || a->b.shape[1] % 32 != 0
               ? "rows not 16-byte aligned"
               : NULL;
}

/* gemv_args of gemv_q.cu. */
typedef struct {
    const void *x, *w, *bias;
    void *y;
    int64_t ldx, ldw, ldy;
    int n, k, bias_type, accumulate;
} gemv_args;

const char *lt_cuda_gemv_q_refuse(const void *args) {
    const lt_matmul_args *a = args;
    const char *why = refuse_blocks(a);
    return why != NULL                ? why
           : a->y.shape[0] > FEW_ROWS ? "more than 8 rows"
           : a->fixed_order           ? "other kernels serve more rows"
                                      : NULL;
}
lt_err lt_cuda_gemv_q_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const format *f = format_of(a->b.dtype);
    const int64_t k = a->b.shape[1];
    gemv_args w = {.x = a->a.data,
                   .w = a->b_packed,
                   .bias = a->bias.data,
                   .y = a->y.data,
                   .ldx = a->a.stride[0],
                   .ldw = row_bytes(f, k),
                   .ldy = a->y.stride[0],
                   .n = (int)a->y.shape[1],
                   .k = (int)k,
                   .bias_type = a->bias.data == NULL      ? 0
                                : a->bias.dtype == LT_F32 ? 1
                                                          : (a->bias.dtype == LT_BF16 ? 2 : 3),
                   .accumulate = a->accumulate};
    const int m = (int)a->y.shape[0], rows = m <= 2 && f->bits == 4 ? 4 : 2,
              wanted = TARGET_WARPS * lt_cuda_get_info(q->gpu)->n_sms, lane = 128 / f->bits;
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&w};
    int split = 1;
    if (m == 0 || w.n == 0) {
        return LT_OK;
    }
    while (split < WARPS && LT_CUDA_DIV_UP(w.n, rows) * split < wanted && k >= 64 * lane * split) {
        split *= 2;
    }
    snprintf(defines, sizeof defines,
             "M=%d ROWS=%d SPLIT=%d BITS=%d GROUP=%d MINS=%d OFFSET=%d OUT=%s DTYPE=%s", m, rows,
             split, f->bits, f->group, f->mins, f->offset, lt_cuda_dtype_word(a->y.dtype),
             lt_cuda_dtype_word(a->a.dtype));
    return lt_cuda_run_early(q, "gemm/gemv_q.cu", "gemv_q", defines,
                             LT_CUDA_DIV_UP(w.n, rows * (WARPS / split)), 1, 32 * WARPS, list);
}

const char *lt_cuda_wide_q_refuse(const void *args) {
    return refuse_blocks(args);
}
/* Columns [first, first + n) of y. */
static lt_err slab(lt_queue *q, const lt_matmul_args *a, const format *f, int64_t first,
                   int64_t n) {
    int64_t rows = n, ldw = row_bytes(f, a->b.shape[1]);
    int k = (int)a->b.shape[1];
    const void *src = (const unsigned char *)a->b_packed + first * ldw;
    lt_matmul_args wide = *a;
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&q->wide, &src, &rows, &k, &ldw};
    snprintf(defines, sizeof defines,
             "M=1 ROWS=2 SPLIT=1 BITS=%d GROUP=%d MINS=%d OFFSET=%d OUT=bf16 DTYPE=%s", f->bits,
             f->group, f->mins, f->offset, lt_cuda_dtype_word(a->a.dtype));
    LT_TRY(lt_cuda_run(q, "gemm/gemv_q.cu", "widen_q", defines,
                       LT_CUDA_DIV_UP(rows * (k / (128 / f->bits)), 128), 1, 128, list));
    wide.b = lt_tensor_2d(q->wide, a->a.dtype, n, k);
    wide.b_packed = NULL;
    wide.y = lt_tensor_cols(&a->y, first, n);
    wide.bias = a->bias.data == NULL ? a->bias : lt_tensor_rows(&a->bias, first, n);
    return lt_backend_cuda()->ops->matmul(q, &wide);
}
lt_err lt_cuda_wide_q_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const int64_t n = a->y.shape[1], k = a->b.shape[1], fit = SLAB_BYTES / (2 * k) / 64 * 64,
                  step = fit > 64 ? fit : 64;
    if (a->y.shape[0] == 0) {
        return LT_OK;
    }
    if (q->wide_bytes <
        (size_t)(2 * k * step)) { /* Once: the widest K comes with the first step. */
        LT_TRY(lt_cuda_sync(q->gpu, q->stream));
        lt_cuda_free(q->gpu, q->wide);
        q->wide_bytes = 0;
        LT_TRY(lt_cuda_alloc(q->gpu, &q->wide, (size_t)(2 * k * step), "16-bit weights"));
        q->wide_bytes = (size_t)(2 * k * step);
    }
    for (int64_t first = 0; first < n; first += step) {
        LT_TRY(slab(q, a, format_of(a->b.dtype), first, n - first < step ? n - first : step));
    }
    return LT_OK;
}

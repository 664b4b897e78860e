/* matmul_q.c: products with ggml's block formats (pack_q.cu, gemm_q.cu, gemm_q_sm90.cu).
 * matmul_pack lays a matrix out in tiles of 16 rows and 128 columns: numbers of 4, 5, 6 or 8 bits,
 * then their scales (gemm/tile_q.cuh). Matrices packed one after another are one matrix if each has
 * whole tiles of rows. Up to 64 rows, on Hopper any number, are multiplied with the tiles; for more
 * rows, slabs of the matrix are widened to 16 bits in the queue's scratch memory. Activations are
 * 16-bit and, unlike a host's, not rounded to 8 bits, except with as few rows as a recorded step
 * would fuse (ops/fuse.c): gemm_q_ring.cu rounds those, whether something is fused or not. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/fuse.h"
#include "kernels/cuda/ops/matmul.h"
#include "kernels/cuda/ops/matmul_q.h"
#include "kernels/cuda/gemm/gemm_q_args.h"
#include "kernels/cuda/gemm/pack_q_args.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_matmul_q write them. */
#define PACK_WORDS   "TYPE=%s BITS=%d GROUP=%d MINS=%d"
#define GEMM_Q_WORDS "TILES=%d SPLIT=%d WHOLE=%d " FORMAT_WORDS " OUT=%s DTYPE=%s"

#define FEW_ROWS    64
#define WGMMA_LEAST 5 /* Fewest rows for which gemm_q_sm90.cu runs if gemm_q_ring.cu does not. */
#define SLAB_BYTES  ((int64_t)64 << 20)
#define TILE_ROWS   16 /* As in tile_q.cuh. */
#define TILE_K      128
/* The number of warps that share a slab of 16 columns is doubled as long as all warps are on the
 * SMs at once. With more rows than ALONE it is smaller: warps with other columns of the same part
 * of x are better neighbours, because what one fetched is in the L1. */
#define ALONE              8
#define WARPS_ALONE        16 /* Per SM, at 128 registers per thread. */
#define WARPS_OF_MANY      12 /* Per SM, at 150 registers per thread. */
#define MOST_SPLIT_ALONE   16
#define MOST_SPLIT_OF_MANY 8
#define MOST_SPLIT_FIXED   8 /* In a fixed order: one number, whatever the rows. */

typedef struct {
    lt_dtype type;
    int bits, group, mins, offset;
} format;
static const format formats[] = {
    {LT_Q4_0, 4, 32, 0, 8}, {LT_Q4_1, 4, 32, 1, 0},   {LT_Q5_0, 5, 32, 0, 16},
    {LT_Q5_1, 5, 32, 1, 0}, {LT_Q8_0, 8, 32, 0, 128}, {LT_Q4_K, 4, 32, 1, 0},
    {LT_Q5_K, 5, 32, 1, 0}, {LT_Q6_K, 6, 16, 0, 32},
};

static const format *format_of(lt_dtype type) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        if (formats[i].type == type) {
            return &formats[i];
        }
    }
    return NULL;
}
static int64_t n_tiles(int64_t k) {
    return LT_CUDA_DIV_UP(k, TILE_K);
}
/* Bytes of TILE_ROWS rows. */
static int64_t slab_bytes(const format *f, int64_t k) {
    const int64_t scales = TILE_K / f->group + (f->mins ? TILE_K / 32 : 0);
    return n_tiles(k) * TILE_ROWS * (TILE_K * f->bits / 8 + scales * 2);
}
bool lt_cuda_tile_format_of(lt_cuda_tile_format *out, lt_dtype type) {
    const format *f = format_of(type);
    if (f != NULL) {
        *out = (lt_cuda_tile_format){f->bits, f->group, f->mins, f->offset,
                                     (int)slab_bytes(f, TILE_K)};
    }
    return f != NULL;
}
#define FORMAT_WORDS     "BITS=%d GROUP=%d MINS=%d OFFSET=%d"
#define FORMAT_VALUES(f) (f)->bits, (f)->group, (f)->mins, (f)->offset

size_t lt_cuda_pack_bytes(const lt_tensor *b, bool trans_b) {
    const format *f = format_of(b->dtype);
    return f == NULL || !trans_b || b->n_dims != 2 || b->shape[1] % 32 != 0
               ? 0
               : (size_t)(LT_CUDA_DIV_UP(b->shape[0], TILE_ROWS) * slab_bytes(f, b->shape[1]));
}

const char *lt_cuda_pack_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_matmul_pack_args *a = args;
    return lt_cuda_pack_bytes(&a->b, a->trans_b) > 0 ? NULL : "not of blocks";
}
lt_err lt_cuda_pack_run(lt_queue *q, const void *args) {
    lt_matmul_pack_args a = *(const lt_matmul_pack_args *)args;
    const format *f = format_of(a.b.dtype);
    int64_t rows = a.b.shape[0], k = a.b.shape[1], src = (int64_t)lt_dtype_row_bytes(a.b.dtype, k);
    int groups = (int)(k / 32), tiles = (int)n_tiles(k);
    const int64_t threads = LT_CUDA_DIV_UP(rows, TILE_ROWS) * TILE_ROWS * tiles;
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_pack_q_args call = {.dst = a.dst,
                                .src = a.b.data,
                                .rows = rows,
                                .groups = groups,
                                .tiles = tiles,
                                .src_bytes = src};
    void *list[] = {&call};
    snprintf(defines, sizeof defines, PACK_WORDS, lt_dtype_name(f->type), f->bits, f->group,
             f->mins);
    LT_TRY(lt_cuda_run(q, "gemm/pack_q.cu", "pack_q", defines, LT_CUDA_DIV_UP(threads, 128), 1, 128,
                       list));
    return lt_cuda_sync(q->gpu, q->stream); /* gemm_q reads weights early (early.cuh). */
}

const char *lt_cuda_embed_q_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_embed_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->pos_table};
    if (format_of(a->table.dtype) == NULL || a->table_packed == NULL) {
        return "table is not packed blocks";
    }
    if (a->part) {
        return "a part of the vocabulary";
    }
    return a->y.dtype != LT_BF16 && a->y.dtype != LT_F16 ? "y is not 16-bit"
                                                         : lt_cuda_refuse_rows(rows, 2, a->y.dtype);
}
lt_err lt_cuda_embed_q_run(lt_queue *q, const void *args) {
    lt_embed_args a = *(const lt_embed_args *)args;
    const format *f = format_of(a.table.dtype);
    int64_t rows = a.y.shape[0];
    int k = (int)a.table.shape[1], tiles = (int)n_tiles(k);
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_embed_q_args call = {.y = a.y.data,
                                 .w = a.table_packed,
                                 .ids = a.ids.data,
                                 .pos_table = a.pos_table.data,
                                 .positions = a.positions.data,
                                 .late = a.late.data,
                                 .rows = rows,
                                 .k = k,
                                 .tiles = tiles,
                                 .scale = a.scale,
                                 .ldy = a.y.stride[0],
                                 .ld_pos = a.pos_table.stride[0]};
    void *list[] = {&call};
    snprintf(defines, sizeof defines, "TILES=1 SPLIT=1 WHOLE=0 " FORMAT_WORDS " OUT=bf16 DTYPE=%s",
             FORMAT_VALUES(f), lt_cuda_dtype_word(a.y.dtype));
    return lt_cuda_run_early(q, "gemm/gemm_q.cu", "embed_q", defines,
                             LT_CUDA_DIV_UP(rows * (k / 8), 128), 1, 128, list);
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

/* In a fixed order, more rows are computed in pieces of this many. */
const char *lt_cuda_few_q_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_matmul_args *a = args;
    const char *why = refuse_blocks(a);
    return why != NULL                                   ? why
           : a->y.shape[0] > FEW_ROWS && !a->fixed_order ? "more than 64 rows"
                                                         : NULL;
}
/* The number of warps that share a unit, a power of two: as many as there is room for with this
 * many units, as long as each has a tile of K. */
static int split_for(int64_t units, int64_t tiles, int most, int64_t room) {
    int split = 1;
    while (split < most && 2 * split * units <= room && 2 * split <= tiles) {
        split *= 2;
    }
    return split;
}
/* For gemm_q_ring.cu, which computes two slabs at once. */
int lt_cuda_split_q(int64_t n, int64_t k, int n_sms) {
    return split_for(LT_CUDA_DIV_UP(n, 2 * TILE_ROWS), n_tiles(k), MOST_SPLIT_ALONE,
                     (int64_t)WARPS_ALONE * n_sms);
}
/* Warps that share a slab of columns. */
static int split_of(const lt_queue *q, const lt_matmul_args *a) {
    const lt_cuda_info *info = lt_cuda_get_info(q->gpu);
    const bool alone = a->y.shape[0] <= ALONE && !a->fixed_order;
    const int64_t slabs = LT_CUDA_DIV_UP(a->y.shape[1], TILE_ROWS), tiles = n_tiles(a->b.shape[1]),
                  room = (alone ? WARPS_ALONE : WARPS_OF_MANY) * info->n_sms;
    const int most = alone            ? MOST_SPLIT_ALONE
                     : a->fixed_order ? MOST_SPLIT_FIXED
                                      : MOST_SPLIT_OF_MANY;
    return split_for(slabs, tiles, most, room);
}
/* At most FEW_ROWS rows. */
static lt_err few_rows(lt_queue *q, const lt_matmul_args *a, int split) {
    const format *f = format_of(a->b.dtype);
    lt_gemm_q_args w = {.x = a->a.data,
                        .w = a->b_packed,
                        .bias = a->bias.data,
                        .y = a->y.data,
                        .ldx = a->a.stride[0],
                        .ldy = a->y.stride[0],
                        .m = (int)a->y.shape[0],
                        .n = (int)a->y.shape[1],
                        .k = (int)a->b.shape[1],
                        .bias_type = lt_matmul_bias_type(&a->bias),
                        .accumulate = a->accumulate};
    /* warps: as WARPS of gemm_q.cu. */
    const int tiles = LT_CUDA_DIV_UP(w.m, 8), warps = split > 4 ? split : 4;
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&w};
    snprintf(defines, sizeof defines, GEMM_Q_WORDS, tiles, split, w.k % TILE_K == 0,
             FORMAT_VALUES(f), lt_cuda_dtype_word(a->y.dtype), lt_cuda_dtype_word(a->a.dtype));
    return lt_cuda_run_early(q, "gemm/gemm_q.cu", "gemm_q", defines,
                             LT_CUDA_DIV_UP(LT_CUDA_DIV_UP(w.n, TILE_ROWS), warps / split), 1,
                             32 * warps, list);
}
/* A product that would be fused runs in the same kernel alone, for the same bits. */
static bool would_be_fused(const lt_queue *q, const lt_matmul_args *a, lt_fuse_ops *alone) {
    *alone = (lt_fuse_ops){.most = q->fuse->most, .has_product = true, .product = *a};
    return !lt_matmul_empty(a) && lt_cuda_ring_takes(alone, lt_cuda_get_info(q->gpu));
}
lt_err lt_cuda_few_q_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const int64_t m = lt_matmul_empty(a) ? 0 : a->y.shape[0];
    const int split = split_of(q, a);
    lt_fuse_ops alone;
    if (would_be_fused(q, a, &alone)) {
        return lt_cuda_ring_run(q, &alone, true);
    }
    for (int64_t first = 0; first < m; first += FEW_ROWS) {
        const int64_t n = m - first < FEW_ROWS ? m - first : FEW_ROWS;
        lt_matmul_args piece = *a;
        piece.y = lt_tensor_rows(&a->y, first, n);
        piece.a = lt_tensor_rows(&a->a, first, n);
        LT_TRY(few_rows(q, &piece, split));
    }
    return LT_OK;
}

/* gemm_q_sm90.cu. In a fixed order it takes any number of rows, in pieces, and the weights are
 * converted exactly. */
const char *lt_cuda_wgmma_q_refuse(const void *args, const lt_device *device) {
    const lt_matmul_args *a = args;
    const int64_t rows = a->y.shape[0];
    const char *why = refuse_blocks(a);
    if (why != NULL || a->fixed_order) {
        return why != NULL ? why : lt_gemm_q_refusal(a, lt_cuda_device_info(device));
    }
    return rows < WGMMA_LEAST ? "too few rows" : lt_gemm_q_refusal(a, lt_cuda_device_info(device));
}
lt_err lt_cuda_wgmma_q_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const int64_t m = lt_matmul_empty(a) ? 0 : a->y.shape[0],
                  step = a->fixed_order ? LT_GEMM_Q_PIECE : m;
    lt_fuse_ops alone;
    if (would_be_fused(q, a, &alone)) {
        return lt_cuda_ring_run(q, &alone, true);
    }
    for (int64_t first = 0; first < m; first += step) {
        const int64_t n = m - first < step ? m - first : step;
        lt_matmul_args piece = *a;
        piece.y = lt_tensor_rows(&a->y, first, n);
        piece.a = lt_tensor_rows(&a->a, first, n);
        LT_TRY(lt_gemm_q(q->gpu, q->stream, &piece, NULL));
    }
    return LT_OK;
}
/* The bits are the same with an activation after the product as without. */
bool lt_cuda_wgmma_q_gates(const lt_queue *q, const lt_matmul_args *a) {
    lt_fuse_ops alone;
    return a->y.shape[0] <= LT_GEMM_Q_PIECE && lt_cuda_wgmma_q_refuse(a, q->device) == NULL &&
           a->y.shape[1] % (2 * TILE_ROWS) == 0 && !would_be_fused(q, a, &alone);
}

const char *lt_cuda_wide_q_refuse(const void *args, const lt_device *device) {
    (void)device;
    return refuse_blocks(args);
}
/* Write `rows` packed rows of k numbers to q->wide, in a 16-bit type. */
static lt_err widen(lt_queue *q, const format *f, const void *packed, int64_t rows, int64_t k,
                    lt_dtype dtype) {
    lt_cuda_widen_q_args call = {
        .wide = q->wide, .w = packed, .rows = rows, .k = (int)k, .tiles = (int)n_tiles(k)};
    void *list[] = {&call};
    char defines[LT_CUDA_DEFINES_BYTES];
    snprintf(defines, sizeof defines, "TILES=1 SPLIT=1 WHOLE=0 " FORMAT_WORDS " OUT=bf16 DTYPE=%s",
             FORMAT_VALUES(f), lt_cuda_dtype_word(dtype));
    return lt_cuda_run(q, "gemm/gemm_q.cu", "widen_q", defines,
                       LT_CUDA_DIV_UP(LT_CUDA_DIV_UP(rows, TILE_ROWS) * call.tiles, 4), 1, 128,
                       list);
}
/* Compute columns [first, first + n) of y. */
static lt_err slab(lt_queue *q, const lt_matmul_args *a, const format *f, int64_t first,
                   int64_t n) {
    const int64_t k = a->b.shape[1];
    const void *src = (const unsigned char *)a->b_packed + first / TILE_ROWS * slab_bytes(f, k);
    lt_matmul_args wide = *a;
    LT_TRY(widen(q, f, src, n, k, a->a.dtype));
    wide.b = lt_tensor_2d(q->wide, a->a.dtype, n, k);
    wide.b_packed = NULL;
    wide.y = lt_tensor_cols(&a->y, first, n);
    wide.bias = a->bias.data == NULL ? a->bias : lt_tensor_rows(&a->bias, first, n);
    return q->device->backend->ops->matmul(q, &wide);
}
lt_err lt_cuda_wide_q_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const int64_t n = a->y.shape[1], k = a->b.shape[1], fit = SLAB_BYTES / (2 * k) / 64 * 64,
                  step = fit > 64 ? fit : 64;
    if (a->y.shape[0] == 0) {
        return LT_OK;
    }
    const int64_t bytes = 2 * k * step > SLAB_BYTES ? 2 * k * step : SLAB_BYTES;
    void *wide;
    /* It grows once, unless K is above half a million. */
    LT_TRY(lt_cuda_wide(q, (size_t)bytes, &wide));
    for (int64_t first = 0; first < n; first += step) {
        LT_TRY(slab(q, a, format_of(a->b.dtype), first, n - first < step ? n - first : step));
    }
    return LT_OK;
}

/* ---- Products of experts ---- */

/* Where gemm_q_sm90.cu does not run: with more rows than this for each expert on average, widening
 * the matrices once costs less than multiplying with the tiles (docs/speed/decoding.md). */
#define GROUPED_ROWS  96
#define GROUPED_ALONE 4 /* In a fixed order, units are counted as if so many experts had rows. */
#define GROUPED_WORDS GEMM_Q_WORDS " GROUPED=1"
#define GATED_WORDS   " GATED=1 KIND=%d"
#define GROUPED_MOST  4 /* TILES */

const char *lt_cuda_grouped_q_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_matmul_grouped_args *a = args;
    if (a->b_packed == NULL || format_of(a->b.dtype) == NULL) {
        return "b is not packed blocks";
    }
    if ((a->a.dtype != LT_BF16 && a->a.dtype != LT_F16) || lt_cuda_dtype_word(a->y.dtype) == NULL) {
        return "activations not 16-bit";
    }
    if (a->weights || !a->trans_b || a->a.stride[1] != 1 || a->y.stride[1] != 1) {
        return "weights not stored (E, N, K)";
    }
    return (uintptr_t)a->a.data % 16 != 0 || a->a.stride[0] % 8 != 0 || a->b.shape[2] % 32 != 0 ||
                   a->b.shape[1] % TILE_ROWS != 0
               ? "rows not 16-byte aligned, or not whole tiles of columns"
               : NULL;
}

/* gemm_q_sm90.cu: from this many rows for each expert on average. */
#define GROUPED_WGMMA_LEAST 10

const char *lt_cuda_grouped_wgmma_q_refuse(const void *args, const lt_device *device) {
    const lt_matmul_grouped_args *a = args;
    const char *why = lt_cuda_grouped_q_refuse(args, device);
    return why != NULL      ? why
           : a->fixed_order ? "weights are rounded"
           : a->a.shape[0] < GROUPED_WGMMA_LEAST * a->b.shape[0]
               ? "too few rows for each expert"
               : lt_gemm_q_grouped_refusal(a, lt_cuda_device_info(device));
}
lt_err lt_cuda_grouped_wgmma_q_run(lt_queue *q, const void *args) {
    return lt_gemm_q_grouped(q->gpu, q->stream, args);
}

/* How gemm_q.cu divides a product of experts. */
typedef struct {
    int tiles, split, chunks;
} grouped_plan;
static grouped_plan plan_of(const lt_queue *q, const lt_matmul_grouped_args *a) {
    const int64_t rows = a->a.shape[0], experts = a->b.shape[0],
                  each = LT_CUDA_DIV_UP(rows, experts),
                  busy = a->fixed_order   ? GROUPED_ALONE
                         : rows < experts ? rows
                                          : experts;
    grouped_plan p = {.tiles = 1};
    while (p.tiles < GROUPED_MOST && 8 * p.tiles < each) {
        p.tiles *= 2;
    }
    const int most = a->fixed_order || p.tiles == 1 ? MOST_SPLIT_FIXED : 1;
    const int64_t chunks = rows / (8 * p.tiles) + (rows < experts ? rows : experts);
    p.split = split_for(LT_CUDA_DIV_UP(a->b.shape[1], TILE_ROWS) * busy, n_tiles(a->b.shape[2]),
                        most, (int64_t)WARPS_ALONE * lt_cuda_get_info(q->gpu)->n_sms);
    p.chunks = (int)(chunks < rows ? chunks : rows);
    return p;
}
static lt_gemm_q_grouped_args grouped_args(const lt_matmul_grouped_args *a) {
    return (lt_gemm_q_grouped_args){.product = {.x = a->a.data,
                                                .w = a->b_packed,
                                                .y = a->y.data,
                                                .ldx = a->a.stride[0],
                                                .ldy = a->y.stride[0],
                                                .m = (int)a->y.shape[0],
                                                .n = (int)a->b.shape[1],
                                                .k = (int)a->b.shape[2],
                                                .accumulate = a->accumulate},
                                    .start = a->expert_start.data,
                                    .next_expert = (long long)a->packed_step,
                                    .experts = (int)a->b.shape[0]};
}

static lt_err grouped_tiles(lt_queue *q, const lt_matmul_grouped_args *a) {
    const format *f = format_of(a->b.dtype);
    const grouped_plan p = plan_of(q, a);
    const int warps = p.split > 4 ? p.split : 4;
    lt_gemm_q_grouped_args w = grouped_args(a);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&w};
    snprintf(defines, sizeof defines, GROUPED_WORDS, p.tiles, p.split, w.product.k % TILE_K == 0,
             FORMAT_VALUES(f), lt_cuda_dtype_word(a->y.dtype), lt_cuda_dtype_word(a->a.dtype));
    return lt_cuda_run_early(
        q, "gemm/gemm_q.cu", "gemm_q_grouped", defines,
        LT_CUDA_DIV_UP(LT_CUDA_DIV_UP(w.product.n, TILE_ROWS), warps / p.split), p.chunks,
        32 * warps, list);
}

bool lt_cuda_few_q_up_takes(const lt_queue *q, const lt_experts_up *up) {
    const lt_matmul_grouped_args *a = up->unfused;
    return lt_cuda_grouped_q_refuse(a, q->device) == NULL &&
           lt_cuda_grouped_wgmma_q_refuse(a, q->device) != NULL &&
           lt_cuda_grouped_q_refuse(&up->gates, q->device) == NULL && a->b.shape[0] > 0 &&
           up->gates.b.shape[1] > 0 && plan_of(q, a).tiles == 1;
}
lt_err lt_cuda_few_q_up_run(lt_queue *q, const lt_experts_up *up, bool launch) {
    const format *f = format_of(up->gates.b.dtype);
    const grouped_plan p = plan_of(q, up->unfused);
    const int warps = 2 * p.split > 4 ? 2 * p.split : 4, pairs = warps / (2 * p.split);
    lt_gemm_q_grouped_args w = grouped_args(&up->gates);
    lt_experts_up_args beside = lt_cuda_experts_up_args(up);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&w, &beside};
    snprintf(defines, sizeof defines, GROUPED_WORDS GATED_WORDS, p.tiles, p.split,
             w.product.k % TILE_K == 0, FORMAT_VALUES(f), lt_cuda_dtype_word(up->gates.y.dtype),
             lt_cuda_dtype_word(up->gates.a.dtype), (int)up->act->kind);
    if (!launch) {
        const lt_cuda_kernel *kernel;
        return lt_cuda_kernel_get(q->gpu, &kernel, "gemm/gemm_q.cu", "gemm_q_gated", defines);
    }
    return lt_cuda_run_early(q, "gemm/gemm_q.cu", "gemm_q_gated", defines,
                             LT_CUDA_DIV_UP(w.product.n / TILE_ROWS, pairs), p.chunks, 32 * warps,
                             list);
}

/* As many experts at once as fit in the scratch memory are widened, and multiplied. */
static lt_err grouped_wide(lt_queue *q, const lt_matmul_grouped_args *a) {
    const format *f = format_of(a->b.dtype);
    const int64_t experts = a->b.shape[0], n = a->b.shape[1], k = a->b.shape[2],
                  fit = SLAB_BYTES / (2 * k * n), step = fit > 1 ? fit : 1;
    const size_t bytes = (size_t)(2 * k * n * step);
    void *wide;
    LT_TRY(lt_cuda_wide(q, bytes > SLAB_BYTES ? bytes : SLAB_BYTES, &wide));
    for (int64_t first = 0; first < experts; first += step) {
        const int64_t some = experts - first < step ? experts - first : step;
        const void *src = (const unsigned char *)a->b_packed + (size_t)first * a->packed_step;
        lt_matmul_grouped_args part = *a;
        LT_TRY(widen(q, f, src, some * n, k, a->a.dtype));
        part.b = (lt_tensor){.data = wide,
                             .dtype = a->a.dtype,
                             .n_dims = 3,
                             .shape = {some, n, k},
                             .stride = {n * k, k, 1}};
        part.b_packed = NULL;
        part.expert_start = lt_tensor_rows(&a->expert_start, first, some + 1);
        LT_TRY(q->device->backend->ops->matmul_grouped(q, &part));
    }
    return LT_OK;
}

lt_err lt_cuda_grouped_q_run(lt_queue *q, const void *args) {
    const lt_matmul_grouped_args *a = args;
    if (a->a.shape[0] == 0 || a->b.shape[0] == 0 || a->b.shape[1] == 0) {
        return LT_OK;
    }
    return a->fixed_order || a->a.shape[0] <= GROUPED_ROWS * a->b.shape[0] ? grouped_tiles(q, a)
                                                                           : grouped_wide(q, a);
}

void lt_specs_matmul_q(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "gemm/pack_q.cu", PACK_WORDS, "Q8_0", 8, 32, 0);
    lt_spec(l, LT_SM_ALL, "gemm/pack_q.cu", PACK_WORDS, "Q4_0", 4, 32, 0);
    lt_spec(l, LT_SM_ALL, "gemm/pack_q.cu", PACK_WORDS, "Q4_1", 4, 32, 1);
    lt_spec(l, LT_SM_ALL, "gemm/pack_q.cu", PACK_WORDS, "Q5_0", 5, 32, 0);
    lt_spec(l, LT_SM_ALL, "gemm/pack_q.cu", PACK_WORDS, "Q5_1", 5, 32, 1);
    lt_spec(l, LT_SM_ALL, "gemm/pack_q.cu", PACK_WORDS, "Q4_K", 4, 32, 1);
    lt_spec(l, LT_SM_ALL, "gemm/pack_q.cu", PACK_WORDS, "Q5_K", 5, 32, 1);
    lt_spec(l, LT_SM_ALL, "gemm/pack_q.cu", PACK_WORDS, "Q6_K", 6, 16, 0);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GEMM_Q_WORDS, 1, 1, 1, 8, 32, 0, 128, "bf16", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GEMM_Q_WORDS, 1, 16, 0, 4, 32, 0, 8, "bf16", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GEMM_Q_WORDS, 1, 4, 1, 6, 16, 0, 32, "fp32", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GEMM_Q_WORDS, 1, 8, 0, 5, 32, 1, 0, "bf16", "fp16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GEMM_Q_WORDS, 4, 4, 1, 4, 32, 1, 0, "bf16", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GEMM_Q_WORDS, 8, 2, 1, 8, 32, 0, 128, "bf16", "bf16");
    for (int tiles = 1; tiles <= GROUPED_MOST; tiles *= 2) {
        lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS, tiles, 1, 1, 4, 32, 1, 0, "bf16",
                "bf16");
        lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS, tiles, 1, 1, 8, 32, 0, 128, "bf16",
                "bf16");
        lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS, tiles, 4, 1, 6, 16, 0, 32, "bf16",
                "bf16");
    }
    for (int split = 2; split <= MOST_SPLIT_FIXED; split *= 2) {
        lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS, 1, split, 1, 4, 32, 1, 0, "bf16",
                "bf16");
        lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS, 1, split, 1, 5, 32, 1, 0, "bf16",
                "bf16");
    }
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS, 1, 2, 0, 5, 32, 0, 16, "bf16", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS, 1, 8, 1, 8, 32, 0, 128, "bf16", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS, 1, 2, 1, 4, 32, 0, 8, "bf16", "bf16");
    for (int split = 1; split <= MOST_SPLIT_FIXED; split *= 2) {
        lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS GATED_WORDS, 1, split, 1, 4, 32, 1, 0,
                "bf16", "bf16", 2);
    }
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS GATED_WORDS, 1, 2, 1, 8, 32, 0, 128,
            "bf16", "bf16", 2);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_q.cu", GROUPED_WORDS GATED_WORDS, 1, 2, 1, 6, 16, 0, 32,
            "bf16", "bf16", 0);
}

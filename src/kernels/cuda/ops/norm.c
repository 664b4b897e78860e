/* norm.c: launchers of norm.cu, norm_bwd.cu and norm_part.cu: RMSNorm and LayerNorm.
 *
 * Forward, 8, 16 or 32 lanes of a warp compute a row of up to FWD_WARP_VECS pieces per lane, and
 * a block of 256 threads computes a longer row. Backward, where the sums of columns stay in
 * registers, a block of up to 512 threads computes a row of more than BWD_WARP_VECS pieces per
 * lane. Backward runs on as many blocks as are resident at once (a second, half-filled wave costs
 * a quarter), so its order of sums depends only on the kind of GPU, not on the run. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/ops/col_sum_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/norm_args.h"
#include "kernels/cuda/ops/norm_part_args.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_norm write them. */
#define FORWARD_WORDS                                                                              \
    "KIND=%d DTYPE=%s PARAM=%s W=%d LANES=%d VECS=%d THREADS=%d ROWS=%d ADD=%d "                   \
    "SUM=%d BIAS=%d FULL=%d FLAT=%d"
#define BACKWARD_WORDS                                                                             \
    "KIND=%d DTYPE=%s PARAM=%s W=%d LANES=%d VECS=%d THREADS=%d ROWS=%d DEPTH=%d "                 \
    "ADD=%d FULL=%d FLAT=%d"

#define PART_WORDS "DTYPE=%s PARAM=%s W=%d"

#define FORWARD     "ops/norm.cu"
#define BACKWARD    "ops/norm_bwd.cu"
#define PART        "ops/norm_part.cu"
#define PART_BLOCK  256
#define WARP        32
#define FWD_THREADS 128
#define FWD_BLOCK   256 /* Threads for a long row. */
#define BWD_THREADS 256
#define BWD_BLOCK   512
#define BWD_WARPS   448 /* Threads if a lane has three pieces: 14 rows per turn. */
/* Most pieces per lane in a row that one warp holds, which needs no block barrier. */
#define FWD_WARP_VECS 8
#define BWD_WARP_VECS 3
#define MAX_HELD      64 /* Most registers of a thread that hold its rows. */
/* Bytes of an SM's shared memory for sums, and for the driver's own use. */
#define RESERVED        16384
#define DEFINES_BYTES   192
#define COL_SUM_COLS    32
#define COL_SUM_THREADS 512

typedef struct {
    int w, lanes, vecs, threads, rows, depth;
} spec;

static int rows_a_block(const spec *s) {
    return s->threads / s->lanes * s->rows;
}

static bool full(const spec *s, int64_t width) {
    return width == (int64_t)s->lanes * s->vecs * s->w;
}

/* The number of lanes for a row of this many pieces; most: pieces per lane in a warp. */
static int lanes_of(int64_t pieces, int most) {
    int lanes = 8;
    while (lanes < WARP && pieces > lanes) {
        lanes *= 2;
    }
    return pieces > (int64_t)most * WARP ? 0 : lanes;
}

/* add: rows take twice the registers while they are loaded. False: the row is too long for
 * registers. */
static bool fwd_spec(spec *s, int w, int64_t width, int64_t rows, bool add, int n_sms) {
    const int64_t pieces = LT_CUDA_DIV_UP(width, w);
    *s = (spec){.w = w, .threads = FWD_THREADS, .rows = 1};
    s->lanes = lanes_of(pieces, w > 1 ? FWD_WARP_VECS : 4);
    if (s->lanes == 0) {
        s->lanes = s->threads = FWD_BLOCK;
    }
    s->vecs = (int)LT_CUDA_DIV_UP(pieces, s->lanes);
    while (s->lanes > WARP && s->vecs > 2 && (s->vecs & (s->vecs - 1)) != 0) {
        s->vecs++; /* A power of two, so that there are fewer specialisations. */
    }
    while (s->lanes <= WARP && s->rows < 4 && 2 * s->rows * s->vecs <= (add ? 8 : 12) &&
           rows >= (int64_t)n_sms * 8 * rows_a_block(s)) {
        s->rows *= 2; /* Parameters are read once for all rows of a thread. */
    }
    return s->vecs * (w > 1 ? 4 : 1) <= MAX_HELD;
}

static size_t ring_bytes(const spec *s, bool add_dx) {
    return (size_t)LT_NORM_RING_BYTES(s->depth, add_dx ? 3 : 2, s->rows, s->vecs, s->threads);
}

/* Bytes of the ring. At the end the warps' sums of columns take its place. */
static size_t bwd_shared_bytes(const spec *s, int kind, bool add_dx) {
    const size_t ring = ring_bytes(s, add_dx),
                 sums = (size_t)LT_NORM_SUMS_BYTES(1 + kind, s->threads, s->lanes * s->vecs * s->w);
    return LT_NORM_BWD_BYTES(ring, sums, s->depth, s->lanes);
}

/* Choose the rows of a turn and the turns of the ring. Measured on an H100
 * (docs/speed/memory-bound.md): large blocks halve what col_sum.cu reads; 50 to 100 KB per SM in
 * flight keep the memory busy, and more only waits there and delays the writes. The number of
 * rows is a power of two, that of SMs is 132: with 16 rows per SM at a time, 65,536 rows take
 * 31.03 turns, the last one for 64 rows; with 14 they take 35.5, with 12 41.4; 16,384 rows of
 * 4,096 columns take 24.8 turns with 5 rows at a time, and 31.03 with 4. */
static void bwd_ring(spec *s, int kind, bool add_dx) {
    if (s->lanes == WARP && s->vecs > 1) {
        s->rows = 1, s->depth = 1;
    } else if (s->lanes <= WARP) {
        s->rows = 2, s->depth = kind == 0 ? 1 : 2;
    } else if (s->lanes < BWD_BLOCK && s->vecs == 1) {
        /* In registers, so that more blocks fit. */
        const bool room = kind == 0 || s->lanes <= BWD_BLOCK / 2;
        s->rows = !room ? 2 : kind == 0 && !add_dx && s->lanes <= BWD_BLOCK / 4 ? 3 : 4;
        s->depth = room ? 1 : 2;
    } else if (add_dx) {
        s->rows = 1, s->depth = 2;
    } else {
        s->rows = s->vecs == 1 ? 4 + kind : s->vecs == 2 ? 2 : 1;
        s->depth = s->vecs <= 2 ? 1 : 2;
    }
}

/* shared: bytes of shared memory of an SM. */
static bool bwd_spec(spec *s, int kind, int w, int64_t width, bool add_dx, size_t shared) {
    const int64_t pieces = LT_CUDA_DIV_UP(width, w);
    *s = (spec){.w = w, .threads = BWD_THREADS, .rows = 1};
    s->lanes = lanes_of(pieces, w > 1 ? BWD_WARP_VECS : 4);
    if (s->lanes == 0) {
        s->threads = (int)(pieces < BWD_BLOCK ? LT_CUDA_DIV_UP(pieces, WARP) * WARP : BWD_BLOCK);
        s->lanes = s->threads;
    }
    s->vecs = (int)LT_CUDA_DIV_UP(pieces, s->lanes);
    while (s->lanes == BWD_BLOCK && s->vecs > 2 && (s->vecs & (s->vecs - 1)) != 0) {
        s->vecs++;
    }
    if (w > 1) {
        if (s->lanes == WARP && s->vecs > 1) {
            s->threads = s->vecs > 2 ? BWD_WARPS : BWD_BLOCK;
        }
        bwd_ring(s, kind, add_dx);
        while (ring_bytes(s, add_dx) * (size_t)(BWD_BLOCK / s->threads) > shared - RESERVED &&
               s->depth > 1) {
            *(s->depth > 2 || s->rows == 1 ? &s->depth : &s->rows) -= 1;
        }
    }
    return s->vecs * w <= MAX_HELD / 2;
}

static bool row_fits(const lt_tensor *x) {
    const int64_t width = lt_cuda_width(x);
    const int w = 16 / (int)lt_dtype_bytes(x->dtype);
    spec s;
    return (fwd_spec(&s, 1, width, 1, false, 1) && bwd_spec(&s, 0, 1, width, false, RESERVED)) ||
           (width % w == 0 && ((uintptr_t)x->data & 15) == 0 &&
            fwd_spec(&s, w, width, 1, false, 1) && bwd_spec(&s, 0, w, width, false, RESERVED));
}

static const char *refuse(const lt_tensor *const *rows, int n, const lt_tensor *x,
                          const lt_tensor *gain) {
    const char *why = lt_cuda_refuse_rows(rows, n, x->dtype);
    if (why == NULL && gain->dtype != LT_F32 && gain->dtype != LT_BF16) {
        why = "gain is not F32 or BF16";
    }
    return why == NULL && !row_fits(x) ? "row too long for a block's registers" : why;
}

static lt_err fwd(lt_queue *q, int kind, const lt_tensor *const rows_of[4], lt_tensor gain,
                  lt_tensor bias, lt_tensor mean, lt_tensor rstd, float eps, float gain_offset) {
    const lt_tensor *y = rows_of[0], *x = rows_of[1], *add = rows_of[2], *sum = rows_of[3];
    const lt_tensor *const all[] = {y, x, add, sum, &gain, &bias};
    const int rows = (int)lt_cuda_rows(x), cols = (int)lt_cuda_width(x);
    const lt_norm_views at = {.y = lt_cuda_view_of(y),
                              .x = lt_cuda_view_of(x),
                              .add = lt_cuda_view_of(add),
                              .sum = lt_cuda_view_of(sum),
                              .n = lt_cuda_row_shape_of(x)};
    lt_cuda_norm_fwd_args call = {.y = y->data,
                                  .x = x->data,
                                  .add = add->data,
                                  .sum = sum->data,
                                  .gain = gain.data,
                                  .bias = bias.data,
                                  .mean = mean.data,
                                  .rstd = rstd.data,
                                  .rows = rows,
                                  .cols = cols,
                                  .eps = eps,
                                  .gain_offset = gain_offset,
                                  .at = at};
    void *args[] = {&call};
    char defines[DEFINES_BYTES];
    spec s;
    (void)fwd_spec(&s, lt_cuda_piece(all, 6, x->dtype, cols), cols, rows, add->data != NULL,
                   lt_cuda_get_info(q->gpu)->n_sms);
    snprintf(defines, sizeof defines, FORWARD_WORDS, kind, lt_cuda_dtype_word(x->dtype),
             lt_cuda_dtype_word(gain.dtype), s.w, s.lanes, s.vecs, s.threads, s.rows,
             add->data != NULL, sum->data != NULL, bias.data != NULL, full(&s, cols),
             at.n.n1 * at.n.n2 == 1);
    return lt_cuda_run_early(q, FORWARD, "norm_fwd", defines,
                             LT_CUDA_DIV_UP(rows, rows_a_block(&s)), 1, s.threads, args);
}

static lt_err bwd(lt_queue *q, int kind, lt_tensor dx, lt_tensor dgain, lt_tensor dbias,
                  lt_tensor dy, lt_tensor x, lt_tensor gain, lt_tensor mean, lt_tensor rstd,
                  float gain_offset, bool add_dx) {
    const lt_tensor *const all[] = {&dx, &dy, &x, &gain};
    const lt_cuda_info *info = lt_cuda_get_info(q->gpu);
    int rows = (int)lt_cuda_rows(&x), cols = (int)lt_cuda_width(&x), n_parts, per_sm;
    char defines[DEFINES_BYTES];
    const lt_cuda_kernel *k;
    int64_t blocks, most;
    size_t ring;
    void *parts = NULL;
    spec s;
    (void)bwd_spec(&s, kind, lt_cuda_piece(all, 4, x.dtype, cols), cols, add_dx,
                   info->shared_optin_bytes);
    if (rows == 0) {
        return LT_OK;
    }
    lt_norm_views at = {.n = lt_cuda_row_shape_of(&x),
                        .x = lt_cuda_view_of(&x),
                        .dx = lt_cuda_view_of(&dx),
                        .dy = lt_cuda_view_of(&dy)};
    snprintf(defines, sizeof defines, BACKWARD_WORDS, kind, lt_cuda_dtype_word(x.dtype),
             lt_cuda_dtype_word(gain.dtype), s.w, s.lanes, s.vecs, s.threads, s.rows, s.depth,
             add_dx, full(&s, cols), at.n.n1 * at.n.n2 == 1);
    ring = bwd_shared_bytes(&s, kind, add_dx);
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, BACKWARD, "norm_bwd", defines));
    LT_TRY(lt_cuda_occupancy(q->gpu, k, s.threads, ring, &per_sm));
    blocks = LT_CUDA_DIV_UP(rows, rows_a_block(&s));
    most = (int64_t)info->n_sms * (per_sm > 0 ? per_sm : 1);
    blocks = blocks < most ? blocks : most;
    n_parts = (int)blocks;
    LT_TRY(lt_cuda_scratch(q, (size_t)n_parts * (size_t)cols * 4 * 2, &parts));
    lt_cuda_norm_bwd_args call = {.dx = dx.data,
                                  .parts = parts,
                                  .dy = dy.data,
                                  .x = x.data,
                                  .gain = gain.data,
                                  .mean = mean.data,
                                  .rstd = rstd.data,
                                  .rows = rows,
                                  .cols = cols,
                                  .gain_offset = gain_offset,
                                  .at = at};
    void *args[] = {&call};
    lt_cuda_col_sum_pair_args pair = {
        .dst = dgain.data, .dst2 = dbias.data, .parts = parts, .n_parts = n_parts, .cols = cols};
    void *sums[] = {&pair};
    LT_TRY(lt_cuda_launch(q->gpu, q->stream, k,
                          &(lt_cuda_dims){.grid = {(unsigned)blocks},
                                          .block = {(unsigned)s.threads},
                                          .dynamic_shared_bytes = ring,
                                          .overlap_previous = info->cc >= 90},
                          args));
    if (dgain.data == NULL) {
        return LT_OK; /* The gain has no gradient. */
    }
    return lt_cuda_run_early(q, "ops/col_sum.cu", "col_sum_pair", "",
                             LT_CUDA_DIV_UP(cols, COL_SUM_COLS), 1 + kind, COL_SUM_THREADS, sums);
}

static const char *rmsnorm_fwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_rmsnorm_args *a = args;
    if (a->part != LT_NORM_ALONE) {
        return "a part of wider rows";
    }
    const lt_tensor *const rows[] = {&a->y, &a->x, &a->add, &a->sum};
    return refuse(rows, 4, &a->x, &a->gain);
}
static lt_err rmsnorm_fwd_run(lt_queue *q, const void *args) {
    const lt_rmsnorm_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x, &a->add, &a->sum};
    return fwd(q, 0, rows, a->gain, (lt_tensor){0}, (lt_tensor){0}, a->rstd, a->eps,
               a->gain_offset);
}
static const char *rmsnorm_bwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_rmsnorm_bwd_args *a = args;
    if (a->part != LT_NORM_ALONE) {
        return "a part of wider rows";
    }
    const lt_tensor *const rows[] = {&a->dx, &a->dy, &a->x};
    return a->rstd.data == NULL ? "no rstd" : refuse(rows, 3, &a->x, &a->gain);
}
static lt_err rmsnorm_bwd_run(lt_queue *q, const void *args) {
    const lt_rmsnorm_bwd_args *a = args;
    return bwd(q, 0, a->dx, a->dgain, (lt_tensor){0}, a->dy, a->x, a->gain, (lt_tensor){0}, a->rstd,
               a->gain_offset, a->add_dx);
}
static const char *layernorm_fwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_layernorm_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x, &a->add, &a->sum};
    if (a->bias.data != NULL && a->bias.dtype != a->gain.dtype) {
        return "gain and bias of different types";
    }
    return refuse(rows, 4, &a->x, &a->gain);
}
static lt_err layernorm_fwd_run(lt_queue *q, const void *args) {
    const lt_layernorm_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x, &a->add, &a->sum};
    return fwd(q, 1, rows, a->gain, a->bias, a->mean, a->rstd, a->eps, 0.0f);
}
static const char *layernorm_bwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_layernorm_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->dx, &a->dy, &a->x};
    return a->rstd.data == NULL || a->mean.data == NULL ? "no mean or rstd"
                                                        : refuse(rows, 3, &a->x, &a->gain);
}
static lt_err layernorm_bwd_run(lt_queue *q, const void *args) {
    const lt_layernorm_bwd_args *a = args;
    return bwd(q, 1, a->dx, a->dgain, a->dbias, a->dy, a->x, a->gain, a->mean, a->rstd, 0.0f,
               a->add_dx);
}

/* ---- Rows whose other columns other ranks hold ---- */

static const char *part_refuse(lt_norm_part part, const lt_tensor *const *rows, int n,
                               const lt_tensor *gain, const lt_tensor *rstd) {
    for (int i = 0; i < n; i++) {
        if (rows[i]->data != NULL && rows[i]->n_dims != 2) {
            return "not (R, C)";
        }
    }
    return part == LT_NORM_ALONE ? "whole rows"
           : rstd->data == NULL  ? "no rstd"
           : gain->dtype != LT_F32 && gain->dtype != LT_BF16
               ? "gain is not F32 or BF16"
               : lt_cuda_refuse_rows(rows, n, rows[0]->dtype);
}

static const char *rmsnorm_fwd_part_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_rmsnorm_args *a = args;
    const lt_tensor *const rows[] = {&a->x, &a->y};
    return a->add.data != NULL ? "a sum" : part_refuse(a->part, rows, 2, &a->gain, &a->rstd);
}

static lt_err rmsnorm_fwd_part_run(lt_queue *q, const void *args) {
    const lt_rmsnorm_args *a = args;
    const lt_tensor *const all[] = {&a->x, &a->y, &a->gain};
    const int cols = (int)lt_cuda_width(&a->x);
    lt_cuda_norm_part_args call = {.y = a->y.data,
                                   .x = a->x.data,
                                   .gain = a->gain.data,
                                   .rstd = a->rstd.data,
                                   .ldy = a->y.stride[0],
                                   .ldx = a->x.stride[0],
                                   .cols = cols,
                                   .eps = a->eps,
                                   .gain_offset = a->gain_offset};
    void *list[] = {&call};
    char defines[DEFINES_BYTES];
    snprintf(defines, sizeof defines, PART_WORDS, lt_cuda_dtype_word(a->x.dtype),
             lt_cuda_dtype_word(a->gain.dtype), lt_cuda_piece(all, 3, a->x.dtype, cols));
    return lt_cuda_run_early(q, PART, a->part == LT_NORM_MEASURE ? "part_measure" : "part_scale",
                             defines, lt_cuda_rows(&a->x), 1, PART_BLOCK, list);
}

static const char *rmsnorm_bwd_part_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_rmsnorm_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->x, &a->dy, &a->dx};
    return part_refuse(a->part, rows, 3, &a->gain, &a->rstd);
}

static lt_err rmsnorm_bwd_part_run(lt_queue *q, const void *args) {
    const lt_rmsnorm_bwd_args *a = args;
    const lt_tensor *const all[] = {&a->x, &a->dy, &a->dx, &a->gain};
    const int rows = (int)lt_cuda_rows(&a->x), cols = (int)lt_cuda_width(&a->x),
              w = lt_cuda_piece(all, 4, a->x.dtype, cols);
    lt_cuda_norm_part_bwd_args call = {.dx = a->dx.data,
                                       .dy = a->dy.data,
                                       .x = a->x.data,
                                       .gain = a->gain.data,
                                       .rstd = a->rstd.data,
                                       .mean = a->mean.data,
                                       .dgain = a->dgain.data,
                                       .lddx = a->dx.stride[0],
                                       .lddy = a->dy.stride[0],
                                       .ldx = a->x.stride[0],
                                       .rows = rows,
                                       .cols = cols,
                                       .add_dx = a->add_dx,
                                       .gain_offset = a->gain_offset};
    void *list[] = {&call};
    char defines[DEFINES_BYTES];
    snprintf(defines, sizeof defines, PART_WORDS, lt_cuda_dtype_word(a->x.dtype),
             lt_cuda_dtype_word(a->gain.dtype), w);
    if (a->part == LT_NORM_MEASURE) {
        return lt_cuda_run_early(q, PART, "part_measure_bwd", defines, rows, 1, PART_BLOCK, list);
    }
    if (a->dgain.data != NULL) { /* Before dx is written, which may be in dy's memory. */
        LT_TRY(lt_cuda_run_early(q, PART, "part_gain", defines, LT_CUDA_DIV_UP(cols, WARP * w), 1,
                                 PART_BLOCK, list));
    }
    return lt_cuda_run_early(q, PART, "part_scale_bwd", defines, rows, 1, PART_BLOCK, list);
}

#define ENTRY(op)                                                                                  \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {                               \
        {"rows", op##_refuse, op##_run}};
#define ENTRY_PART(op)                                                                             \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {                               \
        {"rows", op##_refuse, op##_run}, {"part", op##_part_refuse, op##_part_run}};
ENTRY_PART(rmsnorm_fwd)
ENTRY_PART(rmsnorm_bwd)
ENTRY(layernorm_fwd)
ENTRY(layernorm_bwd)

void lt_specs_norm(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, PART, PART_WORDS, "bf16", "fp32", 8);
    lt_spec(l, LT_SM_ALL, PART, PART_WORDS, "bf16", "bf16", 8);
    lt_spec(l, LT_SM_ALL, PART, PART_WORDS, "fp32", "fp32", 1);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 0, "bf16", "fp32", 8, 256, 2, 256, 1, 0, 0,
            0, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 0, "bf16", "fp32", 8, 256, 2, 256, 1, 1, 1,
            0, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 1, "bf16", "fp32", 8, 256, 2, 256, 1, 0, 0,
            1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 1, "bf16", "fp32", 8, 32, 3, 128, 4, 0, 0,
            1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 1, "bf16", "fp32", 8, 32, 3, 128, 2, 1, 1,
            1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 0, "bf16", "bf16", 8, 32, 8, 128, 1, 1, 1,
            0, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 0, "bf16", "fp32", 8, 16, 1, 128, 4, 0, 0,
            0, 1, 0);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 0, "fp32", "fp32", 1, 8, 1, 128, 1, 1, 0, 0,
            0, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 1, "fp32", "fp32", 4, 256, 4, 256, 1, 0, 0,
            1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 0, "bf16", "fp32", 1, 256, 8, 256, 1, 0, 0,
            0, 0, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm.cu", FORWARD_WORDS, 1, "bf16", "fp32", 8, 256, 4, 256, 1, 1, 1,
            1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 0, "bf16", "fp32", 8, 512, 1, 512, 4,
            1, 0, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 1, "bf16", "fp32", 8, 512, 1, 512, 5,
            1, 0, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 1, "bf16", "fp32", 8, 256, 1, 256, 4,
            1, 1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 1, "bf16", "fp32", 8, 512, 4, 512, 1,
            2, 0, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 1, "bf16", "fp32", 8, 128, 1, 128, 4,
            1, 1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 0, "bf16", "fp32", 8, 128, 1, 128, 3,
            1, 0, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 0, "bf16", "fp32", 8, 256, 1, 256, 4,
            1, 1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 0, "bf16", "fp32", 8, 512, 2, 512, 1,
            2, 1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 0, "bf16", "bf16", 8, 512, 1, 512, 1,
            2, 1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 0, "bf16", "fp32", 8, 16, 1, 256, 2, 1,
            0, 1, 0);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 0, "bf16", "fp32", 8, 32, 3, 448, 1, 1,
            0, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 1, "bf16", "fp32", 8, 32, 3, 448, 1, 1,
            0, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 1, "bf16", "fp32", 8, 32, 3, 448, 1, 1,
            1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 0, "fp32", "fp32", 1, 8, 1, 256, 1, 0,
            0, 0, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 1, "fp32", "fp32", 4, 512, 2, 512, 1,
            3, 0, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/norm_bwd.cu", BACKWARD_WORDS, 0, "bf16", "fp32", 1, 512, 8, 512, 1,
            0, 0, 0, 1);
}

/* qk_norm.c: launchers of qk_norm.cu and qk_norm_any.cu.
 *
 * Backward runs on as many blocks as are resident at once, divided between q and k in proportion to
 * their heads, so its order of sums depends only on the kind of GPU, not on the run. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/col_sum_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/qk_norm_args.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_qk_norm write them. */
#define HEAD_WORDS  "DTYPE=%s PARAM=%s"
#define LANES_WORDS " W=%d LANES=%d"

#define THREADS 256
#define WARPS   (THREADS / 32)
/* Heads per thread in the forward pass, and turns of the ring: as in qk_norm.cu. */
#define HEADS         2
#define COLS          32 /* Columns of col_sum.cu. */
#define SUM_THREADS   512
#define MAX_ANY_WIDTH 2048 /* Its sums and one head of every warp are in shared memory. */

static lt_qk_steps steps_of(const lt_tensor *t) {
    return (lt_qk_steps){t->stride[0], t->stride[1]};
}

static const char *refuse(const lt_tensor *const *rows, int n, const lt_tensor *q_gain,
                          const lt_tensor *k_gain) {
    const char *why = lt_cuda_refuse_rows(rows, n, rows[0]->dtype);
    if (why == NULL &&
        (q_gain->dtype != k_gain->dtype || (q_gain->dtype != LT_F32 && q_gain->dtype != LT_BF16))) {
        why = "gains are not F32 or BF16 of one type";
    }
    for (int i = 0; i < n && why == NULL; i++) {
        why = rows[i]->n_dims != 3 ? "not (R, H, D)" : NULL;
    }
    return why == NULL && lt_cuda_rows(rows[0]) > INT32_MAX / 4 ? "too many heads" : why;
}

static const char *refuse_pieces(const lt_tensor *const *rows, int n, const lt_tensor *q_gain,
                                 const lt_tensor *k_gain, const lt_tensor *table) {
    const char *why = refuse(rows, n, q_gain, k_gain);
    const lt_tensor *const params[] = {q_gain, k_gain};
    const int64_t width = lt_cuda_width(rows[0]);
    const int w = 16 / (int)lt_dtype_bytes(rows[0]->dtype);
    const int64_t lanes = width / (2 * w);
    if (why != NULL) {
        return why;
    }
    if (table->shape[1] * 2 != width || !lt_tensor_contiguous(table)) {
        return "part of the head rotates";
    }
    if (width % (2 * w) != 0 || lanes > 32 || (lanes & (lanes - 1)) != 0) {
        return "head width is not 2, 4, 8, .. vectors";
    }
    return ((uintptr_t)table->data & 15) != 0 ||
                   lt_cuda_piece(rows, n, rows[0]->dtype, width) != w ||
                   lt_cuda_piece(params, 2, q_gain->dtype, width) == 1
               ? "not 16-byte aligned"
               : NULL;
}

static const char *refuse_any(const lt_tensor *const *rows, int n, const lt_tensor *q_gain,
                              const lt_tensor *k_gain) {
    const char *why = refuse(rows, n, q_gain, k_gain);
    return why == NULL && lt_cuda_width(rows[0]) > MAX_ANY_WIDTH ? "head wider than 2048" : why;
}

static void defines_of(char out[LT_CUDA_DEFINES_BYTES], const lt_tensor *x, const lt_tensor *gain,
                       bool any) {
    const int w = 16 / (int)lt_dtype_bytes(x->dtype);
    int used = snprintf(out, LT_CUDA_DEFINES_BYTES, HEAD_WORDS, lt_cuda_dtype_word(x->dtype),
                        lt_cuda_dtype_word(gain->dtype));
    if (!any) {
        snprintf(out + used, (size_t)(LT_CUDA_DEFINES_BYTES - used), LANES_WORDS, w,
                 (int)lt_cuda_width(x) / (2 * w));
    }
}

static lt_qk_part part_of(const lt_tensor *x, const lt_tensor *table) {
    return (lt_qk_part){table->stride[0], table->stride[1], (int)table->shape[1],
                        (int)lt_cuda_width(x)};
}

/* ---- Forward ---- */

static const char *qk_norm_fwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_qk_norm_args *a = args;
    const lt_tensor *const rows[] = {&a->x, &a->y};
    return refuse_pieces(rows, 2, &a->q_gain, &a->k_gain, &a->table);
}
static const char *qk_norm_fwd_any_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_qk_norm_args *a = args;
    const lt_tensor *const rows[] = {&a->x, &a->y};
    return refuse_any(rows, 2, &a->q_gain, &a->k_gain);
}

static lt_err forward(lt_queue *q, lt_qk_norm_args a, bool any) {
    lt_qk_shape n = {.x = steps_of(&a.x),
                     .y = steps_of(&a.y),
                     .rows = (int)a.x.shape[0],
                     .heads = (int)a.x.shape[1],
                     .n_q = (int)a.n_q};
    lt_qk_part part = part_of(&a.x, &a.table);
    const int lanes = (int)lt_cuda_width(&a.x) * (int)lt_dtype_bytes(a.x.dtype) / 32;
    const int64_t heads = lt_cuda_rows(&a.x), each = any ? WARPS : THREADS / lanes * HEADS;
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_qk_norm_fwd_args call = {.y = a.y.data,
                                     .x = a.x.data,
                                     .positions = a.positions.data,
                                     .table = a.table.data,
                                     .q_gain = a.q_gain.data,
                                     .k_gain = a.k_gain.data,
                                     .rstd = a.rstd.data,
                                     .n = n,
                                     .eps = a.eps,
                                     .gain_offset = a.gain_offset,
                                     .part = part};
    void *list[] = {&call};
    defines_of(defines, &a.x, &a.q_gain, any);
    return lt_cuda_run_early(q, any ? "ops/qk_norm_any.cu" : "ops/qk_norm.cu", "qk_norm_fwd",
                             defines, LT_CUDA_DIV_UP(heads, each), 1, THREADS, list);
}
static lt_err qk_norm_fwd_run(lt_queue *q, const void *args) {
    return forward(q, *(const lt_qk_norm_args *)args, false);
}
static lt_err qk_norm_fwd_any_run(lt_queue *q, const void *args) {
    return forward(q, *(const lt_qk_norm_args *)args, true);
}

/* ---- Backward ---- */

static const char *qk_norm_bwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_qk_norm_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->x, &a->dx, &a->dy};
    return refuse_pieces(rows, 3, &a->q_gain, &a->k_gain, &a->table);
}
static const char *qk_norm_bwd_any_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_qk_norm_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->x, &a->dx, &a->dy};
    return refuse_any(rows, 3, &a->q_gain, &a->k_gain);
}

/* The number of blocks for the heads of q, and for all heads: no more than are resident, divided
 * in proportion, and at least one for a kind that has heads. */
static int split_blocks(const lt_qk_shape *n, int64_t heads_a_block, int64_t resident, int *all) {
    const int64_t of_q = LT_CUDA_DIV_UP((int64_t)n->rows * n->n_q, heads_a_block),
                  of_k = LT_CUDA_DIV_UP((int64_t)n->rows * (n->heads - n->n_q), heads_a_block);
    if (of_q + of_k <= resident || of_q == 0 || of_k == 0) {
        const int64_t q_blocks = of_q < resident ? of_q : resident;
        *all = (int)(q_blocks + (of_k < resident ? of_k : resident));
        return (int)q_blocks;
    }
    int64_t q_blocks = (resident * n->n_q + n->heads / 2) / n->heads;
    q_blocks = q_blocks < 1 ? 1 : q_blocks > resident - 1 ? resident - 1 : q_blocks;
    *all = (int)resident;
    return (int)q_blocks;
}

static lt_err backward(lt_queue *q, lt_qk_norm_bwd_args a, bool any) {
    const lt_cuda_info *info = lt_cuda_get_info(q->gpu);
    lt_qk_shape n = {.x = steps_of(&a.x),
                     .y = steps_of(&a.dy),
                     .dx = steps_of(&a.dx),
                     .rows = (int)a.x.shape[0],
                     .heads = (int)a.x.shape[1],
                     .n_q = (int)a.n_q};
    lt_qk_part part = part_of(&a.x, &a.table);
    int cols = part.width, blocks, per_sm;
    const int lanes = cols * (int)lt_dtype_bytes(a.x.dtype) / 32;
    const size_t shared = any ? (size_t)LT_QK_NORM_ANY_FLOATS(WARPS, cols) * sizeof(float)
                              : LT_QK_NORM_BYTES(THREADS);
    char defines[LT_CUDA_DEFINES_BYTES];
    const lt_cuda_kernel *k;
    void *parts = NULL;
    if (n.rows == 0) {
        return LT_OK;
    }
    defines_of(defines, &a.x, &a.q_gain, any);
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, any ? "ops/qk_norm_any.cu" : "ops/qk_norm.cu",
                              "qk_norm_bwd", defines));
    LT_TRY(lt_cuda_occupancy(q->gpu, k, THREADS, shared, &per_sm));
    n.q_blocks = split_blocks(&n, any ? WARPS : THREADS / lanes,
                              (int64_t)info->n_sms * (per_sm > 0 ? per_sm : 1), &blocks);
    LT_TRY(lt_cuda_scratch(q, (size_t)blocks * (size_t)cols * 4, &parts));
    lt_cuda_qk_norm_bwd_args call = {.dx = a.dx.data,
                                     .parts = parts,
                                     .dy = a.dy.data,
                                     .x = a.x.data,
                                     .positions = a.positions.data,
                                     .table = a.table.data,
                                     .q_gain = a.q_gain.data,
                                     .k_gain = a.k_gain.data,
                                     .rstd = a.rstd.data,
                                     .n = n,
                                     .gain_offset = a.gain_offset,
                                     .part = part};
    void *list[] = {&call};
    lt_cuda_col_sum_split_args split = {.dst = a.dq_gain.data,
                                        .dst2 = a.dk_gain.data,
                                        .parts = parts,
                                        .n_first = n.q_blocks,
                                        .n_parts = blocks,
                                        .cols = cols};
    void *sums[] = {&split};
    LT_TRY(lt_cuda_launch(q->gpu, q->stream, k,
                          &(lt_cuda_dims){.grid = {(unsigned)blocks},
                                          .block = {THREADS},
                                          .dynamic_shared_bytes = shared,
                                          .overlap_previous = info->cc >= 90},
                          list));
    if (a.dq_gain.data == NULL) {
        return LT_OK; /* The gains have no gradient. */
    }
    return lt_cuda_run_early(q, "ops/col_sum.cu", "col_sum_split", "", LT_CUDA_DIV_UP(cols, COLS),
                             2, SUM_THREADS, sums);
}
static lt_err qk_norm_bwd_run(lt_queue *q, const void *args) {
    return backward(q, *(const lt_qk_norm_bwd_args *)args, false);
}
static lt_err qk_norm_bwd_any_run(lt_queue *q, const void *args) {
    return backward(q, *(const lt_qk_norm_bwd_args *)args, true);
}

#define ENTRY(op)                                                                                  \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {                               \
        {"pieces", op##_refuse, op##_run}, {"any", op##_any_refuse, op##_any_run}};
ENTRY(qk_norm_fwd)
ENTRY(qk_norm_bwd)

void lt_specs_qk_norm(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "ops/qk_norm.cu", HEAD_WORDS LANES_WORDS, "bf16", "bf16", 8, 4);
    lt_spec(l, LT_SM_ALL, "ops/qk_norm.cu", HEAD_WORDS LANES_WORDS, "bf16", "fp32", 8, 8);
    lt_spec(l, LT_SM_ALL, "ops/qk_norm.cu", HEAD_WORDS LANES_WORDS, "bf16", "bf16", 8, 16);
    lt_spec(l, LT_SM_ALL, "ops/qk_norm.cu", HEAD_WORDS LANES_WORDS, "fp32", "fp32", 4, 16);
    lt_spec(l, LT_SM_ALL, "ops/qk_norm_any.cu", HEAD_WORDS, "bf16", "fp32");
    lt_spec(l, LT_SM_ALL, "ops/qk_norm_any.cu", HEAD_WORDS, "fp32", "fp32");
}

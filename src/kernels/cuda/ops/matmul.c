/* matmul.c: the ordered list of matrix products:
 *     wgmma_q, few_q, wide_q    ggml's block formats (matmul_q.c)
 *     few        gemm_few.cu: at most 64 rows times 16-bit weights (N, K), Hopper
 *     gemv       at most 8 rows times 16-bit weights (N, K): limited only by reading the
 *                weights (matmul_gemv.c)
 *     cublaslt   where it was measured to win (wins below), by the proposal that won or the first:
 *                no timing at run time, the same bits every run
 *     wgmma      gemm_sm90.cu: 16-bit, rows 16-byte aligned, Hopper
 *     mma        gemm_sm80.cu: 16-bit, any alignment
 *     sgemm      fp32; a transposed operand is transposed back in scratch memory first, a bias
 *                is stored in y first, and the sums are added to it
 *     any        gemm_any.cu: everything else
 * If the tuner's record has the shape (gemm/winners.h), it decides which of few, gemv, cublaslt and
 * wgmma serves a product, and with which tile. None allocates after a queue has seen its largest
 * product, and none waits, so that a product can be captured into a graph after one call outside
 * it. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/winners.h"
#include "kernels/cuda/ops/fuse.h"
#include "kernels/cuda/ops/matmul.h"
#include "kernels/cuda/ops/matmul_q.h"
#include "kernels/cuda/sgemm/sgemm.h"
#include "kernels/host.h"
#include "kernels/cuda/gemm/any_args.h"
#include "kernels/cuda/gemm/sm80_args.h"
#include "kernels/cuda/ops/rearrange_args.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_matmul write them. */
#define MMA_WORDS "VEC=%d A_MAJOR_M=%d B_MAJOR_N=%d OUT=%s DTYPE=%s"
#define ANY_WORDS "IN=%s OUT=%s GROUPED=%d M_FAST=%d N_FAST=%d"

#define ALIGN(n) (((n) + 255) / 256 * 256)
#define FEW_ROWS 64 /* Up to these, kernels for few rows serve the base. */
/* Our tiles of a weight gradient must keep at least this share of the SMs busy. */
#define MIN_BUSY 0.8

bool lt_matmul_empty(const lt_matmul_args *a) {
    return lt_tensor_count(&a->y) == 0;
}
int64_t lt_matmul_depth(const lt_matmul_args *a) {
    return a->a.shape[a->trans_a ? 0 : 1];
}
int lt_matmul_bias_type(const lt_tensor *bias) {
    return bias->data == NULL ? 0 : bias->dtype == LT_F32 ? 1 : bias->dtype == LT_BF16 ? 2 : 3;
}
const char *lt_matmul_refuse_types(const lt_matmul_args *a) {
    if (a->b_packed != NULL && a->b.data == NULL) {
        return "b is only there packed";
    }
    if (a->y.n_dims != 2 || a->a.n_dims != 2 || a->b.n_dims != 2) {
        return "not 2-D";
    }
    return a->a.dtype != a->b.dtype || lt_cuda_dtype_word(a->a.dtype) == NULL ||
                   lt_cuda_dtype_word(a->y.dtype) == NULL
               ? "types"
               : NULL;
}
bool lt_matmul_dense(const lt_tensor *t) {
    return t->stride[1] == 1 || t->shape[1] == 1;
}

/* ---- cuBLASLt ---- */

/* Share of the SMs that this many blocks keep busy, with one block per SM. */
static double busy_of(int64_t blocks, const lt_cuda_info *info) {
    return (double)blocks / (double)(LT_CUDA_DIV_UP(blocks, info->n_sms) * info->n_sms);
}
/* If the tuner measured this product, its record decides. Otherwise, as measured on an H100:
 * weight gradients of narrow models, whose tiles do not fill the SMs even if K is cut in two. */
static bool wins(const lt_gemm_args *g, const lt_cuda_info *info) {
    const lt_gemm_winner *w = lt_gemm_winner_find(info, g);
    if (w != NULL && (w->by != LT_GEMM_BY_CUBLASLT || w->vendor == lt_cublas_version())) {
        return w->by == LT_GEMM_BY_CUBLASLT;
    }
    const int64_t tiles = LT_CUDA_DIV_UP(g->m, 128) * LT_CUDA_DIV_UP(g->n, 256),
                  pairs = LT_CUDA_DIV_UP(g->m, 192) * LT_CUDA_DIV_UP(g->n, 192);
    const bool fills = busy_of(tiles, info) >= MIN_BUSY || busy_of(2 * tiles, info) >= MIN_BUSY ||
                       busy_of(2 * pairs, info) >= MIN_BUSY;
    return g->trans_a && g->k >= 4 * g->m && g->k >= 4 * g->n && !fills;
}

static const char *cublas_refuse(const void *args, const lt_device *device) {
    const lt_matmul_args *a = args;
    lt_gemm_args g;
    const char *why = lt_matmul_refuse_types(a);
    why = why != NULL ? why : lt_gemm_from_matmul(&g, a);
    if (why != NULL || lt_matmul_empty(a) || lt_matmul_depth(a) == 0) {
        return why != NULL ? why : "nothing to multiply";
    }
    if (a->a.dtype != LT_BF16 || (a->y.dtype != LT_BF16 && a->y.dtype != LT_F32)) {
        return "not BF16 to BF16 or F32";
    }
    if (a->fixed_order) {
        return "the order of its sums depends on the rows";
    }
    if (a->bias.data != NULL &&
        (a->bias.dtype != a->y.dtype || a->accumulate || (uintptr_t)a->bias.data % 16 != 0)) {
        return "a bias of another type, beside a sum, or not 16-byte aligned";
    }
    why = lt_gemm_refusal(&g, lt_cuda_device_info(device));
    if (why != NULL) {
        return why;
    }
    return !lt_cublas_available()                   ? "libcublasLt is not there"
           : !wins(&g, lt_cuda_device_info(device)) ? "our tiles are as fast"
           : !lt_cublas_works(lt_cuda_device_gpu(device))
               ? "libcublasLt does not work with this driver"
               : NULL;
}
static lt_err cublas_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const lt_gemm_winner *w;
    lt_gemm_args g;

    (void)lt_gemm_from_matmul(&g, a);
    w = lt_gemm_winner_find(lt_cuda_get_info(q->gpu), &g);
    if (q->cublas == NULL) {
        LT_TRY(lt_cublas_open(&q->cublas, q->gpu));
    }
    return lt_cublas_matmul(
        q->cublas, q->stream,
        &(lt_cublas_args){.m = a->y.shape[0],
                          .n = a->y.shape[1],
                          .k = lt_matmul_depth(a),
                          .lda = a->a.stride[0],
                          .ldb = a->b.stride[0],
                          .ldd = a->y.stride[0],
                          .trans_a = a->trans_a,
                          .trans_b = a->trans_b,
                          .in = LT_CUBLAS_BF16,
                          .out = a->y.dtype == LT_F32 ? LT_CUBLAS_F32 : LT_CUBLAS_BF16,
                          .alpha = 1.0f,
                          .beta = a->accumulate ? 1.0f : 0.0f,
                          .choice = w != NULL && w->by == LT_GEMM_BY_CUBLASLT ? w->choice : 1,
                          .a = a->a.data,
                          .b = a->b.data,
                          .bias = a->bias.data,
                          .d = a->y.data});
}

/* ---- Tensor cores of Hopper ---- */

static const char *wgmma_refuse(const void *args, const lt_device *device) {
    const lt_matmul_args *a = args;
    lt_gemm_args g;
    const char *why = lt_matmul_refuse_types(a);
    why = why != NULL ? why : lt_gemm_from_matmul(&g, a);
    return why != NULL ? why : lt_gemm_refusal(&g, lt_cuda_device_info(device));
}
lt_err lt_cuda_gemm_run(lt_queue *q, const lt_gemm_args *g, bool fixed_order) {
    const lt_cuda_info *info = lt_cuda_get_info(q->gpu);
    const lt_gemm_tile t = fixed_order ? lt_gemm_tile_choose(g, info, 0 /* K in one part */)
                                       : lt_gemm_tile_best(g, info, lt_gemm_scratch_bytes());
    lt_scratch scratch = {.bytes = lt_gemm_tile_scratch_bytes(&t, g)};
    if (scratch.bytes > 0) {
        LT_TRY(lt_cuda_scratch(q, scratch.bytes, &scratch.data));
    }
    return lt_gemm_with(q->gpu, q->stream, g, &t, scratch);
}
static lt_err wgmma_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    lt_gemm_args g;
    (void)lt_gemm_from_matmul(&g, a);
    return lt_cuda_gemm_run(q, &g, a->fixed_order);
}

/* Few rows times weights (N, K) that are read from memory. */
static const char *few_refuse(const void *args, const lt_device *device) {
    const lt_matmul_args *a = args;
    const lt_cuda_info *info = lt_cuda_device_info(device);
    const lt_gemm_winner *w;
    lt_gemm_args g;
    const char *why = lt_matmul_refuse_types(a);
    why = why != NULL ? why : lt_gemm_from_matmul(&g, a);
    why = why != NULL ? why : lt_gemm_few_refusal(&g, info);
    if (why != NULL) {
        return why;
    }
    if (a->fixed_order) {
        return "parts of K depend on the rows";
    }
    w = lt_gemm_winner_find(info, &g);
    return w == NULL || w->by == LT_GEMM_BY_FEW ? NULL : "another kernel was measured to be faster";
}
static lt_err few_run(lt_queue *q, const void *args) {
    if (((const lt_matmul_args *)args)->y.shape[0] <= q->fuse->most.plain &&
        lt_cuda_gemv_refuse(args, q->device) == NULL) {
        return lt_cuda_gemv_run(q, args); /* The bits are the same, fused or not. */
    }
    lt_gemm_args g;
    (void)lt_gemm_from_matmul(&g, args);
    return lt_gemm_few(q->gpu, q->stream, &g);
}

/* Followed by a gated activation (fuse.h). */
bool lt_cuda_few_gated_takes(const lt_queue *q, const lt_matmul_args *a, const lt_act_args *act) {
    const bool few = a->b_packed != NULL
                         ? lt_cuda_wgmma_q_gates(q, a)
                         : q->fuse->most.plain < a->y.shape[0] && few_refuse(a, q->device) == NULL;
    return few && !a->accumulate && a->y.dtype == a->a.dtype && act->gated &&
           (act->kind == LT_ACT_SILU || act->kind == LT_ACT_GELU_TANH) && act->y.n_dims == 2 &&
           act->y.dtype == a->a.dtype && act->y.stride[1] == 1 &&
           act->y.shape[1] * 2 == a->y.shape[1] && lt_fuse_apart(&act->y, &a->a) &&
           lt_fuse_apart(&act->y, &a->y);
}
lt_err lt_cuda_few_gated_run(lt_queue *q, const lt_matmul_args *a, const lt_act_args *act,
                             bool launch) {
    const lt_gemm_gated gated = {
        .kind = act->kind, .y = launch ? act->y.data : NULL, .ld = act->y.stride[0]};
    lt_gemm_args g;
    if (a->b_packed != NULL) {
        return lt_gemm_q(q->gpu, q->stream, a, &gated);
    }
    (void)lt_gemm_from_matmul(&g, a);
    return lt_gemm_few_gated(q->gpu, q->stream, &g, &gated);
}

/* ---- Tensor cores of sm_80 ---- */

static const char *mma_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_matmul_args *a = args;
    const char *why = lt_matmul_refuse_types(a);
    if (why != NULL) {
        return why;
    }
    if (a->a.dtype == LT_F32) {
        return "not 16-bit";
    }
    if (!lt_matmul_dense(&a->a) || !lt_matmul_dense(&a->b) || !lt_matmul_dense(&a->y)) {
        return "columns not contiguous";
    }
    return a->y.shape[0] > INT32_MAX / 2 || a->y.shape[1] > INT32_MAX / 2 ||
                   lt_matmul_depth(a) > INT32_MAX / 2
               ? "sizes out of range"
               : NULL;
}
static lt_err mma_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const bool aligned = (((uintptr_t)a->a.data | (uintptr_t)a->b.data) & 15) == 0 &&
                         a->a.stride[0] % 8 == 0 && a->b.stride[0] % 8 == 0;
    lt_gemm_sm80_args w = {.a = a->a.data,
                           .b = a->b.data,
                           .bias = a->bias.data,
                           .y = a->y.data,
                           .lda = a->a.stride[0],
                           .ldb = a->b.stride[0],
                           .ldy = a->y.stride[0],
                           .m = (int)a->y.shape[0],
                           .n = (int)a->y.shape[1],
                           .k = (int)lt_matmul_depth(a),
                           .bias_type = lt_matmul_bias_type(&a->bias),
                           .accumulate = a->accumulate};
    void *list[] = {&w};
    char defines[LT_CUDA_DEFINES_BYTES];
    const lt_cuda_kernel *k;
    if (lt_matmul_empty(a)) {
        return LT_OK;
    }
    snprintf(defines, sizeof defines, MMA_WORDS, aligned ? 8 : 1, a->trans_a, !a->trans_b,
             lt_cuda_dtype_word(a->y.dtype), lt_cuda_dtype_word(a->a.dtype));
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, "gemm/gemm_sm80.cu", "gemm_sm80", defines));
    return lt_cuda_launch(
        q->gpu, q->stream, k,
        &(lt_cuda_dims){.grid = {(unsigned)(LT_CUDA_DIV_UP(w.m, 128) * LT_CUDA_DIV_UP(w.n, 128))},
                        .block = {256},
                        .dynamic_shared_bytes = LT_GEMM_SM80_BYTES},
        list);
}

/* ---- fp32 ---- */

static const char *sgemm_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_matmul_args *a = args;
    const char *why = lt_matmul_refuse_types(a);
    if (why != NULL) {
        return why;
    }
    if (a->a.dtype != LT_F32 || a->y.dtype != LT_F32) {
        return "not F32";
    }
    if (a->bias.data != NULL && a->bias.dtype != LT_F32) {
        return "bias is not F32";
    }
    if (!lt_matmul_dense(&a->a) || !lt_matmul_dense(&a->b) || !lt_matmul_dense(&a->y)) {
        return "columns not contiguous";
    }
    if (a->fixed_order) {
        return "cuts sums where the shape suggests";
    }
    return lt_matmul_depth(a) == 0 ? "nothing to multiply" : NULL;
}
/* Queue dst (cols, rows) = x (rows, cols) transposed. */
static lt_err transpose(lt_queue *q, void *dst, const lt_tensor *x) {
    const int rows = (int)x->shape[0], cols = (int)x->shape[1];
    lt_cuda_transpose_fp32_args call = {.dst = dst,
                                        .src = x->data,
                                        .rows = rows,
                                        .cols = cols,
                                        .ld = x->stride[0],
                                        .pitch = lt_sgemm_pitch(rows)};
    void *list[] = {&call};
    return lt_cuda_run(q, "ops/rearrange.cu", "transpose_fp32", "", LT_CUDA_DIV_UP(cols, 32),
                       (int)LT_CUDA_DIV_UP(rows, 32), 256, list);
}
static lt_err sgemm_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const size_t a_bytes =
                     a->trans_a
                         ? ALIGN((size_t)(a->y.shape[0] * lt_sgemm_pitch(lt_matmul_depth(a))) * 4)
                         : 0,
                 b_bytes =
                     a->trans_b
                         ? ALIGN((size_t)(lt_matmul_depth(a) * lt_sgemm_pitch(a->y.shape[1])) * 4)
                         : 0;
    lt_sgemm_args g = {.m = (int)a->y.shape[0],
                       .n = (int)a->y.shape[1],
                       .k = (int)lt_matmul_depth(a),
                       .lda = (int)a->a.stride[0],
                       .ldb = (int)a->b.stride[0],
                       .ldc = (int)a->y.stride[0],
                       .alpha = 1.0f,
                       .beta = a->accumulate || a->bias.data != NULL ? 1.0f : 0.0f,
                       .a = a->a.data,
                       .b = a->b.data,
                       .c = a->y.data};
    size_t aligned_bytes;
    unsigned char *room = NULL;
    if (lt_matmul_empty(a)) {
        return LT_OK;
    }
    if (q->sgemm_workspace == NULL) {
        LT_TRY(lt_sgemm_workspace_open(q->gpu, &q->sgemm_workspace));
    }
    g.workspace = q->sgemm_workspace;
    if (a->trans_a) {
        g.a = NULL; /* The copy is aligned, wherever the scratch begins. */
        g.lda = (int)lt_sgemm_pitch(g.k);
    }
    if (a->trans_b) {
        g.b = NULL;
        g.ldb = (int)lt_sgemm_pitch(g.n);
    }
    aligned_bytes = lt_sgemm_aligned_bytes(&g);
    if (a_bytes + b_bytes + aligned_bytes > 0) {
        void *scratch = NULL;
        LT_TRY(lt_cuda_scratch(q, a_bytes + b_bytes + aligned_bytes, &scratch));
        room = scratch;
    }
    if (a->trans_a) {
        LT_TRY(transpose(q, room, &a->a));
        g.a = (const float *)room;
    }
    if (a->trans_b) {
        LT_TRY(transpose(q, room + a_bytes, &a->b));
        g.b = (const float *)(room + a_bytes);
    }
    if (aligned_bytes > 0) {
        g.aligned = room + a_bytes + b_bytes;
    }
    if (a->bias.data != NULL) {
        lt_cuda_bias_rows_fp32_args call = {.y = a->y.data,
                                            .bias = a->bias.data,
                                            .cols = g.n,
                                            .ld = a->y.stride[0],
                                            .accumulate = a->accumulate};
        void *list[] = {&call};
        LT_TRY(lt_cuda_run(q, "ops/rearrange.cu", "bias_rows_fp32", "", g.m,
                           (int)LT_CUDA_DIV_UP(g.n, 256), 256, list));
    }
    return lt_sgemm(q->gpu, q->stream, &g);
}

/* ---- Any types and strides ---- */

static const char *any_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_matmul_args *a = args;
    const char *why = lt_matmul_refuse_types(a);
    return why != NULL ? why : lt_matmul_dense(&a->y) ? NULL : "columns of y not contiguous";
}
static lt_err any_launch(lt_queue *q, lt_gemm_any_args *w, lt_dtype in, lt_dtype out, int grouped,
                         int64_t experts) {
    char defines[LT_CUDA_DEFINES_BYTES];
    const lt_cuda_kernel *k;
    void *list[] = {w};
    if (w->m == 0 || w->n == 0 || experts == 0) {
        return LT_OK;
    }
    snprintf(defines, sizeof defines, ANY_WORDS, lt_cuda_dtype_word(in), lt_cuda_dtype_word(out),
             grouped, w->a_k != 1, w->b_k != 1);
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, "gemm/gemm_any.cu", "gemm_any", defines));
    return lt_cuda_launch(
        q->gpu, q->stream, k,
        &(lt_cuda_dims){.grid = {(unsigned)LT_CUDA_DIV_UP(w->n, 64),
                                 (unsigned)LT_CUDA_DIV_UP(w->m, 64), (unsigned)experts},
                        .block = {256}},
        list);
}
static lt_err any_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    lt_gemm_any_args w = {.a = a->a.data,
                          .b = a->b.data,
                          .bias = a->bias.data,
                          .y = a->y.data,
                          .a_m = a->a.stride[a->trans_a ? 1 : 0],
                          .a_k = a->a.stride[a->trans_a ? 0 : 1],
                          .b_k = a->b.stride[a->trans_b ? 1 : 0],
                          .b_n = a->b.stride[a->trans_b ? 0 : 1],
                          .y_m = a->y.stride[0],
                          .m = (int)a->y.shape[0],
                          .n = (int)a->y.shape[1],
                          .k = (int)lt_matmul_depth(a),
                          .bias_type = lt_matmul_bias_type(&a->bias),
                          .accumulate = a->accumulate};
    return any_launch(q, &w, a->a.dtype, a->y.dtype, 0, 1);
}

/* ---- Experts ---- */

static const char *grouped_any_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_matmul_grouped_args *a = args;
    if (a->a.dtype != a->b.dtype || lt_cuda_dtype_word(a->a.dtype) == NULL ||
        lt_cuda_dtype_word(a->y.dtype) == NULL) {
        return "types";
    }
    return lt_cuda_width(&a->y) > 1 && a->y.stride[a->y.n_dims - 1] != 1
               ? "columns of y not contiguous"
               : NULL;
}
static lt_err grouped_any_run(lt_queue *q, const void *args) {
    const lt_matmul_grouped_args *a = args;
    const bool weights = a->weights;
    lt_gemm_any_args w = {.a = a->a.data,
                          .b = a->b.data,
                          .y = a->y.data,
                          .start = a->expert_start.data,
                          .a_m = a->a.stride[weights ? 1 : 0],
                          .a_k = a->a.stride[weights ? 0 : 1],
                          .b_k = a->b.stride[weights      ? 0
                                             : a->trans_b ? 2
                                                          : 1],
                          .b_n = a->b.stride[weights      ? 1
                                             : a->trans_b ? 1
                                                          : 2],
                          .b_e = weights ? 0 : a->b.stride[0],
                          .y_m = a->y.stride[weights ? 1 : 0],
                          .y_e = weights ? a->y.stride[0] : 0,
                          .m = (int)a->y.shape[weights ? 1 : 0],
                          .n = (int)lt_cuda_width(&a->y),
                          .k = (int)a->a.shape[weights ? 0 : 1],
                          .accumulate = a->accumulate};
    return any_launch(q, &w, a->a.dtype, a->y.dtype, weights ? 2 : 1, a->expert_start.shape[0] - 1);
}

static const char *grouped_wgmma_refuse(const void *args, const lt_device *device) {
    return lt_gemm_grouped_refusal(args, lt_cuda_device_info(device));
}
static lt_err grouped_wgmma_run(lt_queue *q, const void *args) {
    return lt_gemm_grouped(q->gpu, q->stream, args);
}

/* ---- With an activation ---- */

static const char *act_gemm(lt_gemm_args *g, const lt_matmul_act_args *a) {
    const lt_matmul_args product = {
        .y = a->y, .a = a->a, .b = a->b, .bias = a->bias, .trans_b = a->trans_b};
    const char *why = lt_matmul_refuse_types(&product);
    why = why != NULL ? why : lt_gemm_from_matmul(g, &product);
    if (why != NULL) {
        return why;
    }
    if (a->kind != LT_ACT_GELU_TANH && a->kind != LT_ACT_SILU && a->kind != LT_ACT_RELU2) {
        return "activation is not in the epilogue";
    }
    if (a->x.n_dims != 2 || a->x.stride[1] != 1 || a->x.dtype != a->a.dtype ||
        a->y.dtype != a->a.dtype || (uintptr_t)a->x.data % 4 != 0) {
        return "x";
    }
    if (a->backward) {
        g->act_bwd = (int)a->kind;
        g->aux = a->x.data;
        g->aux_ld = a->x.stride[0];
    } else {
        g->act = (int)a->kind;
        g->pre = a->x.data;
        g->pre_ld = a->x.stride[0];
    }
    return NULL;
}
static const char *matmul_act_refuse(const void *args, const lt_device *device) {
    lt_gemm_args g;
    const char *why = act_gemm(&g, args);
    return why != NULL ? why : lt_gemm_refusal(&g, lt_cuda_device_info(device));
}
static lt_err matmul_act_run(lt_queue *q, const void *args) {
    lt_gemm_args g;
    (void)act_gemm(&g, args);
    return lt_cuda_gemm_run(q, &g, ((const lt_matmul_act_args *)args)->fixed_order);
}
/* The backward pass of GELU in the epilogue of cuBLASLt, which saves half of the 8 bytes per
 * element of y that separate kernels move. The forward pass stays in separate kernels, because y
 * must be f of x as x was stored. */
static const char *gelu_back_refuse(const void *args, const lt_device *device) {
    const lt_matmul_act_args *a = args;
    const char *why = matmul_act_refuse(a, device);
    if (why != NULL) {
        return why;
    }
    if (!a->backward || a->kind != LT_ACT_GELU_TANH || a->a.dtype != LT_BF16 || a->fixed_order) {
        return "not BF16 back through GELU";
    }
    return a->y.data == a->x.data   ? "in place"
           : !lt_cublas_available() ? "libcublasLt is not there"
           : !lt_cublas_works(lt_cuda_device_gpu(device))
               ? "libcublasLt does not work with this driver"
               : NULL;
}
/* The fourth of cuBLASLt 13.1's proposals was best for GPT-2's products, by 0.4 % of a step; for
 * others the first was. */
static int gelu_choice(void) {
    return lt_cublas_version() == 130100 ? 4 : 1;
}
static lt_err gelu_back_run(lt_queue *q, const void *args) {
    const lt_matmul_act_args *a = args;
    if (q->cublas == NULL) {
        LT_TRY(lt_cublas_open(&q->cublas, q->gpu));
    }
    return lt_cublas_matmul(q->cublas, q->stream,
                            &(lt_cublas_args){.m = a->y.shape[0],
                                              .n = a->y.shape[1],
                                              .k = a->a.shape[1],
                                              .lda = a->a.stride[0],
                                              .ldb = a->b.stride[0],
                                              .ldd = a->y.stride[0],
                                              .trans_b = a->trans_b,
                                              .in = LT_CUBLAS_BF16,
                                              .out = LT_CUBLAS_BF16,
                                              .alpha = 1.0f,
                                              .choice = gelu_choice(),
                                              .a = a->a.data,
                                              .b = a->b.data,
                                              .gelu_x = a->x.data,
                                              .ld_x = a->x.stride[0],
                                              .d = a->y.data});
}
static lt_err matmul_act_parts(lt_queue *q, const void *args) {
    return lt_matmul_act_in_parts(q->device->backend->ops, q, args);
}

/* ---- Packing: block formats (matmul_q.c); other products read b unpacked. ---- */
static lt_err pack_run(lt_queue *q, const void *args) {
    (void)q;
    (void)args;
    return LT_OK;
}

/* ---- With an adapter ---- */

/* The product with u and v beside it, and its tile. Returns NULL, or why it takes more than one
 * kernel. */
static const char *lora_gemm(lt_gemm_args *g, lt_gemm_tile *t, const lt_matmul_lora_args *a,
                             const lt_cuda_info *info) {
    const char *why = lt_matmul_refuse_types(&a->base);
    why = why != NULL ? why : lt_gemm_from_matmul(g, &a->base);
    why = why != NULL ? why : lt_gemm_refusal(g, info);
    if (why != NULL) {
        return why;
    }
    if (a->u.dtype != g->in || a->v.dtype != g->in || a->u.stride[1] != 1 || a->v.stride[1] != 1) {
        return "u or v is of another type, or has gaps";
    }
    if (g->m <= FEW_ROWS || a->base.fixed_order) {
        return "few rows, or bits that must not depend on how many there are";
    }
    g->beside.u = a->u.data;
    g->beside.v = a->v.data;
    g->beside.ld_u = a->u.stride[0];
    g->beside.ld_v = a->v.stride[0];
    g->beside.rank = a->u.shape[1] / a->n_parts;
    g->beside.n_parts = a->n_parts;
    g->beside.parts = a->parts;
    *t = lt_gemm_tile_best(g, info, 0);
    return lt_gemm_beside_refusal(g, t);
}
static const char *matmul_lora_refuse(const void *args, const lt_device *device) {
    lt_gemm_args g;
    lt_gemm_tile t;
    return lora_gemm(&g, &t, args, lt_cuda_device_info(device));
}
static lt_err matmul_lora_run(lt_queue *q, const void *args) {
    lt_gemm_args g;
    lt_gemm_tile t;
    (void)lora_gemm(&g, &t, args, lt_cuda_get_info(q->gpu));
    return lt_gemm_with(q->gpu, q->stream, &g, &t, (lt_scratch){0});
}
static lt_err matmul_lora_parts(lt_queue *q, const void *args) {
    return lt_matmul_lora_in_parts(q->device->backend->ops, q, args);
}

const lt_op_impl lt_cuda_matmul_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"wgmma_q", lt_cuda_wgmma_q_refuse, lt_cuda_wgmma_q_run},
    {"few_q", lt_cuda_few_q_refuse, lt_cuda_few_q_run},
    {"wide_q", lt_cuda_wide_q_refuse, lt_cuda_wide_q_run},
    {"few", few_refuse, few_run},
    {"gemv", lt_cuda_gemv_refuse, lt_cuda_gemv_run},
    {"cublaslt", cublas_refuse, cublas_run},
    {"wgmma", wgmma_refuse, wgmma_run},
    {"mma", mma_refuse, mma_run},
    {"sgemm", sgemm_refuse, sgemm_run},
    {"any", any_refuse, any_run},
};
const lt_op_impl lt_cuda_matmul_act_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"cublaslt", gelu_back_refuse, gelu_back_run},
    {"parts", NULL,
     /* Faster than the fused epilogue on an H100: docs/speed/training-step.md. */
     matmul_act_parts},
    {"wgmma", matmul_act_refuse, matmul_act_run}};
const lt_op_impl lt_cuda_matmul_lora_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"wgmma", matmul_lora_refuse, matmul_lora_run}, {"parts", NULL, matmul_lora_parts}};
const lt_op_impl lt_cuda_matmul_grouped_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"wgmma_q", lt_cuda_grouped_wgmma_q_refuse, lt_cuda_grouped_wgmma_q_run},
    {"blocks", lt_cuda_grouped_q_refuse, lt_cuda_grouped_q_run},
    {"gemv", lt_cuda_gemv_grouped_refuse, lt_cuda_gemv_grouped_run},
    {"wgmma", grouped_wgmma_refuse, grouped_wgmma_run},
    {"any", grouped_any_refuse, grouped_any_run},
};
const lt_op_impl lt_cuda_matmul_pack_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"blocks", lt_cuda_pack_refuse, lt_cuda_pack_run}, {"none", NULL, pack_run}};

void lt_specs_matmul(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "gemm/gemm_sm80.cu", MMA_WORDS, 8, 0, 0, "bf16", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_sm80.cu", MMA_WORDS, 8, 0, 1, "bf16", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_sm80.cu", MMA_WORDS, 8, 1, 1, "fp32", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_sm80.cu", MMA_WORDS, 1, 0, 0, "bf16", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_sm80.cu", MMA_WORDS, 1, 1, 0, "fp32", "fp16");
    lt_spec(l, LT_SM_ALL, "gemm/gemm_any.cu", ANY_WORDS, "fp32", "fp32", 0, 0, 0);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_any.cu", ANY_WORDS, "bf16", "bf16", 1, 0, 0);
    lt_spec(l, LT_SM_ALL, "gemm/gemm_any.cu", ANY_WORDS, "fp32", "fp32", 2, 1, 1);
}

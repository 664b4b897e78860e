/* scaled.c: launchers of scaled.cu and widen.cu, and the list of products of 8-bit floats:
 *     wgmma   gemm_sm90.cu with FP8: Hopper, rows on 16 bytes
 *     parts   both operands widened to y's type, exactly, then matmul: any GPU and any shape */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/matmul.h"
#include "kernels/cuda/ops/scaled_args.h"
#include "kernels/cuda/ops/widen_args.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_scaled write them. */
#define CAST_WORDS  "DTYPE=%s W=%d WHOLE=%d Y_KIND=%d T_KIND=%d Y_E5M2=%d T_E5M2=%d"
#define WIDEN_WORDS "DTYPE=%s KIND=%d E5M2=%d"

#define THREADS  256
#define SPAN     LT_SCALE_SPAN
#define ALIGN(n) (((n) + 255) / 256 * 256)

static bool dense(const lt_tensor *t) {
    return t->data == NULL || t->stride[1] == 1 || t->shape[1] == 1;
}

static const char *cast_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_cast_scaled_args *a = args;
    if (a->x.dtype != LT_F32 && a->x.dtype != LT_BF16) {
        return "x is neither F32 nor BF16";
    }
    if (!dense(&a->x) || !dense(&a->y) || !dense(&a->t)) {
        return "columns not contiguous";
    }
    return LT_CUDA_DIV_UP(a->x.shape[0], SPAN) * LT_CUDA_DIV_UP(a->x.shape[1], SPAN) >
                   INT32_MAX / 64
               ? "too many blocks"
               : NULL;
}

/* Are the rows aligned to `bytes` bytes? */
static bool on(const lt_tensor *t, uintptr_t bytes) {
    return t->data == NULL ||
           (((uintptr_t)t->data | (uintptr_t)(t->stride[0] * (int64_t)lt_dtype_bytes(t->dtype))) &
            (bytes - 1)) == 0;
}

static lt_err cast_run(lt_queue *q, const void *args) {
    const lt_cast_scaled_args *a = args;
    const int y_kind = a->y.data != NULL ? (int)a->kind + 1 : 0,
              t_kind = a->t.data != NULL ? (int)a->t_kind + 1 : 0;
    const bool whole = a->x.shape[1] % 8 == 0 && on(&a->x, 16) && on(&a->y, 8) && on(&a->t, 16),
               tensor = y_kind == 1 || t_kind == 1;
    int64_t tiles = LT_CUDA_DIV_UP(a->x.shape[0], SPAN) * LT_CUDA_DIV_UP(a->x.shape[1], SPAN);
    lt_cast_tile_args w = {.y = a->y.data,
                           .t = a->t.data,
                           .scale = a->scale.data,
                           .t_scale = a->t_scale.data,
                           .x = a->x.data,
                           .ld_y = a->y.stride[0],
                           .ld_t = a->t.stride[0],
                           .ld_x = a->x.stride[0],
                           .rows = a->x.shape[0],
                           .cols = (int)a->x.shape[1]};
    char defines[LT_CUDA_DEFINES_BYTES];
    void *parts = NULL;

    snprintf(defines, sizeof defines, CAST_WORDS, lt_cuda_dtype_word(a->x.dtype),
             16 / (int)lt_dtype_bytes(a->x.dtype), whole, y_kind, t_kind,
             y_kind > 0 && a->y.dtype == LT_F8_E5M2, t_kind > 0 && a->t.dtype == LT_F8_E5M2);
    if (y_kind == 2 && t_kind == 0 && whole) {
        int across = (int)LT_CUDA_DIV_UP(w.cols, 4 * SPAN);
        lt_cuda_cast_rows_args call = {.y = w.y,
                                       .scale = w.scale,
                                       .x = w.x,
                                       .ld_y = w.ld_y,
                                       .ld_x = w.ld_x,
                                       .rows = w.rows,
                                       .cols = w.cols,
                                       .tiles = across};
        void *list[] = {&call};
        return lt_cuda_run_early(q, "ops/scaled.cu", "cast_rows", defines,
                                 LT_CUDA_DIV_UP(w.rows, 16) * across, 1, THREADS, list);
    }
    if (tensor && !a->given && tiles > 0) {
        const int most = 4 * lt_cuda_get_info(q->gpu)->n_sms;
        w.n_parts = (int)(tiles < most ? tiles : most);
        LT_TRY(lt_cuda_scratch(q, (size_t)w.n_parts * 4, &parts));
        w.parts = parts;
        lt_cuda_amax_parts_args call = {
            .parts = parts, .x = w.x, .ld = w.ld_x, .rows = w.rows, .cols = w.cols};
        void *list[] = {&call};
        LT_TRY(lt_cuda_run(q, "ops/scaled.cu", "amax_parts", defines, w.n_parts, 1, THREADS, list));
    }
    void *list[] = {&w};
    return lt_cuda_run_early(q, "ops/scaled.cu", "cast_tile", defines, tiles, 1, THREADS, list);
}

/* ---- Products ---- */

static const char *wgmma_refuse(const void *args, const lt_device *device) {
    return lt_gemm_scaled_refusal(args, lt_cuda_device_info(device));
}
static lt_err wgmma_run(lt_queue *q, const void *args) {
    return lt_gemm_scaled(q->gpu, q->stream, args);
}

static bool eight_bits(const lt_tensor *t) {
    return (t->dtype == LT_F8_E4M3 || t->dtype == LT_F8_E5M2) && dense(t);
}
static const char *parts_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_matmul_scaled_args *a = args;
    if (!eight_bits(&a->a) || !eight_bits(&a->b) || a->a_scale.dtype != LT_F32 ||
        a->b_scale.dtype != LT_F32) {
        return "not 8-bit floats with F32 scales";
    }
    return a->y.dtype == LT_BF16 || a->y.dtype == LT_F32 ? NULL : "y is neither BF16 nor F32";
}
static lt_err widen(lt_queue *q, lt_tensor *y, const lt_tensor *x, const lt_tensor *scale,
                    lt_scale_kind kind) {
    const int64_t rows = x->shape[0], cols = x->shape[1];
    lt_cuda_widen_args call = {.y = y->data,
                               .x = x->data,
                               .scale = scale->data,
                               .ld = x->stride[0],
                               .rows = rows,
                               .cols = (int)cols};
    void *list[] = {&call};
    char defines[LT_CUDA_DEFINES_BYTES];
    snprintf(defines, sizeof defines, WIDEN_WORDS, lt_cuda_dtype_word(y->dtype), (int)kind + 1,
             x->dtype == LT_F8_E5M2);
    return lt_cuda_run(q, "ops/widen.cu", "widen", defines, LT_CUDA_DIV_UP(rows * cols, THREADS), 1,
                       THREADS, list);
}
/* The widened operands are in the queue's separate memory, because the product may use the
 * scratch memory. */
static lt_err parts_run(lt_queue *q, const void *args) {
    const lt_matmul_scaled_args *a = args;
    const lt_dtype type = a->y.dtype;
    const int64_t m = a->a.shape[0], n = a->b.shape[0], k = a->a.shape[1];
    const size_t a_bytes = ALIGN((size_t)(m * k) * lt_dtype_bytes(type)),
                 b_bytes = ALIGN((size_t)(n * k) * lt_dtype_bytes(type));
    lt_matmul_args product = {
        .y = a->y, .bias = a->bias, .trans_b = true, .accumulate = a->accumulate};
    void *wide = NULL;
    if (lt_tensor_count(&a->y) == 0) {
        return LT_OK;
    }
    LT_TRY(lt_cuda_wide(q, a_bytes + b_bytes, &wide));
    product.a = lt_tensor_2d(wide, type, m, k);
    product.b = lt_tensor_2d((char *)wide + a_bytes, type, n, k);
    LT_TRY(widen(q, &product.a, &a->a, &a->a_scale, a->a_kind));
    LT_TRY(widen(q, &product.b, &a->b, &a->b_scale, a->b_kind));
    return q->device->backend->ops->matmul(q, &product);
}

const lt_op_impl lt_cuda_cast_scaled_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"tiles", cast_refuse, cast_run}};
const lt_op_impl lt_cuda_matmul_scaled_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"wgmma", wgmma_refuse, wgmma_run}, {"parts", parts_refuse, parts_run}};

void lt_specs_scaled(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "ops/scaled.cu", CAST_WORDS, "bf16", 8, 1, 2, 0, 0, 0);
    lt_spec(l, LT_SM90, "ops/scaled.cu", CAST_WORDS, "bf16", 8, 1, 3, 3, 0, 0);
    lt_spec(l, LT_SM90, "ops/scaled.cu", CAST_WORDS, "bf16", 8, 1, 2, 2, 0, 0);
    lt_spec(l, LT_SM90, "ops/scaled.cu", CAST_WORDS, "bf16", 8, 1, 0, 3, 0, 0);
    lt_spec(l, LT_SM80, "ops/scaled.cu", CAST_WORDS, "fp32", 4, 0, 2, 3, 0, 0);
    lt_spec(l, LT_SM90, "ops/scaled.cu", CAST_WORDS, "bf16", 8, 1, 1, 1, 1, 1);
    lt_spec(l, LT_SM_ALL, "ops/widen.cu", WIDEN_WORDS, "bf16", 2, 0);
}

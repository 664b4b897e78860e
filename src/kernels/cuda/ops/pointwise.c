/* pointwise.c: launchers of act.cu, elementwise.cu, optim.cu and rope.cu: one thread, one piece. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/launch.h"

#define THREADS      256
#define SUMSQ_BLOCKS 1056 /* Fixed, so that the order of the sum does not depend on the GPU. */
#define ROPE_W(act)  (16 / (int)lt_dtype_bytes(act))

/* ---- Activations ---- */

static const char *act_refuse_any(const lt_tensor *const *rows, int n, lt_act_kind kind,
                                  lt_dtype act) {
    const char *why = lt_cuda_refuse_rows(rows, n, act);
    return why != NULL ? why : (int)kind > 5 ? "an activation the kernel does not know" : NULL;
}

static void act_defines(char out[LT_CUDA_DEFINES_BYTES], lt_act_kind kind, bool gated, lt_dtype act,
                        int w) {
    snprintf(out, LT_CUDA_DEFINES_BYTES, "KIND=%d GATED=%d DTYPE=%s W=%d", (int)kind, gated,
             lt_cuda_dtype_word(act), w);
}

static const char *act_fwd_refuse(const void *args) {
    const lt_act_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x};
    return act_refuse_any(rows, 2, a->kind, a->x.dtype);
}
static lt_err act_fwd_run(lt_queue *q, const void *args) {
    lt_act_args a = *(const lt_act_args *)args;
    const lt_tensor *const rows[] = {&a.y, &a.x};
    int cols = (int)lt_cuda_width(&a.y);
    int64_t count = lt_tensor_count(&a.y);
    const int w = lt_cuda_piece(rows, 2, a.x.dtype, cols);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&a.y.data, &a.x.data, &a.xielu_params.data, &count, &cols};
    act_defines(defines, a.kind, a.gated, a.x.dtype, w);
    return lt_cuda_run(q, "ops/act.cu", "act_fwd", defines,
                       LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}

static const char *act_bwd_refuse(const void *args) {
    const lt_act_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->dx, &a->dy, &a->x};
    return act_refuse_any(rows, 3, a->kind, a->x.dtype);
}
static lt_err act_bwd_run(lt_queue *q, const void *args) {
    lt_act_bwd_args a = *(const lt_act_bwd_args *)args;
    const lt_tensor *const rows[] = {&a.dx, &a.dy, &a.x};
    int cols = (int)lt_cuda_width(&a.dy);
    int64_t count = lt_tensor_count(&a.dy);
    const int w = lt_cuda_piece(rows, 3, a.x.dtype, cols);
    int n = (int)LT_CUDA_DIV_UP(count, (int64_t)THREADS * w);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *parts = NULL;
    void *list[] = {&a.dx.data, &parts, &a.dy.data, &a.x.data, &a.xielu_params.data, &count, &cols};
    act_defines(defines, a.kind, a.gated, a.x.dtype, w);
    if (a.kind == LT_ACT_XIELU) {
        LT_TRY(lt_cuda_scratch(q, (size_t)n * 2 * sizeof(float), &parts));
    }
    LT_TRY(lt_cuda_run(q, "ops/act.cu", "act_bwd", defines, n, 1, THREADS, list));
    if (a.kind == LT_ACT_XIELU && a.dxielu_params.data != NULL) {
        void *params[] = {&a.dxielu_params.data, &parts, &a.xielu_params.data, &n};
        LT_TRY(lt_cuda_run(q, "ops/act.cu", "act_params", defines, 1, 1, 1024, params));
    }
    return LT_OK;
}

/* ---- Sums and conversions ---- */

static const char *add_refuse(const void *args) {
    const lt_add_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->a, &a->b};
    return lt_cuda_refuse_rows(rows, 3, a->y.dtype);
}
static lt_err add_run(lt_queue *q, const void *args) {
    lt_add_args a = *(const lt_add_args *)args;
    const lt_tensor *const rows[] = {&a.y, &a.a, &a.b};
    int64_t count = lt_tensor_count(&a.y);
    const int w = lt_cuda_piece(rows, 3, a.y.dtype, count);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&a.y.data, &a.a.data, &a.b.data, &count, &a.alpha, &a.beta};
    snprintf(defines, sizeof defines, "DTYPE=%s W=%d", lt_cuda_dtype_word(a.y.dtype), w);
    return lt_cuda_run(q, "ops/elementwise.cu", "add", defines,
                       LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}

static const char *cast_refuse(const void *args) {
    const lt_cast_args *a = args;
    if (a->y.dtype != LT_F32 && a->x.dtype != LT_F32) {
        return "neither side is F32";
    }
    if (lt_cuda_dtype_word(a->y.dtype) == NULL || lt_cuda_dtype_word(a->x.dtype) == NULL) {
        return "a type the kernel does not know";
    }
    return lt_tensor_contiguous(&a->y) && lt_tensor_contiguous(&a->x) ? NULL : "not contiguous";
}
static lt_err cast_run(lt_queue *q, const void *args) {
    lt_cast_args a = *(const lt_cast_args *)args;
    const bool from = a.x.dtype == LT_F32;
    const lt_dtype narrow = from ? a.y.dtype : a.x.dtype;
    const lt_tensor *const rows[] = {&a.y, &a.x};
    int64_t count = lt_tensor_count(&a.y);
    const int w = lt_cuda_piece(rows, 2, narrow, count);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&a.y.data, &a.x.data, &count};
    snprintf(defines, sizeof defines, "DTYPE=%s W=%d", lt_cuda_dtype_word(narrow), w);
    return lt_cuda_run(q, "ops/elementwise.cu", from ? "cast_from_fp32" : "cast_to_fp32", defines,
                       LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}

/* ---- Optimisers ---- */

static const char *adamw_refuse(const void *args) {
    const lt_adamw_args *a = args;
    const lt_tensor *const rows[] = {&a->p, &a->g, &a->m, &a->v};
    return a->copy.data != NULL && a->copy.dtype != LT_BF16 ? "copy is not BF16"
                                                            : lt_cuda_refuse_rows(rows, 4, LT_F32);
}
static lt_err adamw_run(lt_queue *q, const void *args) {
    lt_adamw_args a = *(const lt_adamw_args *)args;
    const lt_tensor *const rows[] = {&a.p, &a.g, &a.m, &a.v, &a.copy};
    int64_t count = lt_tensor_count(&a.p);
    const int w = lt_cuda_piece(rows, 5, LT_F32, count);
    float correct1 = (float)(1.0 - pow((double)a.beta1, (double)a.step)),
          correct2 = (float)(1.0 - pow((double)a.beta2, (double)a.step));
    void *list[] = {&a.p.data, &a.g.data,     &a.m.data, &a.v.data, &a.copy.data,
                    &count,    &a.lr,         &a.beta1,  &a.beta2,  &a.eps,
                    &a.decay,  &a.grad_scale, &correct1, &correct2};
    return lt_cuda_run(q, "ops/optim.cu", "adamw", w == 4 ? "W=4" : "W=1",
                       LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}

static const char *ademamix_refuse(const void *args) {
    const lt_ademamix_args *a = args;
    const lt_tensor *const rows[] = {&a->p, &a->g, &a->m1, &a->m2, &a->v};
    return a->copy.data != NULL && a->copy.dtype != LT_BF16 ? "copy is not BF16"
                                                            : lt_cuda_refuse_rows(rows, 5, LT_F32);
}
static lt_err ademamix_run(lt_queue *q, const void *args) {
    lt_ademamix_args a = *(const lt_ademamix_args *)args;
    const lt_tensor *const rows[] = {&a.p, &a.g, &a.m1, &a.m2, &a.v, &a.copy};
    int64_t count = lt_tensor_count(&a.p);
    const int w = lt_cuda_piece(rows, 6, LT_F32, count);
    float correct1 = (float)(1.0 - pow((double)a.beta1, (double)a.step)),
          correct2 = (float)(1.0 - pow((double)a.beta2, (double)a.step));
    void *list[] = {&a.p.data, &a.g.data, &a.m1.data,    &a.m2.data, &a.v.data, &a.copy.data,
                    &count,    &a.lr,     &a.beta1,      &a.beta2,   &a.beta3,  &a.alpha,
                    &a.eps,    &a.decay,  &a.grad_scale, &correct1,  &correct2};
    return lt_cuda_run(q, "ops/optim.cu", "ademamix", w == 4 ? "W=4" : "W=1",
                       LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}

static const char *sumsq_refuse(const void *args) {
    const lt_sumsq_args *a = args;
    const lt_tensor *const rows[] = {&a->x};
    return lt_cuda_refuse_rows(rows, 1, LT_F32);
}
static lt_err sumsq_run(lt_queue *q, const void *args) {
    lt_sumsq_args a = *(const lt_sumsq_args *)args;
    const lt_tensor *const rows[] = {&a.x};
    int64_t count = lt_tensor_count(&a.x);
    const int w = lt_cuda_piece(rows, 1, LT_F32, count);
    const char *defines = w == 4 ? "W=4" : "W=1";
    int n = SUMSQ_BLOCKS, accumulate = a.accumulate;
    void *parts = NULL;
    void *first[] = {&parts, &a.x.data, &count}, *second[] = {&a.out.data, &parts, &n, &accumulate};
    LT_TRY(lt_cuda_scratch(q, SUMSQ_BLOCKS * sizeof(double), &parts));
    LT_TRY(lt_cuda_run(q, "ops/optim.cu", "sumsq_parts", defines, n, 1, THREADS, first));
    return lt_cuda_run(q, "ops/optim.cu", "sumsq_total", defines, 1, 1, THREADS, second);
}

/* ---- Rotary embedding ---- */

static const char *rope_refuse(const void *args) {
    const lt_rope_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x};
    const char *why = lt_cuda_refuse_rows(rows, 2, a->x.dtype);
    const int64_t width = lt_cuda_width(&a->x);
    if (why != NULL) {
        return why;
    }
    const int64_t lanes = width / (2 * ROPE_W(a->x.dtype));
    if (a->table.shape[1] * 2 != width) {
        return "part of the head rotates";
    }
    if (width % (2 * ROPE_W(a->x.dtype)) != 0 || lanes > 32 || (lanes & (lanes - 1)) != 0) {
        return "head width is not 2, 4, 8, .. vectors";
    }
    return (((uintptr_t)a->x.data | (uintptr_t)a->y.data | (uintptr_t)a->table.data) & 15) != 0
               ? "not 16-byte aligned"
               : NULL;
}
static lt_err rope_run(lt_queue *q, const void *args) {
    lt_rope_args a = *(const lt_rope_args *)args;
    const int w = ROPE_W(a.x.dtype), lanes = (int)lt_cuda_width(&a.x) / (2 * w);
    int64_t n_heads = lt_cuda_rows(&a.x);
    int heads = (int)a.x.shape[a.x.n_dims - 2];
    float eps = 0.0f, sign = a.inverse ? -1.0f : 1.0f;
    void *gain = NULL, *rstd = NULL;
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&a.y.data, &a.x.data, &a.positions.data, &a.table.data,
                    &gain,     &rstd,     &n_heads,          &heads,
                    &eps,      &sign};
    snprintf(defines, sizeof defines, "NORM=0 DTYPE=%s W=%d LANES=%d",
             lt_cuda_dtype_word(a.x.dtype), w, lanes);
    return lt_cuda_run(q, "ops/rope.cu", "rope_fwd", defines,
                       LT_CUDA_DIV_UP(n_heads, THREADS / lanes), 1, THREADS, list);
}

#define ENTRY(op)                                                                                  \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {                               \
        {"pieces", op##_refuse, op##_run}};
ENTRY(act_fwd)
ENTRY(act_bwd)
ENTRY(add)
ENTRY(cast)
ENTRY(adamw)
ENTRY(ademamix)
ENTRY(sumsq)
ENTRY(rope)

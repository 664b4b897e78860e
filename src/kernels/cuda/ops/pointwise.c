/* pointwise.c: launchers of act.cu, elementwise.cu and rope.cu, where each thread computes one
 * piece. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "kernels/cuda/ops/act_args.h"
#include "kernels/cuda/ops/add_any_args.h"
#include "kernels/cuda/ops/elementwise_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/rope_args.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_pointwise write them. */
#define ACT_WORDS "KIND=%d GATED=%d DTYPE=%s W=%d RAGGED=%d PIECES=%d"
/* For the clamped SwiGLU, these words follow. */
#define ACT_CLAMP       " ACT_ALPHA=%.9ef ACT_LIMIT=%.9ef"
#define ROW_WORDS       "DTYPE=%s W=%d"
#define ADD_ANY_WORDS   "Y=%s A=%s B=%s"
#define ROPE_WORDS      "DTYPE=%s W=%d LANES=%d"
#define ROPE_PAGE_WORDS " EIGHT=%d"
#define ROPE_ANY_WORDS  "DTYPE=%s W=1"

#define THREADS      256
#define XIELU_BLOCKS 8 /* Per SM, with 32 registers per thread. */
#define ROPE_W(act)  (16 / (int)lt_dtype_bytes(act))

/* ---- Activations ---- */

static const char *act_refuse_any(const lt_tensor *const *rows, int n, lt_act_kind kind,
                                  lt_dtype act) {
    const char *why = lt_cuda_refuse_rows(rows, n, act);
    for (int i = 0; i < n && why == NULL; i++) {
        why = rows[i]->n_dims != 2 ? "not (R, F)" : NULL;
    }
    return why != NULL ? why : (int)kind > 6 ? "an activation the kernel does not know" : NULL;
}

/* Blocks of a launch over count elements, and its -D words. xIELU: as many blocks as are
 * resident, each of whose threads has two pieces at a time. */
static int act_blocks(char out[LT_CUDA_DEFINES_BYTES], const lt_queue *q, lt_act_kind kind,
                      bool gated, lt_dtype act, int w, bool ragged, int64_t count) {
    const int64_t resident = (int64_t)lt_cuda_get_info(q->gpu)->n_sms * XIELU_BLOCKS,
                  turns = LT_CUDA_DIV_UP(count, (int64_t)THREADS * w);
    const bool walk = kind == LT_ACT_XIELU && turns > resident;
    snprintf(out, LT_CUDA_DEFINES_BYTES, ACT_WORDS, (int)kind, gated, lt_cuda_dtype_word(act), w,
             ragged, walk ? 2 : 1);
    return (int)(walk ? resident : turns);
}

/* Add the words of the clamped SwiGLU, whose two numbers are constants of its specialisation. */
static void add_clamp(char defines[LT_CUDA_DEFINES_BYTES], lt_act_kind kind, float alpha,
                      float limit) {
    const size_t used = strlen(defines);
    if (kind == LT_ACT_SWIGLU_CLAMPED) {
        snprintf(defines + used, LT_CUDA_DEFINES_BYTES - used, ACT_CLAMP, (double)alpha,
                 (double)limit);
    }
}

static const char *act_fwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_act_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x};
    return act_refuse_any(rows, 2, a->kind, a->x.dtype);
}
static lt_err act_fwd_run(lt_queue *q, const void *args) {
    lt_act_args a = *(const lt_act_args *)args;
    const lt_tensor *const rows[] = {&a.y, &a.x};
    const int64_t count = lt_tensor_count(&a.y);
    lt_cuda_act_fwd_args call = {.y = a.y.data,
                                 .x = a.x.data,
                                 .params = a.xielu_params.data,
                                 .count = count,
                                 .cols = (int)lt_cuda_width(&a.y),
                                 .ldy = a.y.stride[0],
                                 .ldx = a.x.stride[0]};
    const int w = lt_cuda_piece(rows, 2, a.x.dtype, call.cols);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&call};
    const int n = act_blocks(defines, q, a.kind, a.gated, a.x.dtype, w,
                             !lt_cuda_all_contiguous(rows, 2), count);
    add_clamp(defines, a.kind, a.alpha, a.limit);
    return lt_cuda_run_early(q, "ops/act.cu", "act_fwd", defines, n, 1, THREADS, list);
}

static const char *act_bwd_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_act_bwd_args *a = args;
    const lt_tensor *const rows[] = {&a->dx, &a->dy, &a->x};
    return act_refuse_any(rows, 3, a->kind, a->x.dtype);
}
static lt_err act_bwd_run(lt_queue *q, const void *args) {
    lt_act_bwd_args a = *(const lt_act_bwd_args *)args;
    const lt_tensor *const rows[] = {&a.dx, &a.dy, &a.x};
    const int64_t count = lt_tensor_count(&a.dy);
    lt_cuda_act_bwd_args call = {.dx = a.dx.data,
                                 .dy = a.dy.data,
                                 .x = a.x.data,
                                 .params = a.xielu_params.data,
                                 .count = count,
                                 .cols = (int)lt_cuda_width(&a.dy),
                                 .lddx = a.dx.stride[0],
                                 .lddy = a.dy.stride[0],
                                 .ldx = a.x.stride[0]};
    const int w = lt_cuda_piece(rows, 3, a.x.dtype, call.cols);
    char defines[LT_CUDA_DEFINES_BYTES];
    void *parts, *list[] = {&call};
    const int n = act_blocks(defines, q, a.kind, a.gated, a.x.dtype, w,
                             !lt_cuda_all_contiguous(rows, 3), count);
    add_clamp(defines, a.kind, a.alpha, a.limit);
    if (a.kind == LT_ACT_XIELU) {
        LT_TRY(lt_cuda_scratch(q, (size_t)n * 2 * sizeof(float), &parts));
        call.parts = parts;
    }
    LT_TRY(lt_cuda_run_early(q, "ops/act.cu", "act_bwd", defines, n, 1, THREADS, list));
    if (a.kind == LT_ACT_XIELU && a.dxielu_params.data != NULL) {
        lt_cuda_act_params_args sum = {.dparams = a.dxielu_params.data,
                                       .parts = call.parts,
                                       .params = a.xielu_params.data,
                                       .n = n};
        void *params[] = {&sum};
        LT_TRY(lt_cuda_run_early(q, "ops/act.cu", "act_params", defines, 1, 1, 1024, params));
    }
    return LT_OK;
}

/* ---- Sums and conversions ---- */

static const char *add_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_add_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->a, &a->b};
    const char *why = lt_cuda_refuse_rows(rows, 3, a->y.dtype);
    return why == NULL && !lt_cuda_all_contiguous(rows, 3) ? "rows not contiguous" : why;
}
static lt_err add_run(lt_queue *q, const void *args) {
    lt_add_args a = *(const lt_add_args *)args;
    const lt_tensor *const rows[] = {&a.y, &a.a, &a.b};
    int64_t count = lt_tensor_count(&a.y);
    const int w = lt_cuda_piece(rows, 3, a.y.dtype, count);
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_add_args call = {.y = a.y.data,
                             .a = a.a.data,
                             .b = a.b.data,
                             .count = count,
                             .alpha = a.alpha,
                             .beta = a.beta};
    void *list[] = {&call};
    snprintf(defines, sizeof defines, ROW_WORDS, lt_cuda_dtype_word(a.y.dtype), w);
    return lt_cuda_run(q, "ops/elementwise.cu", "add", defines,
                       LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}

/* Any types, any strides: add_any.cu. */
static const char *add_any_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_add_args *a = args;
    const lt_tensor *const all[] = {&a->y, &a->a, &a->b};
    for (int i = 0; i < 3; i++) {
        if (all[i]->data != NULL && lt_cuda_dtype_word(all[i]->dtype) == NULL) {
            return "a type the kernel does not know";
        }
    }
    return lt_cuda_rows(&a->y) > INT32_MAX ? "too many rows" : NULL;
}
static lt_err add_any_run(lt_queue *q, const void *args) {
    lt_add_args a = *(const lt_add_args *)args;
    const lt_dtype b_type = a.b.data != NULL ? a.b.dtype : LT_F32;
    lt_cuda_add_any_args call = {.y = a.y.data,
                                 .a = a.a.data,
                                 .b = a.b.data,
                                 .vy = lt_cuda_view_of(&a.y),
                                 .va = lt_cuda_view_of(&a.a),
                                 .vb = lt_cuda_view_of(&a.b),
                                 .step_y = a.y.stride[a.y.n_dims - 1],
                                 .step_a = a.a.stride[a.a.n_dims - 1],
                                 .step_b = a.b.data != NULL ? a.b.stride[a.b.n_dims - 1] : 0,
                                 .n = lt_cuda_row_shape_of(&a.y),
                                 .rows = lt_cuda_rows(&a.y),
                                 .cols = (int)lt_cuda_width(&a.y),
                                 .alpha = a.alpha,
                                 .beta = a.beta};
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&call};
    snprintf(defines, sizeof defines, ADD_ANY_WORDS, lt_cuda_dtype_word(a.y.dtype),
             lt_cuda_dtype_word(a.a.dtype), lt_cuda_dtype_word(b_type));
    return lt_cuda_run(q, "ops/add_any.cu", "add_any", defines,
                       LT_CUDA_DIV_UP(call.rows * call.cols, THREADS), 1, THREADS, list);
}

static const char *cast_refuse(const void *args, const lt_device *device) {
    (void)device;
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
    lt_cuda_cast_from_fp32_args from_fp32 = {.y = a.y.data, .x = a.x.data, .count = count};
    lt_cuda_cast_to_fp32_args to_fp32 = {.y = a.y.data, .x = a.x.data, .count = count};
    void *list[] = {from ? (void *)&from_fp32 : (void *)&to_fp32};
    snprintf(defines, sizeof defines, ROW_WORDS, lt_cuda_dtype_word(narrow), w);
    return lt_cuda_run(q, "ops/elementwise.cu", from ? "cast_from_fp32" : "cast_to_fp32", defines,
                       LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}
/* A cast is y = 1 * a. */
static lt_add_args cast_as_add(const lt_cast_args *a) {
    return (lt_add_args){.y = a->y, .a = a->x, .alpha = 1.0f};
}
static const char *cast_any_refuse(const void *args, const lt_device *device) {
    const lt_add_args as_add = cast_as_add(args);
    return add_any_refuse(&as_add, device);
}
static lt_err cast_any_run(lt_queue *q, const void *args) {
    const lt_add_args as_add = cast_as_add(args);
    return add_any_run(q, &as_add);
}

/* ---- Rotary embedding ---- */

static const char *rope_why_not(const lt_rope_args *a) {
    const lt_tensor *const rows[] = {&a->y, &a->x};
    const char *why = lt_cuda_refuse_rows(rows, 2, a->x.dtype);
    const int64_t width = lt_cuda_width(&a->x);
    if (why != NULL) {
        return why;
    }
    const int64_t lanes = width / (2 * ROPE_W(a->x.dtype));
    if (a->table.shape[1] * 2 != width || !lt_tensor_contiguous(&a->table)) {
        return "part of the head rotates";
    }
    if (a->x.n_dims != 3 || width % (2 * ROPE_W(a->x.dtype)) != 0 || lanes > 32 ||
        (lanes & (lanes - 1)) != 0) {
        return "head width is not 2, 4, 8, .. vectors";
    }
    return ((uintptr_t)a->table.data & 15) != 0 ||
                   lt_cuda_piece(rows, 2, a->x.dtype, width) != ROPE_W(a->x.dtype)
               ? "not 16-byte aligned"
               : NULL;
}
static const char *rope_refuse(const void *args, const lt_device *device) {
    (void)device;
    return rope_why_not(args);
}
static lt_err rope_run(lt_queue *q, const void *args) {
    lt_rope_args a = *(const lt_rope_args *)args;
    const int w = ROPE_W(a.x.dtype), lanes = (int)lt_cuda_width(&a.x) / (2 * w);
    lt_cuda_rope_args call = {
        .y = a.y.data,
        .x = a.x.data,
        .positions = a.positions.data,
        .table = a.table.data,
        .n_heads = lt_cuda_rows(&a.x),
        .at = {lt_cuda_view_of(&a.y), lt_cuda_view_of(&a.x), lt_cuda_row_shape_of(&a.x)},
        .sign = a.inverse ? -1.0f : 1.0f};
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&call};
    snprintf(defines, sizeof defines, ROPE_WORDS, lt_cuda_dtype_word(a.x.dtype), w, lanes);
    return lt_cuda_run_early(q, "ops/rope.cu", "rope", defines,
                             LT_CUDA_DIV_UP(call.n_heads, THREADS / lanes), 1, THREADS, list);
}

/* Can the keys and values be written to their pages, too (fuse.h)? */
bool lt_cuda_rope_kv_takes(const lt_rope_args *a, const lt_kv_write_args *w) {
    return rope_why_not(a) == NULL && w->v_pages.dtype == w->k_pages.dtype &&
           (w->k_pages.dtype == a->x.dtype || w->k_pages.dtype == LT_F8_E4M3) &&
           lt_tensor_contiguous(&w->k_pages) && lt_tensor_contiguous(&w->v_pages) &&
           lt_tensor_contiguous(&a->positions) && lt_tensor_contiguous(&w->slots) &&
           ((uintptr_t)w->k_pages.data | (uintptr_t)w->v_pages.data) % 16 == 0 &&
           a->x.shape[0] * (a->x.shape[1] + w->k.shape[1]) < INT32_MAX / 2;
}
lt_err lt_cuda_rope_kv_run(lt_queue *q, const lt_rope_args *a, const lt_kv_write_args *kv,
                           bool launch) {
    const int w = ROPE_W(a->x.dtype), lanes = (int)lt_cuda_width(&a->x) / (2 * w),
              kv_heads = (int)kv->k.shape[1];
    lt_rope_kv_args at = {.y = a->y.data,
                          .positions = a->positions.data,
                          .slots = kv->slots.data,
                          .table = a->table.data,
                          .k_pages = kv->k_pages.data,
                          .v_pages = kv->v_pages.data,
                          .ld = a->y.stride[0],
                          .rows = (int)a->y.shape[0],
                          .q_heads = (int)a->y.shape[1] - kv_heads,
                          .kv_heads = kv_heads};
    const lt_cuda_kernel *k;
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&at};
    snprintf(defines, sizeof defines, ROPE_WORDS ROPE_PAGE_WORDS, lt_cuda_dtype_word(a->x.dtype), w,
             lanes, kv->k_pages.dtype == LT_F8_E4M3);
    LT_TRY(lt_cuda_kernel_get(q->gpu, &k, "ops/rope.cu", "rope_kv", defines));
    return launch ? lt_cuda_run_early(q, "ops/rope.cu", "rope_kv", defines,
                                      LT_CUDA_DIV_UP((int64_t)at.rows * (at.q_heads + 2 * kv_heads),
                                                     THREADS / lanes),
                                      1, THREADS, list)
                  : LT_OK;
}

/* Any width, any part of the head: one thread per pair, or per column that is copied. */
static const char *rope_any_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_rope_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x};
    const char *why = lt_cuda_refuse_rows(rows, 2, a->x.dtype);
    return why != NULL ? why : a->x.n_dims != 3 ? "not (R, H, D)" : NULL;
}
static lt_err rope_any_run(lt_queue *q, const void *args) {
    lt_rope_args a = *(const lt_rope_args *)args;
    const int half = (int)a.table.shape[1], width = (int)lt_cuda_width(&a.x);
    const int64_t count = lt_cuda_rows(&a.x) * (width - half);
    lt_cuda_rope_any_args call = {
        .y = a.y.data,
        .x = a.x.data,
        .positions = a.positions.data,
        .table = a.table.data,
        .ld = a.table.stride[0],
        .step = a.table.stride[1],
        .count = count,
        .half = half,
        .width = width,
        .at = {lt_cuda_view_of(&a.y), lt_cuda_view_of(&a.x), lt_cuda_row_shape_of(&a.x)},
        .sign = a.inverse ? -1.0f : 1.0f};
    char defines[LT_CUDA_DEFINES_BYTES];
    void *list[] = {&call};
    snprintf(defines, sizeof defines, ROPE_ANY_WORDS, lt_cuda_dtype_word(a.x.dtype));
    return lt_cuda_run(q, "ops/rope_any.cu", "rope_any", defines, LT_CUDA_DIV_UP(count, THREADS), 1,
                       THREADS, list);
}

#define ENTRY(op)                                                                                  \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {                               \
        {"pieces", op##_refuse, op##_run}};
#define ENTRY_ANY(op)                                                                              \
    const lt_op_impl lt_cuda_##op##_impls[LT_REGISTRY_MAX_IMPLS] = {                               \
        {"pieces", op##_refuse, op##_run}, {"any", op##_any_refuse, op##_any_run}};
ENTRY(act_fwd)
ENTRY(act_bwd)
ENTRY_ANY(add)
ENTRY_ANY(cast)
ENTRY_ANY(rope)

void lt_specs_pointwise(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "ops/act.cu", ACT_WORDS, 0, 0, "bf16", 8, 0, 1);
    lt_spec(l, LT_SM_ALL, "ops/act.cu", ACT_WORDS, 1, 0, "bf16", 8, 0, 1);
    lt_spec(l, LT_SM_ALL, "ops/act.cu", ACT_WORDS, 2, 1, "bf16", 8, 0, 1);
    lt_spec(l, LT_SM_ALL, "ops/act.cu", ACT_WORDS, 2, 0, "fp32", 4, 0, 1);
    lt_spec(l, LT_SM_ALL, "ops/act.cu", ACT_WORDS, 4, 0, "bf16", 1, 0, 1);
    lt_spec(l, LT_SM_ALL, "ops/act.cu", ACT_WORDS, 5, 0, "bf16", 8, 0, 2);
    lt_spec(l, LT_SM_ALL, "ops/act.cu", ACT_WORDS ACT_CLAMP, 6, 1, "bf16", 8, 0, 1, 1.702, 7.0);
    lt_spec(l, LT_SM_ALL, "ops/elementwise.cu", ROW_WORDS, "bf16", 8);
    lt_spec(l, LT_SM_ALL, "ops/elementwise.cu", ROW_WORDS, "fp32", 4);
    lt_spec(l, LT_SM_ALL, "ops/elementwise.cu", ROW_WORDS, "bf16", 1);
    lt_spec(l, LT_SM_ALL, "ops/add_any.cu", ADD_ANY_WORDS, "fp32", "bf16", "fp32");
    lt_spec(l, LT_SM_ALL, "ops/add_any.cu", ADD_ANY_WORDS, "fp16", "bf16", "fp32");
    lt_spec(l, LT_SM_ALL, "ops/rope.cu", ROPE_WORDS, "bf16", 8, 8);
    lt_spec(l, LT_SM_ALL, "ops/rope.cu", ROPE_WORDS, "fp32", 4, 16);
    lt_spec(l, LT_SM_ALL, "ops/rope.cu", ROPE_WORDS ROPE_PAGE_WORDS, "bf16", 8, 8, 1);
    lt_spec(l, LT_SM_ALL, "ops/rope_any.cu", ROPE_ANY_WORDS, "bf16");
    lt_spec(l, LT_SM_ALL, "ops/rope_any.cu", ROPE_ANY_WORDS, "fp32");
}

/* lora.c: launcher of lora.cu. */
#include <limits.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/lora_args.h"
#include "kernels/cuda/specs.h"

#define LORA_WORDS "DTYPE=%s W=%d"
#define THREADS    256 /* As in lora.cu. */
#define MOST_ROWS  65535

static_assert(LT_LORA_ADD_PARTS == LT_LORA_MOST_PARTS, "the same number of parts");

static const char *lora_add_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_lora_add_args *a = args;
    const lt_tensor *const rows[] = {&a->y, &a->x}, *const weights[] = {&a->a, &a->b},
                           *const f32[] = {&a->u, &a->scale};
    const char *why = lt_cuda_refuse_rows(rows, 2, a->x.dtype);
    why = why == NULL ? lt_cuda_refuse_rows(weights, 2, a->x.dtype) : why;
    why = why == NULL ? lt_cuda_refuse_rows(f32, 2, LT_F32) : why;
    if (why == NULL && (a->u.stride[0] != a->u.shape[1] || a->place.stride[0] != 1)) {
        return "u or place: not contiguous";
    }
    return why == NULL && a->x.shape[0] > MOST_ROWS ? "more than 65,535 rows" : why;
}

static lt_err shrink(lt_queue *q, const lt_lora_add_args *a) {
    const int64_t in = a->x.shape[1];
    const int width = lt_cuda_piece((const lt_tensor *const[]){&a->x, &a->a}, 2, a->x.dtype, in);
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_lora_shrink_args call = {.x = a->x.data,
                                     .a = a->a.data,
                                     .u = a->u.data,
                                     .place = a->place.data,
                                     .ld_x = a->x.stride[0],
                                     .ld_a = a->a.stride[2],
                                     .part_a = a->a.stride[1],
                                     .next_a = a->a.stride[0],
                                     .in = (int)in,
                                     .n_u = (int)a->u.shape[1],
                                     .rank = (int)a->b.shape[1]};
    void *list[] = {&call};
    snprintf(defines, sizeof defines, LORA_WORDS, lt_cuda_dtype_word(a->x.dtype), width);
    return lt_cuda_run_early(q, "ops/lora.cu", "lora_shrink", defines,
                             LT_CUDA_DIV_UP(a->u.shape[1], LT_LORA_TOGETHER), (int)a->x.shape[0],
                             THREADS, list);
}

static lt_err expand(lt_queue *q, const lt_lora_add_args *a) {
    int width = INT_MAX;
    int64_t blocks = 0;
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_lora_expand_args call = {.y = a->y.data,
                                     .b = a->b.data,
                                     .u = a->u.data,
                                     .scale = a->scale.data,
                                     .place = a->place.data,
                                     .ld_y = a->y.stride[0],
                                     .ld_b = a->b.stride[1],
                                     .next_b = a->b.stride[0],
                                     .n_u = (int)a->u.shape[1],
                                     .rank = (int)a->b.shape[1]};
    void *list[] = {&call};
    for (int i = 0; i < a->n_parts; i++) {
        const lt_lora_add_part *p = &a->parts[i];
        const lt_tensor y = lt_tensor_cols(&a->y, p->first_of_y, p->columns),
                        b = lt_tensor_cols(&a->b, p->first_of_b, p->columns);
        const int own = lt_cuda_piece((const lt_tensor *const[]){&y, &b}, 2, y.dtype, p->columns);
        width = own < width ? own : width;
    }
    for (int i = 0; i < LT_LORA_MOST_PARTS; i++) {
        const lt_lora_add_part *p = &a->parts[i];
        call.block[i] = i < a->n_parts ? (int)blocks : INT_MAX;
        if (i < a->n_parts) {
            call.of_y[i] = (int)p->first_of_y;
            call.of_b[i] = (int)p->first_of_b;
            call.columns[i] = (int)p->columns;
            blocks += LT_CUDA_DIV_UP(p->columns, (int64_t)THREADS * width);
        }
    }
    snprintf(defines, sizeof defines, LORA_WORDS, lt_cuda_dtype_word(a->x.dtype), width);
    return lt_cuda_run_early(q, "ops/lora.cu", "lora_expand", defines, blocks, (int)a->x.shape[0],
                             THREADS, list);
}

static lt_err lora_add_run(lt_queue *q, const void *args) {
    LT_TRY(shrink(q, args));
    return expand(q, args);
}

const lt_op_impl lt_cuda_lora_add_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"rows", lora_add_refuse, lora_add_run}};

static const char *lora_scale_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_lora_scale_args *a = args;
    const lt_tensor *const y = &a->y, *const f32[] = {&a->factor, &a->offset};
    const char *why = lt_cuda_refuse_rows(&y, 1, a->y.dtype);
    why = why == NULL ? lt_cuda_refuse_rows(f32, 2, LT_F32) : why;
    if (why == NULL && a->place.stride[0] != 1) {
        return "place: not contiguous";
    }
    return why == NULL && a->y.shape[0] > MOST_ROWS ? "more than 65,535 rows" : why;
}

static lt_err lora_scale_run(lt_queue *q, const void *args) {
    const lt_lora_scale_args *a = args;
    const lt_tensor *const y = &a->y;
    const int64_t columns = a->y.shape[1];
    const int width = lt_cuda_piece(&y, 1, a->y.dtype, columns);
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_lora_scale_args call = {.y = a->y.data,
                                    .factor = a->factor.data,
                                    .offset = a->offset.data,
                                    .place = a->place.data,
                                    .ld_y = a->y.stride[0],
                                    .next_factor = a->factor.stride[0],
                                    .next_offset = a->offset.stride[0],
                                    .columns = (int)columns};
    void *list[] = {&call};
    snprintf(defines, sizeof defines, LORA_WORDS, lt_cuda_dtype_word(a->y.dtype), width);
    return lt_cuda_run_early(q, "ops/lora.cu", "lora_scale", defines,
                             LT_CUDA_DIV_UP(columns, (int64_t)THREADS * width), (int)a->y.shape[0],
                             THREADS, list);
}

const lt_op_impl lt_cuda_lora_scale_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"rows", lora_scale_refuse, lora_scale_run}};

void lt_specs_lora(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "ops/lora.cu", LORA_WORDS, "bf16", 8);
    lt_spec(l, LT_SM_ALL, "ops/lora.cu", LORA_WORDS, "bf16", 1);
    lt_spec(l, LT_SM_ALL, "ops/lora.cu", LORA_WORDS, "fp32", 4);
    lt_spec(l, LT_SM_ALL, "ops/lora.cu", LORA_WORDS, "fp32", 1);
}

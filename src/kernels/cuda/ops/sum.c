/* sum.c: launcher of sum.cu. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/sum_args.h"
#include "kernels/cuda/specs.h"

#define SUM_WORDS "DTYPE=%s W=%d OUT32=%d"
#define THREADS   256 /* As in sum.cu. */

_Static_assert(SUM_MOST == LT_SUM_MOST, "terms of a sum");

/* Collect the tensors of a sum; returns how many there are. */
static int tensors_of(const lt_sum_args *a, const lt_tensor *out[LT_SUM_MOST + 2]) {
    int n = 0;
    for (int k = 0; k < a->n; k++) {
        out[n++] = &a->x[k];
    }
    out[n++] = &a->y;
    out[n++] = &a->part;
    return n;
}

static const char *sum_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_sum_args *a = args;
    const lt_tensor *all[LT_SUM_MOST + 2];
    const int n = tensors_of(a, all);
    const char *why = lt_cuda_refuse_rows(all, a->n, a->x[0].dtype);
    if (why == NULL && a->x[0].dtype != LT_F32 && a->x[0].dtype != LT_BF16) {
        return "terms are not F32 or BF16";
    }
    if (why == NULL && a->y.dtype != LT_F32 && a->y.dtype != a->x[0].dtype) {
        return "the sum is neither F32 nor of its terms' type";
    }
    return why == NULL && !lt_cuda_all_contiguous(all, n) ? "tensors not contiguous" : why;
}

static lt_err sum_run(lt_queue *q, const void *args) {
    const lt_sum_args *a = args;
    const lt_tensor *all[LT_SUM_MOST + 2];
    const int64_t count = lt_tensor_count(&a->y);
    const int w = lt_cuda_piece(all, tensors_of(a, all), a->x[0].dtype, count);
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_sum_args call = {.y = a->y.data, .part = a->part.data, .count = count, .n = a->n};
    void *list[] = {&call};
    for (int k = 0; k < a->n; k++) {
        call.x[k] = a->x[k].data;
    }
    snprintf(defines, sizeof defines, SUM_WORDS, lt_cuda_dtype_word(a->x[0].dtype), w,
             a->y.dtype == LT_F32);
    return lt_cuda_run_early(q, "ops/sum.cu", "sum", defines,
                             LT_CUDA_DIV_UP(count, (int64_t)THREADS * w), 1, THREADS, list);
}

const lt_op_impl lt_cuda_sum_impls[LT_REGISTRY_MAX_IMPLS] = {{"pieces", sum_refuse, sum_run}};

void lt_specs_sum(lt_specs *l) {
    for (int one = 0; one < 2; one++) {
        lt_spec(l, LT_SM_ALL, "ops/sum.cu", SUM_WORDS, "bf16", one ? 1 : 8, 0);
        lt_spec(l, LT_SM_ALL, "ops/sum.cu", SUM_WORDS, "bf16", one ? 1 : 8, 1);
        lt_spec(l, LT_SM_ALL, "ops/sum.cu", SUM_WORDS, "fp32", one ? 1 : 4, 1);
    }
}

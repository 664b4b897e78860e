/* distill.c: launcher of distill.cu. */
#include <math.h>
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/ops/distill_args.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/specs.h"

#define DISTILL_WORDS   "DTYPE=%s TEACHER=%s W=1 SOFTCAP=%d WORDS=%d KIND=%d"
#define DISTILL_THREADS 512 /* Threads of distill.cu, and the most tokens that a row names. */

static const char *distill_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_distill_args *a = args;
    const lt_tensor *const rows[] = {&a->logits}, *const teacher[] = {&a->teacher},
                           *const words[] = {&a->logp};
    const char *why = lt_cuda_refuse_rows(rows, 1, a->logits.dtype);
    if (a->ids.data != NULL && a->ids.shape[1] > DISTILL_THREADS) {
        return "more than 512 words of a row";
    }
    why = why == NULL ? lt_cuda_refuse_rows(teacher, 1, a->teacher.dtype) : why;
    return why == NULL ? lt_cuda_refuse_rows(words, 1, LT_F32) : why;
}

static lt_err distill_run(lt_queue *q, const void *args) {
    const lt_distill_args *a = args;
    const bool whole = a->teacher.data != NULL;
    char defines[LT_CUDA_DEFINES_BYTES];
    lt_cuda_distill_args call = {.logits = a->logits.data,
                                 .teacher = a->teacher.data,
                                 .ids = a->ids.data,
                                 .logp = a->logp.data,
                                 .labels = a->labels.data,
                                 .weights = a->weights.data,
                                 .loss = a->loss.data,
                                 .ld = a->logits.stride[0],
                                 .cols = (int)a->logits.shape[1],
                                 .rest = a->rest,
                                 .grad_scale = a->grad_scale,
                                 .softcap = a->softcap,
                                 .teacher_softcap = a->teacher_softcap,
                                 .inv_t = 1.0f / a->temperature,
                                 .beta = a->beta,
                                 .share = a->label_share,
                                 .log_beta = logf(a->beta),
                                 .log_other = log1pf(-a->beta)};
    void *list[] = {&call};
    if (whole) {
        call.ld_teacher = a->teacher.stride[0];
    } else {
        call.ld_ids = a->ids.stride[0];
        call.ld_logp = a->logp.stride[0];
        call.k = (int)a->ids.shape[1];
    }
    snprintf(defines, sizeof defines, DISTILL_WORDS, lt_cuda_dtype_word(a->logits.dtype),
             lt_cuda_dtype_word(whole ? a->teacher.dtype : LT_F32),
             a->softcap > 0.0f || a->teacher_softcap > 0.0f, !whole,
             a->beta == 0.0f   ? 0
             : a->beta == 1.0f ? 1
                               : 2);
    return lt_cuda_run_early(q, "ops/distill.cu", "distill", defines, a->logits.shape[0], 1,
                             DISTILL_THREADS, list);
}

const lt_op_impl lt_cuda_distill_impls[LT_REGISTRY_MAX_IMPLS] = {
    {"rows", distill_refuse, distill_run}};

void lt_specs_distill(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "ops/distill.cu", DISTILL_WORDS, "bf16", "fp32", 0, 0, 0);
    lt_spec(l, LT_SM_ALL, "ops/distill.cu", DISTILL_WORDS, "bf16", "fp32", 0, 0, 2);
    lt_spec(l, LT_SM_ALL, "ops/distill.cu", DISTILL_WORDS, "bf16", "fp32", 0, 1, 0);
    lt_spec(l, LT_SM_ALL, "ops/distill.cu", DISTILL_WORDS, "fp32", "fp32", 1, 0, 1);
    lt_spec(l, LT_SM_ALL, "ops/distill.cu", DISTILL_WORDS, "fp32", "fp32", 1, 1, 2);
}

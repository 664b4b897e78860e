/* distill_args.h: arguments of distill.cu. */
#ifndef LT_KERNELS_CUDA_OPS_DISTILL_ARGS_H
#define LT_KERNELS_CUDA_OPS_DISTILL_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * logits;
    const LT_ELEM(TEACHER) * teacher; /* NULL: the teacher is given by ids and logp. */
    const int *ids;
    const float *logp;
    const int *labels;
    const float *weights; /* NULL: every weight is 1. */
    float *loss;
    long long ld, ld_teacher, ld_ids, ld_logp;
    int cols, k, rest;
    float grad_scale, softcap, teacher_softcap, inv_t, beta, share;
    float log_beta, log_other; /* Logarithms of beta and of 1 - beta. */
} lt_cuda_distill_args;

static_assert(sizeof(lt_cuda_distill_args) == 136, "the same on host and device");

#endif

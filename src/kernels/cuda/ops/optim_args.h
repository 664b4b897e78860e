/* optim_args.h: arguments of optim.cu. */
#ifndef LT_KERNELS_CUDA_OPS_OPTIM_ARGS_H
#define LT_KERNELS_CUDA_OPS_OPTIM_ARGS_H

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ops/optim_numbers_args.h"

/* What decides the random rounding of BF16 moments. */
typedef struct {
    unsigned long long seed;
    long long first; /* Place of element 0 in the model. */
} lt_optim_draws;

typedef struct {
    float *p;
    const float *g;
    float *m;
    LT_ELEM(bf16) * copy;
    long long count;
    float beta1, beta2, decay;
    lt_optim_numbers s;
    const lt_optim_numbers *device;
} lt_cuda_lion_args;

typedef struct {
    float *p;
    const float *g;
    LT_ELEM(moment) * m, *v;
    LT_ELEM(bf16) * copy;
    long long count;
    float beta1, beta2, eps, decay;
    lt_optim_numbers s;
    const lt_optim_numbers *device;
    lt_optim_draws draws;
} lt_cuda_adamw_args;

typedef struct {
    float *p;
    const float *g;
    LT_ELEM(moment) * m1, *m2, *v;
    LT_ELEM(bf16) * copy;
    long long count;
    float beta1, beta2, eps, decay;
    lt_optim_numbers s;
    const lt_optim_numbers *device;
    lt_optim_draws draws;
} lt_cuda_ademamix_args;

typedef struct {
    double *parts;
    const float *x;
    long long count;
} lt_cuda_sumsq_parts_args;

typedef struct {
    double *out;
    const double *parts;
    int n, accumulate;
} lt_cuda_sumsq_total_args;

typedef struct {
    lt_optim_numbers *step;
    float *norm_out;
    const double *sumsq;
    float scale, max_norm;
} lt_cuda_clip_scale_args;

static_assert(sizeof(lt_optim_draws) == 16, "the same on host and device");
static_assert(sizeof(lt_cuda_lion_args) == 96, "the same on host and device");
static_assert(sizeof(lt_cuda_adamw_args) == 120, "the same on host and device");
static_assert(sizeof(lt_cuda_ademamix_args) == 128, "the same on host and device");
static_assert(sizeof(lt_cuda_sumsq_parts_args) == 24, "the same on host and device");
static_assert(sizeof(lt_cuda_sumsq_total_args) == 24, "the same on host and device");
static_assert(sizeof(lt_cuda_clip_scale_args) == 32, "the same on host and device");

#endif

/* muon_args.h: arguments of muon.cu. */
#ifndef LT_KERNELS_CUDA_OPS_MUON_ARGS_H
#define LT_KERNELS_CUDA_OPS_MUON_ARGS_H

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/ops/optim_numbers_args.h"

typedef struct {
    float *u;
    double *parts;
    float *m;
    const float *g;
    long long count;
    float momentum;
    int nesterov;
    lt_optim_numbers s;
    const lt_optim_numbers *device;
} lt_cuda_muon_momentum_args;

typedef struct {
    float *u;
    LT_ELEM(bf16) * x; /* NULL: in place. */
    const double *parts;
    long long count;
    int n_parts;
} lt_cuda_muon_scale_args;

typedef struct {
    float *p;
    LT_ELEM(bf16) * copy;
    const float *u;
    const LT_ELEM(bf16) * x; /* Instead of u where it is not NULL. */
    long long count;
    float decay, scale;
    lt_optim_numbers s;
    const lt_optim_numbers *device;
} lt_cuda_muon_update_args;

typedef struct {
    LT_ELEM(bf16) * y;
    const float *sum;
    const LT_ELEM(bf16) * x; /* NULL: 0. */
    long long count;
    float alpha;
} lt_cuda_muon_add_args;

static_assert(sizeof(lt_cuda_muon_momentum_args) == 88, "the same on host and device");
static_assert(sizeof(lt_cuda_muon_scale_args) == 40, "the same on host and device");
static_assert(sizeof(lt_cuda_muon_update_args) == 88, "the same on host and device");
static_assert(sizeof(lt_cuda_muon_add_args) == 40, "the same on host and device");

#endif

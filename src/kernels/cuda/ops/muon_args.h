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
    const double *parts;
    long long count;
} lt_cuda_muon_scale_args;

typedef struct {
    float *p;
    LT_ELEM(bf16) * copy;
    const float *u;
    long long count;
    float decay, scale;
    lt_optim_numbers s;
    const lt_optim_numbers *device;
} lt_cuda_muon_update_args;

static_assert(sizeof(lt_cuda_muon_momentum_args) == 88, "the same on host and device");
static_assert(sizeof(lt_cuda_muon_scale_args) == 24, "the same on host and device");
static_assert(sizeof(lt_cuda_muon_update_args) == 80, "the same on host and device");

#endif

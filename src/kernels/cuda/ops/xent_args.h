/* xent_args.h: arguments of xent.cu, xent_held.cu and xent_part.cu. */
#ifndef LT_KERNELS_CUDA_OPS_XENT_ARGS_H
#define LT_KERNELS_CUDA_OPS_XENT_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * logits;
    const int *labels;
    float *loss, *lse;
    int *best;
    int cols;
    float grad_scale, softcap, z_coef;
    long long ld;
    const float *weights;
} lt_cuda_xent_args;

typedef struct {
    LT_ELEM(DTYPE) * logits;
    const int *labels;
    float *loss, *lse;
    int *best;
    int rows, cols;
    float grad_scale, softcap, z_coef;
    long long ld;
    const float *weights;
} lt_cuda_xent_held_args;

typedef struct {
    const LT_ELEM(DTYPE) * logits;
    const int *labels;
    float *part;
    int cols, first;
    float softcap;
    long long ld;
} lt_cuda_xent_facts_args;

typedef struct {
    LT_ELEM(DTYPE) * logits;
    const int *labels;
    const float *parts;
    float *loss, *lse;
    int *best;
    int cols, first, n_parts;
    float grad_scale, softcap, z_coef;
    long long ld;
    const float *weights;
} lt_cuda_xent_rest_args;

/* Dynamic shared memory of xent_held.cu in bytes: this many pieces of 16 bytes per thread. */
#define LT_XENT_HELD_BYTES(threads, pieces) ((threads) * (pieces)*16)

static_assert(sizeof(lt_cuda_xent_args) == 72, "the same on host and device");
static_assert(sizeof(lt_cuda_xent_held_args) == 80, "the same on host and device");
static_assert(sizeof(lt_cuda_xent_facts_args) == 48, "the same on host and device");
static_assert(sizeof(lt_cuda_xent_rest_args) == 88, "the same on host and device");

#endif

/* lora_args.h: arguments of lora.cu. */
#ifndef LT_KERNELS_CUDA_OPS_LORA_ARGS_H
#define LT_KERNELS_CUDA_OPS_LORA_ARGS_H

#include "kernels/cuda/common/args.h"

#define LT_LORA_MOST_PARTS 3
#define LT_LORA_TOGETHER   8 /* Numbers of u that a block of lora_shrink computes. */

typedef struct {
    const LT_ELEM(DTYPE) * x, *a;
    float *u;
    const int *place;
    long long ld_x, ld_a, part_a, next_a; /* Strides between rows, parts and places. */
    int in, n_u, rank;
} lt_cuda_lora_shrink_args;

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * b;
    const float *u, *scale; /* scale NULL: 1. */
    const int *place;
    long long ld_y, ld_b, next_b;
    int n_u, rank;
    /* For each part: where it begins in y and in b, its columns, its first block. */
    int of_y[LT_LORA_MOST_PARTS], of_b[LT_LORA_MOST_PARTS], columns[LT_LORA_MOST_PARTS],
        block[LT_LORA_MOST_PARTS];
} lt_cuda_lora_expand_args;

typedef struct {
    LT_ELEM(DTYPE) * y;
    const float *factor, *offset; /* offset NULL: 0. */
    const int *place;
    long long ld_y, next_factor, next_offset; /* Strides between rows and places. */
    int columns;
} lt_cuda_lora_scale_args;

static_assert(sizeof(lt_cuda_lora_shrink_args) == 80, "the same on host and device");
static_assert(sizeof(lt_cuda_lora_expand_args) == 120, "the same on host and device");
static_assert(sizeof(lt_cuda_lora_scale_args) == 64, "the same on host and device");

#endif

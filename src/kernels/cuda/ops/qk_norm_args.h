/* qk_norm_args.h: arguments of qk_norm.cu and qk_norm_any.cu. */
#ifndef LT_KERNELS_CUDA_OPS_QK_NORM_ARGS_H
#define LT_KERNELS_CUDA_OPS_QK_NORM_ARGS_H

#include "kernels/cuda/common/args.h"

/* Strides between rows and between heads, in elements. */
typedef struct {
    long long row, head;
} lt_qk_steps;
typedef struct {
    lt_qk_steps x, y; /* In the backward pass y is dy. */
    lt_qk_steps dx;
    int rows, heads, n_q, q_blocks;
} lt_qk_shape;
/* The table and the heads, for qk_norm_any.cu. */
typedef struct {
    long long ld, step; /* Strides of the table. */
    int half, width;
} lt_qk_part;

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x;
    const int *positions;
    const float *table;
    const LT_ELEM(PARAM) * q_gain, *k_gain;
    float *rstd;
    lt_qk_shape n;
    float eps, gain_offset;
    lt_qk_part part;
} lt_cuda_qk_norm_fwd_args;

typedef struct {
    LT_ELEM(DTYPE) * dx;
    float *parts;
    const LT_ELEM(DTYPE) * dy, *x;
    const int *positions;
    const float *table;
    const LT_ELEM(PARAM) * q_gain, *k_gain;
    const float *rstd;
    lt_qk_shape n;
    float gain_offset;
    lt_qk_part part;
} lt_cuda_qk_norm_bwd_args;

/* Dynamic shared memory of the backward kernels. qk_norm.cu, in bytes: turns of a ring, each with
 * the halves of a head of x and dy, 16 bytes per thread; qk_norm_any.cu, in floats: each warp's
 * sums of columns and du of a head. */
#define LT_QK_NORM_DEPTH                    3
#define LT_QK_NORM_BYTES(threads)           (LT_QK_NORM_DEPTH * 4 * (threads)*16)
#define LT_QK_NORM_ANY_FLOATS(warps, width) ((warps)*2 * (width))

static_assert(sizeof(lt_qk_steps) == 16, "the same on host and device");
static_assert(sizeof(lt_qk_shape) == 64, "the same on host and device");
static_assert(sizeof(lt_qk_part) == 24, "the same on host and device");
static_assert(sizeof(lt_cuda_qk_norm_fwd_args) == 152, "the same on host and device");
static_assert(sizeof(lt_cuda_qk_norm_bwd_args) == 168, "the same on host and device");

#endif

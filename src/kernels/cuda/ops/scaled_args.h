/* scaled_args.h: arguments of cast_tile (scaled.cu). */
#ifndef LT_KERNELS_CUDA_OPS_SCALED_ARGS_H
#define LT_KERNELS_CUDA_OPS_SCALED_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    unsigned char *y, *t;
    float *scale, *t_scale;
    const LT_ELEM(DTYPE) * x;
    const unsigned *parts; /* Results of amax_parts, for kinds with one scale. */
    long long ld_y, ld_t, ld_x, rows;
    int cols, n_parts; /* n_parts 0: the scale of the matrix is given. */
} lt_cast_tile_args;

typedef struct {
    unsigned char *y;
    float *scale;
    const LT_ELEM(DTYPE) * x;
    long long ld_y, ld_x, rows;
    int cols, tiles;
} lt_cuda_cast_rows_args;

typedef struct {
    unsigned *parts;
    const LT_ELEM(DTYPE) * x;
    long long ld, rows;
    int cols;
} lt_cuda_amax_parts_args;

static_assert(sizeof(lt_cast_tile_args) == 88, "the same on host and device");
static_assert(sizeof(lt_cuda_cast_rows_args) == 56, "the same on host and device");
static_assert(sizeof(lt_cuda_amax_parts_args) == 40, "the same on host and device");

#endif

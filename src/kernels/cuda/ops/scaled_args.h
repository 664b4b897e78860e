/* scaled_args.h: arguments of cast_tile (scaled.cu). */
#ifndef LT_KERNELS_CUDA_OPS_SCALED_ARGS_H
#define LT_KERNELS_CUDA_OPS_SCALED_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    unsigned char *y, *t;
    float *scale, *t_scale;
    const LT_ELEM(DTYPE) * x;
    const unsigned *parts; /* Of amax_parts, with a kind of one scale. */
    long long ld_y, ld_t, ld_x, rows;
    int cols, n_parts;
} lt_cast_tile_args;

static_assert(sizeof(lt_cast_tile_args) == 88, "the same on host and device");

#endif

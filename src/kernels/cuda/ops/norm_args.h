/* norm_args.h: where norm.cu and norm_bwd.cu find rows. */
#ifndef LT_KERNELS_CUDA_OPS_NORM_ARGS_H
#define LT_KERNELS_CUDA_OPS_NORM_ARGS_H

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/view_args.h"

typedef struct {
    lt_cuda_view y, x, add, sum; /* Forward. */
    lt_cuda_view dx, dy;         /* Backward, with x. */
    lt_cuda_row_shape n;
} lt_norm_views;

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x, *add;
    LT_ELEM(DTYPE) * sum;
    const LT_ELEM(PARAM) * gain, *bias;
    float *mean, *rstd;
    int rows, cols;
    float eps, gain_offset;
    lt_norm_views at;
} lt_cuda_norm_fwd_args;

typedef struct {
    LT_ELEM(DTYPE) * dx;
    float *parts;
    const LT_ELEM(DTYPE) * dy, *x;
    const LT_ELEM(PARAM) * gain;
    const float *mean, *rstd;
    int rows, cols;
    float gain_offset;
    lt_norm_views at;
} lt_cuda_norm_bwd_args;

/* Dynamic shared memory of norm_bwd.cu in bytes: a ring of `depth` turns of x, dy (and dx), in
 * pieces of 16 bytes. If a row belongs to lanes of a warp, each warp's sums of columns of dgain
 * (and dbias) take the place of the ring at the end. Without a ring there is none. */
#define LT_NORM_RING_BYTES(depth, streams, rows, vecs, threads)                                    \
    ((depth) * (streams) * (rows) * (vecs) * (threads)*16)
#define LT_NORM_SUMS_BYTES(kinds, threads, width) ((kinds) * ((threads) / 32) * (width)*4)
#define LT_NORM_BWD_BYTES(ring, sums, depth, lanes)                                                \
    ((depth) == 0 || (lanes) > 32 || (ring) > (sums) ? (ring) : (sums))

static_assert(sizeof(lt_norm_views) == 152, "the same on host and device");
static_assert(sizeof(lt_cuda_norm_fwd_args) == 232, "the same on host and device");
static_assert(sizeof(lt_cuda_norm_bwd_args) == 224, "the same on host and device");

#endif

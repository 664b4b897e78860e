/* rung_args.h: arguments of 02_tiled.cu and 03_mma_sync.cu, whose operands are contiguous (B, T, H,
 * D). */
#ifndef LT_KERNELS_CUDA_ATTENTION_LADDER_RUNG_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_LADDER_RUNG_ARGS_H

#include "kernels/cuda/attention/args.h"

typedef struct {
    lt_attn_args a;
    LT_ELEM(elem) * o;
    const LT_ELEM(elem) * q, *k, *v;
    int width;
} lt_attn_rung_args;

/* Dynamic shared memory in bytes. 02_tiled.cu: tiles of 64 rows of Q, K and V, and P;
 * 03_mma_sync.cu: 128 rows of Q, two stages of 64 of K and V. */
#define LT_ATTN_RUNG_TILED_BYTES(width) ((3 * 64 * ((width) + 4) + 64 * (64 + 4)) * 4)
#define LT_ATTN_RUNG_MMA_BYTES(width)   ((128 + 4 * 64) * (width)*2)

static_assert(sizeof(lt_attn_rung_args) == 192, "the same on host and device");

#endif

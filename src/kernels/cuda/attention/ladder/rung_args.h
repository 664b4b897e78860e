/* rung_args.h: arguments of 02_tiled.cu and 03_mma_sync.cu, whose operands lie (B, T, H, D) without
 * gaps. */
#ifndef LT_KERNELS_CUDA_ATTENTION_LADDER_RUNG_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_LADDER_RUNG_ARGS_H

#include "kernels/cuda/attention/args.h"

typedef struct {
    lt_attn_args a;
    LT_ELEM(elem) * o;
    const LT_ELEM(elem) * q, *k, *v;
    int width;
} lt_attn_rung_args;

static_assert(sizeof(lt_attn_rung_args) == 192, "the same on host and device");

#endif

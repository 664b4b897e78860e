/* naive_args.h: arguments of 01_naive.cu, whose operands are contiguous (B, T, H, D). */
#ifndef LT_KERNELS_CUDA_ATTENTION_LADDER_NAIVE_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_LADDER_NAIVE_ARGS_H

#include "kernels/cuda/attention/args.h"

/* o or exact may be NULL. */
typedef struct {
    lt_attn_args a;
    LT_ELEM(elem) * o;
    LT_ELEM(REAL) * exact, *lse;
    const LT_ELEM(elem) * q, *k, *v;
    int width;
} lt_attn_naive_fwd_args;
typedef struct {
    lt_attn_args a;
    LT_ELEM(REAL) * dq, *dk, *dv;
    const LT_ELEM(REAL) * o, *lse;
    const LT_ELEM(elem) * q, *k, *v, *d_o;
    int width;
} lt_attn_naive_bwd_args;

/* Dynamic shared memory in bytes: one number per key, and one per thread. */
#define LT_ATTN_NAIVE_BYTES(keys, of_real) (((keys) + 128) * (of_real))

static_assert(sizeof(lt_attn_naive_fwd_args) == 208, "the same on host and device");
static_assert(sizeof(lt_attn_naive_bwd_args) == 232, "the same on host and device");

#endif

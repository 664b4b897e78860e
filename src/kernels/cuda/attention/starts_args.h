/* starts_args.h: arguments of starts.cu. */
#ifndef LT_KERNELS_CUDA_ATTENTION_STARTS_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_STARTS_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    int *y;
    const int *doc_start; /* NULL: 0 for every token. */
    long long y_b, doc_b;
    int tokens, window, piece, q_first, q_piece0, q_piece1, k_piece0, k_piece1;
} lt_attn_starts_args;

static_assert(sizeof(lt_attn_starts_args) == 64, "the same on host and device");

#endif

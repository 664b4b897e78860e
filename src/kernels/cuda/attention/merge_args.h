/* merge_args.h: arguments of merge.cu. */
#ifndef LT_KERNELS_CUDA_ATTENTION_MERGE_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_MERGE_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    float *out, *lse; /* (B, T, H, D), (B, H, T); columns and tokens are contiguous. */
    LT_ELEM(DTYPE) const *part;
    const float *part_lse, *sinks; /* sinks: NULL or (H). */
    long long rows;                /* B * T * H */
    long long out_b, out_t, out_h, part_b, part_t, part_h, lse_b, lse_h, part_lse_b, part_lse_h;
    int tokens, heads, dim, first;
} lt_attn_merge_args;

static_assert(sizeof(lt_attn_merge_args) == 144, "the same on host and device");

#endif

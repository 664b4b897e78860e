/* choose_args.h: arguments of choose.cu. */
#ifndef LT_KERNELS_CUDA_OPS_CHOOSE_ARGS_H
#define LT_KERNELS_CUDA_OPS_CHOOSE_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    int *ids;
    float *logprobs;
    int *ranks, *top_ids;
    float *top_logprobs;
    const float *logits;
    const int *rows;
    const double *hows;
    int *penalties;
    const unsigned *masks;
    const int *late;
    unsigned *words;
    int *met;
    int cols;
    float softcap;
    long long ld, ld_penalties, ld_masks;
} lt_cuda_choose_args;

/* Dynamic shared memory in bytes with HELD: chunks of the logits. */
#define LT_CHOOSE_CHUNK              2048
#define LT_CHOOSE_HELD_BYTES(chunks) ((chunks)*LT_CHOOSE_CHUNK * 4)

static_assert(sizeof(lt_cuda_choose_args) == 136, "the same on host and device");

#endif

/* pack_q_args.h: arguments of pack_q.cu. */
#ifndef LT_KERNELS_CUDA_GEMM_PACK_Q_ARGS_H
#define LT_KERNELS_CUDA_GEMM_PACK_Q_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    unsigned char *dst;
    const unsigned char *src;
    long long rows;
    int groups, tiles;
    long long src_bytes;
} lt_cuda_pack_q_args;

static_assert(sizeof(lt_cuda_pack_q_args) == 40, "the same on host and device");

#endif

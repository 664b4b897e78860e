/* matmul_q.h: entries of the lists of matmul, matmul_pack and embed_fwd that take ggml's block formats. */
#ifndef LT_KERNELS_CUDA_MATMUL_Q_H
#define LT_KERNELS_CUDA_MATMUL_Q_H

#include "base/error.h"
#include "lateen/tensor.h"
#include "tensor/backend.h"

/* Bytes of b packed; 0: not of blocks that products take. */
size_t lt_cuda_pack_bytes(const lt_tensor *b, bool trans_b);

const char *lt_cuda_pack_refuse(const void *args);
lt_err lt_cuda_pack_run(lt_queue *q, const void *args);
const char *lt_cuda_embed_q_refuse(const void *args);
lt_err lt_cuda_embed_q_run(lt_queue *q, const void *args);
const char *lt_cuda_few_q_refuse(const void *args); /* At most 64 rows, or in a fixed order. */
lt_err lt_cuda_few_q_run(lt_queue *q, const void *args);
const char *lt_cuda_wide_q_refuse(const void *args);
lt_err lt_cuda_wide_q_run(lt_queue *q, const void *args);

/* How pack lays out a format: bits, elements of a scale, whether there are minima, what is taken off, bytes of a tile of 16 x 128 (gemm/tile_q.cuh). */
typedef struct {
    int bits, group, mins, offset, tile_bytes;
} lt_cuda_tile_format;
/* False: not a format that is packed. */
bool lt_cuda_tile_format_of(lt_cuda_tile_format *out, lt_dtype type);
/* Warps that share K of a product of at most 8 rows, in no fixed order. */
int lt_cuda_split_q(int64_t n, int64_t k, int n_sms);

#endif

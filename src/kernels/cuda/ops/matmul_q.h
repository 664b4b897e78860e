/* matmul_q.h: entries of the lists of matmul, matmul_pack and embed_fwd that take ggml's block
 * formats. */
#ifndef LT_KERNELS_CUDA_MATMUL_Q_H
#define LT_KERNELS_CUDA_MATMUL_Q_H

#include "base/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/ops/matmul.h"
#include "lateen/tensor.h"
#include "tensor/backend.h"

/* Bytes of b when packed; 0: b has no format that products take. */
size_t lt_cuda_pack_bytes(const lt_tensor *b, bool trans_b);

const char *lt_cuda_pack_refuse(const void *args, const lt_device *device);
lt_err lt_cuda_pack_run(lt_queue *q, const void *args);
const char *lt_cuda_embed_q_refuse(const void *args, const lt_device *device);
lt_err lt_cuda_embed_q_run(lt_queue *q, const void *args);
/* At most 64 rows, or in a fixed order. */
const char *lt_cuda_few_q_refuse(const void *args, const lt_device *device);
lt_err lt_cuda_few_q_run(lt_queue *q, const void *args);
/* Hopper, at least 5 rows. */
const char *lt_cuda_wgmma_q_refuse(const void *args, const lt_device *device);
lt_err lt_cuda_wgmma_q_run(lt_queue *q, const void *args);
const char *lt_cuda_wide_q_refuse(const void *args, const lt_device *device);
lt_err lt_cuda_wide_q_run(lt_queue *q, const void *args);

/* Products of experts on Hopper, with many rows for each expert. */
const char *lt_cuda_grouped_wgmma_q_refuse(const void *args, const lt_device *device);
lt_err lt_cuda_grouped_wgmma_q_run(lt_queue *q, const void *args);
/* For any number of rows. */
const char *lt_cuda_grouped_q_refuse(const void *args, const lt_device *device);
lt_err lt_cuda_grouped_q_run(lt_queue *q, const void *args);
/* Few rows of experts with what is beside the product (fuse_experts.c). */
bool lt_cuda_few_q_up_takes(const lt_queue *q, const lt_experts_up *up);
LT_MUST_USE lt_err lt_cuda_few_q_up_run(lt_queue *q, const lt_experts_up *up, bool launch);

/* How pack lays out a format: bits, elements per scale, whether there are minima, the offset,
 * bytes of a tile of 16 x 128 (gemm/tile_q.cuh). */
typedef struct {
    int bits, group, mins, offset, tile_bytes;
} lt_cuda_tile_format;
/* False: the format is never packed. */
bool lt_cuda_tile_format_of(lt_cuda_tile_format *out, lt_dtype type);
/* Warps that share K in a product of at most 8 rows whose order of sums is not fixed. */
int lt_cuda_split_q(int64_t n, int64_t k, int n_sms);

/* Does gemm_q_sm90.cu run the product, and may a gated activation follow it? */
bool lt_cuda_wgmma_q_gates(const lt_queue *q, const lt_matmul_args *a);

/* gemm/gemm_q.c: gemm_q_sm90.cu on Hopper, for any number of rows. An activation may follow a
 * product of up to LT_GEMM_Q_PIECE rows; in a fixed order, more rows are computed in pieces of
 * this size. */
#define LT_GEMM_Q_PIECE 64
const char *lt_gemm_q_refusal(const lt_matmul_args *a, const lt_cuda_info *info);
/* gated: the activation that follows it, or NULL. */
LT_MUST_USE lt_err lt_gemm_q(lt_cuda *c, CUstream s, const lt_matmul_args *a,
                             const lt_gemm_gated *gated);
/* Rows of experts, in no fixed order. */
const char *lt_gemm_q_grouped_refusal(const lt_matmul_grouped_args *a, const lt_cuda_info *info);
LT_MUST_USE lt_err lt_gemm_q_grouped(lt_cuda *c, CUstream s, const lt_matmul_grouped_args *a);

#endif

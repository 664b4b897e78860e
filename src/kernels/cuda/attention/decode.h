/* decode.h: attention of a few new tokens per sequence against a paged key/value cache (decode.cu),
 * for serving. */
#ifndef LT_KERNELS_CUDA_DECODE_H
#define LT_KERNELS_CUDA_DECODE_H

#include "kernels/cuda/gemm/gemm.h" /* lt_scratch */
#include "kernels/cuda/runtime.h"
#include "lateen/tensor.h"
#include "tensor/ops.h"

/* q, out (B, T, H, D) BF16 or F16, contiguous; k_pages, v_pages (n_pages, page tokens, G, D) of the
 * same type, contiguous; page tokens 16, 32, 64, .. (a multiple of 16); table (B, pages a sequence)
 * I32, rows table.stride[0] apart; kv_len (B) I32 counts the new tokens too, whose keys are in the
 * pages already. Token t of sequence b sees keys up to kv_len[b] - T + t, at most `window` of them
 * if window > 0. D 64, 128, 192 or 256. All arrays on the device; kv_len_max bounds kv_len on the
 * host: it sets the number of splits. */
typedef struct {
    lt_tensor out, q, k_pages, v_pages, table, kv_len;
    int64_t kv_len_max, window;
    float scale;
} lt_decode_args;

/* CODES of decode.cu and of the kernels that share coded.cuh: the contents of pages of this type;
 * 0: plain numbers. */
int lt_cuda_codes_of(lt_dtype cache);

/* The attention_paged op (tensor/ops.h), for ragged prompts and single tokens alike. A row's bits
 * depend only on its own query and keys. Scratch 0: one kernel walks all keys of a row. */
const char *lt_cuda_paged_refusal(const lt_attention_paged_args *a, const lt_cuda_info *info);
size_t lt_cuda_paged_scratch_bytes(const lt_attention_paged_args *a, const lt_cuda_info *info);
LT_MUST_USE lt_err lt_cuda_paged(lt_cuda *c, CUstream s, const lt_attention_paged_args *a,
                                 lt_scratch scratch);

const char *lt_cuda_decode_refusal(const lt_decode_args *a, const lt_cuda_info *info);
size_t lt_cuda_decode_scratch_bytes(const lt_decode_args *a, const lt_cuda_info *info);
LT_MUST_USE lt_err lt_cuda_decode(lt_cuda *c, CUstream s, const lt_decode_args *a,
                                  lt_scratch scratch);

#endif

/* attention.h: the attention ops (tensor/ops.h): choice of specialisation and launch of the Hopper
 * kernels fwd_sm90.cu and bwd_sm90.cu, and of fwd_sm80.cu and bwd_sm80.cu. */
#ifndef LT_KERNELS_CUDA_ATTENTION_H
#define LT_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/gemm/gemm.h" /* lt_scratch */
#include "kernels/cuda/runtime.h"
#include "tensor/ops.h"

/* NULL if the kernels serve these arguments on this device, otherwise the reason. Forward: q, k, v,
 * out BF16 or F16, D a multiple of 8 up to 256; backward: up to 128. */
const char *lt_cuda_attention_refusal(const lt_attention_args *a, const lt_cuda_info *info);
const char *lt_cuda_attention_bwd_refusal(const lt_attention_bwd_args *a, const lt_cuda_info *info);

/* Scratch that the calls need, one per stream. Its first 256 bytes must be zero at first, and
 * belong to the kernels from then on. */
size_t lt_cuda_attention_scratch_bytes(const lt_attention_args *a);

LT_MUST_USE lt_err lt_cuda_attention(lt_cuda *c, CUstream s, const lt_attention_args *a,
                                     lt_scratch scratch);

/* The same on any GPU from sm_80 on (sm80.c); the backward pass leaves dsinks to its caller.
 * Neither needs scratch. */
const char *lt_cuda_attention_sm80_refusal(const lt_attention_args *a, const lt_cuda_info *info);
const char *lt_cuda_attention_bwd_sm80_refusal(const lt_attention_bwd_args *a,
                                               const lt_cuda_info *info);
LT_MUST_USE lt_err lt_cuda_attention_sm80(lt_cuda *c, CUstream s, const lt_attention_args *a);
LT_MUST_USE lt_err lt_cuda_attention_bwd_sm80(lt_cuda *c, CUstream s,
                                              const lt_attention_bwd_args *a);

/* How a backward pass is divided (backward.c): which division is the fastest, and a call divided in
 * that way. */
typedef struct {
    bool apart;
    /* number of buffers for sums of dQ of a (batch, key head); unneeded ones are not used */
    int places;
} lt_attention_cut;
lt_attention_cut lt_cuda_attention_bwd_cut(const lt_attention_bwd_args *a,
                                           const lt_cuda_info *info);
size_t lt_cuda_attention_bwd_scratch_bytes(const lt_attention_bwd_args *a, lt_attention_cut cut);
LT_MUST_USE lt_err lt_cuda_attention_bwd(lt_cuda *c, CUstream s, const lt_attention_bwd_args *a,
                                         lt_attention_cut cut, lt_scratch scratch);

/* The prompts of a call of attention_paged: sequences of at least LT_PROMPT_ROWS new tokens run
 * through fwd_sm90.cu with keys from their pages, 4 to 5 times as fast as decode.cu; other rows are
 * not touched. Not with fixed_order: a token has other bits than when it comes alone. Scratch as
 * for the forward pass. */
bool lt_cuda_attention_takes_prompts(const lt_attention_paged_args *a, const lt_cuda_info *info);
LT_MUST_USE lt_err lt_cuda_attention_prompts(lt_cuda *c, CUstream s,
                                             const lt_attention_paged_args *a, lt_scratch scratch);
/* The most sequences of a call that may be prompts. */
int64_t lt_cuda_attention_prompts_most(const lt_attention_paged_args *a);

/* ---- The ladder: forward, contiguous (B, T, H, D) of 16-bit elements, D = 64 or 128, causal or
 * full ---- */
typedef struct {
    int rung;
    const char *name, *idea;
    /* NULL: the shipped kernel with this many consumers, which may take turns. */
    const char *file, *entry;
    int rows, threads; /* per block */
    int consumers, turns;
} lt_attention_rung;
extern const lt_attention_rung lt_attention_rungs[];
extern const int lt_attention_n_rungs;
LT_MUST_USE lt_err lt_cuda_attention_rung(lt_cuda *c, CUstream s, const lt_attention_rung *r,
                                          const lt_attention_args *a, lt_scratch scratch);

#endif

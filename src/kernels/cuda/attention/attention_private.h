/* attention_private.h: declarations shared by attention.c (forward), backward.c, decode.c and the
 * benches. */
#ifndef LT_KERNELS_CUDA_ATTENTION_PRIVATE_H
#define LT_KERNELS_CUDA_ATTENTION_PRIVATE_H

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/args.h"

#define LT_ATTN_COUNTER_BYTES 256 /* At the start of the scratch; zero between calls. */

/* NULL, or why the copy engine cannot read (B, T, H, D) of 16-bit elements from there. */
const char *lt_attn_tensor_refusal(const lt_tensor *t);
lt_attn_args lt_attn_args_of(const lt_attention_args *a, lt_scratch scratch);
/* The constants that forward and backward share, as lt_attn_flags writes them. */
#define LT_ATTN_FLAGS "DTYPE=%s CAUSAL=%d WINDOW=%d DOC=%d SOFTCAP=%d ALIBI=%d"
void lt_attn_flags(char *out, size_t bytes, const lt_attention_args *a);
/* Number of (batch, head) pairs whose shared bytes stay in the L2 together; bytes: a pair's share.
 * All sections have the same size, because SMs would be idle after a short last one (d256 s4096
 * causal: 8 %). */
int lt_attn_section(double bytes, int64_t pairs);
LT_MUST_USE lt_err lt_attn_map(lt_cuda *c, CUtensorMap *map, const lt_tensor *t, int heads,
                               int tokens);

#endif

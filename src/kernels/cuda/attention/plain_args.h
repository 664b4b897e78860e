/* plain_args.h: arguments of attention's kernels on CUDA cores (any.cu, tiled.cu). */
#ifndef LT_KERNELS_CUDA_ATTENTION_PLAIN_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_PLAIN_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    long long b, t, h; /* Elements between neighbouring sequences, tokens, heads. */
} lt_attn_plain_strides;

typedef struct {
    const LT_ELEM(DTYPE) * q, *k, *v, *d_out;
    LT_ELEM(DTYPE) * out, *dq, *dk, *dv;
    const int *kv_len, *doc_start;
    const float *alibi, *sinks;
    float *lse, *delta, *dsinks;
    lt_attn_plain_strides sq, sk, sv, so, sdo, sdq, sdk, sdv;
    long long doc_ld, window;
    int batch, heads, kv_heads, q_tokens, kv_tokens, dim, causal;
    float scale, softcap;
} lt_attn_plain_args;

/* Dynamic shared memory of tiled.cu in bytes: `tiles` tiles of rows, as many tiles of partners,
 * and P. A row of a tile or of P is padded by 4 floats. */
#define LT_ATTN_TILED_ROWS 64
#define LT_ATTN_TILED_BYTES(tiles, partners, width)                                                \
    (((tiles) * (LT_ATTN_TILED_ROWS + (partners)) * ((width) + 4) +                                \
      LT_ATTN_TILED_ROWS * ((partners) + 4)) *                                                     \
     4)

static_assert(sizeof(lt_attn_plain_strides) == 24, "the same on host and device");
static_assert(sizeof(lt_attn_plain_args) == 368, "the same on host and device");

#endif

/* bwd.cuh: what the kernels of attention's backward pass share: their buffers. */
#ifndef LT_CUDA_ATTENTION_BWD_CUH
#define LT_CUDA_ATTENTION_BWD_CUH

#include "attention/mask.cuh"

#ifndef WHOLE /* 1: a block of the main kernel makes all of a (batch, key head), and dQ's sums are its own. */
#define WHOLE 0
#endif

/* Strides in elements of (token, head, batch); D elements are contiguous. */
typedef struct {
    i64 token, head, batch;
} strides;

/* Rows are (b, h, t) with t padded to `padded`, a multiple of 128: index (b H + h) padded + t. */
typedef struct {
    attn_args a;
    int padded;
    float *lse2;  /* log-sum-exp in units of log2; +inf in rows that see nothing or do not exist */
    float *delta; /* sum over D of dO O */
    float *unit;  /* what 1.0 of dQ (before `scale`) is in the integers of dq_acc */
    void *dq_acc; /* int32 (WHOLE: f32 of a block) (rows / 64, D / 64) pieces of 64 x 64, each in the order of a warpgroup's registers */
    u32 *bounds;  /* (B, G, 2) bits of max |K|, max |V row|^2 */
    int width; /* D; HEAD_DIM is at least it */
    void *dq;
    strides dq_strides;
    int first, pairs; /* The launch makes so many (batch, key head) from the first on. */
} bwd_args;

#endif

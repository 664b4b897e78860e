/* bwd.cuh: what the kernels of attention's backward pass share: their buffers. */
#ifndef LT_CUDA_ATTENTION_BWD_CUH
#define LT_CUDA_ATTENTION_BWD_CUH

#include "attention/mask.cuh"
#include "attention/rows.cuh"

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
    /* int32 (places, H / G, padded / 64, D / 64) pieces of 64 x 64, each in the order of a
     * warpgroup's registers */
    void *dq_acc;
    /* (rows / 64, D / 64, 4) how many tiles of keys have added to a piece; then zeroes */
    u32 *added;
    u32 *bounds;  /* (B, G, 2) bits of max |K|, max |V row|^2 */
    u32 *cleared; /* (B, G) how many times a piece's sums are zeroes again, counted */
    int width;    /* D; HEAD_DIM is at least it */
    void *dq;
    strides dq_strides;
    void *dk, *dv; /* where rows are stored from registers */
    strides dk_strides, dv_strides;
    int places; /* for sums of dQ, which (batch, key head)s have in turn */
} bwd_args;

/* (batch, key head)s. */
INLINE int pairs_of(const attn_args *a) {
    return a->batch * a->kv_heads;
}

/* A warpgroup's 64 rows of sums times scale, from registers, 16 bytes a lane: rows first .. first +
 * 63 of a (batch, head) that begins at `to`; those before n_rows, `width` columns. */
INLINE void store_rows(const float sum[HEAD_DIM / 2], float scale, elem *to, i64 row_ld, int first,
                       int n_rows, int width) {
    const int warp = (int)threadIdx.x % 128 / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int row = first + 16 * warp + lane / 4 + 8 * h;
        store_row(sum, h, scale, to + row * row_ld, row < n_rows, width);
    }
}

#endif

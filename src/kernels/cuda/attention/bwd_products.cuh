/* bwd_products.cuh: the products of backward on wgmma that bwd_sm90.cu and bwd_wide_sm90.cu share. A block's tile has BN rows, a step of the other side BM, HEAD_DIM columns. */
#ifndef LT_CUDA_ATTENTION_BWD_PRODUCTS_CUH
#define LT_CUDA_ATTENTION_BWD_PRODUCTS_CUH

#include "common/wgmma.cuh"

WGMMA_SS(mma_s, BM, 0, 0)
WGMMA_RS(mma_sum, HEAD_DIM, 1)

/* 64 rows x BM: s = rows other^T; `rows` are a consumer's 64 of the tile's. Issue only. */
INLINE void issue_scores(float s[BM / 2], u32 rows, u32 other) {
    const u64 a = wgmma_desc(rows, 16), b = wgmma_desc(other, 16);
    mma_s_set(s, a, b);
#pragma unroll
    for (int i = 1; i < HEAD_DIM / 16; i++) {
        mma_s(s, DESC_ADD(a, i / 4 * (BN * 128) + i % 4 * 32), DESC_ADD(b, i / 4 * (BM * 128) + i % 4 * 32), 1);
    }
    wgmma_commit();
}
/* sum (64 rows, D) += x (64 rows, BM) other (BM, D). Issue only. */
INLINE void issue_sums(float sum[HEAD_DIM / 2], const u32 x[BM / 4], u32 other) {
    const u64 b = wgmma_desc(other, BM * 128);
#pragma unroll
    for (int i = 0; i < BM / 16; i++) {
        mma_sum(sum, x + 4 * i, DESC_ADD(b, i * 2048), 1);
    }
    wgmma_commit();
}

#endif

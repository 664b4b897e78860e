/* products.cuh: the two products on wgmma of a tile's rows and a step of the other side, HEAD_DIM
 * columns each, for the forward and all backward kernels on Hopper. In shared memory rows lie as
 * the copy engine leaves them: boxes of 64 columns, TILE_BOX rows high for the tile, STEP_BOX for
 * the step. */
#ifndef LT_CUDA_ATTENTION_PRODUCTS_CUH
#define LT_CUDA_ATTENTION_PRODUCTS_CUH

#include "common/wgmma.cuh"

WGMMA_SS(mma_scores, STEP_BOX, 0, 0)
WGMMA_RS(mma_sums, HEAD_DIM, 1)

/* Only issues s = rows other^T: 64 rows x STEP_BOX; `rows` are a consumer's 64 of the tile's. */
INLINE void issue_scores(float s[STEP_BOX / 2], u32 rows, u32 other) {
    const u64 a = wgmma_desc(rows, 16), b = wgmma_desc(other, 16);
    mma_scores_set(s, a, b);
#pragma unroll
    for (int i = 1; i < HEAD_DIM / 16; i++) {
        mma_scores(s, DESC_ADD(a, i / 4 * (TILE_BOX * 128) + i % 4 * 32),
                   DESC_ADD(b, i / 4 * (STEP_BOX * 128) + i % 4 * 32), 1);
    }
    wgmma_commit();
}
/* Only issues sum (64 rows, D) += x (64 rows, STEP_BOX) other (STEP_BOX, D). */
INLINE void issue_sums(float sum[HEAD_DIM / 2], const u32 x[STEP_BOX / 4], u32 other) {
    const u64 b = wgmma_desc(other, STEP_BOX * 128);
#pragma unroll
    for (int i = 0; i < STEP_BOX / 16; i++) {
        mma_sums(sum, x + 4 * i, DESC_ADD(b, i * 2048), 1);
    }
    wgmma_commit();
}

#endif

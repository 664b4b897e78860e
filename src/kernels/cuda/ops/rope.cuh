/* rope.cuh: shared by rope.cu and qk_norm.cu: a head of D = LANES * 2 W elements belongs to LANES
 * threads, each with W elements of the first half and the W of the second half that rotate with
 * them. */
#ifndef LT_CUDA_ROPE_CUH
#define LT_CUDA_ROPE_CUH

#include "common/rotate.cuh"
#include "common/vec.cuh"

#define D (LANES * 2 * W)

/* Rotate the pairs (a, b) by the angles of a position, table (P, D/2, 2) cos, sin; sign -1 rotates
 * back. */
INLINE void rotate(float *a, float *b, const float *table, int position, int lane, float sign) {
    const float *cs = table + ((i64)position * (D / 2) + lane * W) * 2;
#pragma unroll
    for (int i = 0; i < W; i += 2) {
        const float4 t = *(const float4 *)&cs[2 * i]; /* Two pairs of cos, sin. */
        rotate_pair(&a[i], &b[i], t.x, sign * t.y);
        rotate_pair(&a[i + 1], &b[i + 1], t.z, sign * t.w);
    }
}

#endif

/* rotate.cuh: the rotation of one pair, with the same bits in rope.cu and in products that rotate
 * their results (gemv_ring.cu). */
#ifndef LT_ROTATE_CUH
#define LT_ROTATE_CUH

#include "common/types.cuh"

/* Rotate (a, b) by the angle with cosine c and sine s. */
INLINE void rotate_pair(float *a, float *b, float c, float s) {
    const float a0 = *a, b0 = *b;
    *a = __fmaf_rn(a0, c, -__fmul_rn(b0, s));
    *b = __fmaf_rn(b0, c, __fmul_rn(a0, s));
}

#endif

/* product.cuh: how the sums of a product become y: a bias of any type and the old y are added, and
 * the sum is rounded once. OUT is y's type. */
#ifndef LT_PRODUCT_CUH
#define LT_PRODUCT_CUH

#include "common/types.cuh"

/* type: 0 none, 1 f32, 2 bf16, 3 fp16 */
INLINE float bias_at(const void *bias, int type, int col) {
    return type == 1   ? ((const float *)bias)[col]
           : type == 2 ? bf16_to_f32(((const bf16 *)bias)[col])
           : type == 3 ? fp16_to_f32(((const fp16 *)bias)[col])
                       : 0.0f;
}
INLINE void product_store(OUT *y, float sum, float bias, int accumulate) {
    sum += bias;
    *y = FROM_F32(OUT, accumulate ? sum + TO_F32(OUT, *y) : sum);
}

#endif

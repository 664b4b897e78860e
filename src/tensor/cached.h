/* cached.h: the types in which a key/value cache can hold keys and values.
 *
 *     F32, BF16, F16   rounded once
 *     F8_E4M3          rounded once, without a scale (vLLM's --kv-cache-dtype fp8): values above
 *                      448 become 448, those below 2^-10 become 0
 *     Q8_0, Q4_0       blocks of 32 along a head with an F16 scale each (block.h), as llama.cpp's
 *                      --cache-type-k q8_0: the head's dimension is a multiple of 32
 *
 * A cache must accept every value. A block with a value that is not finite gets NaN as its scale,
 * so everything that attends to it is NaN, as without blocks. A block whose values are all below
 * LT_CACHED_LEAST becomes zeros, because F16 cannot hold its scale. */
#ifndef LT_TENSOR_CACHED_H
#define LT_TENSOR_CACHED_H

#include <stddef.h>

#include "lateen/tensor.h"

#define LT_CACHED_LEAST 0x1p-60f
#define LT_CACHED_NAN   0x7E00 /* F16: the scale of a block with a value that is not finite. */

/* NULL, or the reason why the type cannot hold heads of this dimension. */
const char *lt_cached_refusal(lt_dtype type, int64_t head_dim);

/* Convert count elements, whole blocks, to a type of the cache. */
void lt_cached_encode(void *dst, lt_dtype type, const float *src, size_t count);
/* Convert count elements of such a type. */
void lt_cached_decode(float *dst, lt_dtype type, const void *src, size_t count);

#endif

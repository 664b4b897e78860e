/* cached.c: see cached.h. */
#include "tensor/cached.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"
#include "tensor/block.h"

const char *lt_cached_refusal(lt_dtype type, int64_t head_dim) {
    switch (type) {
    case LT_F32:
    case LT_BF16:
    case LT_F16:
    case LT_F8_E4M3:
        return NULL;
    case LT_Q8_0:
    case LT_Q4_0:
        return head_dim % LT_BLOCK_SMALL == 0
                   ? NULL
                   : "blocks of 32 need heads of a multiple of 32 dimensions";
    default:
        return "keys and values can be F32, BF16, F16, F8_E4M3, Q8_0 or Q4_0";
    }
}

static void encode_block(unsigned char *dst, lt_dtype type, const float *x) {
    static const float zeros[LT_BLOCK_SMALL];
    float most = 0.0f;
    bool finite = true;
    for (int i = 0; i < LT_BLOCK_SMALL; i++) {
        finite &= isfinite(x[i]) != 0;
        most = fmaxf(most, fabsf(x[i]));
    }
    lt_block_encode(dst, type, finite && most >= LT_CACHED_LEAST ? x : zeros, LT_BLOCK_SMALL);
    if (!finite) {
        memcpy(dst, &(uint16_t){LT_CACHED_NAN}, sizeof(uint16_t));
    }
}

void lt_cached_encode(void *dst, lt_dtype type, const float *src, size_t count) {
    size_t bytes;
    const size_t elems = (size_t)lt_dtype_block(type, &bytes);
    LT_ASSERT(count % elems == 0);
    if (elems == 1) {
        lt_convert(dst, type, src, LT_F32, count);
        return;
    }
    LT_ASSERT(elems == LT_BLOCK_SMALL);
    for (size_t block = 0; block < count / elems; block++) {
        encode_block((unsigned char *)dst + block * bytes, type, src + block * elems);
    }
}

void lt_cached_decode(float *dst, lt_dtype type, const void *src, size_t count) {
    if (lt_dtype_is_block(type)) {
        lt_block_decode(dst, type, src, count);
    } else {
        lt_convert(dst, LT_F32, src, type, count);
    }
}

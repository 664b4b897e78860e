/* softmax.h: the sum of exponentials of a run of logits, for kernels that use a softmax without
 * storing it. Of each block of SOFTMAX_BLOCK logits the maximum is found first; then its
 * exponentials against the new running maximum are summed in F32. The sum of blocks, in F64 (a row
 * of 100,000 would lose two digits), is rescaled when the maximum grows. */
#ifndef LT_CPU_ISA_SOFTMAX_H
#define LT_CPU_ISA_SOFTMAX_H

#include <math.h>

#include "kernels/cpu/isa/vec.h"

#define SOFTMAX_BLOCK 1024

LT_INLINE vf capped(vf l, float softcap) {
    return softcap > 0.0f ? softcap * v_tanh(l * (1.0f / softcap)) : l;
}

/* The logarithm of a sum of exponentials is max + log_sum; the two are kept apart, because logits
 * of 1000 would leave the sum few digits after the point. */
typedef struct {
    float max, log_sum;
} log_total;

/* The logarithm of the probability of logit l. */
LT_INLINE vf minus(vf l, log_total t) {
    return (l - t.max) - t.log_sum;
}

/* Returns the largest of n logits times `scale`. *out: the sum of the exponentials of their
 * differences from it. */
LT_INLINE float row_exp_sum(double *out, const void *row, int64_t n, float softcap, float scale,
                            const lt_dtype dtype) {
    float max = -INFINITY;
    double sum = 0.0;
    for (int64_t at = 0; at < n; at += SOFTMAX_BLOCK) {
        const int64_t end = n - at < SOFTMAX_BLOCK ? n : at + SOFTMAX_BLOCK;
        vf block[SOFTMAX_BLOCK / VEC], part = {0};
        vf high = v_set(-INFINITY);
        for (int64_t i = at; i < end; i += VEC) {
            const vf l = v_first(capped(v_get(row, dtype, i, end - i), softcap) * scale, end - i,
                                 -INFINITY);
            block[(i - at) / VEC] = l;
            high = v_max(l, high);
        }
        const float block_max = v_max_of(high);
        if (block_max > max) {
            sum *= exp((double)max - (double)block_max);
            max = block_max;
        }
        const float base = max > -INFINITY ? max : 0.0f; /* 0 while all are -inf. */
        for (int64_t i = at; i < end; i += VEC) {
            part += v_exp(block[(i - at) / VEC] - base);
        }
        sum += (double)v_sum(part);
    }
    *out = sum;
    return max;
}

#endif

/* attention_merge.c: merges the results of two calls of attention, one row of a head at a time. It
 * is memory bound: out is read and written, part is read. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/rows.h"

/* Factors of a row for the earlier result and for the part that joins it. *lse becomes that of
 * both. */
typedef struct {
    float keep, join;
} factors;

LT_INLINE factors merge_row(float *lse, float part, float sink, bool first) {
    const float before = first ? -INFINITY : *lse;
    const float max = fmaxf(fmaxf(before, part), sink);
    if (max == -INFINITY) {
        *lse = -INFINITY;
        return (factors){0.0f, 0.0f};
    }
    const float kept = expf(before - max), joined = expf(part - max);
    const float sum = kept + joined + expf(sink - max);
    *lse = max + logf(sum);
    return (factors){kept / sum, joined / sum};
}

LT_INLINE void merge_head(const lt_attention_merge_args *a, int64_t b, int64_t t, int64_t h,
                          const lt_dtype dtype) {
    float *const lse = (float *)a->lse.data + b * a->lse.stride[0] + h * a->lse.stride[1] + t;
    const float part = ((const float *)a->part_lse
                            .data)[b * a->part_lse.stride[0] + h * a->part_lse.stride[1] + t];
    const float sink = a->sinks.data != NULL
                           ? ((const float *)a->sinks.data)[h * a->sinks.stride[0]]
                           : -INFINITY;
    const factors f = merge_row(lse, part, sink, a->first);
    const int64_t n = a->out.shape[3];
    float *const out = at_element(&a->out, b * a->out.stride[0] + t * a->out.stride[1] +
                                               h * a->out.stride[2]);
    const void *const from = at_element(&a->part, b * a->part.stride[0] + t * a->part.stride[1] +
                                                      h * a->part.stride[2]);
    for (int64_t d = 0; d < n; d += VEC) {
        vf y = f.join * v_get(from, dtype, d, n - d);
        if (!a->first) {
            y += f.keep * v_get(out, LT_F32, d, n - d);
        }
        v_put(out, LT_F32, d, y, n - d);
    }
}

lt_err LT_ISA_NAME(lt_cpu_attention_merge)(lt_queue *q, const void *args) {
    const lt_attention_merge_args *a = args;
    const int64_t T = a->out.shape[1], H = a->out.shape[2], rows = a->out.shape[0] * T;
    (void)q;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t h = 0; h < H; h++) {
            if (a->part.dtype == LT_F32) {
                merge_head(a, row / T, row % T, h, LT_F32);
            } else {
                merge_head(a, row / T, row % T, h, LT_BF16);
            }
        }
    }
    return LT_OK;
}

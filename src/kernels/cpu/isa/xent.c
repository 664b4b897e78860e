/* xent.c: cross-entropy and its gradient, in place, a row of logits at a time.
 *
 * MOVEMENT  Row of V logits ──memory──▶ pass 1: running maximum and sum of exponentials, in blocks
 *     ──▶ lse ──▶ pass 2: exp(l - lse) from L2, the gradient
 *           written over the logits. A row (50257 floats: 201 KB) stays in L2 between the passes,
 *           so memory sees one read and one write.
 * BOUND     8 bytes a logit in F32, 4 in BF16; two exponentials a logit.
 * NUMERICS  Sums of softmax.h, in a fixed order, whatever the number of threads. A NaN logit makes
 *           loss and gradient of its row NaN.
 * PARTS     For a part of the vocabulary, the first call makes pass 1, and the second pass 2 with
 *           the maximum and the sum of all parts, which are added in F64 in their order.
 * CHOICE    Pass 2 computes the exponentials again: keeping them in the row would cost another
 *           write, and round twice in BF16. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/isa/softmax.h"

/* The lowest index of the largest logit, capped or not, since the cap is monotonic. */
LT_INLINE int32_t row_argmax(const void *row, int64_t n, const lt_dtype dtype) {
    vf high = v_set(-INFINITY);
    for (int64_t i = 0; i < n; i += VEC) {
        high = v_max(v_first(v_get(row, dtype, i, n - i), n - i, -INFINITY), high);
    }
    const float max = v_max_of(high);
    for (int64_t i = 0; i < n; i++) {
        if (f_load_as(row, dtype, i) == max) {
            return (int32_t)i;
        }
    }
    return 0;
}

/* logits <- scale * ((1 + 2 z lse) softmax - onehot(label)) * d(cap). */
LT_INLINE void row_gradient(void *row, int64_t n, int64_t label, log_total lse, float scale,
                            float z_coef, float softcap, const lt_dtype dtype) {
    const float weight = scale * (1.0f + 2.0f * z_coef * (lse.max + lse.log_sum));
    const bool here = label >= 0 && label < n; /* Otherwise the label is in another part. */
    const float l_label = here ? f_load_as(row, dtype, label) : 0.0f;
    for (int64_t i = 0; i < n; i += VEC) {
        vf l = v_get(row, dtype, i, n - i);
        vf slope = v_set(1.0f);
        if (softcap > 0.0f) {
            const vf t = v_tanh(l * (1.0f / softcap));
            l = softcap * t;
            slope = 1.0f - t * t;
        }
        v_put(row, dtype, i, weight * v_exp(minus(l, lse)) * slope, n - i);
    }
    if (!here) {
        return;
    }
    vf one = v_set(l_label);
    float slope = 1.0f;
    if (softcap > 0.0f) {
        const vf t = v_tanh(one * (1.0f / softcap));
        one = softcap * t;
        slope = 1.0f - t[0] * t[0];
    }
    const vf p = v_exp(minus(one, lse));
    f_store_as(row, dtype, label, (weight * p[0] - scale) * slope);
}

LT_INLINE float row_scale(const lt_xent_args *a, int64_t r) {
    return a->weights.data != NULL
               ? a->grad_scale * ((const float *)a->weights.data)[r * a->weights.stride[0]]
               : a->grad_scale;
}

/* The values derived from a row: its softmax, its label's logit, its argmax. */
typedef struct {
    log_total lse;
    float hit;
    int32_t best;
} row_facts;

LT_INLINE float row_hit(const lt_xent_args *a, const void *row, int64_t label,
                        const lt_dtype dtype) {
    const int64_t at = label - a->first;
    if (label < 0 || at < 0 || at >= a->logits.shape[1]) {
        return 0.0f;
    }
    return capped(v_set(f_load_as(row, dtype, at)), a->softcap)[0];
}

LT_INLINE void write_part(const lt_xent_args *a, int64_t r, const void *row, int32_t label,
                          const lt_dtype dtype) {
    const int64_t n = a->logits.shape[1];
    float *part = (float *)a->part.data + r * LT_XENT_PART;
    double sum;
    part[LT_XENT_MAX] = row_exp_sum(&sum, row, n, a->softcap, 1.0f, dtype);
    part[LT_XENT_SUM] = (float)sum;
    part[LT_XENT_HIT] = row_hit(a, row, label, dtype);
    part[LT_XENT_BEST] = (float)(a->first + row_argmax(row, n, dtype));
}

static row_facts facts_of_parts(const lt_xent_args *a, int64_t r) {
    const int64_t rows = a->logits.shape[0], n = a->parts.shape[0];
    const float *first = (const float *)a->parts.data + r * LT_XENT_PART, *part = first;
    row_facts f = {.lse = {.max = first[LT_XENT_MAX]}, .best = (int32_t)first[LT_XENT_BEST]};
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++, part += rows * LT_XENT_PART) {
        if (part[LT_XENT_MAX] > f.lse.max) {
            f.lse.max = part[LT_XENT_MAX];
            f.best = (int32_t)part[LT_XENT_BEST];
        }
        f.hit += part[LT_XENT_HIT];
    }
    part = first;
    for (int64_t i = 0; i < n; i++, part += rows * LT_XENT_PART) {
        sum += (double)part[LT_XENT_SUM] * exp((double)part[LT_XENT_MAX] - (double)f.lse.max);
    }
    f.lse.log_sum = (float)log(sum);
    return f;
}

LT_INLINE row_facts facts_of_row(const lt_xent_args *a, const void *row, int32_t label,
                                 const lt_dtype dtype) {
    const int64_t n = a->logits.shape[1];
    row_facts f = {.best = 0};
    if (a->best.data != NULL) {
        f.best = row_argmax(row, n, dtype);
    }
    if (label >= 0 || a->lse.data != NULL) {
        double sum;
        f.lse.max = row_exp_sum(&sum, row, n, a->softcap, 1.0f, dtype);
        f.lse.log_sum = (float)log(sum);
        f.hit = row_hit(a, row, label, dtype);
    }
    return f;
}

LT_INLINE void xent_row(const lt_xent_args *a, int64_t r, const lt_dtype dtype) {
    const int64_t n = a->logits.shape[1];
    const int32_t label = ((const int32_t *)a->labels.data)[r * a->labels.stride[0]];
    void *row = at_element(&a->logits, r * a->logits.stride[0]);
    if (a->part.data != NULL) {
        write_part(a, r, row, label, dtype);
        return;
    }
    LT_ASSERT(label < n || a->parts.data != NULL);
    const row_facts f = a->parts.data != NULL ? facts_of_parts(a, r)
                                              : facts_of_row(a, row, label, dtype);
    if (a->best.data != NULL) {
        ((int32_t *)a->best.data)[r * a->best.stride[0]] = f.best;
    }
    if (a->lse.data != NULL) {
        ((float *)a->lse.data)[r * a->lse.stride[0]] = f.lse.max + f.lse.log_sum;
    }
    ((float *)a->loss.data)[r * a->loss.stride[0]] = label >= 0
                                                         ? f.lse.log_sum - (f.hit - f.lse.max)
                                                         : 0.0f;
    if (label >= 0 && a->grad_scale != 0.0f) {
        row_gradient(row, n, label - a->first, f.lse, row_scale(a, r), a->z_coef, a->softcap,
                     dtype);
    } else if (a->grad_scale != 0.0f) {
        memset(row, 0, (size_t)n * (dtype == LT_F32 ? 4 : 2));
    }
}

LT_INLINE void xent_rows(const lt_xent_args *a, const lt_dtype dtype) {
    const int64_t rows = a->logits.shape[0];
#pragma omp parallel for schedule(dynamic, 4) if (rows * a->logits.shape[1] > PARALLEL_MIN)
    for (int64_t r = 0; r < rows; r++) {
        xent_row(a, r, dtype);
    }
}

lt_err LT_ISA_NAME(lt_cpu_xent)(lt_queue *q, const void *args) {
    const lt_xent_args *a = args;
    (void)q;
    LT_ASSERT(a->logits.n_dims == 2 && a->labels.shape[0] == a->logits.shape[0]);
    BY_DTYPE(a->logits.dtype, xent_rows, a);
    return LT_OK;
}

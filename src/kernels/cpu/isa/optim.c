/* optim.c: AdamW, AdEMAMix and Lion over flat F32 buffers, one pass, each element read and written
 * once.
 *
 * BOUND     Memory: AdamW reads p, g, m, v and writes p, m, v: 28 bytes a parameter (30 with the
 *           BF16 copy); GPT-2 124M: 3.5 GB a step. Moments in BF16: 20 and 22; drawing their
 *           rounding costs ten rounds of Philox, ten to fifteen instructions a parameter.
 * NUMERICS  Bias corrections in double, once a call; the element in F32. The copy is the rounding
 *           of the stored p. */
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/cpu.h"

#include <math.h>

LT_INLINE void put_param(const lt_tensor *p, const lt_tensor *copy, int64_t i, vf x, int64_t n) {
    v_put(p->data, LT_F32, i, x, n);
    if (copy->data != NULL) {
        v_put(copy->data, LT_BF16, i, x, n);
    }
}

LT_INLINE vf get_f32(const lt_tensor *t, int64_t i, int64_t n) {
    return v_get(t->data, LT_F32, i, n);
}

/* ---- Moments: F32, or BF16 with stochastic rounding (ops.h) ---- */

typedef struct {
    uint64_t seed, stream, first;
} draws;

/* High and low words of m * x, computed for even and odd lanes and then combined. */
LT_INLINE void multiply(vu *high, vu *low, uint32_t m, vu x) {
#if defined(LT_ISA_avx512)
    const __m512i by = _mm512_set1_epi32((int)m);
    const __m512i even = _mm512_mul_epu32((__m512i)x, by);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)x, 32), by);
    *low = (vu)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32));
    *high = (vu)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd);
#elif defined(LT_ISA_avx2)
    const __m256i by = _mm256_set1_epi32((int)m);
    const __m256i even = _mm256_mul_epu32((__m256i)x, by);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)x, 32), by);
    *low = (vu)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA);
    *high = (vu)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA);
#else
    typedef uint64_t vw __attribute__((vector_size(VEC * 4))); /* Half the lanes, twice as wide. */
    const vw even = ((vw)x & 0xFFFFFFFFu) * (uint64_t)m, odd = ((vw)x >> 32) * (uint64_t)m;
    *low = (vu)((even & 0xFFFFFFFFu) | odd << 32);
    *high = (vu)(even >> 32 | (odd & ~(uint64_t)0xFFFFFFFFu));
#endif
}

/* lt_rng_block (base/rng.c) of VEC positions at once. */
LT_INLINE void draw(vu words[4], const draws *d, int64_t i) {
    const uint64_t at = d->first + (uint64_t)i;
    vu c[4], high0, low0, high1, low1;
    uint32_t k0 = (uint32_t)d->seed, k1 = (uint32_t)(d->seed >> 32);
    c[0] = (vu)vi_iota() + (uint32_t)at;
    c[1] = (uint32_t)(at >> 32) - (vu)(c[0] < (uint32_t)at); /* -1 in each lane that overflowed. */
    c[2] = (uint32_t)d->stream - (vu){0};
    c[3] = (uint32_t)(d->stream >> 32) - (vu){0};
    for (int round = 0; round < 10; round++) {
        multiply(&high0, &low0, 0xD2511F53u, c[0]);
        multiply(&high1, &low1, 0xCD9E8D57u, c[2]);
        c[0] = high1 ^ c[1] ^ k0;
        c[2] = high0 ^ c[3] ^ k1;
        c[1] = low1;
        c[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(words, c, sizeof c);
}

LT_INLINE vf get_moment(const lt_tensor *t, int64_t i, int64_t n, lt_dtype dtype) {
    return v_get(t->data, dtype, i, n);
}

/* The remaining bits are exact in BF16, so that v_put rounds only a NaN. */
LT_INLINE void put_moment(const lt_tensor *t, int64_t i, vf x, int64_t n, lt_dtype dtype, vu word) {
    if (dtype == LT_BF16) {
        const vu drawn = ((vu)x + (word & 0xFFFFu)) & 0xFFFF0000u;
        x = v_pick(x != x, x, (vf)drawn);
    }
    v_put(t->data, dtype, i, x, n);
}

LT_INLINE draws draws_of(uint64_t seed, int64_t step, int64_t first) {
    return (draws){seed, LT_OPTIM_STREAM | (uint64_t)(step & LT_OPTIM_STEP_MASK), (uint64_t)first};
}

LT_INLINE void adamw_all(const lt_adamw_args *a, lt_dtype moments) {
    const int64_t count = lt_tensor_count(&a->p);
    const double c1 = 1.0 - pow((double)a->beta1, (double)a->step);
    const double c2 = 1.0 - pow((double)a->beta2, (double)a->step);
    const float keep = (float)(1.0 - (double)a->lr * (double)a->decay);
    const float rate = (float)((double)a->lr / c1);
    const float v_scale = (float)(1.0 / c2);
    const float m_new = (float)(1.0 - (double)a->beta1);
    const float v_new = (float)(1.0 - (double)a->beta2);
    const draws d = draws_of(a->seed, a->step, a->first);
    LT_ASSERT(a->step >= 1 && count == lt_tensor_count(&a->g));
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < count; i += VEC) {
        const int64_t n = count - i;
        vu w[4] = {0};
        if (moments == LT_BF16) {
            draw(w, &d, i);
        }
        /* The fused product is written explicitly, because the compiler chose another one for the
         * last elements; the bits of a part must equal those of the slice of the whole. */
        const vf g = a->grad_scale * get_f32(&a->g, i, n);
        const vf m_in = get_moment(&a->m, i, n, moments), v_in = get_moment(&a->v, i, n, moments);
        const vf m = moments == LT_BF16 ? v_fma(v_set(m_new), g, a->beta1 * m_in)
                                        : v_fma(v_set(a->beta1), m_in, m_new * g);
        const vf v = moments == LT_BF16 ? v_fma(v_set(v_new), g * g, a->beta2 * v_in)
                                        : v_fma(v_set(a->beta2), v_in, v_new * (g * g));
        const vf step = rate * m / (v_sqrt(v_scale * v) + a->eps);
        const vf p = v_fma(v_set(keep), get_f32(&a->p, i, n), -step);
        put_moment(&a->m, i, m, n, moments, w[0]);
        put_moment(&a->v, i, v, n, moments, w[1]);
        put_param(&a->p, &a->copy, i, p, n);
    }
}

lt_err LT_ISA_NAME(lt_cpu_adamw)(lt_queue *q, const void *args) {
    const lt_adamw_args *a = args;
    (void)q;
    BY_DTYPE(a->m.dtype, adamw_all, a);
    return LT_OK;
}

LT_INLINE void ademamix_all(const lt_ademamix_args *a, lt_dtype moments) {
    const int64_t count = lt_tensor_count(&a->p);
    const float m1_scale = (float)(1.0 / (1.0 - pow((double)a->beta1, (double)a->step)));
    const float v_scale = (float)(1.0 / (1.0 - pow((double)a->beta2, (double)a->step)));
    const float m1_new = (float)(1.0 - (double)a->beta1);
    const float m2_new = (float)(1.0 - (double)a->beta3);
    const float v_new = (float)(1.0 - (double)a->beta2);
    const draws d = draws_of(a->seed, a->step, a->first);
    LT_ASSERT(a->step >= 1 && count == lt_tensor_count(&a->g));
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < count; i += VEC) {
        const int64_t n = count - i;
        vu w[4] = {0};
        if (moments == LT_BF16) {
            draw(w, &d, i);
        }
        const vf g = a->grad_scale * get_f32(&a->g, i, n);
        const vf p = get_f32(&a->p, i, n);
        const vf m1 = a->beta1 * get_moment(&a->m1, i, n, moments) + m1_new * g;
        const vf m2 = a->beta3 * get_moment(&a->m2, i, n, moments) + m2_new * g;
        const vf v = a->beta2 * get_moment(&a->v, i, n, moments) + v_new * (g * g);
        const vf step = (m1_scale * m1 + a->alpha * m2) / (v_sqrt(v_scale * v) + a->eps);
        put_moment(&a->m1, i, m1, n, moments, w[0]);
        put_moment(&a->m2, i, m2, n, moments, w[2]);
        put_moment(&a->v, i, v, n, moments, w[1]);
        put_param(&a->p, &a->copy, i, p - a->lr * (step + a->decay * p), n);
    }
}

lt_err LT_ISA_NAME(lt_cpu_ademamix)(lt_queue *q, const void *args) {
    const lt_ademamix_args *a = args;
    (void)q;
    BY_DTYPE(a->m1.dtype, ademamix_all, a);
    return LT_OK;
}

lt_err LT_ISA_NAME(lt_cpu_lion)(lt_queue *q, const void *args) {
    const lt_lion_args *a = args;
    const int64_t count = lt_tensor_count(&a->p);
    const float keep = (float)(1.0 - (double)a->lr * (double)a->decay);
    const float u_new = (float)(1.0 - (double)a->beta1);
    const float m_new = (float)(1.0 - (double)a->beta2);
    const vf zero = {0};
    (void)q;
    LT_ASSERT(count == lt_tensor_count(&a->g));
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < count; i += VEC) {
        const int64_t n = count - i;
        const vf g = a->grad_scale * get_f32(&a->g, i, n);
        const vf m = get_f32(&a->m, i, n);
        const vf u = a->beta1 * m + u_new * g;
        const vf sign = v_pick_lt(zero, u, v_set(1.0f), v_pick_lt(u, zero, v_set(-1.0f), zero));
        v_put(a->m.data, LT_F32, i, a->beta2 * m + m_new * g, n);
        put_param(&a->p, &a->copy, i, keep * get_f32(&a->p, i, n) - a->lr * sign, n);
    }
    return LT_OK;
}

/* qdot.c (ref): products with quantised matrices: activations are rounded to 8 bits a block, sums
 * of integers within a block are exact, and F32 sums between blocks have this order (x is a block
 * of the row, y one of the activations; every operation rounds once, none is fused):
 *
 *   Q4_0          sum += (isum * x.d) * y.d
 *   Q5_0, Q8_0    sum += isum * (x.d * y.d)
 *   Q4_1, Q5_1    sum += (x.d * y.d) * isum + x.m * y.s
 *   Q4_K .. Q6_K  eight sums, one for each index modulo 8:
 *                     part[l] += (x.d * y.d) * isum[l],  isum[l] = sum of scale * q * a over i of l
 *                     sum -= (x.m * y.d) * msum,         msum = sum of min * a
 *                 at the end sum += part[0], ..., part[7] in turn
 * Blocks are added in order. This is the order of ggml's generic C, so that any format's product
 * can be compared with ggml's to the last bit. */
#include "kernels/ref/qdot.h"

#include <stdlib.h>

#include "base/error.h"
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

static int32_t dot_small(const lt_block_ints *x, const lt_q8 *y) {
    int32_t sum = 0;
    for (int i = 0; i < LT_BLOCK_SMALL; i++) {
        sum += x->q[i] * y->q[i];
    }
    return sum;
}

static float qdot_small(lt_dtype type, const unsigned char *row, size_t block_bytes, const lt_q8 *a,
                        int64_t n_blocks) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n_blocks; i++) {
        lt_block_ints x;
        lt_block_unpack(&x, type, row + (size_t)i * block_bytes);
        const float isum = (float)dot_small(&x, &a[i]);
        if (type == LT_Q4_0) {
            sum += isum * x.d * a[i].d;
        } else if (type == LT_Q4_1 || type == LT_Q5_1) {
            sum += x.d * a[i].d * isum + x.m * a[i].s;
        } else {
            sum += isum * (x.d * a[i].d);
        }
    }
    return sum;
}

static float qdot_super(lt_dtype type, const unsigned char *row, size_t block_bytes, const lt_q8 *a,
                        int64_t n_blocks) {
    float sum = 0.0f, part[8] = {0};
    for (int64_t i = 0; i < n_blocks; i++) {
        lt_block_ints x;
        int32_t isum[8] = {0}, msum = 0;
        lt_block_unpack(&x, type, row + (size_t)i * block_bytes);
        for (int k = 0; k < LT_BLOCK_SUPER; k++) {
            isum[k % 8] += x.scale[k / x.group] * (x.q[k] * a[i].q[k]);
        }
        for (int l = 0; l < 8; l++) {
            part[l] += x.d * a[i].d * (float)isum[l];
        }
        if (type != LT_Q6_K) {
            for (int j = 0; j < LT_BLOCK_SUPER / 16; j++) {
                msum += a[i].sums[j] * x.min[j / 2];
            }
            sum -= x.m * a[i].d * (float)msum;
        }
    }
    for (int l = 0; l < 8; l++) {
        sum += part[l];
    }
    return sum;
}

float lt_ref_qdot(lt_dtype type, const void *row, const lt_q8 *a, int64_t n) {
    size_t bytes;
    const int64_t block = lt_dtype_block(type, &bytes);
    LT_ASSERT(n % block == 0);
    return lt_block_partner(type) == LT_PARTNER_Q8_K ? qdot_super(type, row, bytes, a, n / block)
                                                     : qdot_small(type, row, bytes, a, n / block);
}

/* Row m of y; q8 holds the row's activations. */
static void one_row(const lt_matmul_args *a, int64_t m, const lt_q8 *q8) {
    const int64_t n_k = a->a.shape[1];
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < a->y.shape[1]; n++) {
        const lt_tensor row = lt_tensor_rows(&a->b, n, 1);
        double y = (double)lt_ref_qdot(a->b.dtype, row.data, q8, n_k);
        if (present(&a->bias)) {
            y += get(&a->bias, at1(&a->bias, n));
        }
        if (a->accumulate) {
            y += get(&a->y, at2(&a->y, m, n));
        }
        set(&a->y, at2(&a->y, m, n), y);
    }
}

lt_err lt_ref_matmul_quant(lt_queue *q, const lt_matmul_args *a) {
    const int64_t n_k = a->a.shape[1];
    const lt_partner partner = lt_block_partner(a->b.dtype);
    (void)q;
    LT_ASSERT(partner != LT_PARTNER_NONE && a->trans_b && !a->trans_a);
    LT_ASSERT(present(&a->b) && n_k % lt_partner_block(partner) == 0);
    const int64_t block = lt_partner_block(partner);
    lt_q8 *q8 = malloc((size_t)(n_k / block) * sizeof *q8);
    if (q8 == NULL) {
        LT_FAIL(LT_ERR_OOM, "matmul: %lld blocks of activations", (long long)(n_k / block));
    }
    for (int64_t m = 0; m < a->y.shape[0]; m++) {
        for (int64_t i = 0; i < n_k / block; i++) {
            float x[LT_BLOCK_SUPER];
            for (int64_t k = 0; k < block; k++) {
                x[k] = (float)get(&a->a, at2(&a->a, m, i * block + k));
            }
            lt_q8_encode(&q8[i], partner, x);
        }
        one_row(a, m, q8);
    }
    free(q8);
    return LT_OK;
}

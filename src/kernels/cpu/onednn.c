/* onednn.c: F32 matrix products by oneDNN's SGEMM (row-major, any transposition, y = product + beta y).
 *
 * Measured on 2 cores of Sapphire/Emerald Rapids against gemm.c and PyTorch's MKL: docs/SPEED.md, "CPU kernels". Its BF16 product is not used: without
 * AMX the BF16 dot product of Intel cores runs at half the rate of F32 multiply-adds, so gemm.c widens and is faster.
 * The bias goes into y first, with beta = 1. Small products stay with gemm.c: SGEMM may cut k between threads there, and then the sum's order
 * would depend on their number (lists.c draws the line). */
#include <dnnl.h>

#include "base/error.h"
#include "kernels/cpu/cpu.h"

/* y (+)= bias in every row. */
static void put_bias(const lt_matmul_args *a) {
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < a->y.shape[0]; r++) {
        float *row = (float *)a->y.data + r * a->y.stride[0];
        for (int64_t c = 0; c < a->y.shape[1]; c++) {
            const float bias = a->bias.dtype == LT_F32
                                   ? ((const float *)a->bias.data)[c]
                                   : lt_bf16_to_f32(((const uint16_t *)a->bias.data)[c]);
            row[c] = bias + (a->accumulate ? row[c] : 0.0f);
        }
    }
}

lt_err lt_cpu_matmul_onednn(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const int64_t k = a->trans_a ? a->a.shape[0] : a->a.shape[1];
    const bool add = a->accumulate || a->bias.data != NULL;
    (void)q;
    if (a->bias.data != NULL) {
        put_bias(a);
    }
    const dnnl_status_t status = dnnl_sgemm(a->trans_a ? 'T' : 'N', a->trans_b ? 'T' : 'N',
                                            a->y.shape[0], a->y.shape[1], k, 1.0f, a->a.data,
                                            a->a.stride[0], a->b.data, a->b.stride[0],
                                            add ? 1.0f : 0.0f, a->y.data, a->y.stride[0]);
    if (status != dnnl_success) {
        LT_FAIL(LT_ERR_DEVICE, "oneDNN sgemm %lld x %lld x %lld: status %d",
                (long long)a->y.shape[0], (long long)a->y.shape[1], (long long)k, (int)status);
    }
    return LT_OK;
}

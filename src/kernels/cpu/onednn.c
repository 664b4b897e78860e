/* onednn.c: F32 matrix products by oneDNN's SGEMM (row-major, any transposition, y = product + beta
 * y).
 *
 * ORDER     By default oneDNN's sums depend on the number of threads: it divides k between them
 *           when y is small, and uses another kernel when a row of b is a multiple of 1024 floats
 *           long (found by comparing bits with 1 to 32 threads). So y is cut here into tiles of
 *           about TILE x TILE, by its shape alone, and each tile is one single-threaded SGEMM
 *           (oneDNN starts no threads inside a parallel region).
 * BIAS      goes into the tile first, with beta = 1.
 * BF16      is not used here: without AMX the BF16 dot product of Intel cores runs at half the rate
 *           of F32 multiply-adds, so gemm.c widens and is faster.
 * MEASURED  docs/speed/cpu.md: with such tiles it is no faster than gemm.c with AVX2 or AVX-512. It
 *           serves the instruction sets for which gemm.c has no build. */
#include <dnnl.h>

#include "base/error.h"
#include "kernels/cpu/cpu.h"

#define TILE 512

typedef struct {
    const lt_matmul_args *args;
    int64_t row, n_rows, col, n_cols;
} tile;

/* y (+)= bias, in every row of the tile. */
static void put_bias(const tile *t) {
    const lt_matmul_args *a = t->args;
    for (int64_t r = t->row; r < t->row + t->n_rows; r++) {
        float *row = (float *)a->y.data + r * a->y.stride[0];
        for (int64_t c = t->col; c < t->col + t->n_cols; c++) {
            const float bias = a->bias.dtype == LT_F32
                                   ? ((const float *)a->bias.data)[c]
                                   : lt_bf16_to_f32(((const uint16_t *)a->bias.data)[c]);
            row[c] = bias + (a->accumulate ? row[c] : 0.0f);
        }
    }
}

static dnnl_status_t run_tile(const tile *t) {
    const lt_matmul_args *a = t->args;
    const int64_t k = a->trans_a ? a->a.shape[0] : a->a.shape[1];
    const float *a_at = (const float *)a->a.data + t->row * (a->trans_a ? 1 : a->a.stride[0]);
    const float *b_at = (const float *)a->b.data + t->col * (a->trans_b ? a->b.stride[0] : 1);
    float *y_at = (float *)a->y.data + t->row * a->y.stride[0] + t->col;
    const bool add = a->accumulate || a->bias.data != NULL;
    if (a->bias.data != NULL) {
        put_bias(t);
    }
    return dnnl_sgemm(a->trans_a ? 'T' : 'N', a->trans_b ? 'T' : 'N', t->n_rows, t->n_cols, k, 1.0f,
                      a_at, a->a.stride[0], b_at, a->b.stride[0], add ? 1.0f : 0.0f, y_at,
                      a->y.stride[0]);
}

lt_err lt_cpu_matmul_onednn(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const int64_t m = a->y.shape[0];
    const int64_t n = a->y.shape[1];
    const int64_t down = (m + TILE - 1) / TILE;
    const int64_t across = (n + TILE - 1) / TILE;
    int failed = 0;
    (void)q;
#pragma omp parallel for schedule(dynamic, 1) reduction(+ : failed)
    for (int64_t i = 0; i < down * across; i++) {
        const int64_t r = i % down;
        const int64_t c = i / down;
        const tile t = {a, r * m / down, (r + 1) * m / down - r * m / down, c * n / across,
                        (c + 1) * n / across - c * n / across};
        failed += run_tile(&t) != dnnl_success;
    }
    if (failed != 0) {
        LT_FAIL(LT_ERR_DEVICE, "oneDNN sgemm %lld x %lld: %d tiles failed", (long long)m,
                (long long)n, failed);
    }
    return LT_OK;
}

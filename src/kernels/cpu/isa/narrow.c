/* narrow.c: products of few terms with a matrix stored (K, N), as the second matrix of a low-rank
 * adapter: y (M, N) = a (M, K) . b (K, N).
 *
 * BOUND     Memory: b is read once for 2 M flops a number, and y once.
 * MAP       A thread takes blocks of BLOCK_N vectors of columns; the rows of b that a block needs
 *           stay in L1 while all rows of a pass. Nothing is packed, and no sum crosses lanes.
 * ORDER     Each element's sum is over rising k, for any M, N and number of threads, then bias,
 *           then y. Zero terms at the end of k do not change a result. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/rows.h"

#define BLOCK_N 4

/* n columns of row m, at most BLOCK_N vectors, starting at column `from`. */
LT_INLINE void some_columns(const lt_matmul_args *g, int64_t m, int64_t from, int64_t n,
                            const lt_dtype dtype) {
    const int64_t k_count = g->a.shape[1];
    vf sum[BLOCK_N] = {{0}};
    for (int64_t k = 0; k < k_count; k++) {
        const vf x = v_set(f_load_as(g->a.data, g->a.dtype, m * g->a.stride[0] + k));
        const int64_t at = k * g->b.stride[0] + from;
#pragma GCC unroll 4
        for (int i = 0; i < BLOCK_N; i++) {
            if (i * VEC < n) {
                sum[i] += x * v_get(g->b.data, dtype, at + i * VEC, n - i * VEC);
            }
        }
    }
    for (int i = 0; i * VEC < n; i++) {
        const int64_t at = m * g->y.stride[0] + from + i * VEC, left = n - i * VEC;
        if (g->bias.data != NULL) {
            sum[i] += get_any(g->bias.data, g->bias.dtype, from + i * VEC, left);
        }
        if (g->accumulate) {
            sum[i] += get_any(g->y.data, g->y.dtype, at, left);
        }
        put_any(g->y.data, g->y.dtype, at, sum[i], left);
    }
}

LT_INLINE void all_columns(const lt_matmul_args *g, const lt_dtype dtype) {
    const int64_t m_count = g->y.shape[0], n_count = g->y.shape[1], width = BLOCK_N * VEC;
    const int64_t blocks = (n_count + width - 1) / width;
#pragma omp parallel for schedule(static) if (m_count * n_count * g->a.shape[1] > PARALLEL_MIN)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t from = block * width;
        for (int64_t m = 0; m < m_count; m++) {
            if (from + width <= n_count) {
                some_columns(g, m, from, width, dtype);
            } else {
                some_columns(g, m, from, n_count - from, dtype);
            }
        }
    }
}

lt_err LT_ISA_NAME(lt_cpu_matmul_narrow)(lt_queue *q, const void *args) {
    const lt_matmul_args *g = args;
    (void)q;
    LT_ASSERT(!g->trans_a && !g->trans_b && g->b.shape[0] == g->a.shape[1]);
    if (g->b.dtype == LT_F16) {
        all_columns(g, LT_F16);
    } else {
        BY_DTYPE(g->b.dtype, all_columns, g);
    }
    return LT_OK;
}

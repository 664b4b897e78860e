/* gemv.c: products of few rows with a matrix stored (N, K), as a linear layer's weights in
 * decoding: y (M, N) = a (M, K) . b (N, K)^T.
 *
 * BOUND     Memory: every weight is read once (2 or 4 bytes) for 2 M flops, so nothing is packed
 *           and b streams through once.
 * MAP       A thread takes blocks of rows of b; BLOCK_N of them stay in L1 while all rows of a, F32
 *           and contiguous, pass. Sums are vectors along K, BLOCK_N x up to BLOCK_M of them in
 *           registers.
 * ORDER     Each element's sum has the same order for any M, N and number of threads, so a sequence
 *           decodes the same alone and in a batch. The code calls v_fma explicitly, because the
 *           compiler might otherwise choose between it and two roundings differently for each M. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/rows.h"
#include "kernels/cpu/scratch.h"

#define BLOCK_N 4
#define BLOCK_M 4
/* Rows of a at a time: they stay in L2 while b is read. Only fixed_order has more rows. */
#define ROWS_M 64

/* Dot products of mr rows of a (stride k_room) with nr rows of b. */
LT_INLINE void dots(const lt_matmul_args *g, const int mr, const int nr, const float *a,
                    int64_t a_row, int64_t m, int64_t n, const lt_dtype dtype) {
    const int64_t k_count = g->a.shape[1];
    const int64_t whole = k_count / VEC * VEC;
    vf acc[BLOCK_N][BLOCK_M];
#pragma GCC unroll 4
    for (int i = 0; i < nr; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < mr; j++) {
            acc[i][j] = (vf){0};
        }
    }
    for (int64_t k = 0; k < whole; k += VEC) {
        vf x[BLOCK_M];
#pragma GCC unroll 4
        for (int j = 0; j < mr; j++) {
            x[j] = v_load(a + j * a_row + k);
        }
#pragma GCC unroll 4
        for (int i = 0; i < nr; i++) {
            const vf w = v_load_as(g->b.data, dtype, (n + i) * g->b.stride[0] + k);
#pragma GCC unroll 4
            for (int j = 0; j < mr; j++) {
                acc[i][j] = v_fma(w, x[j], acc[i][j]);
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < nr; i++) {
        vf w = {0};
        if (whole < k_count) {
            w = v_load_as_n(g->b.data, dtype, (n + i) * g->b.stride[0] + whole, k_count - whole);
        }
#pragma GCC unroll 4
        for (int j = 0; j < mr; j++) {
            const int64_t at = (m + j) * g->y.stride[0] + n + i;
            float sum = v_sum(whole < k_count ? v_fma(w, v_load(a + j * a_row + whole), acc[i][j])
                                              : acc[i][j]);
            if (g->bias.data != NULL) {
                sum += f_load_as(g->bias.data, g->bias.dtype, n + i);
            }
            if (g->accumulate) {
                sum += f_load_as(g->y.data, g->y.dtype, at);
            }
            f_store_as(g->y.data, g->y.dtype, at, sum);
        }
    }
}

LT_INLINE void dots_rows(const lt_matmul_args *g, const int nr, const float *a, int64_t a_row,
                         int64_t m, int64_t m_count, int64_t n, const lt_dtype dtype) {
    for (; m + BLOCK_M <= m_count; m += BLOCK_M) {
        dots(g, BLOCK_M, nr, a + m * a_row, a_row, m, n, dtype);
    }
    if (m_count - m == 3) {
        dots(g, 3, nr, a + m * a_row, a_row, m, n, dtype);
    } else if (m_count - m == 2) {
        dots(g, 2, nr, a + m * a_row, a_row, m, n, dtype);
    } else if (m_count - m == 1) {
        dots(g, 1, nr, a + m * a_row, a_row, m, n, dtype);
    }
}

LT_INLINE void some_rows(const lt_matmul_args *g, const float *a, int64_t a_row, int64_t m,
                         int64_t m_end, const lt_dtype dtype) {
    const int64_t n_count = g->y.shape[1];
    const int64_t blocks = (n_count + BLOCK_N - 1) / BLOCK_N;
#pragma omp parallel for schedule(static) if (n_count * a_row > PARALLEL_MIN)
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t n = block * BLOCK_N;
        if (n + BLOCK_N <= n_count) {
            dots_rows(g, BLOCK_N, a, a_row, m, m_end, n, dtype);
        } else {
            for (int64_t i = n; i < n_count; i++) {
                dots_rows(g, 1, a, a_row, m, m_end, i, dtype);
            }
        }
    }
}

LT_INLINE void all_rows(const lt_matmul_args *g, const float *a, int64_t a_row,
                        const lt_dtype dtype) {
    const int64_t m_count = g->y.shape[0];
    for (int64_t m = 0; m < m_count; m += ROWS_M) {
        some_rows(g, a, a_row, m, m_count - m < ROWS_M ? m_count : m + ROWS_M, dtype);
    }
}

lt_err LT_ISA_NAME(lt_cpu_matmul_rows)(lt_queue *q, const void *args) {
    const lt_matmul_args *g = args;
    const int64_t k_count = g->a.shape[1];
    const int64_t a_row = (k_count + VEC - 1) / VEC * VEC;
    float *a = NULL;
    (void)q;
    LT_ASSERT(g->trans_b && !g->trans_a && g->b.shape[1] == k_count);
    LT_TRY(lt_cpu_scratch(&a, LT_CPU_SLOT_A, (size_t)(g->y.shape[0] * a_row + VEC) * sizeof *a));
    for (int64_t m = 0; m < g->y.shape[0]; m++) {
        for (int64_t k = 0; k < k_count; k += VEC) {
            const void *row = at_element(&g->a, m * g->a.stride[0]);
            v_store(a + m * a_row + k, get_any(row, g->a.dtype, k, k_count - k));
        }
    }
    if (g->b.dtype == LT_F16) {
        all_rows(g, a, a_row, LT_F16);
    } else {
        BY_DTYPE(g->b.dtype, all_rows, g, a, a_row);
    }
    return LT_OK;
}

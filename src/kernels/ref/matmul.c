/* matmul.c (ref): y[m][n] = sum_k op(a)[m][k] op(b)[k][n] (+ bias[n]) (+ y[m][n]); sums run over k
 * in rising order, in double.
 *
 * Tiles of 8 x 8 results are computed together from slices of 128 k, unpacked to double on the
 * stack: each element is then converted 1/8 as often, which makes the reference fast enough for the
 * model goldens. The order of every sum stays k = 0, 1, 2, ... */
#include <string.h>

#include "kernels/host.h"
#include "kernels/ref/element.h"
#include "kernels/ref/ref.h"

enum { TILE = 8, SLICE = 128 };

typedef struct {
    double a[TILE][SLICE];
    double b[SLICE][TILE];
    double sum[TILE][TILE];
} tile;

static void unpack(tile *t, const lt_matmul_args *a, int64_t m0, int64_t n0, int64_t k0,
                   int64_t n_k) {
    const int64_t n_m = min_i64(TILE, a->y.shape[0] - m0);
    const int64_t n_n = min_i64(TILE, a->y.shape[1] - n0);

    memset(t->a, 0, sizeof t->a);
    memset(t->b, 0, sizeof t->b);
    for (int64_t k = 0; k < n_k; k++) {
        for (int64_t m = 0; m < n_m; m++) {
            t->a[m][k] = get(&a->a,
                             a->trans_a ? at2(&a->a, k0 + k, m0 + m) : at2(&a->a, m0 + m, k0 + k));
        }
        for (int64_t n = 0; n < n_n; n++) {
            t->b[k][n] = get(&a->b,
                             a->trans_b ? at2(&a->b, n0 + n, k0 + k) : at2(&a->b, k0 + k, n0 + n));
        }
    }
}

static void multiply(tile *t, int64_t n_k) {
    for (int64_t k = 0; k < n_k; k++) {
        for (int m = 0; m < TILE; m++) {
            for (int n = 0; n < TILE; n++) {
                t->sum[m][n] += t->a[m][k] * t->b[k][n];
            }
        }
    }
}

static void store(const tile *t, const lt_matmul_args *a, int64_t m0, int64_t n0) {
    for (int64_t m = m0; m < min_i64(m0 + TILE, a->y.shape[0]); m++) {
        for (int64_t n = n0; n < min_i64(n0 + TILE, a->y.shape[1]); n++) {
            double y = t->sum[m - m0][n - n0];
            if (present(&a->bias)) {
                y += get(&a->bias, at1(&a->bias, n));
            }
            if (a->accumulate) {
                y += get(&a->y, at2(&a->y, m, n));
            }
            set(&a->y, at2(&a->y, m, n), y);
        }
    }
}

lt_err lt_ref_matmul(lt_queue *q, const lt_matmul_args *a) {
    const int64_t n_k = a->a.shape[a->trans_a ? 0 : 1];

    LT_ASSERT(a->y.n_dims == 2 && a->a.n_dims == 2 && a->b.n_dims == 2);
    if (lt_dtype_is_block(a->b.dtype)) {
        return lt_ref_matmul_quant(q, a);
    }
    LT_ASSERT(a->a.shape[a->trans_a ? 1 : 0] == a->y.shape[0]);
    LT_ASSERT(a->b.shape[a->trans_b ? 0 : 1] == a->y.shape[1]);
    LT_ASSERT(a->b.shape[a->trans_b ? 1 : 0] == n_k);
    /* The reference reads b itself, never the packed copy. */
    LT_ASSERT(present(&a->b) || n_k == 0);
#pragma omp parallel for collapse(2) schedule(static)
    for (int64_t m0 = 0; m0 < a->y.shape[0]; m0 += TILE) {
        for (int64_t n0 = 0; n0 < a->y.shape[1]; n0 += TILE) {
            tile t = {0};
            for (int64_t k0 = 0; k0 < n_k; k0 += SLICE) {
                const int64_t n_slice = min_i64(SLICE, n_k - k0);
                unpack(&t, a, m0, n0, k0, n_slice);
                multiply(&t, n_slice);
            }
            store(&t, a, m0, n0);
        }
    }
    return LT_OK;
}

/* One product per expert. */
lt_err lt_ref_matmul_grouped(lt_queue *q, const lt_matmul_grouped_args *a) {
    for (int64_t e = 0; e + 1 < a->expert_start.shape[0]; e++) {
        const lt_matmul_args one = lt_matmul_of_expert(a, e, get_i32(&a->expert_start, e),
                                                       get_i32(&a->expert_start, e + 1));
        if (one.y.shape[0] > 0) {
            LT_TRY(lt_ref_matmul(q, &one));
        }
    }
    return LT_OK;
}

/* The reference has no layout of its own: packing is a no-op and b_packed is ignored. */
lt_err lt_ref_matmul_pack(lt_queue *q, const lt_matmul_pack_args *a) {
    (void)q;
    (void)a;
    return LT_OK;
}

/* y[n] += sum_r x[r][n], r rising. */
lt_err lt_ref_colsum(lt_queue *q, const lt_colsum_args *a) {
    (void)q;
    LT_ASSERT(a->x.n_dims == 2 && a->y.shape[0] == a->x.shape[1]);
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < a->x.shape[1]; n++) {
        double sum = 0.0;
        for (int64_t r = 0; r < a->x.shape[0]; r++) {
            sum += get(&a->x, at2(&a->x, r, n));
        }
        set(&a->y, at1(&a->y, n), get(&a->y, at1(&a->y, n)) + sum);
    }
    return LT_OK;
}

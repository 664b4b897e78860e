/* matmul_few.c: entries of matmul's list for few rows times 16-bit weights (N, K): gemv.cu, gemm_few.cu. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/winners.h"
#include "kernels/cuda/ops/matmul.h"

#define GEMV_ROWS 8
#define FEW_ROWS  64

/* gemv_args of gemv.cu. */
typedef struct {
    const void *x, *w, *bias;
    void *y;
    int64_t ldx, ldw, ldy;
    int n, k, bias_type, accumulate;
} gemv_args;

/* by: the entry that asks. unmeasured: it serves products that the tuner has not seen, too. */
static const char *refuse(const lt_matmul_args *a, int64_t rows, lt_gemm_by by, bool unmeasured) {
    const char *why = lt_matmul_refuse_types(a);
    const lt_gemm_winner *w;
    lt_gemm_args g;

    if (why != NULL) {
        return why;
    }
    if (a->a.dtype == LT_F32 || a->y.shape[0] > rows) {
        return a->a.dtype == LT_F32 ? "not 16-bit" : "too many rows";
    }
    if (a->trans_a || !a->trans_b || !lt_matmul_dense(&a->a) || !lt_matmul_dense(&a->b) ||
        !lt_matmul_dense(&a->y)) {
        return "weights not stored (N, K)";
    }
    if (a->fixed_order) {
        return "other kernels serve more rows";
    }
    if (((uintptr_t)a->a.data | (uintptr_t)a->b.data) % 16 != 0 || a->a.stride[0] % 8 != 0 ||
        a->b.stride[0] % 8 != 0 || lt_matmul_depth(a) % 8 != 0 || lt_matmul_depth(a) == 0 ||
        lt_matmul_depth(a) > INT32_MAX / 2 || a->y.shape[1] > INT32_MAX / 2) {
        return "rows not 16-byte aligned";
    }
    w = lt_gemm_from_matmul(&g, a) == NULL ? lt_gemm_winner_find(lt_cuda_backend_info(), &g) : NULL;
    return w != NULL    ? (w->by == by ? NULL : "another kernel was measured to be faster")
           : unmeasured ? NULL
                        : "not measured against cuBLASLt for this product (lateen tune gemm)";
}

const char *lt_cuda_gemv_refuse(const void *args) {
    return refuse(args, GEMV_ROWS, LT_GEMM_BY_GEMV, true);
}
lt_err lt_cuda_gemv_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    gemv_args w = {a->a.data,
                   a->b.data,
                   a->bias.data,
                   a->y.data,
                   a->a.stride[0],
                   a->b.stride[0],
                   a->y.stride[0],
                   (int)a->y.shape[1],
                   (int)lt_matmul_depth(a),
                   lt_matmul_bias_type(&a->bias),
                   a->accumulate};
    const int rows = 2, warps = 4,
              wanted =
                  16 *
                  lt_cuda_get_info(q->gpu)->n_sms; /* Warps that keep enough loads under way. */
    void *list[] = {&w};
    char defines[LT_CUDA_DEFINES_BYTES];
    int split = 1;
    if (lt_matmul_empty(a)) {
        return LT_OK;
    }
    while (split < warps && LT_CUDA_DIV_UP(w.n, rows) * split < wanted && w.k >= 512 * split) {
        split *= 2;
    }
    snprintf(defines, sizeof defines, "M=%d ROWS=%d SPLIT=%d OUT=%s DTYPE=%s", (int)a->y.shape[0],
             rows, split, lt_cuda_dtype_word(a->y.dtype), lt_cuda_dtype_word(a->a.dtype));
    return lt_cuda_run_early(q, "gemm/gemv.cu", "gemv", defines,
                             LT_CUDA_DIV_UP(w.n, rows * (warps / split)), 1, 32 * warps, list);
}

#define COLS     128 /* COLS and BK of gemm_few.cu */
#define BK       128
#define COUNTERS (LT_CUDA_COUNTER_BYTES / (int)sizeof(int))

/* few_args of gemm_few.cu. */
typedef struct {
    const void *x, *w, *bias;
    void *y;
    float *part;
    int *done;
    int64_t ldx, ldw, ldy;
    int m, n, k, splits, bias_type, accumulate;
} few_args;

const char *lt_cuda_few_refuse(const void *args) {
    return refuse(args, FEW_ROWS, LT_GEMM_BY_FEW, !lt_cublas_available());
}

/* Parts of K: a block an SM, none empty. */
static int split_count(int64_t tiles, int64_t steps, int n_sms) {
    int64_t splits = n_sms / tiles;
    splits = splits < steps ? splits : steps;
    splits = tiles > COUNTERS || splits < 1 ? 1 : splits;
    return (int)LT_CUDA_DIV_UP(steps, LT_CUDA_DIV_UP(steps, splits));
}

lt_err lt_cuda_few_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    const int64_t m = a->y.shape[0], n = a->y.shape[1], k = lt_matmul_depth(a),
                  tiles = LT_CUDA_DIV_UP(n, COLS);
    const int splits = split_count(tiles, LT_CUDA_DIV_UP(k, BK), lt_cuda_get_info(q->gpu)->n_sms);
    few_args w = {.x = a->a.data,
                  .w = a->b.data,
                  .bias = a->bias.data,
                  .y = a->y.data,
                  .ldx = a->a.stride[0],
                  .ldw = a->b.stride[0],
                  .ldy = a->y.stride[0],
                  .m = (int)m,
                  .n = (int)n,
                  .k = (int)k,
                  .splits = splits,
                  .bias_type = lt_matmul_bias_type(&a->bias),
                  .accumulate = a->accumulate};
    void *list[] = {&w};
    char defines[LT_CUDA_DEFINES_BYTES];

    if (lt_matmul_empty(a)) {
        return LT_OK;
    }
    if (splits > 1) {
        void *scratch;
        LT_TRY(lt_cuda_scratch_counted(q, (size_t)(splits * m * n) * sizeof *w.part, &scratch));
        w.done = scratch;
        w.part = (float *)((char *)scratch + LT_CUDA_COUNTER_BYTES);
    }
    snprintf(defines, sizeof defines, "TILES=%d OUT=%s DTYPE=%s", (int)LT_CUDA_DIV_UP(m, 16) * 2,
             lt_cuda_dtype_word(a->y.dtype), lt_cuda_dtype_word(a->a.dtype));
    return lt_cuda_run_early(q, "gemm/gemm_few.cu", "gemm_few", defines, tiles * splits, 1, 256,
                             list);
}

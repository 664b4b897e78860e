/* matmul_gemv.c: the entry of matmul's list for at most 8 rows times 16-bit weights (N, K), and
 * that of matmul_grouped's list for few rows: gemv.cu. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/winners.h"
#include "kernels/cuda/ops/matmul.h"
#include "kernels/cuda/gemm/gemv_args.h"
#include "kernels/cuda/specs.h"

/* Words of the kernels, as launches and lt_specs_gemv write them. */
#define GEMV_WORDS    "M=%d ROWS=%d SPLIT=%d OUT=%s DTYPE=%s"
#define GROUPED_WORDS " GROUPED=1"
#define GATED_WORDS   " GATED=1 KIND=%d"

#define GEMV_ROWS 8
/* Rows of all experts together, more only where most experts have one row: for each further chunk
 * of rows of an expert, its matrix is read again. */
#define GROUPED_ROWS      8
#define GROUPED_ROWS_MOST 64

const char *lt_cuda_gemv_refuse(const void *args, const lt_device *device) {
    const lt_matmul_args *a = args;
    const char *why = lt_matmul_refuse_types(a);
    const lt_gemm_winner *w;
    lt_gemm_args g;

    if (why != NULL) {
        return why;
    }
    if (a->a.dtype == LT_F32 || a->y.shape[0] > GEMV_ROWS) {
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
    w = lt_gemm_from_matmul(&g, a) == NULL ? lt_gemm_winner_find(lt_cuda_device_info(device), &g)
                                           : NULL;
    return w == NULL || w->by == LT_GEMM_BY_GEMV ? NULL
                                                 : "another kernel was measured to be faster";
}

#define ROWS  2 /* Columns that a warp computes at once. */
#define WARPS 4

/* The number of warps that share columns: enough that all warps together keep enough loads in
 * flight. */
int lt_cuda_gemv_split(int64_t n, int64_t k, int n_sms) {
    int split = 1;
    while (split < WARPS && LT_CUDA_DIV_UP(n, ROWS) * split < 16 * (int64_t)n_sms &&
           k >= 512 * split) {
        split *= 2;
    }
    return split;
}

lt_err lt_cuda_gemv_run(lt_queue *q, const void *args) {
    const lt_matmul_args *a = args;
    lt_gemv_args w = {a->a.data,
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
    void *list[] = {&w};
    char defines[LT_CUDA_DEFINES_BYTES];
    const int split = lt_cuda_gemv_split(w.n, w.k, lt_cuda_get_info(q->gpu)->n_sms);
    if (lt_matmul_empty(a)) {
        return LT_OK;
    }
    snprintf(defines, sizeof defines, GEMV_WORDS, (int)a->y.shape[0], ROWS, split,
             lt_cuda_dtype_word(a->y.dtype), lt_cuda_dtype_word(a->a.dtype));
    return lt_cuda_run_early(q, "gemm/gemv.cu", "gemv", defines,
                             LT_CUDA_DIV_UP(w.n, ROWS * (WARPS / split)), 1, 32 * WARPS, list);
}

const char *lt_cuda_gemv_grouped_refuse(const void *args, const lt_device *device) {
    (void)device;
    const lt_matmul_grouped_args *a = args;
    if (a->weights || !a->trans_b) {
        return "weights not stored (E, N, K)";
    }
    const int64_t rows = a->a.shape[0], experts = a->expert_start.shape[0] - 1;
    if (rows > GROUPED_ROWS && (rows > GROUPED_ROWS_MOST || 2 * rows > experts)) {
        return "too many rows";
    }
    if (a->fixed_order) {
        return "other kernels serve more rows";
    }
    if ((a->a.dtype != LT_BF16 && a->a.dtype != LT_F16) || a->b.dtype != a->a.dtype ||
        lt_cuda_dtype_word(a->y.dtype) == NULL) {
        return "types";
    }
    if (a->a.stride[1] != 1 || a->b.stride[2] != 1 || a->y.stride[1] != 1 ||
        ((uintptr_t)a->a.data | (uintptr_t)a->b.data) % 16 != 0 || a->a.stride[0] % 8 != 0 ||
        a->b.stride[0] % 8 != 0 || a->b.stride[1] % 8 != 0 || a->a.shape[1] % 8 != 0 ||
        a->a.shape[1] == 0) {
        return "rows not 16-byte aligned";
    }
    return a->a.shape[1] > INT32_MAX / 2 || a->b.shape[1] > INT32_MAX / 2 ? "sizes out of range"
                                                                          : NULL;
}

/* Most rows of an expert that a block computes, by the rows of all. */
static int rows_at_once(int rows) {
    return rows <= 4 ? 1 : rows <= 16 ? 2 : 4;
}
static lt_gemv_grouped_args grouped_args(const lt_matmul_grouped_args *a) {
    return (lt_gemv_grouped_args){.product = {.x = a->a.data,
                                              .w = a->b.data,
                                              .y = a->y.data,
                                              .ldx = a->a.stride[0],
                                              .ldw = a->b.stride[1],
                                              .ldy = a->y.stride[0],
                                              .n = (int)a->b.shape[1],
                                              .k = (int)a->a.shape[1],
                                              .accumulate = a->accumulate},
                                  .start = a->expert_start.data,
                                  .next_expert = a->b.stride[0],
                                  .experts = (int)a->expert_start.shape[0] - 1};
}
static int grouped_split(const lt_queue *q, const lt_matmul_grouped_args *a) {
    const int rows = (int)a->a.shape[0];
    return lt_cuda_gemv_split(a->b.shape[1] * LT_CUDA_DIV_UP(rows, rows_at_once(rows)),
                              a->a.shape[1], lt_cuda_get_info(q->gpu)->n_sms);
}

lt_err lt_cuda_gemv_grouped_run(lt_queue *q, const void *args) {
    const lt_matmul_grouped_args *a = args;
    const int rows = (int)a->a.shape[0];
    lt_gemv_grouped_args w = grouped_args(a);
    void *list[] = {&w};
    char defines[LT_CUDA_DEFINES_BYTES];
    if (rows == 0 || w.product.n == 0 || w.experts == 0) {
        return LT_OK;
    }
    const int split = grouped_split(q, a);
    snprintf(defines, sizeof defines, GEMV_WORDS GROUPED_WORDS, rows_at_once(rows), ROWS, split,
             lt_cuda_dtype_word(a->y.dtype), lt_cuda_dtype_word(a->a.dtype));
    return lt_cuda_run_early(q, "gemm/gemv.cu", "gemv_grouped", defines,
                             LT_CUDA_DIV_UP(w.product.n, ROWS * (WARPS / split)), rows, 32 * WARPS,
                             list);
}

bool lt_cuda_gemv_up_takes(const lt_queue *q, const lt_experts_up *up) {
    return up->unfused->b_packed == NULL &&
           lt_cuda_gemv_grouped_refuse(up->unfused, q->device) == NULL &&
           lt_cuda_gemv_grouped_refuse(&up->gates, q->device) == NULL &&
           (uintptr_t)up->factors % 16 == 0 && up->gates.b.shape[0] > 0 && up->gates.b.shape[1] > 0;
}
lt_err lt_cuda_gemv_up_run(lt_queue *q, const lt_experts_up *up, bool launch) {
    const int rows = (int)up->unfused->a.shape[0], split = grouped_split(q, up->unfused);
    lt_gemv_grouped_args w = grouped_args(&up->gates);
    lt_experts_up_args beside = lt_cuda_experts_up_args(up);
    void *list[] = {&w, &beside};
    char defines[LT_CUDA_DEFINES_BYTES];
    snprintf(defines, sizeof defines, GEMV_WORDS GROUPED_WORDS GATED_WORDS, rows_at_once(rows),
             ROWS, split, lt_cuda_dtype_word(up->gates.y.dtype),
             lt_cuda_dtype_word(up->gates.a.dtype), (int)up->act->kind);
    if (!launch) {
        const lt_cuda_kernel *kernel;
        return lt_cuda_kernel_get(q->gpu, &kernel, "gemm/gemv.cu", "gemv_gated", defines);
    }
    return lt_cuda_run_early(q, "gemm/gemv.cu", "gemv_gated", defines,
                             LT_CUDA_DIV_UP(w.product.n, ROWS / 2 * (WARPS / split)), rows,
                             32 * WARPS, list);
}

void lt_specs_gemv(lt_specs *l) {
    lt_spec(l, LT_SM_ALL, "gemm/gemv.cu", GEMV_WORDS, 1, 2, 1, "bf16", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemv.cu", GEMV_WORDS, 2, 2, 2, "bf16", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemv.cu", GEMV_WORDS, 4, 2, 1, "fp32", "bf16");
    lt_spec(l, LT_SM_ALL, "gemm/gemv.cu", GEMV_WORDS, 8, 2, 4, "bf16", "bf16");
    for (int most = 1; most <= 4; most *= 2) {
        lt_spec(l, LT_SM_ALL, "gemm/gemv.cu", GEMV_WORDS GROUPED_WORDS, most, 2, 1, "bf16", "bf16");
        lt_spec(l, LT_SM_ALL, "gemm/gemv.cu", GEMV_WORDS GROUPED_WORDS GATED_WORDS, most, 2, 1,
                "bf16", "bf16", 2);
    }
}

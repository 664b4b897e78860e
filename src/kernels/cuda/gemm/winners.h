/* winners.h: which kernel is the fastest for a product's shape on a GPU, as measured by `lateen
 * tune gemm`. The ordered list of the matmul op follows it.
 *
 * Without an entry the list decides by rules and an estimate (ops/matmul.c, gemm.c). With entries,
 * two runs of the same program on the same GPU still have the same bits: entries change only when
 * `lateen tune` runs. */
#ifndef LT_KERNELS_CUDA_GEMM_WINNERS_H
#define LT_KERNELS_CUDA_GEMM_WINNERS_H

#include "kernels/cuda/gemm/gemm.h"

typedef enum {
    LT_GEMM_BY_WGMMA,
    LT_GEMM_BY_CUBLASLT,
    LT_GEMM_BY_GEMV,
    LT_GEMM_BY_FEW,
    LT_GEMM_BY_COUNT
} lt_gemm_by;
extern const char *const lt_gemm_by_names[LT_GEMM_BY_COUNT]; /* The entries of the op's list. */

typedef struct {
    lt_gemm_by by;
    lt_gemm_tile tile; /* Our best tile, even if another entry won. */
    /* For CUBLASLT only: the index among the heuristic's proposals, and the library's version. */
    int choice, vendor;
    double us[LT_GEMM_BY_COUNT]; /* Best time of each entry; 0: it does not accept the shape. */
} lt_gemm_winner;

/* The entry for exactly this product (sizes, layout, types, bias, accumulation) on a GPU of this
 * name, or NULL. It is also used for products with an activation or a residual in the epilogue. */
const lt_gemm_winner *lt_gemm_winner_find(const lt_cuda_info *info, const lt_gemm_args *a);

/* From now on, find returns w for every product of this process; NULL ends that. For the tuner,
 * which runs alone. */
void lt_gemm_winner_force(const lt_gemm_winner *w);

/* Write an entry to the tune file, replacing an older one. */
LT_MUST_USE lt_err lt_gemm_winner_keep(const lt_cuda_info *info, const lt_gemm_args *a,
                                       const lt_gemm_winner *w);

#endif

/* ladder.c: the rungs of the SGEMM ladder, one idea each, with one calling convention. The last
 * rungs are specialisations of the shipped kernel. */
#include "kernels/cuda/sgemm/rung_args.h"
#include "kernels/cuda/sgemm/sgemm.h"

#include <stddef.h>

#include "base/error.h"
#include "kernels/cuda/specs.h"

#define SHIPPED "sgemm/sgemm.cu"

const lt_sgemm_rung lt_sgemm_rungs[] = {
    {1, "naive", "one thread, one element", "sgemm/ladder/01_naive.cu", "", 32, 32, {32, 32}, {0}},
    {2,
     "coalesced",
     "lanes walk along a row",
     "sgemm/ladder/02_coalesced.cu",
     "",
     32,
     32,
     {32, 32},
     {0}},
    {3,
     "shared memory",
     "a block shares its tiles",
     "sgemm/ladder/03_shared.cu",
     "",
     32,
     32,
     {32, 32},
     {0}},
    {4,
     "1D tile",
     "8 sums a thread: B from a register",
     "sgemm/ladder/04_tile_1d.cu",
     "",
     64,
     64,
     {512, 1},
     {0}},
    {5,
     "2D tile",
     "8 x 8 sums a thread: outer products",
     "sgemm/ladder/05_tile_2d.cu",
     "",
     128,
     128,
     {256, 1},
     {0}},
    {6,
     "vectorised",
     "16-byte accesses, A transposed",
     "sgemm/ladder/06_vectorised.cu",
     "",
     128,
     128,
     {256, 1},
     {0}},
    {7,
     "conflict-free",
     "padding and quads spread over banks",
     "sgemm/ladder/07_conflict_free.cu",
     "BM=128 BN=128 BK=8 TM=8 TN=8",
     128,
     128,
     {256, 1},
     {0}},
    {8,
     "autotuned",
     "rung 7, best of its constants",
     "sgemm/ladder/07_conflict_free.cu",
     "BM=128 BN=128 BK=16 TM=8 TN=8",
     128,
     128,
     {256, 1},
     {0}},
    {9,
     "warp tile",
     "compact warps, zigzag lanes",
     "sgemm/ladder/09_warp_tile.cu",
     "",
     128,
     128,
     {256, 1},
     {0}},
    {10,
     "double-buffered",
     "the next tile is under way",
     "sgemm/ladder/10_double_buffered.cu",
     "",
     128,
     128,
     {256, 1},
     {0}},
    {11,
     "asynchronous copies",
     "cp.async, A not transposed: 4 k at a time",
     SHIPPED,
     NULL,
     0,
     0,
     {0, 0},
     {8, 8, 8, 2, 2, 3, 3, 8, 1, LT_SGEMM_ASYNC_16, false, 1, 1}},
    {12,
     "copy engine",
     "one thread fetches, mbarriers, no block barrier",
     SHIPPED,
     NULL,
     0,
     0,
     {0, 0},
     {8, 8, 8, 2, 4, 3, 2, 8, 1, LT_SGEMM_TMA, false, 1, 1}},
    {13,
     "8 x 16 sums",
     "larger thread tile: fewer reads a product",
     SHIPPED,
     NULL,
     0,
     0,
     {0, 0},
     {8, 16, 8, 2, 4, 4, 1, 8, 1, LT_SGEMM_TMA, false, 1, 1}},
    {14,
     "operand reuse",
     "products in an order that spares register reads; the loop stays rolled",
     SHIPPED,
     NULL,
     0,
     0,
     {0, 0},
     {8, 16, 8, 2, 2, 3, 2, 8, 1, LT_SGEMM_TMA, true, 1, 1}},
    {15,
     "long loop body",
     "16 k of a stage unrolled: reads spread between products",
     SHIPPED,
     NULL,
     0,
     0,
     {0, 0},
     {8, 16, 8, 2, 4, 4, 1, 8, 4, LT_SGEMM_TMA, true, 1, 1}},
};
const int lt_sgemm_n_rungs = sizeof lt_sgemm_rungs / sizeof *lt_sgemm_rungs;

lt_err lt_sgemm_rung_run(lt_cuda *c, CUstream s, const lt_sgemm_rung *r, const lt_sgemm_args *a) {
    const lt_cuda_kernel *k;
    lt_sgemm_args v = *a;
    lt_cuda_sgemm_rung_args call = {.a = a->a,
                                    .b = a->b,
                                    .c = a->c,
                                    .m = a->m,
                                    .n = a->n,
                                    .k = a->k,
                                    .lda = a->lda,
                                    .ldb = a->ldb,
                                    .ldc = a->ldc,
                                    .alpha = a->alpha,
                                    .beta = a->beta};
    void *args[] = {&call};
    if (r->defines == NULL) {
        lt_sgemm_tile t = r->tile;
        const lt_sgemm_copy allowed = lt_sgemm_copy_allowed(a, lt_cuda_get_info(c));
        t.copy = t.copy < allowed ? allowed : t.copy;
        t.stages = t.copy != LT_SGEMM_TMA && t.stages > 3 ? 3 : t.stages;
        v.workspace = NULL;
        return lt_sgemm_with(c, s, &v, &t);
    }
    const unsigned rows = (unsigned)((a->m + r->bm - 1) / r->bm),
                   cols = (unsigned)((a->n + r->bn - 1) / r->bn);
    LT_TRY(lt_cuda_kernel_get(c, &k, r->file, "sgemm", r->defines));
    return lt_cuda_launch(c, s, k,
                          &(lt_cuda_dims){.grid = {cols, rows},
                                          .block = {(unsigned)r->block[0], (unsigned)r->block[1]}},
                          args);
}

void lt_specs_sgemm_ladder(lt_specs *l) {
    for (int i = 0; i < lt_sgemm_n_rungs; i++) {
        const lt_sgemm_rung *r = &lt_sgemm_rungs[i];
        if (r->defines != NULL) {
            lt_spec(l, LT_SM_ALL, r->file, "%s", r->defines);
        }
    }
}

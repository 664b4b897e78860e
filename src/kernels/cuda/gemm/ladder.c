/* ladder.c: the rungs of the bf16 GEMM ladder, one idea each. From rung 4 on, a rung is the
 * shipped kernel with some of its ideas disabled. */
#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/rung_args.h"
#include "kernels/cuda/specs.h"

/* bn, wg_m, consumers, cluster, stages, splits, group, pingpong, block_a_tile, pair */
const lt_gemm_rung lt_gemm_rungs[] = {
    {1,
     "mma.sync",
     "tensor cores of sm_80: cp.async, ldmatrix, a product a warp",
     "gemm/ladder/01_mma_sync.cu",
     "gemm_mma_sync",
     "STAGES=3",
     128,
     128,
     256,
     LT_GEMM_RUNG_BYTES(128, 128, 3),
     false,
     {0}},
    {2,
     "wgmma",
     "a warpgroup multiplies from shared memory, the copy engine fetches",
     "gemm/ladder/02_wgmma.cu",
     "gemm_wgmma",
     "",
     128,
     128,
     128,
     LT_GEMM_RUNG_COPIED_BYTES(128, 128, 1),
     true,
     {0}},
    {3,
     "ring",
     "four stages ahead, tiles of 128 x 256",
     "gemm/ladder/03_ring.cu",
     "gemm_ring",
     "STAGES=4",
     128,
     256,
     256,
     LT_GEMM_RUNG_COPIED_BYTES(128, 256, 4),
     true,
     {0}},
    {4,
     "producer and consumers",
     "one thread copies, registers change hands, C leaves by the copy engine",
     NULL,
     NULL,
     NULL,
     0,
     0,
     0,
     0,
     true,
     {256, 1, 2, 1, 4, 1, 1, false, true, false}},
    {5,
     "persistent",
     "a block an SM: the next tile is fetched while this one is stored",
     NULL,
     NULL,
     NULL,
     0,
     0,
     0,
     0,
     true,
     {256, 1, 2, 1, 4, 1, 1, false, false, false}},
    {6,
     "tile order",
     "groups of 8 rows of tiles share A and B in the L2",
     NULL,
     NULL,
     NULL,
     0,
     0,
     0,
     0,
     true,
     {256, 1, 2, 1, 4, 1, 8, false, false, false}},
    {7,
     "cluster",
     "two blocks fetch B once, by multicast",
     NULL,
     NULL,
     NULL,
     0,
     0,
     0,
     0,
     true,
     {256, 1, 2, 2, 4, 1, 8, false, false, false}},
    {8,
     "ping-pong",
     "consumers own whole tiles and take turns: one stores, one multiplies",
     NULL,
     NULL,
     NULL,
     0,
     0,
     0,
     0,
     true,
     {128, 2, 2, 1, 6, 1, 8, true, false, false}},
};
const int lt_gemm_n_rungs = sizeof lt_gemm_rungs / sizeof *lt_gemm_rungs;

lt_err lt_gemm_rung_run(lt_cuda *c, CUstream s, const lt_gemm_rung *r, const lt_gemm_args *a) {
    lt_gemm_rung_args w = {(int)a->m, (int)a->n, (int)a->k, a->lda, a->ldb,
                           a->ldc,    a->a,      a->b,      a->c};
    const lt_cuda_kernel *k;
    const char *why = lt_gemm_refusal(a, lt_cuda_get_info(c));
    CUtensorMap map_a, map_b;

    if (why != NULL || a->trans_a || !a->trans_b || a->out != a->in) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "rung %d: %s", r->rung,
                why != NULL ? why : "not NT with 16-bit output");
    }
    if (r->file == NULL) {
        return lt_gemm_with(c, s, a, &r->tile, (lt_scratch){.bytes = 0});
    }
    void *plain[] = {&w}, *with_maps[] = {&map_a, &map_b, &w};
    if (r->maps) {
        LT_TRY(lt_gemm_operand_map(c, &map_a, a->a, a->in, a->k, a->m, a->lda, 64, r->bm));
        LT_TRY(lt_gemm_operand_map(c, &map_b, a->b, a->in, a->k, a->n, a->ldb, 64, r->bn));
    }
    LT_TRY(lt_cuda_kernel_get(c, &k, r->file, r->entry, r->defines));
    return lt_cuda_launch(c, s, k,
                          &(lt_cuda_dims){.grid = {(unsigned)((a->n + r->bn - 1) / r->bn),
                                                   (unsigned)((a->m + r->bm - 1) / r->bm)},
                                          .block = {(unsigned)r->threads},
                                          .dynamic_shared_bytes = (size_t)r->shared_bytes},
                          r->maps ? with_maps : plain);
}

void lt_specs_gemm_ladder(lt_specs *l) {
    for (int i = 0; i < lt_gemm_n_rungs; i++) {
        const lt_gemm_rung *r = &lt_gemm_rungs[i];
        if (r->file != NULL) {
            lt_spec(l, r->maps ? LT_SM90 : LT_SM_ALL, r->file, "%s", r->defines);
        }
    }
}

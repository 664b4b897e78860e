/* sgemm.h: C = alpha A B + beta C in fp32 on CUDA cores: the shipped kernel, its tile choice, and
 * the ladder that leads to it. */
#ifndef LT_KERNELS_CUDA_SGEMM_H
#define LT_KERNELS_CUDA_SGEMM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/cuda/runtime.h"

#define LT_SGEMM_FMA_PER_SM 128 /* F32 multiply-adds that an SM does per clock. */

/* Row-major: a (m, k) with rows lda apart, b (k, n) ldb, c (m, n) ldc. Any sizes from 1. With
 * beta 0, c is not read, so NaN in it has no effect. */
typedef struct {
    int m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const float *a, *b;
    float *c;
    /* From lt_sgemm_workspace_open; NULL: tiles are never split along k, so tails and small
     * shapes are slower. */
    void *workspace;
    /* A buffer of lt_sgemm_aligned_bytes; NULL: an operand whose rows are not whole multiples of 16
     * bytes is read 4 bytes at a time (half the speed on an H100). */
    void *aligned;
} lt_sgemm_args;

/* The least leading dimension for this many columns whose rows are whole multiples of 16 bytes,
 * for the copy engine. */
static inline int64_t lt_sgemm_pitch(int64_t cols) {
    return (cols + 3) / 4 * 4;
}

/* Bytes of scratch memory for copies of the operands that the copy engine cannot read in place
 * (base, lda or ldb), if the copy costs less than it gains; else 0. */
size_t lt_sgemm_aligned_bytes(const lt_sgemm_args *a);

/* Device memory that calls on one stream share (not calls on two streams at once): about 25 MB.
 * Free with lt_cuda_free. */
LT_MUST_USE lt_err lt_sgemm_workspace_open(lt_cuda *c, void **out);

typedef enum {
    LT_SGEMM_TMA,
    LT_SGEMM_ASYNC_16,
    LT_SGEMM_ASYNC_4
} lt_sgemm_copy; /* The values of COPY in sgemm.cu. */

/* One specialisation of sgemm.cu. A block of warps_m x warps_n warps computes a tile of C; a warp
 * is lanes_m x (32 / lanes_m) lanes, each with a register tile of tm x tn. unroll: quads of K per
 * turn of the inner loop. keep_order: ptxas at -O1, which keeps the products in the order in
 * which they are written. */
typedef struct {
    int tm, tn, lanes_m, warps_m, warps_n, stages, blocks_per_sm, group_m, unroll;
    lt_sgemm_copy copy;
    bool keep_order;
    /* cluster x parts blocks share a tile's K; parts > 1 needs the workspace. 1, 1: one block
     * computes all of it. */
    int cluster, parts;
} lt_sgemm_tile;

/* NULL if the tile can be built and launched on this device, else why not. It is known before
 * compiling. */
const char *lt_sgemm_tile_refusal(const lt_sgemm_tile *t, const lt_cuda_info *info);
/* Does each of the blocks that share a tile's K have a stage of it, and does the workspace have
 * room for their sums? */
bool lt_sgemm_tile_shares(const lt_sgemm_tile *t, const lt_sgemm_args *a, const lt_cuda_info *info);
int lt_sgemm_tile_bm(const lt_sgemm_tile *t);
int lt_sgemm_tile_bn(const lt_sgemm_tile *t);
int lt_sgemm_tile_threads(const lt_sgemm_tile *t);
size_t lt_sgemm_tile_shared_bytes(const lt_sgemm_tile *t);
void lt_sgemm_tile_text(char out[256], const lt_sgemm_tile *t); /* The -D words. */

/* The widest copy that these arguments allow on this device. */
lt_sgemm_copy lt_sgemm_copy_allowed(const lt_sgemm_args *a, const lt_cuda_info *info);

/* The tile for a shape: the tuner's winner of its class on this GPU if there is one, else the
 * best of the shipped table by the wave model. */
lt_sgemm_tile lt_sgemm_tile_choose(lt_cuda *c, const lt_sgemm_args *a);

/* Queue one product with the chosen tile, or with a given one. */
LT_MUST_USE lt_err lt_sgemm(lt_cuda *c, CUstream s, const lt_sgemm_args *a);
LT_MUST_USE lt_err lt_sgemm_with(lt_cuda *c, CUstream s, const lt_sgemm_args *a,
                                 const lt_sgemm_tile *t);

/* ---- The ladder: rungs with one calling convention ---- */
typedef struct {
    int rung;
    const char *name, *idea, *file;
    const char *defines;  /* NULL: the rung is the shipped kernel with `tile`. */
    int bm, bn, block[2]; /* The tile of C that a block computes; its threads. */
    lt_sgemm_tile tile;
} lt_sgemm_rung;
extern const lt_sgemm_rung lt_sgemm_rungs[];
extern const int lt_sgemm_n_rungs;
LT_MUST_USE lt_err lt_sgemm_rung_run(lt_cuda *c, CUstream s, const lt_sgemm_rung *r,
                                     const lt_sgemm_args *a);

/* ---- Tuning ---- */
/* Try every tile of the search space on m x n x k, print the best few and the number of refusals
 * for each reason, and remember the winner. */
LT_MUST_USE lt_err lt_sgemm_tune(FILE *to, lt_cuda *c, int m, int n, int k, double seconds_max);

#endif

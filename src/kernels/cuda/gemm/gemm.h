/* gemm.h: C = alpha op(A) op(B) on Hopper's tensor cores, 16-bit in, f32 sums, with an epilogue;
 * chooses a tile and launches gemm_sm90.cu. */
#ifndef LT_KERNELS_CUDA_GEMM_H
#define LT_KERNELS_CUDA_GEMM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "kernels/cuda/runtime.h"
#include "lateen/tensor.h"
#include "tensor/ops.h"
#include "kernels/cuda/gemm/few_args.h"
#include "kernels/cuda/gemm/gemm_args.h"

/* Row-major: a (m, k), or (k, m) with trans_a; b (k, n), or (n, k) with trans_b; c (m, n). Rows
 * lda, ldb, ldc elements apart. in: BF16 or F16; out: in, or F32. In order: v = alpha * sum; + bias
 * (n), in's type or F32; stored to pre; v = act(v), or v *= act'(aux); + aux (residual); c = v, or
 * c += v. The optional arrays are NULL when absent; pre and aux are of in's type, ld elements a
 * row. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldc;
    bool trans_a, trans_b, accumulate;
    lt_dtype in, out, bias_dtype;
    float alpha;
    const void *a, *b, *bias, *aux;
    void *c, *pre;
    int64_t aux_ld, pre_ld;
    int act, act_bwd; /* LT_ACT_GELU_TANH, LT_ACT_SILU, LT_ACT_RELU2; -1: none */
    bool residual;
    /* A second product is added to the sum: its operands, of in's type, with the rank as K; not
     * with trans_a. v NULL: none. */
    struct {
        const void *u, *v;
        int64_t ld_u, ld_v, rank; /* u (m, n_parts rank) */
        int n_parts;
        const lt_lora_add_part *parts;
    } beside;
} lt_gemm_args;

/* Convert the arguments of the matmul op (tensor/ops.h) to a GEMM's. Returns NULL, or why that is
 * not possible: operands are packed, or not 2-D with contiguous columns. */
const char *lt_gemm_from_matmul(lt_gemm_args *out, const lt_matmul_args *a);

/* Shared memory that a block on Hopper may have. */
#define LT_HOPPER_SHARED_BYTES (227 * 1024)

/* One specialisation of gemm_sm90.cu, whose header explains the fields, and the number of parts
 * into which K is divided. */
typedef struct {
    int bn, wg_m, consumers, cluster, stages, splits, group;
    bool pingpong;
    bool block_a_tile; /* Not persistent: a block computes one tile and ends. */
    bool pair;         /* Two blocks compute one tile, each over half of K, and end. */
} lt_gemm_tile;

/* Device memory for partial sums: more than lt_gemm_scratch_bytes() never helps. May be empty. */
typedef struct {
    void *data;
    size_t bytes;
} lt_scratch;
size_t lt_gemm_scratch_bytes(void);

/* NULL if gemm_sm90.cu serves these arguments on this device, otherwise the reason. */
const char *lt_gemm_refusal(const lt_gemm_args *a, const lt_cuda_info *info);
/* NULL if it also adds the second product with this tile. */
#define LT_GEMM_BESIDE_STEPS 4 /* Of 64 numbers of the rank. */
const char *lt_gemm_beside_refusal(const lt_gemm_args *a, const lt_gemm_tile *t);
/* The tile with the smallest estimate (waves, tensor-core clocks, bytes, the cost of adding partial
 * sums). */
lt_gemm_tile lt_gemm_tile_choose(const lt_gemm_args *a, const lt_cuda_info *info,
                                 size_t scratch_bytes);
/* The tuner's winner (winners.h) for this product if our kernel came first or second, else that of
 * lt_gemm_tile_choose. */
lt_gemm_tile lt_gemm_tile_best(const lt_gemm_args *a, const lt_cuda_info *info,
                               size_t scratch_bytes);
/* Every tile and number of parts of K that serves these arguments; returns how many, at most
 * max. */
int lt_gemm_tile_all(lt_gemm_tile *out, int max, const lt_gemm_args *a, size_t scratch_bytes);
/* Whether the tile is in the table, with a number of parts of K that is allowed for some
 * product. */
bool lt_gemm_tile_exists(const lt_gemm_tile *t);
size_t lt_gemm_tile_scratch_bytes(const lt_gemm_tile *t, const lt_gemm_args *a);
/* Estimated time of one tile choice in microseconds. */
double lt_gemm_tile_us(const lt_gemm_tile *t, const lt_gemm_args *a, int n_sms);

LT_MUST_USE lt_err lt_gemm(lt_cuda *c, CUstream s, const lt_gemm_args *a, lt_scratch scratch);
LT_MUST_USE lt_err lt_gemm_with(lt_cuda *c, CUstream s, const lt_gemm_args *a,
                                const lt_gemm_tile *t, lt_scratch scratch);

/* gemm_few.cu: at most 64 rows times weights (N, K). Tiles of 64 * groups columns; K is divided
 * into `splits` parts. */
typedef struct {
    int groups, splits, stages, blocks;
} lt_gemm_few_tile;
const char *lt_gemm_few_refusal(const lt_gemm_args *a, const lt_cuda_info *info);
bool lt_gemm_few_fit(lt_gemm_few_tile *t, const lt_gemm_args *a, const lt_cuda_info *info);
/* The tile for the shape, and a call with it. */
lt_gemm_few_tile lt_gemm_few_choose(const lt_gemm_args *a, const lt_cuda_info *info);
LT_MUST_USE lt_err lt_gemm_few(lt_cuda *c, CUstream s, const lt_gemm_args *a);
LT_MUST_USE lt_err lt_gemm_few_with(lt_cuda *c, CUstream s, const lt_gemm_args *a,
                                    const lt_gemm_few_tile *t);
/* With y (M, N / 2) = f(first half of the columns, as stored) * second half: SiLU or GELU's tanh
 * form, of the inputs' type. y NULL: only fetch the kernel. */
typedef struct {
    lt_act_kind kind;
    void *y;
    int64_t ld;
} lt_gemm_gated;
LT_MUST_USE lt_err lt_gemm_few_gated(lt_cuda *c, CUstream s, const lt_gemm_args *a,
                                     const lt_gemm_gated *g);

/* Time every tile, cuBLASLt's proposals and gemv.cu on one BF16 product (m, n, k, layout, out,
 * accumulate; bias as a flag), keep the winner (winners.h), print a line. UNSUPPORTED when neither
 * serves it. */
typedef struct {
    int64_t m, n, k;
    bool trans_a, trans_b, f32, accumulate, bias;
} lt_gemm_product;
LT_MUST_USE lt_err lt_gemm_tune(FILE *to, lt_device *device, const lt_gemm_product *p);

/* ---- The ladder: rungs with one calling convention, forward of a linear layer: NT, 16-bit out, no
 * epilogue ---- */
typedef struct {
    int rung;
    const char *name, *idea;
    const char *file, *entry, *defines; /* file NULL: the shipped kernel with `tile`. */
    int bm, bn, threads, shared_bytes;
    bool maps; /* The copy engine reads the operands. */
    lt_gemm_tile tile;
} lt_gemm_rung;
extern const lt_gemm_rung lt_gemm_rungs[];
extern const int lt_gemm_n_rungs;
LT_MUST_USE lt_err lt_gemm_rung_run(lt_cuda *c, CUstream s, const lt_gemm_rung *r,
                                    const lt_gemm_args *a);

/* The copy engine's view of a matrix of rows `ld` elements apart, in boxes (tensor map, 128-byte
 * swizzle). */
LT_MUST_USE lt_err lt_gemm_operand_map(lt_cuda *c, CUtensorMap *map, const void *data,
                                       lt_dtype dtype, int64_t inner, int64_t outer, int64_t ld,
                                       int box_inner, int box_outer);
/* The constants and the shared memory of a tile without an epilogue. */
void lt_gemm_tile_text(char out[256], const lt_gemm_tile *t, const lt_gemm_args *a);
size_t lt_gemm_tile_shared_bytes(const lt_gemm_tile *t);

/* matmul_scaled (tensor/ops.h): NULL if gemm_sm90.cu serves it with FP8, otherwise the reason; and
 * the call. */
const char *lt_gemm_scaled_refusal(const lt_matmul_scaled_args *a, const lt_cuda_info *info);
LT_MUST_USE lt_err lt_gemm_scaled(lt_cuda *c, CUstream s, const lt_matmul_scaled_args *a);

/* matmul_grouped (tensor/ops.h): NULL if gemm_sm90.cu serves it, otherwise the reason; and the
 * call. */
const char *lt_gemm_grouped_refusal(const lt_matmul_grouped_args *a, const lt_cuda_info *info);
LT_MUST_USE lt_err lt_gemm_grouped(lt_cuda *c, CUstream s, const lt_matmul_grouped_args *a);

#endif

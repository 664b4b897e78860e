/* gemm_args.h: arguments of gemm_sm90.cu and gemm_split.cu (epilogue.cuh). */
#ifndef LT_KERNELS_CUDA_GEMM_GEMM_ARGS_H
#define LT_KERNELS_CUDA_GEMM_GEMM_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    int m, n, k;
    /* K is divided into this many parts; > 1 writes partial sums (OUT_F32), part s at row s *
     * m_padded. */
    int splits;
    int m_padded; /* m rounded up to whole tiles. */
    int group;    /* Rows of (cluster) tiles processed together, for the L2. */
    float alpha;
    const void *bias;
    const LT_ELEM(elem) * aux; /* (m, n), rows aux_ld apart */
    LT_ELEM(elem) * pre;       /* (m, n), rows pre_ld apart */
    long long aux_ld, pre_ld;
    /* with GROUPED 1: rows ldc apart, for tiles that extend into the next expert's rows */
    void *c;
    long long ldc;
    const int *start; /* with GROUPED: expert e owns [start[e], start[e + 1]) of the rows */
    int experts;
    const float *a_scale, *b_scale; /* with SCALES */
    int early;                      /* The next kernel may start while this one runs. */
} lt_gemm_kernel_args;

/* With BESIDE: columns [first, end) of C belong to a part. Its columns of u are the `rank` ones
 * that start at part * rank, and its rows (B_MAJOR_N: columns) of v are those of C plus shift. */
#define LT_GEMM_BESIDE_PARTS 3
typedef struct {
    int n_parts, rank, none; /* none: an index past the end of v */
    int first[LT_GEMM_BESIDE_PARTS], end[LT_GEMM_BESIDE_PARTS], shift[LT_GEMM_BESIDE_PARTS];
} lt_gemm_beside_args;

/* gemm_split.cu */
typedef struct {
    lt_gemm_kernel_args a;
    void *c; /* rows ldc apart */
    const float *part;
    long long ldc;
} lt_gemm_split_args;

/* Dynamic shared memory of gemm_sm90.cu in bytes: what begins on 1024, `stages` stages of bm rows
 * of A and b_rows of B of 128 bytes, with two barriers each, C's places of 8 KB, and barriers of a
 * pair of blocks. */
#define LT_GEMM_SM90_BYTES(bm, b_rows, stages, consumers, c_stages)                                \
    (1024 + (stages) * (((bm) + (b_rows)) * 128 + 16) + (consumers) * (c_stages)*8192 + 32)

static_assert(sizeof(lt_gemm_kernel_args) == 128, "the same on host and device");
static_assert(sizeof(lt_gemm_beside_args) == 48, "the same on host and device");
static_assert(sizeof(lt_gemm_split_args) == 152, "the same on host and device");

#endif

/* cublas.h: the vendor's matrix products, opened with dlopen: the peer in every GEMM bench, and an
 * entry of the GEMM list. */
#ifndef LT_KERNELS_CUDA_CUBLAS_H
#define LT_KERNELS_CUDA_CUBLAS_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/cuda/runtime.h"

typedef struct lt_cublas lt_cublas; /* A cuBLASLt handle with its workspace. */

/* UNSUPPORTED if libcublasLt is missing. */
LT_MUST_USE lt_err lt_cublas_open(lt_cublas **out, lt_cuda *c);
void lt_cublas_close(lt_cublas *b); /* Accepts NULL. */
int lt_cublas_version(void);        /* e.g. 130002; 0 without one. */

#define LT_CUBLAS_PROPOSALS 8

typedef enum { LT_CUBLAS_F32, LT_CUBLAS_BF16, LT_CUBLAS_F16, LT_CUBLAS_E4M3 } lt_cublas_type;

/* Row-major d (m, n) = alpha * op(a) (m, k) * op(b) (k, n) + beta * d; trans: stored transposed.
 * Leading dimensions in elements. Types of a and b; d may be F32 or the inputs' type. F32 inputs
 * are multiplied in full F32, never TF32. E4M3: a as it is and b stored transposed, d BF16 or F32,
 * a scale
 * (1) F32 on the device for each; fast: sums stay in the tensor cores. */
typedef struct {
    int64_t m, n, k, lda, ldb, ldd;
    bool trans_a, trans_b;
    lt_cublas_type in, out;
    float alpha, beta;
    /* 0: the fastest of the heuristic's proposals, measured at the first call. Else the choice-th
     * of them (1 to LT_CUBLAS_PROPOSALS; the last, where there are fewer), unmeasured: the same
     * bits in every run; a, b, d 16-byte aligned. */
    int choice;
    const void *a, *b;
    const void *bias; /* (n) of d's type, added to each row; NULL: none. Not together with beta. */
    /* (m, n), rows ld_x apart, of d's type, 16-byte aligned: d is multiplied by the derivative of
     * GELU (tanh form) there; NULL: it is not. Not together with other options. */
    const void *gelu_x;
    int64_t ld_x;
    void *d;
    const void *a_scale, *b_scale;
    bool fast;
} lt_cublas_args;

bool lt_cublas_available(void); /* Whether there is a libcublasLt. */
/* Whether there is one that can use the GPU. One newer than the driver cannot. */
bool lt_cublas_works(lt_cuda *c);

/* A shape's descriptors and algorithm are made at its first call; those of the latest 256 shapes
 * are kept. */
LT_MUST_USE lt_err lt_cublas_matmul(lt_cublas *b, CUstream s, const lt_cublas_args *a);

#endif

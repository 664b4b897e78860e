/* qk_norm.cuh: how qk_norm.cu and qk_norm_any.cu are told where heads lie. */
#ifndef LT_CUDA_QK_NORM_CUH
#define LT_CUDA_QK_NORM_CUH

#include "common/types.cuh"

/* Elements from row to row and from head to head. */
typedef struct {
    i64 row, head;
} steps;
typedef struct {
    steps x, y; /* Backward, y is dy. */
    steps dx;
    int rows, heads, n_q, q_blocks;
} qk_shape;

#endif

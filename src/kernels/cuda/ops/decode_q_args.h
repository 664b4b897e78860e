/* decode_q_args.h: arguments of decode_q.cu. */
#ifndef LT_KERNELS_CUDA_OPS_DECODE_Q_ARGS_H
#define LT_KERNELS_CUDA_OPS_DECODE_Q_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * y;
    const unsigned char *table;
    const int *ids;
    const LT_ELEM(DTYPE) * pos_table;
    const int *positions, *late;
    long long rows, row_bytes; /* Rows of y; bytes of a row of the table. */
    int groups;                /* Groups of 32 elements in a row. */
    float scale;
    long long ldy, ld_pos;
    int first, n_ids;    /* The table has the rows of ids first .. first + n_ids - 1. */
    float values[16];    /* lt_nf4_values. */
    const float *scales; /* NF4_DOUBLE: scales of lt_nf4_double_encode. */
} lt_cuda_decode_q_args;

static_assert(sizeof(lt_cuda_decode_q_args) == 168, "the same on host and device");

#endif

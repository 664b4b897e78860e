/* widen_pages_args.h: arguments of widen_pages.cu. */
#ifndef LT_KERNELS_CUDA_ATTENTION_WIDEN_PAGES_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_WIDEN_PAGES_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * wide[2];      /* K, V: pages of 16 bits, one a block */
    const unsigned char *coded[2]; /* K, V: the cache's pages */
    const int *table, *q_start, *kv_len;
    int *wide_table; /* of the pages of 16 bits, of table's shape */
    long long table_ld, window;
    int sequences, columns; /* columns: of wide_table */
    int q_least;            /* rows of a sequence that is widened */
    int page;               /* tokens */
    int row;                /* numbers of a token: heads times their width */
} lt_attn_widen_pages_args;

static_assert(sizeof(lt_attn_widen_pages_args) == 104, "the same on host and device");

#endif

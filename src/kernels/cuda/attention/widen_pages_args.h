/* widen_pages_args.h: arguments of widen_pages.cu. */
#ifndef LT_KERNELS_CUDA_ATTENTION_WIDEN_PAGES_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_WIDEN_PAGES_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * wide[2];      /* K, V: 16-bit pages, one per block */
    const unsigned char *coded[2]; /* K, V: the cache's pages */
    const int *table, *q_start, *kv_len;
    int *wide_table; /* of the 16-bit pages, with the shape of table */
    long long table_ld, window;
    int sequences, columns; /* columns of wide_table */
    int q_least;            /* least rows of a sequence that is widened */
    int page;               /* tokens per page */
    int row;                /* numbers per token: heads times their width */
} lt_attn_widen_pages_args;

static_assert(sizeof(lt_attn_widen_pages_args) == 104, "the same on host and device");

#endif

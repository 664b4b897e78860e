/* any_paged_args.h: arguments of any_paged.cu. */
#ifndef LT_KERNELS_CUDA_ATTENTION_ANY_PAGED_ARGS_H
#define LT_KERNELS_CUDA_ATTENTION_ANY_PAGED_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const LT_ELEM(QTYPE) * q;
    LT_ELEM(QTYPE) * out;
    const LT_ELEM(CTYPE) * k;
    const LT_ELEM(VTYPE) * v;
    const int *table, *q_start, *kv_len;
    const float *alibi, *sinks;
    long long q_r, q_h, o_r, o_h, table_ld, window;
    int rows, heads, kv_heads, dim, page, sequences;
    float scale, softcap;
} lt_attn_any_paged_args;

typedef struct {
    LT_ELEM(CTYPE) * k_pages;
    LT_ELEM(VTYPE) * v_pages;
    const LT_ELEM(QTYPE) * k, *v;
    const int *slots;
    long long k_r, k_h, v_r, v_h, count; /* count: number of threads. */
    int heads, dim;
} lt_cuda_kv_write_any_args;

static_assert(sizeof(lt_attn_any_paged_args) == 152, "the same on host and device");
static_assert(sizeof(lt_cuda_kv_write_any_args) == 88, "the same on host and device");

#endif

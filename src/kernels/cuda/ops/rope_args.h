/* rope_args.h: arguments of rope.cu and rope_any.cu. */
#ifndef LT_KERNELS_CUDA_OPS_ROPE_ARGS_H
#define LT_KERNELS_CUDA_OPS_ROPE_ARGS_H

#include "kernels/cuda/common/args.h"
#include "kernels/cuda/common/view_args.h"

typedef struct {
    lt_cuda_view y, x; /* Views of rows (R, H). */
    lt_cuda_row_shape n;
} lt_rope_views;

typedef struct {
    LT_ELEM(DTYPE) * y; /* (rows, q_heads + 2 kv_heads, D), rows ld apart */
    const int *positions, *slots;
    const float *table;
    void *k_pages, *v_pages; /* (slots, kv_heads, D) of DTYPE; EIGHT: of e4m3 */
    long long ld;
    int rows, q_heads, kv_heads;
} lt_rope_kv_args;

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x;
    const int *positions;
    const float *table;
    long long n_heads;
    lt_rope_views at;
    float sign;
} lt_cuda_rope_args;

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x;
    const int *positions;
    const float *table;
    long long ld, step, count;
    int half, width;
    lt_rope_views at;
    float sign;
} lt_cuda_rope_any_args;

static_assert(sizeof(lt_rope_views) == 56, "the same on host and device");
static_assert(sizeof(lt_rope_kv_args) == 72, "the same on host and device");
static_assert(sizeof(lt_cuda_rope_args) == 104, "the same on host and device");
static_assert(sizeof(lt_cuda_rope_any_args) == 128, "the same on host and device");

#endif

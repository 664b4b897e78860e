/* embed_args.h: arguments of embed.cu. */
#ifndef LT_KERNELS_CUDA_OPS_EMBED_ARGS_H
#define LT_KERNELS_CUDA_OPS_EMBED_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * table;
    const int *ids;
    const LT_ELEM(DTYPE) * pos_table;
    const int *positions, *late;
    int cols;
    float scale;
    long long ldy, ld_table, ld_pos;
    int first, n_ids; /* PART: the ids of the table's rows. */
} lt_cuda_embed_fwd_args;

/* PART: keys of the rows that count; rows of other parts have none_key. */
typedef struct {
    int *keys;
    const int *ids, *rows;
    int n, first, n_ids, none_key;
} lt_cuda_embed_keys_args;

typedef struct {
    int *counts;
    const int *keys;
    int n, n_passes;
} lt_cuda_digit_count_args;

typedef struct {
    int *counts;
    int n;
} lt_cuda_digit_scan_args;

typedef struct {
    int *keys_out, *rows_out;
    const int *keys, *rows, *counts;
    int *next_counts;
    int n, shift, scanned;
} lt_cuda_digit_place_args;

typedef struct {
    float *dtable, *parts;
    const LT_ELEM(DTYPE) * dy;
    const int *keys, *rows;
    int n, cols;
    float scale;
    int none_key; /* PART */
    long long ld_table, lddy;
} lt_cuda_embed_sum_args;

typedef struct {
    float *dtable;
    const float *parts;
    const int *keys;
    int n, cols;
    long long ld_table;
    int none_key; /* PART */
} lt_cuda_embed_join_args;

static_assert(sizeof(lt_cuda_embed_fwd_args) == 88, "the same on host and device");
static_assert(sizeof(lt_cuda_embed_keys_args) == 40, "the same on host and device");
static_assert(sizeof(lt_cuda_digit_count_args) == 24, "the same on host and device");
static_assert(sizeof(lt_cuda_digit_scan_args) == 16, "the same on host and device");
static_assert(sizeof(lt_cuda_digit_place_args) == 64, "the same on host and device");
static_assert(sizeof(lt_cuda_embed_sum_args) == 72, "the same on host and device");
static_assert(sizeof(lt_cuda_embed_join_args) == 48, "the same on host and device");

#endif

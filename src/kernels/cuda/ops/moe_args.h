/* moe_args.h: arguments of moe.cu. */
#ifndef LT_KERNELS_CUDA_OPS_MOE_ARGS_H
#define LT_KERNELS_CUDA_OPS_MOE_ARGS_H

#include "kernels/cuda/common/args.h"

#ifndef LT_MOE_MAX_EXPERTS /* The host takes it from tensor/ops.h. */
#define LT_MOE_MAX_EXPERTS 1024
#endif

typedef struct {
    float *probs;
    int *chosen;
    float *weights, *lse_out;
    const float *logits;
    long long ld_probs, ld_chosen, ld_weights, ld_logits;
    int rows, experts, top_k, normalise;
} lt_cuda_route_choose_args;

typedef struct {
    lt_cuda_route_choose_args choose;
    int *slot_row, *start;
} lt_cuda_route_few_args;

typedef struct {
    int *counts;
    const int *chosen;
    long long ld;
    int n, top_k, experts;
} lt_cuda_route_count_args;

typedef struct {
    int *counts, *total, *start, *dropped;
    int blocks, experts, capacity;
} lt_cuda_route_scan_args;

typedef struct {
    int *slot_row;
    float *weights;
    const int *chosen, *counts, *start, *dropped;
    long long ld_chosen, ld_weights;
    int n, top_k, experts, capacity;
} lt_cuda_route_place_args;

typedef struct {
    float *aux;
    long long step;
    const float *sums;
    const int *total;
    const float *lse;
    int rows, top_k, experts;
} lt_cuda_route_aux_args;

typedef struct {
    int *total;
    const int *chosen;
    long long ld;
    int n, top_k, experts;
} lt_cuda_route_total_args;

typedef struct {
    float *dlogits;
    const float *dweights, *logits, *probs;
    const int *chosen;
    const float *weights;
    const int *total;
    long long ld_dlogits, ld_dweights, ld_logits, ld_probs, ld_chosen, ld_weights;
    int rows, experts, top_k, normalise;
    float aux_coef, z_coef;
    const float *aux_scale;
} lt_cuda_route_bwd_args;

typedef struct {
    int *inverse;
    const int *slot_row, *n_kept;
    int n;
} lt_cuda_moe_invert_args;

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x;
    const int *slot_row, *n_kept;
    long long ldy, ldx;
    int cols, top_k, n;
} lt_cuda_moe_gather_args;

typedef struct {
    LT_ELEM(DTYPE) * y;
    const LT_ELEM(DTYPE) * x;
    const float *weights;
    const int *inverse; /* NULL: slots are searched in slot_row, which is short. */
    const int *slot_row, *n_kept;
    long long ldy, ldx, ld_weights;
    int cols, top_k, add, n;
} lt_cuda_moe_sum_args;

typedef struct {
    LT_ELEM(DTYPE) * dx;
    float *dweights;
    const LT_ELEM(DTYPE) * dy, *x;
    const float *weights;
    const int *inverse;
    long long lddx, ld_dweights, lddy, ldx, ld_weights;
    int cols, top_k, n;
} lt_cuda_moe_combine_bwd_args;

static_assert(sizeof(lt_cuda_route_few_args) == 104, "the same on host and device");
static_assert(sizeof(lt_cuda_route_choose_args) == 88, "the same on host and device");
static_assert(sizeof(lt_cuda_route_count_args) == 40, "the same on host and device");
static_assert(sizeof(lt_cuda_route_scan_args) == 48, "the same on host and device");
static_assert(sizeof(lt_cuda_route_place_args) == 80, "the same on host and device");
static_assert(sizeof(lt_cuda_route_aux_args) == 56, "the same on host and device");
static_assert(sizeof(lt_cuda_route_total_args) == 40, "the same on host and device");
static_assert(sizeof(lt_cuda_route_bwd_args) == 136, "the same on host and device");
static_assert(sizeof(lt_cuda_moe_invert_args) == 32, "the same on host and device");
static_assert(sizeof(lt_cuda_moe_gather_args) == 64, "the same on host and device");
static_assert(sizeof(lt_cuda_moe_sum_args) == 88, "the same on host and device");
static_assert(sizeof(lt_cuda_moe_combine_bwd_args) == 104, "the same on host and device");

#endif

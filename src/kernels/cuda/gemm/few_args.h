/* few_args.h: arguments of gemm_few.cu and gemm_q_sm90.cu (few_sums.cuh). */
#ifndef LT_KERNELS_CUDA_GEMM_FEW_ARGS_H
#define LT_KERNELS_CUDA_GEMM_FEW_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const void *bias;
    LT_ELEM(OUT) * y;
    long long ldy;
    int m, n, k, bias_type, accumulate; /* bias_type: 0 none, 1 f32, 2 bf16, 3 fp16 */
    LT_ELEM(elem) * act;                /* GATED */
    long long ld_act;
} lt_gemm_few_args;

/* gemm_q_sm90.cu. Stages of its rings; x: at least 2, since the next 64 columns are awaited before
 * the last are released. GROUPED: start (experts + 1) says which rows are whose, and an expert's
 * matrix has `slabs` slabs of 16 columns. */
typedef struct {
    int w_stages, x_stages, experts, slabs;
    const int *start;
} lt_gemm_q_plan;

/* Dynamic shared memory in bytes. Sums of a block: octets of 8 rows times 64 columns, up to 4 of
 * its own at a time, or what each of `splits` blocks adds. gemm_few.cu: stages of 128 of K;
 * alignment, barriers of up to 32 stages and of groups. gemm_q_sm90.cu: stages of W's tiles and of
 * 64 columns of x, each with barriers. */
#define LT_FEW_MOST_STAGES 32
#define LT_FEW_EACH(octets, splits)                                                                \
    ((splits) == 1 ? ((octets) < 4 ? (octets) : 4) : ((octets) + (splits)-1) / (splits))
#define LT_FEW_SUMS_BYTES(groups, splits, octets)                                                  \
    ((groups) * (splits)*LT_FEW_EACH(octets, splits) * 2048)
#define LT_FEW_STAGE_BYTES(groups, rows) (2 * (64 * (groups) + (rows)) * 128)
#define LT_FEW_FIXED_BYTES(groups, splits, octets)                                                 \
    (1024 + LT_FEW_SUMS_BYTES(groups, splits, octets) + 16 * LT_FEW_MOST_STAGES + 64)
#define LT_GEMM_Q_W_BYTES(tile_bytes, groups) ((tile_bytes)*4 * (groups))
#define LT_GEMM_Q_X_BYTES(rows)               ((rows)*128)
#define LT_GEMM_Q_FIXED_BYTES(groups, splits, octets)                                              \
    (1024 + LT_FEW_SUMS_BYTES(groups, splits, octets) + 2 * 16 * LT_FEW_MOST_STAGES + 64)

static_assert(sizeof(lt_gemm_few_args) == 64, "the same on host and device");
static_assert(sizeof(lt_gemm_q_plan) == 24, "the same on host and device");

#endif

/* gemm_q_args.h: arguments of gemm_q.cu. */
#ifndef LT_KERNELS_CUDA_GEMM_GEMM_Q_ARGS_H
#define LT_KERNELS_CUDA_GEMM_GEMM_Q_ARGS_H

#include "kernels/cuda/common/args.h"

typedef struct {
    const LT_ELEM(elem) * x;
    const unsigned char *w;
    const void *bias;
    LT_ELEM(OUT) * y;
    long long ldx, ldy;
    int m, n, k, bias_type, accumulate; /* bias_type: 0 none, 1 f32, 2 bf16, 3 fp16 */
} lt_gemm_q_args;

/* product.w: the first expert's; next_expert: bytes to the next one's; start (experts + 1). m is
 * the number of rows of all experts. */
typedef struct {
    lt_gemm_q_args product;
    const int *start;
    long long next_expert;
    int experts;
} lt_gemm_q_grouped_args;

typedef struct {
    LT_ELEM(elem) * wide;
    const unsigned char *w;
    long long rows;
    int k, tiles;
} lt_cuda_widen_q_args;

typedef struct {
    LT_ELEM(elem) * y;
    const unsigned char *w;
    const int *ids;
    const LT_ELEM(elem) * pos_table;
    const int *positions, *late;
    long long rows;
    int k, tiles;
    float scale;
    long long ldy, ld_pos;
} lt_cuda_embed_q_args;

static_assert(sizeof(lt_gemm_q_args) == 72, "the same on host and device");
static_assert(sizeof(lt_gemm_q_grouped_args) == 96, "the same on host and device");
static_assert(sizeof(lt_cuda_widen_q_args) == 32, "the same on host and device");
static_assert(sizeof(lt_cuda_embed_q_args) == 88, "the same on host and device");

#endif
